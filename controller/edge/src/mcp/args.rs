//! What the tools take. Unknown fields are refused, and every name is read by the type that reads
//! it on the HTTP face.

use crate::decode;
use lazaret_api::public::CreateRun;
use lazaret_domain::{Argv, Denial, DenialCode, GuestPath, RunId};
use lazaret_services::IdempotencyKey;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// The longest wait of a call, in seconds; the rest of the 50 is for the answer.
pub(super) const MAX_WAIT: u64 = 45;
/// How long `delegate` waits for a run to end, unless told otherwise, in seconds.
pub(super) const DELEGATE_WAIT: u64 = 10;

/// A run, and how long to wait for it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Status {
    /// The run's id.
    pub(super) run: RunId,
    /// Wait so many seconds for the run to end, 0 to 45. Default: 0, answer at once.
    #[serde(default)]
    #[schemars(range(min = 0, max = 45))]
    pub(super) wait_s: u64,
}

/// A run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OneRun {
    /// The run's id.
    pub(super) run: RunId,
}

/// A run, how often it is copied, and what each copy runs.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Fork {
    /// The run's id.
    pub(super) run: RunId,
    /// How many copies are made, 1 to 8. Default: 1.
    #[serde(default)]
    #[schemars(range(min = 1, max = 8))]
    pub(super) n: Option<u32>,
    /// What each of them runs: program and arguments, given to no shell. Without it a copy is done as
    /// soon as it is up.
    #[serde(default)]
    pub(super) command: Option<Argv>,
}

/// A run, and from where its events are wanted.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Watch {
    /// The run's id.
    pub(super) run: RunId,
    /// Only events after this number: `last` of the answer before. Default: 0, all.
    #[serde(default)]
    pub(super) after: u64,
    /// At most so many events, 1 to 1000; a piece of output is one event, however many lines it has.
    /// A page also ends before it is longer than 64 KiB, but has at least one event. Default: 100.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1000))]
    pub(super) lines: Option<u32>,
}

/// A directory of a run's workspace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Directory {
    /// The run's id.
    pub(super) run: RunId,
    /// A path below the workspace, relative. Default: the workspace itself.
    #[serde(default)]
    pub(super) path: GuestPath,
}

/// A file of a run's workspace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// The run's id.
    pub(super) run: RunId,
    /// A path below the workspace, relative.
    pub(super) path: GuestPath,
}

/// Which runs are wanted.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Runs {
    /// Only runs older than this one: `next` of the answer before.
    #[serde(default)]
    pub(super) before: Option<RunId>,
    /// At most so many, 1 to 200. Default: 20.
    #[serde(default)]
    #[schemars(range(min = 1, max = 200))]
    pub(super) limit: Option<u32>,
    /// Only runs that are not done.
    #[serde(default)]
    pub(super) active: bool,
}

/// A task: the body of `POST /api/v1/runs`, and two fields that are headers or nothing there.
#[derive(Debug)]
pub(super) struct Delegate {
    pub(super) request: CreateRun,
    pub(super) key: Option<IdempotencyKey>,
    pub(super) wait: Duration,
}

impl Delegate {
    /// Reads the arguments. What is left after the two fields is read just as the HTTP body is.
    pub(super) fn read(mut arguments: JsonObject) -> Result<Self, Denial> {
        let key = match arguments.remove("idempotency_key") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(
                text.parse()
                    .map_err(|denial: Denial| denial.at("idempotency_key"))?,
            ),
            Some(_) => {
                let denial = Denial::new(
                    DenialCode::InvalidIdempotencyKey,
                    "an idempotency key is text",
                );
                return Err(denial.at("idempotency_key"));
            }
        };
        let seconds = match arguments.remove("wait_s") {
            None | Some(Value::Null) => DELEGATE_WAIT,
            Some(value) => value.as_u64().ok_or_else(wait_denial)?,
        };
        let wait = wait_of(seconds)?;
        Ok(Self {
            request: decode::from_value(Value::Object(arguments))?,
            key,
            wait,
        })
    }

    /// The schema of the arguments: that of the HTTP body with the two fields added.
    pub(super) fn schema(body: &JsonObject) -> JsonObject {
        let mut schema = body.clone();
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            properties.insert(
                "idempotency_key".to_owned(),
                json!({
                    "type": "string", "minLength": 1, "maxLength": 200,
                    "description": "Asking again under the same key finds the same run and starts nothing.",
                }),
            );
            properties.insert(
                "wait_s".to_owned(),
                json!({
                    "type": "integer", "minimum": 0, "maximum": MAX_WAIT, "default": DELEGATE_WAIT,
                    "description": "Wait so many seconds for the run to end. A longer run answers with its state; \
                                    ask again with `status`.",
                }),
            );
        }
        schema
    }
}

/// A wait in bounds.
pub(super) fn wait_of(seconds: u64) -> Result<Duration, Denial> {
    if seconds <= MAX_WAIT {
        Ok(Duration::from_secs(seconds))
    } else {
        Err(wait_denial())
    }
}

fn wait_denial() -> Denial {
    Denial::new(
        DenialCode::InvalidDuration,
        format!("wait_s is a whole number from 0 to {MAX_WAIT}"),
    )
    .at("wait_s")
}
