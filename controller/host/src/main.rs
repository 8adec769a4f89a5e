//! The host half of Lazaret alone, for machines that should carry nothing else. It takes the same
//! words as the whole program: `lazaret-host host session --state DIR`.
#![forbid(unsafe_code)]

use clap::Parser;
use lazaret_host::HostCommand;
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "lazaret-host",
    version,
    about = "Runs sandboxes on this machine"
)]
enum Cli {
    /// What runs on a host.
    #[command(subcommand)]
    Host(HostCommand),
}

fn main() -> anyhow::Result<ExitCode> {
    let Cli::Host(command) = Cli::parse();
    lazaret_host::run(command)
}
