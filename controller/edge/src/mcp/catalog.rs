//! The tools as clients see them, in the order of their names. A golden file freezes it.

use crate::mcp::args::{self, Delegate};
use crate::mcp::reply::{Delegated, FileText};
use lazaret_api::public::{CreateRun, Diff, EventPage, FileList, Run, RunList, Scope, TornDown};
use rmcp::handler::server::common::{schema_for_output, schema_for_type};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// What a tool does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Cancel,
    Delegate,
    Diff,
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
                "What happened in a run after a given event, its output included."),
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
    // The world a tool reaches is the sandbox; what a run may reach is the run's own policy.
    let annotations =
        ToolAnnotations::from_raw(None, Some(reads), Some(destroys), Some(again), Some(false));
    let mut tool = Tool::new(name, description, Arc::new(input)).annotate(annotations);
    tool.output_schema = Some(schema_for_output::<Output>());
    Spec { kind, scope, tool }
}

/// The schema of a tool's arguments, without the title that would repeat a name of the code.
fn input<T: JsonSchema + Any>() -> JsonObject {
    let mut schema = (*schema_for_type::<T>()).clone();
    schema.remove("title");
    schema.remove("description");
    schema
}
