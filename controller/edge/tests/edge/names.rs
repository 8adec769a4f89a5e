//! Names out of form are refused at every door, with the same code, before a host hears of them.

use crate::mcp::{call, is_refused};
use crate::support::{House, NO_RUN};
use axum::body::Body;
use lazaret_edge::route_access;
use serde_json::{Value, json};

/// A text, and the same as it goes into a path.
fn hostile() -> Vec<(String, String)> {
    let long = "a".repeat(129);
    let texts = [
        "../../root",
        "..",
        ".",
        "a/b",
        "a b",
        "a\nb",
        long.as_str(),
        "%2e%2e",
        "日本",
        "a;b",
        "$(id)",
        "`id`",
        "a\0b",
        "-rf",
        "r000000000000000",
        "R0000000000000000",
        "s0000000000000000",
    ];
    let encode = |text: &str| {
        text.bytes()
            .map(|byte| format!("%{byte:02X}"))
            .collect::<String>()
    };
    texts
        .iter()
        .map(|text| ((*text).to_owned(), encode(text)))
        .collect()
}

#[tokio::test]
async fn an_id_out_of_form_is_400_on_every_route() {
    let house = House::new().await;
    let routes: Vec<_> = route_access()
        .into_iter()
        .filter(|route| route.path.contains("{run}"))
        .collect();
    assert!(routes.len() >= 11, "{routes:?}");
    for route in routes {
        for (text, encoded) in hostile() {
            let path = route
                .path
                .replace("{run}", &encoded)
                .replace("{name}", "a")
                .replace("{*path}", "a");
            let answer = house
                .send(route.method.as_deref().unwrap(), &path, Body::empty())
                .await;
            assert_eq!(
                answer.refusal(),
                (400, "invalid_id".to_owned()),
                "{:?} {path} ({text:?})",
                route.method
            );
        }
    }
    assert_eq!(house.host.effects(), Default::default());
}

#[tokio::test]
async fn an_id_out_of_form_is_an_error_of_every_tool() {
    let house = House::new().await;
    for tool in [
        "status",
        "watch",
        "diff",
        "list_files",
        "read_file",
        "cancel",
        "teardown",
    ] {
        let texts = hostile().into_iter().map(|(text, _)| Value::from(text));
        for id in texts.chain([json!(""), json!(7), Value::Null]) {
            let mut arguments = json!({ "run": id });
            if tool == "read_file" {
                arguments["path"] = json!("a");
            }
            let result = call(&house, tool, arguments).await;
            assert!(result["isError"] == true, "{tool} {id}: {result}");
            let wanted = if id.is_string() {
                "invalid_id"
            } else {
                "invalid_request"
            };
            assert_eq!(result["structuredContent"]["code"], wanted, "{tool} {id}");
        }
    }
    assert_eq!(house.host.effects(), Default::default());
}

/// What a caller may get wrong about a task, and the code for it.
fn bad_tasks() -> Vec<(Value, &'static str)> {
    vec![
        (
            json!({ "repo": "/etc", "command": ["true"] }),
            "invalid_repo",
        ),
        (
            json!({ "repo": "a/..", "command": ["true"] }),
            "invalid_repo",
        ),
        (
            json!({ "repo": "https://evil/x", "command": ["true"] }),
            "invalid_repo",
        ),
        (
            json!({ "repo": "-o/x", "command": ["true"] }),
            "invalid_repo",
        ),
        (
            json!({ "repo": "a/b", "ref": "--upload-pack=touch /tmp/x", "command": ["true"] }),
            "invalid_ref",
        ),
        (
            json!({ "source": "local", "repo": "a/b", "command": ["true"] }),
            "unknown_field",
        ),
        (json!({ "command": [] }), "invalid_command"),
        (json!({ "command": ["a\u{0}b"] }), "invalid_command"),
        (json!({ "command": "make test" }), "invalid_command"),
        (
            json!({ "command": ["true"], "memory": "a lot" }),
            "invalid_size",
        ),
        (
            json!({ "command": ["true"], "memory": "1000T" }),
            "invalid_size",
        ),
        (
            json!({ "command": ["true"], "max_duration": "0s" }),
            "invalid_duration",
        ),
        (json!({ "command": ["true"], "cpus": 0 }), "invalid_cpus"),
        (
            json!({ "command": ["true"], "agent": "gremlin" }),
            "unknown_agent",
        ),
        (
            json!({ "command": ["true"], "egress": "everything" }),
            "invalid_egress",
        ),
        (
            json!({ "command": ["true"], "egress": ["*"] }),
            "invalid_egress",
        ),
        (json!({}), "nothing_to_do"),
    ]
}

#[tokio::test]
async fn a_bad_task_gets_the_same_code_over_http_and_mcp() {
    let house = House::new().await;
    for (task, code) in bad_tasks() {
        assert_eq!(
            house.post("/api/v1/runs", &task).await.refusal(),
            (400, code.to_owned()),
            "{task}"
        );
        let result = call(&house, "delegate", task.clone()).await;
        assert!(is_refused(&result, code), "{task}: {result}");
    }
    assert_eq!(house.host.effects(), Default::default());
    assert_eq!(house.get("/api/v1/runs").await.json()["runs"], json!([]));
}

#[tokio::test]
async fn lines_is_a_whole_number_from_1_to_5000() {
    let house = House::new().await;
    let run = house.finished("one\ntwo\n").await.run;
    for lines in [
        "0",
        "-1",
        "1.5",
        "x",
        "5001",
        "",
        "99999999999999999999",
        "1&lines=2",
    ] {
        let answer = house
            .get(&format!("/api/v1/runs/{run}/log?lines={lines}"))
            .await;
        assert_eq!(
            answer.refusal(),
            (400, "invalid_request".to_owned()),
            "{lines}"
        );
    }
    assert_eq!(
        house
            .get(&format!("/api/v1/runs/{run}/log?lines=5000"))
            .await
            .status,
        200
    );
    assert_eq!(
        house
            .get(&format!("/api/v1/runs/{run}/log?lines=1"))
            .await
            .text(),
        "two\n"
    );
}

#[tokio::test]
async fn idempotency_keys_find_the_first_run_and_bad_ones_are_refused() {
    let house = House::new().await;
    let asked = |key: String, body: Value| {
        let request = house
            .request("POST", "/api/v1/runs")
            .header("content-type", "application/json");
        house.raw(
            request
                .header("idempotency-key", key)
                .body(Body::from(body.to_string()))
                .unwrap(),
        )
    };
    let task = json!({ "command": ["true"] });
    let first = asked("acme/demo#12@0123".into(), task.clone()).await;
    let second = asked("acme/demo#12@0123".into(), task.clone()).await;
    assert_eq!(
        (first.status, second.status),
        (201.try_into().unwrap(), 201.try_into().unwrap())
    );
    assert_eq!(first.json()["run"], second.json()["run"]);
    let over_mcp = call(
        &house,
        "delegate",
        json!({ "command": ["true"], "idempotency_key": "acme/demo#12@0123" }),
    )
    .await;
    assert_eq!(over_mcp["structuredContent"]["run"], first.json()["run"]);
    let other = asked("acme/demo#12@0123".into(), json!({ "command": ["false"] })).await;
    assert_eq!(other.refusal(), (409, "idempotency_mismatch".to_owned()));
    for key in ["", "a b", &"x".repeat(201)] {
        assert_eq!(
            asked(key.to_owned(), task.clone()).await.refusal().1,
            "invalid_idempotency_key",
            "{key:?}"
        );
    }
    let run = first.json()["run"].as_str().unwrap().to_owned();
    house.done(&run.parse().unwrap()).await;
    assert_eq!(house.host.effects().created.len(), 1);
    // Mutations that are idempotent by themselves take the header too.
    let request = house
        .request("DELETE", &format!("/api/v1/runs/{run}"))
        .header("idempotency-key", "again");
    assert_eq!(
        house.raw(request.body(Body::empty()).unwrap()).await.status,
        200
    );
    let request = house
        .request("DELETE", &format!("/api/v1/runs/{NO_RUN}"))
        .header("idempotency-key", "a b");
    assert_eq!(
        house
            .raw(request.body(Body::empty()).unwrap())
            .await
            .refusal()
            .1,
        "invalid_idempotency_key"
    );
}
