//! Every route, every status: who may call it, and what every answer carries.

use crate::support::{Answer, House, NO_RUN, answer, request, services, settings, token};
use axum::body::Body;
use lazaret_api::public::Scope;
use lazaret_edge::{Access, RouteAccess, route_access};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use tokio_util::sync::CancellationToken;

const DATA_POLICY: &str =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The documented routes that need no key.
const PUBLIC_ROUTES: &[&str] = &["/healthz"];

/// Asserts what every answer carries, and that it is never a page.
fn assert_hardened(answer: &Answer, what: &str) {
    let wanted = [
        ("content-security-policy", DATA_POLICY),
        (
            "strict-transport-security",
            "max-age=31536000; includeSubDomains",
        ),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cache-control", "no-store"),
    ];
    for (name, value) in wanted {
        let values: Vec<_> = answer.headers.get_all(name).iter().collect();
        assert_eq!(values, [value], "{what}: {name}");
    }
    assert!(
        answer.headers["permissions-policy"]
            .to_str()
            .unwrap()
            .contains("camera=()"),
        "{what}"
    );
    assert!(
        !answer
            .headers
            .keys()
            .any(|name| name.as_str().starts_with("access-control-")),
        "{what}: CORS"
    );
    let kind = answer
        .headers
        .get("content-type")
        .map_or("", |value| value.to_str().unwrap());
    assert!(!kind.contains("html"), "{what}: {kind}");
    if answer.status.is_client_error() || answer.status.is_server_error() {
        assert!(
            kind == "application/problem+json" || kind == "application/json",
            "{what}: {} {kind}",
            answer.status
        );
        answer.json();
    }
}

fn path_of(route: &RouteAccess) -> String {
    let path = route
        .path
        .replace("{run}", NO_RUN)
        .replace("{id}", "k0000000000000000");
    path.replace("{name}", "a").replace("{*path}", "a/b")
}

fn method_of(route: &RouteAccess) -> &str {
    route.method.as_deref().unwrap_or("POST")
}

#[tokio::test]
async fn every_route_but_the_documented_ones_demands_a_key() {
    let house =
        House::with(|settings| settings.trusted_proxies = vec!["192.0.2.1/32".parse().unwrap()])
            .await;
    let public: Vec<_> = route_access()
        .into_iter()
        .filter(|route| route.access == Access::Public)
        .collect();
    assert_eq!(
        public
            .iter()
            .map(|route| route.path.as_str())
            .collect::<Vec<_>>(),
        PUBLIC_ROUTES
    );

    for (client, route) in route_access().into_iter().enumerate() {
        let (method, path) = (method_of(&route), path_of(&route));
        let separator = if path.contains('?') { '&' } else { '?' };
        let in_url = format!(
            "{path}{separator}token={}&access_token={}",
            house.admin, house.admin
        );
        for path in [path.clone(), in_url] {
            // Each from a client of its own, so that the throttle has nothing to say.
            let request =
                request(method, &path).header("x-forwarded-for", format!("10.1.0.{client}"));
            let answer = house.raw(request.body(Body::empty()).unwrap()).await;
            if route.access == Access::Public {
                assert_eq!(answer.status, 200, "{method} {path}");
            } else {
                assert_eq!(
                    answer.refusal(),
                    (401, "unauthenticated".to_owned()),
                    "{method} {path}"
                );
                assert_eq!(answer.headers["www-authenticate"], "Bearer");
            }
            assert_hardened(&answer, &format!("{method} {path}"));
        }
    }
}

#[tokio::test]
async fn a_scope_opens_its_routes_and_no_others() {
    let house = House::new().await;
    let scopes = [Scope::Read, Scope::Run, Scope::Operate, Scope::Admin];
    let mut tokens = BTreeMap::new();
    for scope in scopes {
        tokens.insert(scope, house.token(scope).await);
    }
    for route in route_access() {
        let Access::Scope(needed) = route.access else {
            continue;
        };
        for (scope, token) in &tokens {
            let (method, path) = (method_of(&route), path_of(&route));
            let request = request(method, &path).header("authorization", format!("Bearer {token}"));
            let answer = house.raw(request.body(Body::empty()).unwrap()).await;
            if *scope < needed {
                assert_eq!(
                    answer.refusal(),
                    (403, "scope_too_narrow".to_owned()),
                    "{scope:?} {method} {path}"
                );
            } else {
                assert!(
                    ![401, 403].contains(&answer.status.as_u16()),
                    "{scope:?} {method} {path}: {}",
                    answer.status
                );
            }
            assert_hardened(&answer, &format!("{scope:?} {method} {path}"));
        }
    }
}

#[tokio::test]
async fn a_method_a_route_lacks_is_405_with_allow_but_401_without_a_key() {
    let house = House::new().await;
    let mut methods = BTreeMap::<String, BTreeSet<String>>::new();
    for route in route_access() {
        methods
            .entry(path_of(&route))
            .or_default()
            .insert(method_of(&route).to_owned());
    }
    for (path, known) in methods {
        for method in ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE"] {
            let through_get = path == "/mcp";
            if known.contains(method) {
                continue;
            }
            let answer = house.send(method, &path, Body::empty()).await;
            assert_eq!(answer.status, 405, "{method} {path}");
            assert_hardened(&answer, &format!("{method} {path}"));
            let allow = answer.headers["allow"].to_str().unwrap().to_owned();
            assert!(
                known.iter().all(|name| allow.contains(name.as_str())),
                "{path}: Allow: {allow}"
            );
            if !through_get {
                assert_eq!(answer.refusal().1, "method_not_allowed");
            }
        }
    }
    for path in ["/mcp", "/api/v1/runs"] {
        for method in ["GET", "DELETE", "OPTIONS", "HEAD"] {
            let answer = house
                .raw(request(method, path).body(Body::empty()).unwrap())
                .await;
            assert_eq!(
                (answer.status.as_u16(), &answer.headers["www-authenticate"]),
                (401, &"Bearer".parse().unwrap())
            );
        }
    }
}

#[tokio::test]
async fn what_is_not_there_is_a_clean_404_for_everybody() {
    let house = House::new().await;
    let probes = [
        ("GET", "/.well-known/oauth-protected-resource"),
        ("GET", "/.well-known/oauth-protected-resource/mcp"),
        ("GET", "/.well-known/oauth-authorization-server"),
        ("GET", "/.well-known/openid-configuration"),
        ("POST", "/register"),
        ("GET", "/authorize"),
        ("GET", "/"),
        ("GET", "/index.html"),
        ("GET", "/api/v1/nothing"),
        ("GET", "/api/v1/runs/"),
        ("GET", "/mcp/"),
        ("OPTIONS", "/api/v2"),
    ];
    for (method, path) in probes {
        let bare = house
            .raw(request(method, path).body(Body::empty()).unwrap())
            .await;
        let with_key = house.send(method, path, Body::empty()).await;
        for answer in [bare, with_key] {
            assert_eq!(
                answer.refusal(),
                (404, "no_such_route".to_owned()),
                "{method} {path}"
            );
            assert!(
                !answer.headers.contains_key("location")
                    && !answer.headers.contains_key("www-authenticate")
            );
            assert_hardened(&answer, path);
        }
    }
}

#[tokio::test]
async fn answers_of_every_status_are_hardened() {
    let house = House::with(|settings| settings.json_body = 100).await;
    let run = house.finished("hello\n").await.run;
    let long = json!({ "task": "x".repeat(200) });
    let answers = [
        (200, house.get("/api/v1/runs").await),
        (200, house.get(&format!("/api/v1/runs/{run}/log")).await),
        (200, house.get("/metrics").await),
        (200, house.get("/api/v1/openapi.json").await),
        (
            201,
            house
                .post("/api/v1/runs", &json!({ "command": ["true"] }))
                .await,
        ),
        (
            400,
            house
                .post("/api/v1/runs", &json!({ "nonsense": true }))
                .await,
        ),
        (400, house.get("/api/v1/runs?nonsense=1").await),
        (404, house.get(&format!("/api/v1/runs/{NO_RUN}")).await),
        (
            409,
            house
                .send("POST", &format!("/api/v1/runs/{run}/cancel"), Body::empty())
                .await,
        ),
        (413, house.post("/api/v1/runs", &long).await),
        (415, house.send("POST", "/api/v1/runs", "{}").await),
    ];
    for (status, answer) in answers {
        assert_eq!(answer.status.as_u16(), status, "{}", answer.text());
        assert_hardened(&answer, &status.to_string());
    }
}

#[tokio::test]
async fn a_panic_is_told_like_any_other_fault() {
    let (services, _host, _directory) = services().await;
    let token = token(&services, Scope::Admin).await;
    let settings = settings(&CancellationToken::new());
    let broken = || -> lazaret_edge::mcp::Tools { panic!("a secret of the code") };
    let router = lazaret_edge::router_with_mcp(services, settings, broken);
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string();
    let request = request("POST", "/mcp")
        .header("authorization", format!("Bearer {token}"))
        .header("accept", "application/json, text/event-stream")
        .header("content-type", "application/json");
    let answer = answer(&router, request.body(Body::from(message)).unwrap()).await;
    assert_eq!(answer.refusal(), (500, "internal".to_owned()));
    assert!(!answer.text().contains("secret"));
    assert_hardened(&answer, "panic");
}

#[tokio::test]
async fn a_client_that_asks_too_often_is_told_to_wait() {
    let house = House::with(|settings| {
        settings.requests_per_second = 1;
        settings.request_burst = 3;
    })
    .await;
    for _ in 0..3 {
        assert_eq!(
            house
                .raw(request("GET", "/healthz").body(Body::empty()).unwrap())
                .await
                .status,
            200
        );
    }
    let answer = house.get("/healthz").await;
    assert_eq!(answer.refusal(), (429, "rate_limited".to_owned()));
    assert!(
        answer.headers["retry-after"]
            .to_str()
            .unwrap()
            .parse::<u32>()
            .unwrap()
            >= 1
    );
    assert_hardened(&answer, "429");
}
