//! Seeing what a run does through the tools: notices of progress, pages of events.

use crate::mcp::{call, messages, meta, send};
use crate::mcp_runs::tool_request;
use crate::support::{House, LONG, command};
use futures::StreamExt;
use lazaret_api::frame::Frame;
use lazaret_api::public::EventBody;
use lazaret_services::Principal;
use serde_json::{Value, json};
use tower::ServiceExt;

#[tokio::test]
async fn progress_counts_lines_and_shows_none_of_them() {
    let house = House::new().await;
    house.hold_commands();
    let mut meta = meta();
    meta["progressToken"] = json!("p1");
    let params = json!({ "name": "delegate", "arguments": { "command": ["make"], "wait_s": 45 }, "_meta": meta });
    let message = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params });
    let (answer, ()) = tokio::join!(
        send(&house, "2026-07-28", &message, &house.admin),
        house.release("a secret\n")
    );
    let messages = messages(&answer);
    let notices: Vec<_> = messages
        .iter()
        .filter(|message| message["method"] == "notifications/progress")
        .collect();
    assert!(!notices.is_empty(), "{messages:?}");
    assert!(
        notices
            .iter()
            .all(|notice| notice["params"]["progressToken"] == "p1")
    );
    let numbers: Vec<_> = notices
        .iter()
        .map(|notice| notice["params"]["progress"].as_f64().unwrap())
        .collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    assert!(
        notices
            .iter()
            .all(|notice| !notice.to_string().contains("secret"))
    );
    assert_eq!(
        messages.last().unwrap()["result"]["structuredContent"]["state"],
        "done"
    );
}

#[tokio::test]
async fn progress_begins_where_the_run_is_and_not_where_it_began() {
    let house = House::new().await;
    house.hold_commands();
    let run = house.run(command()).await.run;
    let sandbox = house.host.until_started("turn-1").await;
    let (by, turn) = (Principal::controller(), "turn-1".parse().unwrap());
    house
        .host
        .says(&sandbox, &turn, &[Frame::Stdout("old\n".into())], None);
    let runs = &house.services.runs;
    let mut events = runs.follow(&by, &run, 0).await.unwrap();
    let mut last = 0;
    while let Some(event) = tokio::time::timeout(LONG, events.next()).await.unwrap() {
        last = event.seq;
        if matches!(&event.body, EventBody::Log { text, .. } if text.contains("old")) {
            break;
        }
    }
    let mut meta = meta();
    meta["progressToken"] = json!("p1");
    let params =
        json!({ "name": "status", "arguments": { "run": run, "wait_s": 45 }, "_meta": meta });
    let message = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params });
    let response = house.router.clone().oneshot(tool_request(&house, &message));
    let mut body = response.await.unwrap().into_body().into_data_stream();
    let mut text = String::new();
    while !text.contains("notifications/progress") {
        let piece = tokio::time::timeout(LONG, body.next()).await.unwrap();
        text += std::str::from_utf8(&piece.expect("an answer that goes on").unwrap()).unwrap();
    }
    house.release("new\n").await;
    let data = text
        .lines()
        .find(|line| line.contains("notifications/progress"));
    let notice: Value = serde_json::from_str(data.unwrap().strip_prefix("data:").unwrap()).unwrap();
    let params = &notice["params"];
    let number = params["progress"].as_f64().unwrap();
    assert!(
        number >= f64::from(u32::try_from(last).unwrap()),
        "{notice}"
    );
    assert_eq!(params["message"], "running, 0 new lines of output");
}

#[tokio::test]
async fn a_page_of_events_is_short_and_the_pages_are_the_whole() {
    let house = House::new().await;
    let said: &'static str = "0123456789abcde\n".repeat(10_000).leak();
    let run = house.finished(said).await.run;
    let (mut after, mut output, mut pages) = (json!(0), String::new(), 0);
    loop {
        let arguments = json!({ "run": run, "after": after, "lines": 1000 });
        let page = call(&house, "watch", arguments).await["structuredContent"].clone();
        assert!(page.to_string().len() < 66_000);
        for event in page["events"].as_array().unwrap() {
            if event["stream"] == "stdout" {
                output += event["text"].as_str().unwrap();
            }
        }
        (after, pages) = (page["last"].clone(), pages + 1);
        if page["complete"] == true {
            break;
        }
    }
    assert!(output == said && pages >= 3, "{pages} pages");
}
