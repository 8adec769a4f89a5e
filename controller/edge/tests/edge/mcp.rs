//! `/mcp` as protocol: both families of revisions, and what is refused.

use crate::support::{Answer, House, request};
use axum::body::Body;
use serde_json::{Value, json};

/// Sends one message in the manner of a revision.
pub async fn send(house: &House, revision: &str, message: &Value, token: &str) -> Answer {
    let mut request = request("POST", "/mcp")
        .header("authorization", format!("Bearer {token}"))
        .header("accept", "application/json, text/event-stream")
        .header("content-type", "application/json")
        .header("mcp-protocol-version", revision);
    if revision >= "2026" {
        request = request.header("mcp-method", message["method"].as_str().unwrap());
        if let Some(name) = message["params"]["name"].as_str() {
            request = request.header("mcp-name", name);
        }
    }
    house
        .raw(request.body(Body::from(message.to_string())).unwrap())
        .await
}

/// The messages of an answer, in JSON or as a stream.
pub fn messages(answer: &Answer) -> Vec<Value> {
    if answer.headers["content-type"]
        .to_str()
        .unwrap()
        .starts_with("application/json")
    {
        return vec![answer.json()];
    }
    let text = answer.text();
    let data = text
        .lines()
        .filter_map(|line| line.strip_prefix("data:"))
        .map(str::trim)
        .filter(|data| !data.is_empty());
    data.map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

/// What the stateless revision wants with every request.
pub fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
    })
}

/// Calls a tool as the admin, in the stateless revision.
pub async fn call(house: &House, tool: &str, arguments: Value) -> Value {
    call_as(house, "2026-07-28", tool, arguments, &house.admin).await
}

pub async fn call_as(
    house: &House,
    revision: &str,
    tool: &str,
    arguments: Value,
    token: &str,
) -> Value {
    let mut params = json!({ "name": tool, "arguments": arguments });
    if revision >= "2026" {
        params["_meta"] = meta();
    }
    let message = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params });
    let answer = send(house, revision, &message, token).await;
    let last = messages(&answer)
        .pop()
        .unwrap_or_else(|| panic!("nothing: {}", answer.text()));
    assert_eq!(last["id"], 7, "{last}");
    last["result"].clone()
}

pub fn is_refused(result: &Value, code: &str) -> bool {
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    result["isError"] == true && result["structuredContent"]["code"] == code && text.contains(code)
}

#[tokio::test]
async fn the_2025_revisions_open_without_a_session() {
    let house = House::new().await;
    for revision in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let params = json!({ "protocolVersion": revision, "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
        let opening =
            json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
        let answer = send(&house, revision, &opening, &house.admin).await;
        assert!(!answer.headers.contains_key("mcp-session-id"));
        let result = &messages(&answer)[0]["result"];
        assert_eq!(
            (&result["protocolVersion"], &result["serverInfo"]["name"]),
            (&json!(revision), &json!("lazaret"))
        );
        let opened = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(
            send(&house, revision, &opened, &house.admin).await.status,
            202
        );
        let list = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" });
        let tools =
            messages(&send(&house, revision, &list, &house.admin).await)[0]["result"]["tools"]
                .clone();
        assert_eq!(tools.as_array().unwrap().len(), 10);
    }
}

#[tokio::test]
async fn the_2026_revision_is_discovered_and_listed() {
    let house = House::new().await;
    let ask = |method: &str| json!({ "jsonrpc": "2.0", "id": 3, "method": method, "params": { "_meta": meta() } });
    let found = messages(&send(&house, "2026-07-28", &ask("server/discover"), &house.admin).await)
        [0]["result"]
        .clone();
    assert!(
        found["supportedVersions"]
            .as_array()
            .unwrap()
            .contains(&json!("2026-07-28")),
        "{found}"
    );
    let list = ask("tools/list");
    let first =
        messages(&send(&house, "2026-07-28", &list, &house.admin).await)[0]["result"].clone();
    let again =
        messages(&send(&house, "2026-07-28", &list, &house.admin).await)[0]["result"].clone();
    assert_eq!(first, again);
    let names: Vec<_> = first["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    let wanted = [
        "cancel",
        "delegate",
        "diff",
        "fork",
        "list_files",
        "list_runs",
        "read_file",
        "status",
        "teardown",
        "watch",
    ];
    assert_eq!(names, wanted);
    assert!(first["ttlMs"].is_u64() && first["cacheScope"].is_string());
}

#[tokio::test]
async fn a_key_comes_before_everything_and_405_after_it() {
    let house = House::new().await;
    for method in ["GET", "DELETE", "OPTIONS", "POST"] {
        let bare = house
            .raw(request(method, "/mcp").body(Body::empty()).unwrap())
            .await;
        assert_eq!(
            bare.refusal(),
            (401, "unauthenticated".to_owned()),
            "{method}"
        );
        assert_eq!(bare.headers["www-authenticate"], "Bearer");
    }
    for method in ["GET", "DELETE", "PUT"] {
        let answer = house.send(method, "/mcp", Body::empty()).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.headers["allow"]),
            (405, &"POST".parse().unwrap()),
            "{method}"
        );
        assert_eq!(answer.json()["error"]["data"]["code"], "method_not_allowed");
    }
}

#[tokio::test]
async fn messages_out_of_form_are_told_in_json() {
    let house = House::with(|settings| settings.json_body = 10_000).await;
    let raw = |body: String| {
        let request = house
            .request("POST", "/mcp")
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json");
        house.raw(request.body(Body::from(body)).unwrap())
    };
    let large = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping", "params": { "x": "y".repeat(10_000) } });
    let answer = raw(large.to_string()).await;
    assert_eq!(
        (
            answer.status.as_u16(),
            &answer.json()["error"]["data"]["code"]
        ),
        (413, &json!("too_large"))
    );
    for body in [
        "{bad",
        "",
        "[]",
        "7",
        &format!("{}1{}", "[".repeat(3000), "]".repeat(3000)),
    ] {
        let answer = raw(body.to_owned()).await;
        assert!(
            answer.status.is_client_error() && answer.json()["error"]["code"].is_i64(),
            "{body}: {}",
            answer.text()
        );
    }
    let no_accept = house
        .request("POST", "/mcp")
        .header("content-type", "application/json");
    let answer = house.raw(no_accept.body(Body::from("{}")).unwrap()).await;
    assert_eq!(answer.status, 406);
    answer.json();

    let unknown =
        json!({ "jsonrpc": "2.0", "id": 5, "method": "no/such", "params": { "_meta": meta() } });
    let answer = send(&house, "2026-07-28", &unknown, &house.admin).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["error"]["code"]),
        (404, &json!(-32601))
    );
    let ask =
        json!({ "jsonrpc": "2.0", "id": 6, "method": "tools/list", "params": { "_meta": meta() } });
    let answer = send(&house, "2025-11-25", &ask, &house.admin).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["error"]["code"]),
        (400, &json!(-32020))
    );
}
