//! `lazaret host …`: what an operator does with hosts, and, hidden, what runs on a host.

use super::Json;
use clap::{Args, Subcommand};
use lazaret_domain::HostName;
use lazaret_host::HostCommand;

/// `lazaret host …`.
#[derive(Debug, Subcommand)]
pub enum Host {
    /// Enrols a machine, pinning its host key
    Enroll(Enroll),
    /// Lists hosts
    Ls {
        #[command(flatten)]
        #[allow(missing_docs)]
        json: Json,
    },
    /// Sends no new sandboxes to a host; those there go on
    Drain(OneHost),
    /// Stops using a host
    Retire(OneHost),
    /// What runs on a host.
    #[command(flatten)]
    Side(HostCommand),
}

/// `lazaret host enroll`.
#[derive(Debug, Args)]
pub struct Enroll {
    /// Where it is; without a port 22 is meant
    #[arg(value_name = "USER@HOST[:PORT]")]
    pub address: String,
    /// The fingerprint of its host key, as 'ssh-keygen -lf' prints it
    #[arg(long, value_name = "SHA256:…")]
    pub host_key: String,
    /// Its name [default: derived from the address]
    #[arg(long, value_name = "NAME")]
    pub name: Option<HostName>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub json: Json,
}

/// A verb about one host.
#[derive(Debug, Args)]
pub struct OneHost {
    /// The host
    #[arg(value_name = "NAME")]
    pub name: HostName,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub json: Json,
}
