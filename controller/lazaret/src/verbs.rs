//! The client verbs: one function each, from arguments to an exit status.

pub mod delegate;
pub mod egress;
pub mod hosts;
pub mod keys;
pub mod logs;
pub mod mcp;
pub mod runs;
pub mod workspace;

use crate::cli::host::Host;
use crate::cli::{Command, Key, Wake};
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output::Output;

/// Carries out a verb that asks the controller.
///
/// # Errors
/// As the verb.
pub async fn run(command: Command, client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    match command {
        Command::Delegate(args) => delegate::delegate(&args, client, out).await,
        Command::Ls(args) => runs::ls(&args, client, out).await,
        Command::Status(args) => runs::status(&args.run, client, out).await,
        Command::Cancel(args) => runs::cancel(&args.run, client, out).await,
        Command::Fork(args) => runs::fork(&args, client, out).await,
        Command::Sleep(args) => runs::rest(&args.run, "sleep", false, client, out).await,
        Command::Wake(Wake { run, from_disk }) => {
            runs::rest(&run.run, "wake", from_disk, client, out).await
        }
        Command::Keep(args) => runs::rest(&args.run, "keep", false, client, out).await,
        Command::Unkeep(args) => runs::rest(&args.run, "unkeep", false, client, out).await,
        Command::Teardown(args) => runs::teardown(&args.runs, client, out).await,
        Command::Logs(args) => logs::logs(&args, client, out).await,
        Command::Diff(args) => workspace::diff(&args.run, client, out).await,
        Command::Files(args) => workspace::files(&args, client, out).await,
        Command::Get(args) => workspace::get(&args, client, out).await,
        Command::Put(args) => workspace::put(&args, client, out).await,
        Command::Exec(args) => workspace::exec(&args, client, out).await,
        Command::Host(Host::Enroll(args)) => hosts::enroll(&args, client, out).await,
        Command::Host(Host::Ls { .. }) => hosts::ls(client, out).await,
        Command::Host(Host::Drain(args)) => hosts::drain(&args.name, client, out).await,
        Command::Host(Host::Retire(args)) => hosts::retire(&args.name, client, out).await,
        Command::Key(Key::Create {
            scope,
            name,
            expires,
            ..
        }) => keys::create(keys::request(scope, name, expires), client, out).await,
        Command::Key(Key::Ls { .. }) => keys::ls(client, out).await,
        Command::Key(Key::Revoke { id, .. }) => keys::revoke(&id, client, out).await,
        Command::Mcp => mcp::bridge(client, tokio::io::stdin(), tokio::io::stdout()).await,
        Command::Host(Host::Side(_))
        | Command::Up(_)
        | Command::Serve(_)
        | Command::Doctor(_)
        | Command::Image(_)
        | Command::Egress(_)
        | Command::Completions { .. } => Err(Failure::Failed(
            "this command does not ask a controller".into(),
        )),
    }
}
