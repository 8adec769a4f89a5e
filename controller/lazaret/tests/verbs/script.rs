//! A controller that answers from a script and remembers what it was asked.

use crate::said::{Buffer, Said};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use lazaret::client::Client;
use lazaret::client::file::Endpoint;
use lazaret::output::Output;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

pub(crate) const RUN: &str = "r0000000000000001";

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) line: String,
    pub(crate) bearer: String,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) last_event_id: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

#[derive(Default)]
struct Script {
    asked: Vec<Asked>,
    refusal: Option<(u16, String)>,
    redirect: bool,
    failing: bool,
    break_after: Option<u64>,
    away: VecDeque<(u16, Option<u32>)>,
}

/// The controller. It ends with the test's runtime.
pub(crate) struct Controller {
    script: Arc<Mutex<Script>>,
    url: String,
}

impl Controller {
    pub(crate) async fn start() -> Self {
        let script = Arc::<Mutex<Script>>::default();
        let router = Router::new().fallback(answer).with_state(script.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { script, url }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.script.lock().unwrap().asked.clone()
    }

    pub(crate) fn refuse(&self, status: u16, code: &str) {
        self.script.lock().unwrap().refusal = Some((status, code.to_owned()));
    }

    /// The next requests for events, or for the run, are answered as a proxy does before which nobody
    /// is: with a status and `Retry-After`.
    pub(crate) fn away(&self, answers: &[(u16, Option<u32>)]) {
        self.script.lock().unwrap().away = answers.iter().copied().collect();
    }

    pub(crate) fn redirect(&self) {
        self.script.lock().unwrap().redirect = true;
    }

    pub(crate) fn fail_run(&self) {
        self.script.lock().unwrap().failing = true;
    }

    pub(crate) fn break_stream_after(&self, events: u64) {
        self.script.lock().unwrap().break_after = Some(events);
    }

    /// What the MCP bridge writes for these lines, by the id of the answer.
    pub(crate) async fn bridges(&self, lines: &[&str]) -> Vec<Value> {
        let input = lines.join("\n");
        let (output, mut read) = tokio::io::duplex(1 << 20);
        let exit = lazaret::verbs::mcp::bridge(&client(&self.url), input.as_bytes(), output)
            .await
            .unwrap();
        assert_eq!(exit.code(), 0);
        let mut text = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut read, &mut text)
            .await
            .unwrap();
        let mut all: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        // Answers come as they are ready; their order is not promised.
        all.sort_by_key(|answer| answer["id"].as_i64());
        all
    }

    pub(crate) async fn says(&self, words: &[&str]) -> Said {
        Said::of(words, &self.url).await
    }

    /// The same with `| head`: after so many writes nobody reads standard output any more.
    pub(crate) async fn says_to_head(&self, words: &[&str], writes: usize) -> Said {
        Said::through(words, &self.url, Buffer::of(writes)).await
    }

    /// The run, however long it takes.
    pub(crate) async fn looks_patiently(&self) -> Value {
        let run = client(&self.url).run_patiently(&RUN.parse().unwrap()).await;
        serde_json::to_value(run.ok().unwrap()).unwrap()
    }

    /// Delegates, and hears Ctrl-C while it waits.
    pub(crate) async fn is_interrupted(&self) -> Said {
        let (out, err) = (Buffer::default(), Buffer::default());
        let mut output = Output::to(Box::new(out.clone()), Box::new(err.clone()), true);
        let client = client(&self.url);
        let run = client.run(&RUN.parse().unwrap()).await.ok().unwrap();
        let interrupt = std::future::ready(());
        let waited = lazaret::verbs::delegate::wait(&run, &client, &mut output, interrupt).await;
        Said {
            exit: waited.ok().unwrap().code(),
            out: out.text(),
            err: err.text(),
        }
    }
}

pub(crate) fn client(url: &str) -> Client {
    Client::new(&Endpoint {
        url: url.to_owned(),
        token: "lzr_test".into(),
    })
    .ok()
    .unwrap()
}

/// A run that is over.
pub(crate) fn run_json(outcome: &str) -> Value {
    let code = if outcome == "succeeded" { 0 } else { 2 };
    json!({
        "run": RUN, "state": "done", "outcome": outcome,
        "cause": { "code": "exit", "message": format!("the command exited with {code}") },
        "exit_code": code, "repo": "acme/demo", "ref": "main",
        "base": "0123456789abcdef0123456789abcdef01234567", "branch": format!("lazaret/{RUN}"),
        "agent": "command", "command": ["make", "test"], "egress": "sealed",
        "sandbox": {
            "id": "s0000000000000001", "host": "local", "state": "ready", "reach": "reachable", "accel": "tcg",
            "boot_id": "b1", "kernel": "6.1.0", "deadline": "2026-01-02T04:04:05Z"
        },
        "created_at": "2026-01-02T03:04:05Z", "ended_at": "2026-01-02T03:04:15Z",
        "stages": {
            "dispatch_ms": 4, "boot": { "shim_ms": 40, "vmm_ms": 120, "kernel_ms": 3100, "agent_ms": 3900, "forked": false, "tries": 1 },
            "clone_ms": 900, "command_ms": 1200, "total_ms": 10250
        }
    })
}

fn events(failing: bool) -> Vec<Value> {
    let log = |seq: u64, stream: &str, text: &str| json!({ "seq": seq, "at": "2026-01-02T03:04:05Z", "type": "log", "stream": stream, "text": text });
    let (outcome, code) = if failing {
        ("failed", 2)
    } else {
        ("succeeded", 0)
    };
    vec![
        json!({ "seq": 1, "at": "2026-01-02T03:04:05Z", "type": "state", "state": "starting", "detail": "a sandbox is being made" }),
        log(2, "stdout", "line 1\nli"),
        log(3, "stdout", "ne 2\n"),
        json!({ "seq": 4, "at": "2026-01-02T03:04:05Z", "type": "egress", "record": {
            "seq": 1, "at": "2026-01-02T03:04:05Z", "kind": "dns", "destination": "evil.example", "allowed": false,
            "reason": "the sandbox is sealed", "count": 1 } }),
        log(5, "stderr", "warning\n"),
        log(6, "stdout", "line 3\n"),
        json!({ "seq": 7, "at": "2026-01-02T03:04:05Z", "type": "end", "outcome": outcome, "exit_code": code,
            "cause": { "code": "exit", "message": format!("the command exited with {code}") } }),
    ]
}

async fn answer(
    State(script): State<Arc<Mutex<Script>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let text = |name: &str| {
        headers
            .get(name)
            .map(|value| value.to_str().unwrap().to_owned())
    };
    let mut script = script.lock().unwrap();
    script.asked.push(Asked {
        line: format!("{method} {uri}"),
        bearer: text("authorization").unwrap_or_default(),
        idempotency_key: text("idempotency-key"),
        last_event_id: text("last-event-id"),
        body: body.to_vec(),
    });
    if script.redirect {
        return (
            StatusCode::TEMPORARY_REDIRECT,
            [(header::LOCATION, "/elsewhere")],
        )
            .into_response();
    }
    let looks = method == Method::GET && uri.path().starts_with(&format!("/api/v1/runs/{RUN}"));
    if let Some((status, after)) = looks.then(|| script.away.pop_front()).flatten() {
        let mut answer =
            (StatusCode::from_u16(status).unwrap(), "<html>away</html>").into_response();
        if let Some(seconds) = after {
            answer
                .headers_mut()
                .insert(header::RETRY_AFTER, seconds.into());
        }
        return answer;
    }
    if let Some((status, code)) = &script.refusal {
        let problem = json!({ "type": "about:blank", "title": "No", "status": status, "code": code, "detail": "no" });
        return (StatusCode::from_u16(*status).unwrap(), axum::Json(problem)).into_response();
    }
    if uri.path() == "/mcp" {
        return mcp(&headers, &body);
    }
    let outcome = if script.failing {
        "failed"
    } else {
        "succeeded"
    };
    let path = uri.path().strip_prefix("/api/v1/").unwrap();
    let rest = path
        .strip_prefix(&format!("runs/{RUN}"))
        .map(|rest| rest.trim_start_matches('/'));
    match (method.as_str(), path, rest) {
        ("POST", "runs", _) => {
            let mut run = run_json(outcome);
            for key in ["outcome", "cause", "exit_code", "ended_at"] {
                run.as_object_mut().unwrap().remove(key);
            }
            run["state"] = json!("queued");
            (StatusCode::CREATED, axum::Json(run)).into_response()
        }
        ("GET", "runs", _) => axum::Json(json!({ "runs": [run_json(outcome)], "next": RUN })).into_response(),
        ("GET", _, Some("")) | ("POST", _, Some("cancel")) => axum::Json(run_json(outcome)).into_response(),
        ("DELETE", _, Some("")) => {
            axum::Json(json!({ "run": RUN, "outcome": outcome, "removed": true })).into_response()
        }
        ("GET", _, Some("log")) => "line 2\nline 3\n".into_response(),
        ("GET", _, Some("events")) => event_stream(&script, &headers, uri.query().unwrap_or_default()),
        ("GET", _, Some("diff")) => {
            let diff = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n";
            axum::Json(json!({ "base": "0123456", "branch": format!("lazaret/{RUN}"), "diff": diff, "truncated": false })).into_response()
        }
        ("GET", _, Some("files")) => axum::Json(json!({ "path": "src", "truncated": true, "entries": [
            { "name": "lib.rs", "kind": "file", "size": 120, "mode": 0o644, "modified": 1_767_323_045 },
            { "name": "bin", "kind": "directory", "size": 4096, "mode": 0o755, "modified": 1_767_323_045 },
            { "name": "evil\u{1b}[2J\n", "kind": "symlink", "size": 1, "mode": 0o777, "modified": 1_767_323_045 } ] })).into_response(),
        ("GET", _, Some(file)) => {
            let file = file.strip_prefix("artifacts/").unwrap().replace("%20", " ");
            format!("bytes of {file}").into_response()
        }
        ("PUT", ..) => StatusCode::NO_CONTENT.into_response(),
        ("POST", _, Some("exec")) => {
            let request: Value = serde_json::from_slice(&body).unwrap();
            let code = i32::from(request["command"][0] == "false");
            axum::Json(json!({ "exit_code": code, "timed_out": false, "stdout": "out\n", "stderr": "err\n", "truncated": false })).into_response()
        }
        ("GET", "hosts", _) => axum::Json(json!({ "hosts": [host(), unreachable_host()] })).into_response(),
        ("POST", "hosts", _) | ("PATCH", ..) => axum::Json(host()).into_response(),
        ("POST", "keys", _) => (StatusCode::CREATED, axum::Json(json!({ "key": key(), "token": "lzr_shown-once" }))).into_response(),
        ("GET", "keys", _) => axum::Json(json!({ "keys": [key()] })).into_response(),
        ("DELETE", ..) => axum::Json(key()).into_response(),
        other => panic!("{other:?}"),
    }
}

fn event_stream(script: &Script, headers: &HeaderMap, query: &str) -> Response {
    let all = events(script.failing);
    if headers[header::ACCEPT] == "application/json" {
        let after: usize = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("after="))
            .unwrap()
            .parse()
            .unwrap();
        return axum::Json(json!({ "events": all[after..], "last": all.len(), "complete": true }))
            .into_response();
    }
    let after: usize = headers
        .get("last-event-id")
        .map_or(0, |id| id.to_str().unwrap().parse().unwrap());
    let most = script
        .break_after
        .map_or(all.len(), |most| usize::try_from(most).unwrap());
    let mut text = String::from(": hello\n\n");
    for event in all[after..].iter().take(most) {
        text.push_str(&format!(
            "id: {}\nevent: {}\ndata: {event}\n\n",
            event["seq"],
            event["type"].as_str().unwrap()
        ));
    }
    (
        [(header::CONTENT_TYPE, "text/event-stream")],
        Body::from(text),
    )
        .into_response()
}

/// Answers as an MCP server does: JSON, an event stream, nothing, or a refusal.
fn mcp(headers: &HeaderMap, body: &[u8]) -> Response {
    let message: Value = serde_json::from_slice(body).unwrap();
    let seen = |name: &str| {
        headers
            .get(name)
            .map(|value| value.to_str().unwrap().to_owned())
    };
    let answer = |result: Value| json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
    match message["method"].as_str().unwrap() {
        "initialize" => {
            axum::Json(answer(json!({ "protocolVersion": "2025-11-25" }))).into_response()
        }
        "tools/call" => {
            let echo = json!({ "version": seen("mcp-protocol-version"), "method": seen("mcp-method"), "name": seen("mcp-name") });
            let progress = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": { "progress": 1 } });
            let text = format!("data: {progress}\n\ndata: {}\n\n", answer(echo));
            ([(header::CONTENT_TYPE, "text/event-stream")], text).into_response()
        }
        "broken" => (
            [(header::CONTENT_TYPE, "text/event-stream")],
            ": nothing\n\n",
        )
            .into_response(),
        "refused" => {
            let problem = json!({ "type": "about:blank", "title": "No", "status": 429, "code": "rate_limited", "detail": "slower" });
            (StatusCode::TOO_MANY_REQUESTS, axum::Json(problem)).into_response()
        }
        _ => StatusCode::ACCEPTED.into_response(),
    }
}

fn host() -> Value {
    json!({
        "name": "local", "address": "lazaret@127.0.0.1:2222", "host_key": "SHA256:abc", "admission": "active",
        "reach": "reachable", "accel": "tcg", "vmm": "7.2.0", "image": "d1", "sandboxes": 1
    })
}

fn unreachable_host() -> Value {
    json!({
        "name": "far", "address": "lazaret@far.example:22", "host_key": "SHA256:def", "admission": "active",
        "reach": "unreachable", "since": "2026-01-02T03:04:05Z", "sandboxes": 0,
        "problem": { "code": "host_key_mismatch", "message": "the host presented another key than the pinned one" }
    })
}

fn key() -> Value {
    json!({ "id": "k0000000000000001", "name": "ci", "scope": "run", "created_at": "2026-01-02T03:04:05Z", "expires_at": "2026-02-02T03:04:05Z" })
}
