//! The tools as clients see them, in the order of their names. A golden file freezes it.

use crate::mcp::args::{self, Delegate};
use crate::mcp::reply::{Delegated, FileText};
use lazaret_api::public::{
    CreateRun, Diff, EventPage, FileList, Forked, Problem, Run, RunList, Scope, TornDown,
};
use lazaret_domain::DenialCode;
use rmcp::handler::server::common::{schema_for_output, schema_for_type};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde_json::{Value, json};
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// What a tool does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Cancel,
    Delegate,
    Diff,
    Fork,
    ListFiles,
    ListRuns,
    ReadFile,
    Status,
    Teardown,
    Watch,
}

/// Whether calling a tool changes anything.
#[derive(Clone, Copy)]
enum Effect {
    /// It only looks.
    None,
    /// It starts something.
    Additive,
    /// It ends something; a second call changes nothing more.
    Destructive,
}

/// A tool and who may call it.
pub(super) struct Spec {
    pub(super) kind: Kind,
    pub(super) scope: Scope,
    pub(super) tool: Tool,
}

/// The tool of this name.
pub(super) fn find(name: &str) -> Option<&'static Spec> {
    specs().iter().find(|spec| spec.tool.name == name)
}

/// All tools, by name.
#[must_use]
pub fn list() -> Vec<Tool> {
    specs().iter().map(|spec| spec.tool.clone()).collect()
}

fn specs() -> &'static [Spec] {
    static SPECS: OnceLock<Vec<Spec>> = OnceLock::new();
    SPECS.get_or_init(|| {
        let mut specs = vec![
            spec::<Run>(Kind::Cancel, "cancel", Scope::Run, Effect::Destructive, input::<args::OneRun>(),
                "End a run's work. Its sandbox stays, so that files and diff can still be read."),
            spec::<Delegated>(Kind::Delegate, "delegate", Scope::Run, Effect::Additive,
                Delegate::schema(&input::<CreateRun>()),
                "Run a task in a microVM of its own. Answers with the run's id, and with its result if it ends within \
                 wait_s. The `command` agent takes program and arguments; no shell reads them."),
            spec::<Diff>(Kind::Diff, "diff", Scope::Read, Effect::None, input::<args::OneRun>(),
                "What a run changed, as a unified diff against the commit it started from."),
            spec::<Forked>(Kind::Fork, "fork", Scope::Run, Effect::Additive, input::<args::Fork>(),
                "Copy a run as it is at this moment, memory and disk, up to 8 times, and run a command in each copy: several \
                 ways on from one prepared state. What runs in it does not go on in the copies."),
            spec::<FileList>(Kind::ListFiles, "list_files", Scope::Read, Effect::None, input::<args::Directory>(),
                "The entries of a directory of a run's workspace."),
            spec::<RunList>(Kind::ListRuns, "list_runs", Scope::Read, Effect::None, input::<args::Runs>(),
                "Runs, newest first."),
            spec::<FileText>(Kind::ReadFile, "read_file", Scope::Read, Effect::None, input::<args::File>(),
                "A file of a run's workspace, up to 256 KiB of it."),
            spec::<Run>(Kind::Status, "status", Scope::Read, Effect::None, input::<args::Status>(),
                "How a run stands. With wait_s it waits for the run to end."),
            spec::<TornDown>(Kind::Teardown, "teardown", Scope::Run, Effect::Destructive, input::<args::OneRun>(),
                "End a run from any state and remove everything it held. Calling it again is harmless."),
            spec::<EventPage>(Kind::Watch, "watch", Scope::Read, Effect::None, input::<args::Watch>(),
                "What happened in a run after a given event, its output included. An answer is one page of events; go on \
                 with `after` set to its `last` until `complete` is true."),
        ];
        specs.sort_by(|a, b| a.tool.name.cmp(&b.tool.name));
        specs
    })
}

fn spec<Output: JsonSchema + Any>(
    kind: Kind,
    name: &'static str,
    scope: Scope,
    effect: Effect,
    input: JsonObject,
    description: &'static str,
) -> Spec {
    let (reads, destroys, again) = match effect {
        Effect::None => (true, false, true),
        Effect::Additive => (false, false, false),
        Effect::Destructive => (false, true, true),
    };
    // What runs in a sandbox may reach the network, as far as the run's own policy goes. The other
    // tools reach the sandbox and no farther.
    let open_world = matches!(kind, Kind::Delegate | Kind::Fork);
    let annotations = ToolAnnotations::from_raw(
        None,
        Some(reads),
        Some(destroys),
        Some(again),
        Some(open_world),
    );
    let mut tool = Tool::new(name, description, Arc::new(input)).annotate(annotations);
    tool.output_schema = Some(Arc::new(output::<Output>()));
    Spec { kind, scope, tool }
}

/// The schema of a tool's arguments, without the title that would repeat a name of the code.
fn input<T: JsonSchema + Any>() -> JsonObject {
    let mut schema = (*schema_for_type::<T>()).clone();
    schema.remove("title");
    schema.remove("description");
    plain(schema)
}

/// What a tool answers with. A refusal has structure too, and clients hold that against the schema.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum Answered<T> {
    /// The answer.
    Answer(T),
    /// Why there is none; `isError` is set.
    Refused(Problem),
}

fn output<T: JsonSchema + Any>() -> JsonObject {
    let mut schema = (*schema_for_output::<Answered<T>>()).clone();
    // Peers before 2026-07-28 are shown an output schema only if it says this at its root.
    schema.insert("type".to_owned(), "object".into());
    // All codes, in every tool, would be most of the list; the OpenAPI document has them.
    if let Some(Value::Object(defs)) = schema.get_mut("$defs") {
        let code = json!({ "type": "string", "description": "A stable word for the reason." });
        defs.insert(DenialCode::schema_name().into_owned(), code);
    }
    plain(schema)
}

/// A schema without the formats `uint8`, `int32` and the like. They are names of Rust's types, no
/// formats of JSON Schema, and the bounds beside them say the same; clients warn about each.
fn plain(schema: JsonObject) -> JsonObject {
    fn walk(value: &mut Value) {
        match value {
            Value::Object(map) => {
                let ours =
                    |format: &Value| format.as_str().is_some_and(|name| name.contains("int"));
                if map.get("format").is_some_and(ours) {
                    map.remove("format");
                }
                map.values_mut().for_each(walk);
            }
            Value::Array(values) => values.iter_mut().for_each(walk),
            _ => {}
        }
    }
    let mut value = Value::Object(schema);
    walk(&mut value);
    match value {
        Value::Object(schema) => schema,
        _ => JsonObject::new(),
    }
}
