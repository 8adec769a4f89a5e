//! Files of a sandbox on their way out: bytes to keep, never a page to show.

use crate::support::House;
use lazaret_domain::DenialCode;

#[tokio::test]
async fn a_file_is_an_attachment_whatever_it_is_called() {
    let house = House::new().await;
    let run = house.finished("").await.run;
    let page = "<script>alert(document.domain)</script>";
    for name in [
        "x.html",
        "x.svg",
        "x.xhtml",
        "x",
        "x.html.txt",
        "report.pdf",
    ] {
        assert_eq!(
            house
                .send("PUT", &format!("/api/v1/runs/{run}/files/{name}"), page)
                .await
                .status,
            204
        );
        let answer = house
            .get(&format!("/api/v1/runs/{run}/artifacts/{name}"))
            .await;
        assert_eq!(
            (answer.status.as_u16(), answer.text().as_str()),
            (200, page)
        );
        let exact = [
            ("content-type", "application/octet-stream"),
            (
                "content-disposition",
                &format!("attachment; filename=\"{name}\"; filename*=UTF-8''{name}"),
            ),
            (
                "content-security-policy",
                "default-src 'none'; sandbox; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            ),
            ("x-content-type-options", "nosniff"),
            ("cache-control", "no-store"),
        ];
        for (header, value) in exact {
            assert_eq!(
                answer.headers.get_all(header).iter().collect::<Vec<_>>(),
                [value],
                "{name}: {header}"
            );
        }
    }
    let listed = house
        .get(&format!("/api/v1/runs/{run}/artifacts"))
        .await
        .json();
    assert_eq!(
        listed,
        house.get(&format!("/api/v1/runs/{run}/files")).await.json()
    );
    assert!(
        listed["entries"]
            .as_array()
            .unwrap()
            .iter()
            .any(|entry| entry["name"] == "x.svg")
    );
}

#[tokio::test]
async fn each_way_a_read_can_fail_has_its_own_status() {
    let house = House::new().await;
    let run = house.finished("").await.run;
    let artifact = |path: &str| format!("/api/v1/runs/{run}/artifacts/{path}");
    for path in [
        "%2e%2e/etc/passwd",
        "a/%2e%2e/b",
        "%2Fetc%2Fpasswd",
        "a%00b",
        "a//b",
        "a/./b",
        "a%0Ab",
    ] {
        assert_eq!(
            house.get(&artifact(path)).await.refusal(),
            (400, "invalid_path".to_owned()),
            "{path}"
        );
    }
    for path in ["/etc", "..", "a/../b"] {
        let answer = house
            .get(&format!("/api/v1/runs/{run}/files?path={path}"))
            .await;
        assert_eq!(answer.refusal(), (400, "invalid_path".to_owned()), "{path}");
    }
    assert_eq!(
        house.get(&artifact("missing")).await.refusal(),
        (404, "file_not_found".to_owned())
    );
    let large = vec![b'x'; 10_000_001];
    assert_eq!(
        house
            .send("PUT", &format!("/api/v1/runs/{run}/files/large"), large)
            .await
            .status,
        204
    );
    assert_eq!(
        house.get(&artifact("large")).await.refusal(),
        (413, "too_large".to_owned())
    );
    house.host.goes_down(DenialCode::GuestUnreachable);
    assert_eq!(
        house.get(&artifact("large")).await.refusal(),
        (502, "guest_unreachable".to_owned())
    );
}
