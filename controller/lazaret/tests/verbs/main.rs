//! Each client verb against a controller that answers from a script: what it prints for people and
//! as JSON, and its exit status.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

mod said;
mod script;
mod waiting;

use said::Said;
use script::{Controller, RUN, run_json};
use serde_json::json;

#[tokio::test]
async fn delegate_prints_the_id_alone_and_hints_beside_it() {
    let controller = Controller::start().await;
    let said = controller
        .says(&["delegate", "--repo", "acme/demo", "--", "make", "test"])
        .await;
    assert_eq!(said.exit, 0);
    insta::assert_snapshot!(said.text());
    let asked = controller.asked();
    assert_eq!(asked[0].line, "POST /api/v1/runs");
    assert_eq!(
        asked[0].json(),
        json!({ "repo": "acme/demo", "agent": "command", "command": ["make", "test"] })
    );
    assert_eq!(asked[0].bearer, "Bearer lzr_test");
}

#[tokio::test]
async fn delegate_sends_what_was_asked_for() {
    let controller = Controller::start().await;
    let words = [
        "delegate",
        "--repo",
        "acme/demo",
        "--ref",
        "main",
        "--egress",
        "example.com,*.example.org:8443",
        "--memory",
        "512M",
        "--cpus",
        "2",
        "--max-duration",
        "5m",
        "--idempotency-key",
        "k1",
        "--task",
        "a note",
        "--json",
        "--",
        "make",
    ];
    let said = controller.says(&words).await;
    assert_eq!(said.json()["run"], RUN);
    let asked = controller.asked();
    insta::assert_json_snapshot!(asked[0].json());
    assert_eq!(asked[0].idempotency_key.as_deref(), Some("k1"));
}

#[tokio::test]
async fn delegate_with_wait_shows_the_log_and_ends_as_the_command_did() {
    let controller = Controller::start().await;
    let said = controller
        .says(&["delegate", "--wait", "--", "make", "test"])
        .await;
    assert_eq!(said.exit, 0);
    insta::assert_snapshot!(said.text());

    controller.fail_run();
    let said = controller
        .says(&["delegate", "--wait", "--json", "--", "make", "test"])
        .await;
    assert_eq!(said.exit, 1);
    assert_eq!(said.json()["exit_code"], 2);
}

#[tokio::test]
async fn a_broken_event_stream_goes_on_where_it_broke() {
    let controller = Controller::start().await;
    controller.break_stream_after(3);
    let said = controller.says(&["logs", RUN, "-f"]).await;
    assert_eq!(
        (said.exit, said.out.as_str()),
        (0, "line 1\nline 2\nline 3\n")
    );
    let asked = controller.asked();
    let from: Vec<Option<&str>> = asked
        .iter()
        .map(|asked| asked.last_event_id.as_deref())
        .collect();
    assert_eq!(from, [None, Some("3"), Some("6")]);
}

#[tokio::test]
async fn logs_prints_the_tail_or_follows_from_it() {
    let controller = Controller::start().await;
    let said = controller.says(&["logs", RUN, "--lines", "2"]).await;
    assert_eq!((said.exit, said.out.as_str()), (0, "line 2\nline 3\n"));
    let said = controller.says(&["logs", RUN, "-f", "--lines", "1"]).await;
    assert_eq!((said.exit, said.out.as_str()), (0, "line 3\n"));
}

#[tokio::test]
async fn runs_are_listed_and_shown() {
    let controller = Controller::start().await;
    insta::assert_snapshot!(controller.says(&["ls", "--active"]).await.text());
    assert_eq!(
        controller.asked()[0].line,
        "GET /api/v1/runs?limit=50&active=true"
    );
    insta::assert_snapshot!(controller.says(&["status", RUN]).await.text());
    assert_eq!(
        controller.says(&["status", RUN, "--json"]).await.json(),
        run_json("succeeded")
    );
    insta::assert_json_snapshot!(controller.says(&["ls", "--json"]).await.json());
}

#[tokio::test]
async fn runs_are_cancelled_and_torn_down() {
    let controller = Controller::start().await;
    let said = controller.says(&["cancel", RUN, "--json"]).await;
    assert_eq!((said.exit, said.json()["run"].as_str()), (0, Some(RUN)));
    insta::assert_snapshot!(controller.says(&["teardown", RUN]).await.text());
    insta::assert_json_snapshot!(controller.says(&["teardown", RUN, "--json"]).await.json());
    let asked = controller.asked();
    assert_eq!(asked[0].line, format!("POST /api/v1/runs/{RUN}/cancel"));
    assert_eq!(asked[1].line, format!("DELETE /api/v1/runs/{RUN}"));
}

#[tokio::test]
async fn files_are_listed_fetched_and_uploaded() {
    let controller = Controller::start().await;
    insta::assert_snapshot!(controller.says(&["diff", RUN]).await.text());
    insta::assert_snapshot!(controller.says(&["files", RUN, "src"]).await.text());
    insta::assert_json_snapshot!(controller.says(&["files", RUN, "--json"]).await.json());
    let said = controller.says(&["get", RUN, "src/a b.txt"]).await;
    assert_eq!((said.exit, said.out.as_str()), (0, "bytes of src/a b.txt"));

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("notes.txt");
    let said = controller
        .says(&["get", RUN, "x", "-o", file.to_str().unwrap()])
        .await;
    assert_eq!((said.exit, said.out.as_str()), (0, ""));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "bytes of x");
    let said = controller.says(&["put", RUN, file.to_str().unwrap()]).await;
    assert_eq!((said.exit, said.out.as_str()), (0, "/uploads/notes.txt\n"));
    let put = controller.asked().pop().unwrap();
    assert_eq!(
        (put.line, put.body),
        (
            format!("PUT /api/v1/runs/{RUN}/files/notes.txt"),
            b"bytes of x".to_vec()
        )
    );
    let said = controller.says(&["put", RUN, "/nonexistent/x"]).await;
    assert_eq!(said.exit, 2);
}

#[tokio::test]
async fn exec_prints_what_the_command_said_and_fails_as_it_did() {
    let controller = Controller::start().await;
    let said = controller.says(&["exec", RUN, "--", "true"]).await;
    assert_eq!(
        (said.exit, said.out.as_str(), said.err.as_str()),
        (0, "out\n", "err\n")
    );
    let said = controller.says(&["exec", RUN, "--", "false"]).await;
    assert_eq!((said.exit, said.err.as_str()), (1, "err\nexit status 1\n"));
    let said = controller
        .says(&["exec", RUN, "--json", "--", "false"])
        .await;
    assert_eq!((said.exit, said.json()["exit_code"].as_i64()), (1, Some(1)));
}

#[tokio::test]
async fn hosts_are_listed_enrolled_and_retired() {
    let controller = Controller::start().await;
    insta::assert_snapshot!(controller.says(&["host", "ls"]).await.text());
    insta::assert_snapshot!(
        controller
            .says(&[
                "host",
                "enroll",
                "lazaret@h.example:22",
                "--host-key",
                "SHA256:abc"
            ])
            .await
            .text()
    );
    assert_eq!(controller.says(&["host", "drain", "local"]).await.exit, 0);
    assert_eq!(controller.says(&["host", "retire", "local"]).await.exit, 0);
    let asked = controller.asked();
    assert_eq!(
        asked[1].json(),
        json!({ "address": "lazaret@h.example:22", "host_key": "SHA256:abc" })
    );
    assert_eq!(
        (asked[2].line.as_str(), asked[2].json()),
        (
            "PATCH /api/v1/hosts/local",
            json!({ "admission": "drained" })
        )
    );
    assert_eq!(asked[3].json(), json!({ "admission": "retired" }));
}

#[tokio::test]
async fn keys_are_made_listed_and_revoked() {
    let controller = Controller::start().await;
    let said = controller
        .says(&[
            "key",
            "create",
            "--scope",
            "run",
            "--name",
            "ci",
            "--expires",
            "30d",
        ])
        .await;
    assert_eq!((said.exit, said.out.as_str()), (0, "lzr_shown-once\n"));
    assert!(!said.err.contains("lzr_"), "{}", said.err);
    assert_eq!(
        controller.asked()[0].json(),
        json!({ "scope": "run", "name": "ci", "expires": "30d" })
    );
    insta::assert_snapshot!(controller.says(&["key", "ls"]).await.text());
    assert_eq!(
        controller
            .says(&["key", "revoke", "k0000000000000001"])
            .await
            .exit,
        0
    );
}

#[tokio::test]
async fn refusals_print_their_code_and_have_their_exit_status() {
    let controller = Controller::start().await;
    for (status, code, exit) in [
        (401, "unauthenticated", 3),
        (403, "scope_too_narrow", 3),
        (404, "run_not_found", 4),
        (409, "run_over", 3),
        (429, "sandbox_cap", 3),
        (503, "host_unreachable", 3),
        (500, "internal", 1),
        (418, "a_code_of_a_later_version", 3),
    ] {
        controller.refuse(status, code);
        let said = controller.says(&["status", RUN]).await;
        assert_eq!((said.exit, said.out.as_str()), (exit, ""), "{code}");
        assert!(said.err.contains(code), "{}", said.err);
        let said = controller.says(&["status", RUN, "--json"]).await;
        assert_eq!(
            (said.exit, said.json()["error"]["code"].as_str()),
            (exit, Some(code))
        );
    }
}

#[tokio::test]
async fn a_controller_that_is_not_there_is_exit_5_and_named() {
    let said = Said::of(&["ls"], "http://127.0.0.1:1").await;
    assert_eq!(said.exit, 5);
    assert!(
        said.err.contains("http://127.0.0.1:1") && said.err.contains("lazaret up"),
        "{}",
        said.err
    );
    let said = Said::of(&["ls", "--json"], "http://127.0.0.1:1").await;
    assert_eq!(said.json()["error"]["code"], "unreachable");
}

#[tokio::test]
async fn a_redirect_is_not_followed_with_the_token() {
    let controller = Controller::start().await;
    controller.redirect();
    let said = controller.says(&["status", RUN]).await;
    assert_eq!(said.exit, 3);
    assert_eq!(controller.asked().len(), 1);
}

#[tokio::test]
async fn the_mcp_bridge_carries_messages_both_ways() {
    let controller = Controller::start().await;
    let answers = controller
        .bridges(&[
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            "",
            r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"ls"}}"#,
        ])
        .await;
    assert_eq!(answers[0]["method"], "notifications/progress");
    assert_eq!(answers[1]["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(
        answers[2]["result"],
        json!({ "version": "2025-11-25", "method": "tools/call", "name": "ls" })
    );
    assert_eq!(answers.len(), 3);
    assert!(
        controller
            .asked()
            .iter()
            .all(|asked| asked.bearer == "Bearer lzr_test")
    );
}

#[tokio::test]
async fn the_mcp_bridge_takes_version_and_name_from_the_message() {
    let controller = Controller::start().await;
    let call = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {
        "name": "größe", "_meta": { "io.modelcontextprotocol/protocolVersion": "2026-07-28" } } });
    let answers = controller.bridges(&[&call.to_string()]).await;
    assert_eq!(answers[1]["result"]["version"], "2026-07-28");
    assert_eq!(answers[1]["result"]["name"], "=?base64?Z3LDtsOfZQ==?=");
}

#[tokio::test]
async fn every_request_over_the_mcp_bridge_gets_an_answer() {
    let controller = Controller::start().await;
    let answers = controller
        .bridges(&[
            "nonsense",
            "[1]",
            r#"{"jsonrpc":"2.0","id":1,"method":"broken"}"#,
            r#"{"jsonrpc":"2.0","id":2,"method":"refused"}"#,
        ])
        .await;
    let codes: Vec<i64> = answers
        .iter()
        .map(|answer| answer["error"]["code"].as_i64().unwrap())
        .collect();
    assert_eq!(answers.len(), 4);
    assert!(
        codes.contains(&-32700) && codes.contains(&-32600),
        "{codes:?}"
    );
    assert_eq!(answers[3]["error"]["data"]["code"], "rate_limited");
    assert_eq!((answers[2]["id"].as_i64(), codes[2]), (Some(1), -32603));
}
