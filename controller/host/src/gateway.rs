//! The gateway: where the guest's network cable ends.
//!
//! QEMU hands the guest's Ethernet frames over a stream; a TCP/IP stack in this process takes them.
//! No interface, route or firewall rule exists on the host, and what the gateway does not answer does
//! not exist for the guest. It answers:
//!
//! * ARP for itself;
//! * [`dns`]: allowed names, with a synthetic address that stands for the name;
//! * TCP to a synthetic address, judged by name and port, then (in [`flow`]) by what the client says
//!   it wants, then by the resolved address, and dialled by the gateway itself;
//! * its own HTTP [`services`], at one fixed address.
//!
//! Everything else is refused and logged.
//!
//! ```text
//!   QEMU ═ frames ═ cable ─ screen ─ engine (smoltcp) ─ stream ─┬─ flow ── dial ─── the internet
//!                                      │                        ├─ web ─── dial ─── the internet
//!                                 dns, names                    └─ services ─────── uplink.sock
//! ```
//!
//! One task drives the stack and waits when there is nothing to do; each connection has a task of its
//! own, and ends with the gateway. Whatever the guest sends, memory is bounded: the cable's two
//! buffers, 256 connections with fixed buffers, a fixed table of names, a ring of records.

mod cable;
mod dial;
mod dns;
mod engine;
mod flow;
mod forward;
mod hello;
#[doc(hidden)]
pub mod hostile;
mod log;
mod names;
mod screen;
mod services;
mod stream;
#[cfg(test)]
#[path = "../tests/support/test_guest.rs"]
mod test_guest;
#[cfg(test)]
mod tests;
mod web;

pub use cable::CableFault;
pub use log::EgressLog;

use dial::{Internet, Outside};
use engine::Engine;
use flow::Surroundings;
use lazaret_domain::SandboxId;
use lazaret_domain::egress::EgressPolicy;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What a gateway is told.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Whose cable it is.
    pub sandbox: SandboxId,
    /// What may be reached besides the gateway's own services.
    pub policy: EgressPolicy,
    /// The socket of the uplink.
    pub uplink: PathBuf,
}

/// Why a gateway ended.
#[derive(Debug, thiserror::Error)]
pub enum GatewayEnd {
    /// It was told to.
    #[error("the gateway was stopped")]
    Stopped,
    /// The other end of the cable is gone.
    #[error("the cable was pulled")]
    Unplugged,
    /// The cable broke.
    #[error("the cable broke")]
    Broken(#[source] std::io::Error),
    /// What came over the cable is not a stream of frames.
    #[error("what comes over the cable is not a stream of frames")]
    OutOfStep(#[source] CableFault),
}

/// Serves a cable until it is pulled or `stop` is cancelled. Says which it was.
///
/// A policy that does not pass its own check is not applied in part: the sandbox is sealed.
pub async fn serve(
    cable: UnixStream,
    config: GatewayConfig,
    log: EgressLog,
    stop: CancellationToken,
) -> GatewayEnd {
    let policy = match config.policy.check() {
        Ok(()) => config.policy,
        Err(denial) => {
            tracing::error!(sandbox = %config.sandbox, %denial, "the egress policy can't be used: sealed instead");
            EgressPolicy::default()
        }
    };
    serve_to(
        cable,
        GatewayConfig { policy, ..config },
        log,
        stop,
        Box::new(Internet::new()),
    )
    .await
}

/// [`serve`], with something else for the internet in tests.
async fn serve_to(
    cable: UnixStream,
    config: GatewayConfig,
    log: EgressLog,
    stop: CancellationToken,
    outside: Box<dyn Outside>,
) -> GatewayEnd {
    let engine = Engine::new(Arc::new(config.policy), log.clone(), rand::random());
    let around = Surroundings {
        sandbox: config.sandbox,
        uplink: config.uplink,
        log: log.clone(),
        outside,
    };
    let end = tokio::select! {
        end = drive(&cable, engine, Arc::new(around)) => end,
        () = stop.cancelled() => GatewayEnd::Stopped,
    };
    if let GatewayEnd::OutOfStep(fault) = &end {
        log.refuse("frame", &"-", None, fault);
    }
    end
}

/// The one task that has the cable and the stack. Waits for whichever comes first: frames from the
/// guest, room for frames to it, a change made by a connection, or the stack's next deadline.
async fn drive(cable: &UnixStream, mut engine: Engine, around: Arc<Surroundings>) -> GatewayEnd {
    let shared = Arc::clone(&engine.shared);
    let mut flows = JoinSet::new();
    loop {
        let step = match engine.step() {
            Ok(step) => step,
            Err(fault) => return GatewayEnd::OutOfStep(fault),
        };
        for admission in step.admitted {
            flows.spawn(flow::run(admission, Arc::clone(&around)));
        }
        // Most of the time the other end takes at once what there is to send.
        if engine.wire.wants_write()
            && let Err(error) = engine.wire.write_to(cable)
        {
            return GatewayEnd::Broken(error);
        }
        let (wants_read, wants_write) = (engine.wire.wants_read(), engine.wire.wants_write());
        tokio::select! {
            ready = cable.readable(), if wants_read => match ready.and_then(|()| engine.wire.read_from(cable)) {
                Ok(true) => {}
                Ok(false) => return GatewayEnd::Unplugged,
                Err(error) => return GatewayEnd::Broken(error),
            },
            ready = cable.writable(), if wants_write => if let Err(error) = ready {
                return GatewayEnd::Broken(error);
            },
            () = shared.changed.notified() => {}
            () = wait(step.next) => {}
            Some(ended) = flows.join_next() => if let Err(error) = ended {
                tracing::error!(%error, "a connection's task failed");
            },
        }
    }
}

/// Waits for so long, or for ever.
async fn wait(delay: Option<Duration>) {
    match delay {
        Some(delay) => tokio::time::sleep(delay).await,
        None => std::future::pending().await,
    }
}
