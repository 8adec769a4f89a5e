//! The command tree. Parsing is all that happens here: names, sizes, durations and rules become
//! values of the domain at this door, so a verb never sees text out of form.

pub mod delegate;
pub mod host;
pub mod image;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use lazaret_api::host::AccelChoice;
use lazaret_api::public::Scope;
use lazaret_domain::{Argv, GuestPath, KeyId, RunId, Span};
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Client verbs take LAZARET_URL and LAZARET_TOKEN, or the client file that 'lazaret up' writes.

Exit status: 0 done; 1 the run or check failed; 2 usage; 3 refused (a denial code is printed);
4 not found; 5 cannot reach the controller. With 'delegate --wait -- COMMAND', 0 means that the
command exited 0.";

/// A quarantine station for coding agents: each run in a microVM of its own.
#[derive(Debug, Parser)]
#[command(name = "lazaret", version, after_help = AFTER_HELP, arg_required_else_help = true, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Sets this machine up as controller and host, runs a demo, and serves until Ctrl-C
    Up(Up),
    /// Runs the controller
    Serve(Serve),
    /// Checks everything that is needed, and says how to mend what is missing
    Doctor(Doctor),
    /// The guest image
    #[command(subcommand)]
    Image(image::Image),
    /// The machines that run sandboxes
    #[command(subcommand)]
    Host(host::Host),
    /// Delegates a task to an agent in a new sandbox
    Delegate(Box<delegate::Delegate>),
    /// Lists runs, newest first
    Ls(Ls),
    /// Shows a run
    Status(OneRun),
    /// Prints the output of a run
    Logs(Logs),
    /// Prints what a run changed, as a unified diff
    Diff(OneRun),
    /// Lists files of a run's workspace
    Files(Files),
    /// Fetches a file of a run's workspace
    Get(Get),
    /// Uploads a file into a run's read-only uploads area
    Put(Put),
    /// Ends a run's work and keeps its sandbox
    Cancel(OneRun),
    /// Puts a run's sandbox to sleep: its memory is saved, and nothing of it runs
    Sleep(OneRun),
    /// Wakes a run's sandbox
    Wake(Wake),
    /// Exempts a run's sandbox from its sleep TTL
    Keep(OneRun),
    /// Lets the sleep TTL of a run's sandbox count again
    Unkeep(OneRun),
    /// Copies a run as it is, memory and disk, and runs a command in each copy
    Fork(Fork),
    /// Runs a command beside a run, in its sandbox; wakes it if it sleeps
    Exec(Exec),
    /// Ends runs and removes everything they hold
    Teardown(Teardown),
    /// API keys
    #[command(subcommand)]
    Key(Key),
    /// Egress policies
    #[command(subcommand)]
    Egress(Egress),
    /// Speaks MCP on standard input and output, for clients that cannot speak HTTP
    Mcp,
    /// Prints a completion script
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// `--json`, where a verb has it.
#[derive(Clone, Copy, Debug, Args)]
pub struct Json {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `lazaret fork`.
#[derive(Debug, Args)]
pub struct Fork {
    /// The run
    #[arg(value_name = "RUN")]
    pub run: RunId,
    /// How many copies, 1 to 8
    #[arg(short, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub n: u32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub json: Json,
    /// Program and arguments for each copy, given to no shell; without them a copy is done at once
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// `lazaret teardown`.
#[derive(Debug, Args)]
pub struct Teardown {
    /// The runs
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<RunId>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub json: Json,
}

/// `lazaret wake`.
#[derive(Debug, Args)]
pub struct Wake {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run: OneRun,
    /// Boot it from its disk; what was in its memory is given up
    #[arg(long)]
    pub from_disk: bool,
}

/// `lazaret up`.
#[derive(Debug, Args)]
pub struct Up {
    /// Where everything is kept [default: /var/lib/lazaret for root, else below XDG_DATA_HOME]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub data: Option<PathBuf>,
    /// The port to listen on, on loopback [default: that of the last time, at first 7717]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// How guests are executed; tcg is software emulation and no security boundary
    /// [default: that of the last time, at first auto]
    #[arg(long, value_name = "auto|kvm|tcg", value_parser = crate::accel::parse)]
    pub accel: Option<AccelChoice>,
    /// Do not run the demo
    #[arg(long)]
    pub no_demo: bool,
}

/// `lazaret serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// The settings file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: PathBuf,
}

/// `lazaret doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// The settings file [default: the one of 'lazaret up', if there is one]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Where 'lazaret up' keeps everything
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub data: Option<PathBuf>,
    /// Do not boot a probe guest
    #[arg(long)]
    pub no_boot: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub json: Json,
}

/// `lazaret ls`.
#[derive(Debug, Args)]
pub struct Ls {
    /// Only runs that are not over
    #[arg(long)]
    pub active: bool,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
    pub limit: u32,
    /// Only runs older than this one (the next page)
    #[arg(long, value_name = "RUN")]
    pub before: Option<RunId>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub json: Json,
}

/// A verb about one run.
#[derive(Debug, Args)]
pub struct OneRun {
    /// The run
    #[arg(value_name = "RUN")]
    pub run: RunId,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub json: Json,
}

/// `lazaret logs`.
#[derive(Debug, Args)]
pub struct Logs {
    /// The run
    #[arg(value_name = "RUN")]
    pub run: RunId,
    /// Go on until the run is over
    #[arg(short, long)]
    pub follow: bool,
    /// Only the last so many lines [default: 200, with --follow all of them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=5000))]
    pub lines: Option<u32>,
}

/// `lazaret files`.
#[derive(Debug, Args)]
pub struct Files {
    /// The run
    #[arg(value_name = "RUN")]
    pub run: RunId,
    /// A directory of the workspace
    #[arg(value_name = "PATH", default_value = "", hide_default_value = true)]
    pub path: GuestPath,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub json: Json,
}

/// `lazaret get`.
#[derive(Debug, Args)]
pub struct Get {
    /// The run
    #[arg(value_name = "RUN")]
    pub run: RunId,
    /// A file of the workspace
    #[arg(value_name = "PATH")]
    pub path: GuestPath,
    /// Write it there instead of to standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
}

/// `lazaret put`.
#[derive(Debug, Args)]
pub struct Put {
    /// The run
    #[arg(value_name = "RUN")]
    pub run: RunId,
    /// The file to upload; it keeps its name
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub json: Json,
}

/// `lazaret exec`.
#[derive(Debug, Args)]
pub struct Exec {
    /// The run
    #[arg(value_name = "RUN")]
    pub run: RunId,
    /// End it after this long, at most 5m
    #[arg(long, value_name = "D")]
    pub max_duration: Option<Span>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub json: Json,
    /// Program and arguments, given to no shell
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

impl Exec {
    /// The command, checked.
    ///
    /// # Errors
    /// `invalid_command` for one out of form.
    pub fn argv(&self) -> Result<Argv, lazaret_domain::Denial> {
        Argv::new(self.command.clone())
    }
}

/// `lazaret key …`.
#[derive(Debug, Subcommand)]
pub enum Key {
    /// Makes an API key and shows its token, once
    Create {
        /// What it may do; each scope covers those before it
        #[arg(long, value_name = "read|run|operate|admin", value_parser = scope)]
        scope: Scope,
        /// A name for people
        #[arg(long, value_name = "N")]
        name: Option<String>,
        /// It stops working after this long
        #[arg(long, value_name = "D")]
        expires: Option<Span>,
        /// Write to the store of these settings, without a controller: how the first key is made
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: Option<PathBuf>,
        #[command(flatten)]
        #[allow(missing_docs)]
        json: Json,
    },
    /// Lists keys
    Ls {
        #[command(flatten)]
        #[allow(missing_docs)]
        json: Json,
    },
    /// Makes a key stop working
    Revoke {
        /// The key
        #[arg(value_name = "ID")]
        id: KeyId,
        #[command(flatten)]
        #[allow(missing_docs)]
        json: Json,
    },
}

/// `lazaret egress …`.
#[derive(Debug, Subcommand)]
pub enum Egress {
    /// Says what a policy answers to destinations, without dialling them
    Explain {
        /// The policy: TOML or JSON with `rules`, `pinned` and `open`
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        policy: PathBuf,
        /// HOST, HOST:PORT, ADDRESS or ADDRESS:PORT; without a port 443 is meant
        #[arg(value_name = "DEST", required = true)]
        destinations: Vec<String>,
        #[command(flatten)]
        #[allow(missing_docs)]
        json: Json,
    },
}

/// The command tree as it is shown: what hosts run by themselves is left out of the help.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command().mut_subcommand("host", |host| {
        ["gate", "session", "uplink", "shim", "probe"]
            .into_iter()
            .fold(host, |host, name| {
                host.mut_subcommand(name, |side| side.hide(true))
            })
    })
}

/// Reads `--scope`.
fn scope(text: &str) -> Result<Scope, String> {
    match text {
        "read" => Ok(Scope::Read),
        "run" => Ok(Scope::Run),
        "operate" => Ok(Scope::Operate),
        "admin" => Ok(Scope::Admin),
        _ => Err("it is one of read, run, operate and admin".into()),
    }
}
