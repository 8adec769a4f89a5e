//! Runs through the tools: delegate, look, end; who may; what a caller that leaves does (nothing).

use crate::mcp::{call, call_as, is_refused, meta};
use crate::support::{House, command, request};
use axum::body::Body;
use axum::http::Request;
use lazaret_api::public::Scope;
use serde_json::{Value, json};
use tower::ServiceExt;

/// A call of a tool in the stateless revision, for those who read the answer themselves.
pub fn tool_request(house: &House, message: &Value) -> Request<Body> {
    request("POST", "/mcp")
        .header("authorization", format!("Bearer {}", house.admin))
        .header("accept", "application/json, text/event-stream")
        .header("content-type", "application/json")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tools/call")
        .header("mcp-name", message["params"]["name"].as_str().unwrap())
        .body(Body::from(message.to_string()))
        .unwrap()
}

#[tokio::test]
async fn a_task_is_delegated_watched_and_torn_down_in_both_families() {
    for revision in ["2025-11-25", "2026-07-28"] {
        let house = House::new().await;
        let tool = |name, arguments| call_as(&house, revision, name, arguments, &house.admin);
        let task = json!({ "repo": "acme/demo", "command": ["make", "test"], "wait_s": 45 });
        let delegated = tool("delegate", task).await["structuredContent"].clone();
        assert_eq!(
            (&delegated["state"], &delegated["result"]["outcome"]),
            (&json!("done"), &json!("succeeded"))
        );
        let run = json!({ "run": delegated["run"] });
        assert!(
            delegated["result"]["branch"]
                .as_str()
                .unwrap()
                .starts_with("lazaret/")
        );

        let status = tool("status", run.clone()).await["structuredContent"].clone();
        let over_http = house
            .get(&format!("/api/v1/runs/{}", run["run"].as_str().unwrap()))
            .await
            .json();
        assert_eq!(status, over_http);
        let watched = tool("watch", run.clone()).await;
        assert_eq!(watched["structuredContent"]["complete"], true);
        assert!(
            watched["content"][0]["text"]
                .as_str()
                .unwrap()
                .contains("hello")
        );
        let diff = tool("diff", run.clone()).await;
        assert!(
            diff["structuredContent"]["diff"]
                .as_str()
                .unwrap()
                .starts_with("diff --git")
        );
        let listed = tool("list_runs", json!({ "limit": 1 })).await;
        assert_eq!(listed["structuredContent"]["runs"][0]["run"], run["run"]);

        for _ in 0..2 {
            let gone = tool("teardown", run.clone()).await["structuredContent"].clone();
            assert_eq!(
                (&gone["removed"], &gone["outcome"]),
                (&json!(true), &json!("succeeded"))
            );
        }
        assert!(house.host.ids().is_empty());
    }
}

#[tokio::test]
async fn files_are_listed_and_read() {
    let house = House::new().await;
    let run = house.finished("").await.run;
    house
        .send(
            "PUT",
            &format!("/api/v1/runs/{run}/files/notes.txt"),
            "a note\n",
        )
        .await;
    let listed = call(&house, "list_files", json!({ "run": run })).await;
    assert_eq!(
        listed["structuredContent"]["entries"][0]["name"],
        "notes.txt"
    );
    let read = call(
        &house,
        "read_file",
        json!({ "run": run, "path": "notes.txt" }),
    )
    .await;
    assert_eq!(read["structuredContent"]["content"], "a note\n");
    let text = read["content"][0]["text"].as_str().unwrap();
    assert!(
        text.contains("not instructions") && text.ends_with("a note\n"),
        "{text}"
    );
    assert!(is_refused(
        &call(&house, "read_file", json!({ "run": run, "path": "../x" })).await,
        "invalid_path"
    ));
    assert!(is_refused(
        &call(&house, "read_file", json!({ "run": run, "path": "none" })).await,
        "file_not_found"
    ));
}

#[tokio::test]
async fn a_tool_asks_for_its_scope_and_refuses_unknown_fields() {
    let house = House::new().await;
    let read = house.token(Scope::Read).await;
    let run = house.finished("").await.run;
    for tool in ["delegate", "cancel", "teardown"] {
        let arguments = if tool == "delegate" {
            json!({ "command": ["true"] })
        } else {
            json!({ "run": run })
        };
        let result = call_as(&house, "2026-07-28", tool, arguments, &read).await;
        assert!(is_refused(&result, "scope_too_narrow"), "{tool}: {result}");
    }
    assert_eq!(
        call_as(&house, "2026-07-28", "status", json!({ "run": run }), &read).await["isError"],
        false
    );
    for tool in [
        "delegate",
        "status",
        "watch",
        "diff",
        "list_files",
        "list_runs",
        "cancel",
        "teardown",
    ] {
        let result = call(&house, tool, json!({ "run": run, "shell": true })).await;
        assert!(is_refused(&result, "unknown_field"), "{tool}: {result}");
    }
    for wait in [json!(46), json!(-1), json!("10"), json!(1.5)] {
        let result = call(
            &house,
            "delegate",
            json!({ "command": ["true"], "wait_s": wait }),
        )
        .await;
        assert!(is_refused(&result, "invalid_duration"), "{wait}: {result}");
    }
    assert_eq!(house.host.effects().created.len(), 1);
}

#[tokio::test]
async fn a_long_run_answers_with_its_handle_and_is_asked_for_again() {
    let house = House::new().await;
    house.hold_commands();
    let started = call(
        &house,
        "delegate",
        json!({ "command": ["sleep"], "wait_s": 0 }),
    )
    .await;
    assert_ne!(started["structuredContent"]["state"], "done");
    assert!(started["structuredContent"].get("result").is_none());
    let run = started["structuredContent"]["run"].clone();
    house.release("over\n").await;
    let ended = call(&house, "status", json!({ "run": run, "wait_s": 45 })).await;
    assert_eq!(ended["structuredContent"]["outcome"], "succeeded");
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_nothing() {
    let house = House::new().await;
    house.hold_commands();
    let arguments = json!({ "command": ["make"], "wait_s": 45, "idempotency_key": "k" });
    let params = json!({ "name": "delegate", "arguments": arguments, "_meta": meta() });
    let message = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params });
    let request = tool_request(&house, &message);
    let leaving = tokio::spawn(house.router.clone().oneshot(request));
    house.host.until_started("turn-1").await;
    leaving.abort();
    drop(leaving.await);
    // The same request again finds the same run, still going.
    let again = call(
        &house,
        "delegate",
        json!({ "command": ["make"], "wait_s": 0, "idempotency_key": "k" }),
    )
    .await;
    assert_ne!(again["structuredContent"]["state"], "done");
    house.release("done\n").await;
    let ended = call(
        &house,
        "status",
        json!({ "run": again["structuredContent"]["run"], "wait_s": 45 }),
    )
    .await;
    assert_eq!(ended["structuredContent"]["outcome"], "succeeded");
    assert_eq!(house.host.effects().created.len(), 1);
}

#[tokio::test]
async fn what_is_refused_over_http_is_refused_the_same_over_mcp() {
    let house = House::new().await;
    let run = house.finished("").await.run;
    house
        .send("DELETE", &format!("/api/v1/runs/{run}"), Body::empty())
        .await;
    let pairs = [
        (
            "cancel",
            "POST",
            format!("/api/v1/runs/{run}/cancel"),
            json!({ "run": run }),
        ),
        (
            "list_files",
            "GET",
            format!("/api/v1/runs/{run}/files"),
            json!({ "run": run }),
        ),
        (
            "status",
            "GET",
            "/api/v1/runs/r0000000000000000".to_owned(),
            json!({ "run": "r0000000000000000" }),
        ),
        (
            "watch",
            "GET",
            format!("/api/v1/runs/{run}/events?limit=0"),
            json!({ "run": run, "lines": 0 }),
        ),
    ];
    for (tool, method, path, arguments) in pairs {
        let over_http = house.send(method, &path, Body::empty()).await.json();
        let over_mcp = call(&house, tool, arguments).await["structuredContent"].clone();
        assert_eq!(over_http, over_mcp, "{tool}");
    }
    let _ = command();
}
