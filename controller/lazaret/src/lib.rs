//! The one program of Lazaret: controller, host side and command line.
//!
//! ```text
//!   lazaret up ────────► sets up, then ─┐
//!   lazaret serve ─────────────────────►├─► settings ► store ► ssh links ► services ► edge
//!   lazaret doctor                      │
//!   lazaret host gate|session|… ────────┴─► what runs on a host (its own crate)
//!   lazaret delegate|ls|logs|… ───────────► a client of the public API, nothing more
//! ```
//!
//! Only this crate names concrete adapters and puts them together.
#![forbid(unsafe_code)]

pub mod accel;
pub mod cli;
pub mod client;
pub mod doctor;
pub mod failure;
pub mod image;
pub mod lock;
pub mod logging;
pub mod output;
pub mod paths;
pub mod serve;
pub mod settings;
pub mod up;
pub mod verbs;

use clap::FromArgMatches;
use cli::host::Host;
use cli::image::Image;
use cli::{Cli, Command, Egress, Key, Wake};
use client::Client;
use client::file::Environment;
use failure::{Exit, Failure};
use output::Output;
use std::process::ExitCode;

/// Reads the command line, carries it out, and gives the exit status.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::from_arg_matches(&cli::command().get_matches()) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    // The host side brings its own runtime: it must start children from the main thread.
    if let Command::Host(Host::Side(command)) = cli.command {
        return host_side(command);
    }
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    let mut out = Output::of_process(wants_json(&cli.command));
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return out.report(&Failure::doing("cannot start", error)).into(),
    };
    let done = runtime.block_on(Box::pin(carry_out(cli.command, &mut out)));
    runtime.shutdown_background();
    match done {
        Ok(exit) => exit.into(),
        Err(failure) => out.report(&failure).into(),
    }
}

async fn carry_out(command: Command, out: &mut Output) -> Result<Exit, Failure> {
    match command {
        Command::Up(args) => up::up(&args, out).await,
        Command::Serve(args) => serve::serve(&args.config).await,
        Command::Doctor(args) => doctor::doctor(&args, out).await,
        Command::Image(args) => image::image(args, out).await,
        Command::Egress(Egress::Explain {
            policy,
            destinations,
            ..
        }) => verbs::egress::explain(&policy, &destinations, out),
        Command::Key(Key::Create {
            scope,
            name,
            expires,
            config: Some(config),
            ..
        }) => {
            let request = verbs::keys::request(scope, name, expires);
            let new = serve::create_key(&config, request).await?;
            verbs::keys::show_new(&new, out)
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut cli::command(), "lazaret", &mut script);
            out.guest_bytes(&script)?;
            Ok(Exit::Done)
        }
        verb => {
            let client = Client::new(&Environment::of_process().endpoint()?)?;
            verbs::run(verb, &client, out).await
        }
    }
}

fn host_side(command: lazaret_host::HostCommand) -> ExitCode {
    match lazaret_host::run(command) {
        Ok(code) => code,
        Err(error) => {
            let mut out = Output::of_process(false);
            out.report(&Failure::Failed(format!("{error:#}"))).into()
        }
    }
}

/// Whether the command was asked for one JSON document.
#[must_use]
pub fn wants_json(command: &Command) -> bool {
    match command {
        Command::Doctor(args) => args.json.json,
        Command::Image(Image::Build(args)) => args.at.json.json,
        Command::Image(Image::Ls(args) | Image::Verify(args)) => args.json.json,
        Command::Host(Host::Enroll(args)) => args.json.json,
        Command::Host(Host::Ls { json }) => json.json,
        Command::Host(Host::Drain(args) | Host::Retire(args)) => args.json.json,
        Command::Delegate(args) => args.json.json,
        Command::Ls(args) => args.json.json,
        Command::Teardown(args) => args.json.json,
        Command::Status(args)
        | Command::Diff(args)
        | Command::Cancel(args)
        | Command::Sleep(args)
        | Command::Keep(args)
        | Command::Unkeep(args)
        | Command::Wake(Wake { run: args, .. }) => args.json.json,
        Command::Files(args) => args.json.json,
        Command::Put(args) => args.json.json,
        Command::Exec(args) => args.json.json,
        Command::Fork(args) => args.json.json,
        Command::Key(Key::Create { json, .. } | Key::Ls { json } | Key::Revoke { json, .. }) => {
            json.json
        }
        Command::Egress(Egress::Explain { json, .. }) => json.json,
        Command::Host(Host::Side(_))
        | Command::Up(_)
        | Command::Serve(_)
        | Command::Logs(_)
        | Command::Get(_)
        | Command::Mcp
        | Command::Completions { .. } => false,
    }
}
