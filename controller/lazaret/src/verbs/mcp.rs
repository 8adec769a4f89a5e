//! `lazaret mcp`: a bridge for MCP clients that only start programs. Each line on standard input is
//! one JSON-RPC message, sent to the controller's `/mcp`; each answer is one line on standard output.
//!
//! Requests are carried at the same time, so that a long tool call holds up no ping. The bridge adds
//! what HTTP wants and the message already says: protocol version, method and name. When standard
//! input ends, answers that are still owed are waited for.

use crate::client::events::Parser;
use crate::client::{Client, refusal};
use crate::failure::{Exit, Failure};
use base64::Engine;
use futures::StreamExt;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The longest message, in bytes; the endpoint takes no longer ones.
const MAX_MESSAGE: u64 = 1 << 20;
/// Requests on the way at once; further lines wait.
const AT_ONCE: usize = 16;
/// Where the 2026 revisions name their version in a message.
const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";

/// What the handshake of the 2025 revisions settled.
#[derive(Default)]
struct Session {
    version: Option<String>,
    id: Option<String>,
}

/// Carries messages until standard input ends.
///
/// # Errors
/// Where the streams cannot be read or written. A controller that cannot be reached is an answer
/// to the request, not an end.
pub async fn bridge(
    client: &Client,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin + Send + 'static,
) -> Result<Exit, Failure> {
    let session = Arc::new(Mutex::new(Session::default()));
    let (answers, queue) = mpsc::channel::<Value>(AT_ONCE);
    let writer = tokio::spawn(write(queue, output));
    let mut input = BufReader::new(input);
    let mut carriers = JoinSet::new();
    loop {
        let mut line = Vec::new();
        let read = (&mut input)
            .take(MAX_MESSAGE + 1)
            .read_until(b'\n', &mut line)
            .await?;
        if read == 0 {
            break;
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let message = match read_message(&line) {
            Ok(message) => message,
            Err(answer) => {
                let too_long = u64::try_from(read).unwrap_or(u64::MAX) > MAX_MESSAGE;
                answers.send(answer).await.ok();
                if too_long {
                    break;
                }
                continue;
            }
        };
        // The answer to `initialize` settles what the next messages carry.
        let first = method(&message) == Some("initialize");
        if carriers.len() >= AT_ONCE {
            carriers.join_next().await;
        }
        let carrier = carry(client.clone(), session.clone(), message, answers.clone());
        if first {
            carrier.await;
        } else {
            carriers.spawn(carrier);
        }
    }
    while carriers.join_next().await.is_some() {}
    drop(answers);
    writer
        .await
        .map_err(|error| Failure::doing("the writer ended", error))??;
    Ok(Exit::Done)
}

fn read_message(line: &[u8]) -> Result<Value, Value> {
    if u64::try_from(line.len()).unwrap_or(u64::MAX) > MAX_MESSAGE {
        return Err(error(
            &Value::Null,
            -32700,
            "a message is at most 1 MiB long",
            None,
        ));
    }
    match serde_json::from_slice::<Value>(line) {
        Ok(message) if message.is_object() => Ok(message),
        Ok(_) => Err(error(
            &Value::Null,
            -32600,
            "a message is one JSON object",
            None,
        )),
        Err(_) => Err(error(&Value::Null, -32700, "this line is not JSON", None)),
    }
}

async fn write(
    mut queue: mpsc::Receiver<Value>,
    mut output: impl AsyncWrite + Unpin,
) -> std::io::Result<()> {
    while let Some(answer) = queue.recv().await {
        let mut line = answer.to_string();
        line.push('\n');
        output.write_all(line.as_bytes()).await?;
        output.flush().await?;
    }
    Ok(())
}

/// Sends one message and passes its answers on. A request gets an answer, whatever happens.
async fn carry(
    client: Client,
    session: Arc<Mutex<Session>>,
    message: Value,
    answers: mpsc::Sender<Value>,
) {
    let id = message
        .get("id")
        .filter(|_| method(&message).is_some())
        .cloned();
    let mut answered = false;
    let carried = send(&client, &session, &message, &answers, &mut answered).await;
    let (Some(id), false) = (id, answered) else {
        return;
    };
    let answer = match carried {
        Ok(()) => error(
            &id,
            -32603,
            "the controller ended the answer before it was whole",
            None,
        ),
        Err(failure) => {
            let document = failure.document();
            let code = document["error"]["code"].as_str().map(str::to_owned);
            error(&id, -32603, &failure.to_string(), code)
        }
    };
    answers.send(answer).await.ok();
}

async fn send(
    client: &Client,
    session: &Mutex<Session>,
    message: &Value,
    answers: &mpsc::Sender<Value>,
    answered: &mut bool,
) -> Result<(), Failure> {
    let response = with_headers(
        client.request(Method::POST, client.at(&["mcp"])),
        session,
        message,
    )
    .json(message)
    .send()
    .await
    .map_err(|error| client.unreachable(&error))?;
    if let Some(id) = response
        .headers()
        .get("mcp-session-id")
        .and_then(|id| id.to_str().ok())
    {
        lock(session).id = Some(id.to_owned());
    }
    let kind = response
        .headers()
        .get("content-type")
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default();
    let (stream, json) = (
        kind.starts_with("text/event-stream"),
        kind.starts_with("application/json"),
    );
    if !response.status().is_success() && !json {
        return Err(refusal(response).await);
    }
    let mut body = response.bytes_stream();
    let mut parser = Parser::default();
    let mut whole = Vec::new();
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|error| client.unreachable(&error))?;
        if stream {
            parser.feed(&chunk);
            while let Some(data) = parser.next()? {
                pass_on(data.as_bytes(), session, message, answers, answered).await?;
            }
        } else {
            whole.extend_from_slice(&chunk);
            if whole.len() > 64 << 20 {
                return Err(Failure::Failed(
                    "the controller's answer is longer than 64 MiB".into(),
                ));
            }
        }
    }
    if json && !whole.is_empty() {
        pass_on(&whole, session, message, answers, answered).await
    } else {
        Ok(())
    }
}

/// Passes one message of the controller on, and learns from it.
async fn pass_on(
    data: &[u8],
    session: &Mutex<Session>,
    message: &Value,
    answers: &mpsc::Sender<Value>,
    answered: &mut bool,
) -> Result<(), Failure> {
    if data.iter().all(u8::is_ascii_whitespace) {
        return Ok(());
    }
    let answer: Value = serde_json::from_slice(data).map_err(|error| {
        Failure::doing("the controller answered something that is not JSON", error)
    })?;
    if answer.get("jsonrpc").is_none() {
        let text = answer["detail"]
            .as_str()
            .unwrap_or("the controller refused the message")
            .to_owned();
        let code = answer["code"].as_str().unwrap_or("refused").to_owned();
        return Err(Failure::Refused {
            code,
            message: text,
            exit: Exit::Refused,
            again: None,
        });
    }
    if method(&answer).is_none() && answer.get("id") == message.get("id") {
        *answered = true;
        if method(message) == Some("initialize") {
            lock(session).version = answer["result"]["protocolVersion"]
                .as_str()
                .map(str::to_owned);
        }
    }
    answers
        .send(answer)
        .await
        .map_err(|_| Failure::Failed("nobody reads the answers".into()))
}

fn with_headers(
    request: RequestBuilder,
    session: &Mutex<Session>,
    message: &Value,
) -> RequestBuilder {
    let mut request = request.header("accept", "application/json, text/event-stream");
    let session = lock(session);
    let version = message["params"]["_meta"][META_VERSION]
        .as_str()
        .or(session.version.as_deref());
    if let Some(version) = version {
        request = request.header("mcp-protocol-version", version);
    }
    if let Some(id) = &session.id {
        request = request.header("mcp-session-id", id);
    }
    if let Some(method) = method(message) {
        request = request.header("mcp-method", method);
    }
    match name(message) {
        Some(name) => request.header("mcp-name", header_text(name)),
        None => request,
    }
}

fn method(message: &Value) -> Option<&str> {
    message.get("method").and_then(Value::as_str)
}

/// The name that the `Mcp-Name` header repeats, for the methods that have one.
fn name(message: &Value) -> Option<&str> {
    let key = match method(message)? {
        "tools/call" | "prompts/get" => "name",
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return None,
    };
    message["params"][key].as_str()
}

/// Text that survives as a header value; anything but plain ASCII is wrapped as base64.
fn header_text(text: &str) -> String {
    let plain = text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) && text.trim() == text;
    if plain && !text.starts_with("=?base64?") {
        return text.to_owned();
    }
    format!(
        "=?base64?{}?=",
        base64::engine::general_purpose::STANDARD.encode(text)
    )
}

fn error(id: &Value, code: i32, message: &str, denial: Option<String>) -> Value {
    let mut error = json!({ "code": code, "message": message });
    if let Some(denial) = denial {
        error["data"] = json!({ "code": denial });
    }
    json!({ "jsonrpc": "2.0", "id": id, "error": error })
}

fn lock(session: &Mutex<Session>) -> std::sync::MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}
