//! What is asked of the driver: to end the sandbox, which comes before everything else, and orders,
//! which are carried out one after another.

use lazaret_api::host::WakeFrom;
use lazaret_domain::{Denial, DenialCode};
use tokio::sync::{mpsc, oneshot};

/// Orders that wait.
const WAITING: usize = 16;

/// Where the driver is asked.
#[derive(Clone)]
pub(crate) struct Asks {
    end: mpsc::Sender<()>,
    orders: mpsc::Sender<Order>,
}

/// Where the driver hears what it is asked.
pub(crate) struct Asked {
    pub(super) end: mpsc::Receiver<()>,
    pub(super) orders: mpsc::Receiver<Order>,
}

/// Something to be done with a living sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// To put it to sleep.
    Sleep,
    /// To wake it.
    Wake(WakeFrom),
    /// To keep it, or to keep it no longer.
    Keep(bool),
    /// To write down what it is at this moment, for copies.
    Snapshot,
}

/// An order, and where its outcome is told.
pub(super) struct Order {
    pub(super) what: What,
    reply: oneshot::Sender<Result<(), Denial>>,
}

impl Order {
    /// Tells what came of it, whoever still listens.
    pub(super) fn answer(self, outcome: Result<(), Denial>) {
        let _ = self.reply.send(outcome);
    }
}

impl Asks {
    pub(crate) fn channel() -> (Self, Asked) {
        let (end, ended) = mpsc::channel(1);
        let (orders, ordered) = mpsc::channel(WAITING);
        let asked = Asked {
            end: ended,
            orders: ordered,
        };
        (Self { end, orders }, asked)
    }

    /// Asks for the end. One ask that waits is as good as many.
    pub(crate) fn end(&self) {
        let _ = self.end.try_send(());
    }

    /// Gives an order and waits for its outcome.
    ///
    /// # Errors
    /// What became of it, or `sandbox_gone` if the sandbox ended first.
    pub(crate) async fn order(&self, what: What) -> Result<(), Denial> {
        let gone = || Denial::new(DenialCode::SandboxGone, "the sandbox has ended");
        let (reply, outcome) = oneshot::channel();
        let full = || {
            let text = format!("{WAITING} orders wait for this sandbox already");
            Denial::new(DenialCode::HostBusy, text).retry_after(1)
        };
        self.orders
            .try_send(Order { what, reply })
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => full(),
                mpsc::error::TrySendError::Closed(_) => gone(),
            })?;
        outcome.await.unwrap_or_else(|_| Err(gone()))
    }
}
