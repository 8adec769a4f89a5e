//! The subcommands of `lazaret host`, and the runtime each of them runs on.

use crate::config::HostConfig;
use crate::state::State;
use crate::{gate, probe, session, shim, uplink};
use anyhow::Context;
use lazaret_api::host::Accel;
use lazaret_domain::SandboxId;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// What runs on a host.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum HostCommand {
    /// The forced command of the controller's key: runs `session` or `uplink`, nothing else
    Gate {
        /// The host's state directory
        #[arg(long)]
        state: PathBuf,
    },
    /// Answers the host API on standard input and output
    Session {
        /// The host's state directory
        #[arg(long)]
        state: PathBuf,
    },
    /// Passes the gateways' requests on to the controller over standard input and output
    Uplink {
        /// The host's state directory
        #[arg(long)]
        state: PathBuf,
    },
    /// Owns one sandbox; started by a session
    #[command(hide = true)]
    Shim {
        /// The host's state directory
        #[arg(long)]
        state: PathBuf,
        /// The sandbox
        #[arg(long, required_unless_present = "waiting")]
        id: Option<SandboxId>,
        /// Is told its sandbox on standard input, once there is one
        #[arg(long, conflicts_with_all = ["id", "spare"])]
        waiting: bool,
        /// It is a spare, which becomes a sandbox when it is claimed
        #[arg(long)]
        spare: bool,
    },
    /// Boots a probe guest and says whether an accelerator works
    Probe {
        /// The host's state directory
        #[arg(long)]
        state: PathBuf,
        /// The accelerator to try
        #[arg(long, value_parser = parse_accel)]
        accel: Accel,
        /// Boots even if the answer of an earlier probe still holds
        #[arg(long)]
        fresh: bool,
    },
}

fn parse_accel(text: &str) -> Result<Accel, String> {
    match text {
        "kvm" => Ok(Accel::Kvm),
        "tcg" => Ok(Accel::Tcg),
        _ => Err("an accelerator is kvm or tcg".into()),
    }
}

/// Runs a subcommand to its end.
///
/// # Errors
/// What kept it from doing its work; the caller prints it and fails.
pub fn run(command: HostCommand) -> anyhow::Result<ExitCode> {
    match command {
        HostCommand::Gate { state } => {
            match gate::chosen(std::env::var("SSH_ORIGINAL_COMMAND").ok().as_deref()) {
                Some(gate::Door::Session) => run(HostCommand::Session { state }),
                Some(gate::Door::Uplink) => run(HostCommand::Uplink { state }),
                None => Ok(gate::refuse()),
            }
        }
        HostCommand::Session { state } => {
            log_to_stderr();
            let state = open(state)?;
            block_on(session::serve_standard_streams(state))?;
            Ok(ExitCode::SUCCESS)
        }
        HostCommand::Uplink { state } => {
            log_to_stderr();
            let state = open(state)?;
            block_on(uplink::serve_standard_streams(state))?;
            Ok(ExitCode::SUCCESS)
        }
        HostCommand::Shim {
            state,
            id,
            spare,
            waiting: _,
        } => {
            log_to(shim::Bounded::default);
            // Settings are read once there is a sandbox: they may change while none is.
            let (state, id) = match id {
                Some(id) => (open(state)?, id),
                None => match shim::wait_for_sandbox()? {
                    Some(id) => (shim::log_in_its_place(open(state)?, &id)?, id),
                    None => return Ok(ExitCode::SUCCESS),
                },
            };
            if spare {
                block_on(shim::run_spare(state, id))?;
            } else {
                block_on(shim::run(state, id))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        HostCommand::Probe {
            state,
            accel,
            fresh,
        } => {
            log_to_stderr();
            let state = open(state)?;
            let proof = block_on(async move { Ok(probe::prove(&state, accel, fresh).await) })?;
            let (text, code) = match proof {
                Ok(()) => (
                    format!("{accel:?}: works").to_lowercase(),
                    ExitCode::SUCCESS,
                ),
                Err(denial) => (denial.to_string(), ExitCode::FAILURE),
            };
            // The answer of this subcommand is its standard output.
            std::io::Write::write_all(&mut std::io::stdout(), format!("{text}\n").as_bytes())?;
            Ok(code)
        }
    }
}

fn open(root: PathBuf) -> anyhow::Result<State> {
    inherit_nothing();
    let config = HostConfig::load(&root)?;
    State::open(root, config).context("open the state directory")
}

/// Descriptors that whoever started us left open go no further: not to a shim, not to QEMU.
fn inherit_nothing() {
    close_fds::set_fds_cloexec(3, &[]);
}

/// One thread, because a shim's children must be started by the main thread (QEMU dies with the
/// thread that started it), and because nothing here needs more.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let answer = runtime.block_on(Box::pin(work));
    runtime.shutdown_timeout(Duration::from_secs(1));
    answer
}

fn log_to_stderr() {
    log_to(std::io::stderr);
}

fn log_to<W>(writer: W)
where
    W: for<'a> tracing_subscriber::fmt::MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = tracing_subscriber::EnvFilter::try_from_env("LAZARET_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    // A second call (from a test, say) keeps the first one's setting.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(writer)
        .try_init();
}
