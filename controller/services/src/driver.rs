//! Drivers: one task per run, the only one that changes it; everyone else sends it an [`Ask`].
//!
//! ```text
//!            ┌────────────── generation ──────────────┐
//!   take ──► │ skip what is done, probe what is begun, │ ──► over and released: the driver ends
//!  (fence)   │ do the next step: intent, effect, outcome│
//!    ▲       └───────┬────────────────┬───────────────┘
//!    │          an ask came      the store failed
//!    │               │                │
//!    └── note it ◄───┘   wait ◄───────┘
//! ```
//!
//! A generation starts from the store and nothing else, and may be dropped at any point. So what
//! happens after a crash, after a restart, and after a cancel that interrupts a step is the same: a
//! new generation with a higher fence, which makes whatever the old one still has in flight harmless.
//!
//! | module | role |
//! | --- | --- |
//! | [`session`] · [`asking`] | one generation's hold on its run: committing, asking the host, giving up |
//! | [`steps`] | the way from queued to done |
//! | [`inside`] | the steps inside the guest: clone, command, diff |
//! | [`command`] · [`collect`] | one command in the guest as a step, and what it says |
//! | [`egress`] | the gateway's decisions as events |
//! | [`lost`] | what ended a sandbox that is gone |
//! | [`keep`] | what comes after done: keeping and removing the sandbox |
//! | [`output`] · [`outcome`] | frames to events, exits to endings: pure |

mod asking;
pub(crate) mod collect;
mod command;
mod egress;
pub(crate) mod inside;
mod keep;
mod lost;
pub(crate) mod outcome;
pub(crate) mod output;
pub(crate) mod session;
mod steps;

use crate::core::{Backoff, Core};
use crate::ports::store::{Fact, SandboxFacts, Taken};
use lazaret_domain::{Denial, DenialCode, RunId};
use session::{Halt, Session};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
pub(crate) use steps::FIRST as FIRST_STEP;
use tokio::sync::{mpsc, oneshot};

/// What somebody wants of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Want {
    /// That its work ends.
    Cancel,
    /// That it ends and all it held is removed.
    Teardown,
    /// That it is known what the host just said of its sandbox.
    Known(Box<SandboxFacts>),
}

/// A message to a driver. It is answered when what is wanted is in the store.
struct Ask {
    want: Want,
    reply: oneshot::Sender<Result<(), Denial>>,
}

/// The drivers that are at work.
#[derive(Default)]
pub(crate) struct Drivers {
    inboxes: Mutex<HashMap<RunId, mpsc::Sender<Ask>>>,
}

impl Drivers {
    fn inboxes(&self) -> MutexGuard<'_, HashMap<RunId, mpsc::Sender<Ask>>> {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The inbox of the run's driver, which is started if there is none, with what it has taken already.
fn inbox(core: &Arc<Core>, run: &RunId, taken: Option<Taken>) -> mpsc::Sender<Ask> {
    let mut inboxes = core.drivers.inboxes();
    // A driver takes its inbox with it when it ends; one that is closed was left by a panic.
    if let Some(inbox) = inboxes.get(run).filter(|inbox| !inbox.is_closed()) {
        return inbox.clone();
    }
    let (sender, receiver) = mpsc::channel(8);
    inboxes.insert(run.clone(), sender.clone());
    core.spawn(drive(Arc::clone(core), run.clone(), taken, receiver));
    sender
}

/// Gives a run its driver, if it has none.
pub(crate) fn start(core: &Arc<Core>, run: &RunId) {
    inbox(core, run, None);
}

/// Gives a run that was accepted just now its driver. Its acceptance was its first taking.
pub(crate) fn start_new(core: &Arc<Core>, taken: Taken) {
    let run = taken.run.id.clone();
    inbox(core, &run, Some(taken));
}

/// Asks the run's driver for something and waits until that is in the store.
pub(crate) async fn ask(core: &Arc<Core>, run: &RunId, want: Want) -> Result<(), Denial> {
    let stopping = || {
        Denial::new(
            DenialCode::Stopping,
            "the controller is stopping; ask again in a moment",
        )
    };
    // A driver that ends just now takes its inbox with it; the next one has another.
    for _ in 0..16 {
        if core.stop.is_cancelled() {
            return Err(stopping());
        }
        let (reply, answer) = oneshot::channel();
        if inbox(core, run, None)
            .send(Ask {
                want: want.clone(),
                reply,
            })
            .await
            .is_ok()
            && let Ok(answer) = answer.await
        {
            return answer;
        }
    }
    Err(stopping())
}

/// What a driver does next.
enum Next {
    /// A generation came to its end.
    Ended(Result<(), Halt>),
    /// Somebody wants something.
    Asked(Ask),
}

/// A driver. It ends when the run is over and holds nothing any more, or when all is stopped.
async fn drive(
    core: Arc<Core>,
    run: RunId,
    mut taken: Option<Taken>,
    mut inbox: mpsc::Receiver<Ask>,
) {
    let mut backoff = Backoff::new(&core.settings.pace);
    loop {
        let next = tokio::select! {
            biased;
            Some(ask) = inbox.recv() => Next::Asked(ask),
            end = generation(&core, &run, taken.take()) => Next::Ended(end),
        };
        match next {
            Next::Asked(ask) => {
                let answer = note(&core, &run, ask.want).await;
                // Whoever asked may have gone away; what it wanted is done all the same.
                ask.reply.send(answer).ok();
            }
            Next::Ended(Ok(())) => {
                let mut inboxes = core.drivers.inboxes();
                let Ok(ask) = inbox.try_recv() else {
                    inboxes.remove(&run);
                    return;
                };
                drop(inboxes);
                let answer = note(&core, &run, ask.want).await;
                ask.reply.send(answer).ok();
            }
            Next::Ended(Err(halt)) => {
                let wait = backoff.next();
                tracing::error!(%run, %halt, ?wait, "a driver halted; it goes on from the store");
                tokio::time::sleep(wait).await;
            }
        }
    }
}

/// One generation: from the store to the end, or to where it cannot go on.
async fn generation(core: &Arc<Core>, run: &RunId, taken: Option<Taken>) -> Result<(), Halt> {
    // What an acceptance began, nobody has done; what was begun in a store, somebody may have.
    let (taken, ahead) = match taken {
        Some(taken) => (Some(taken), vec![FIRST_STEP]),
        None => (core.ports.store.take(run).await?, Vec::new()),
    };
    let Some(taken) = taken else {
        return Ok(());
    };
    // The generation before may have been dropped between a commit and telling of it.
    core.feeds.publish(run, taken.run.last_seq);
    core.feeds.nudge(run);
    let mut session = Session::new(Arc::clone(core), taken, ahead);
    Box::pin(session.carry_out()).await?;
    session.keep().await
}

/// Writes down what somebody wants, under a fence of its own.
async fn note(core: &Arc<Core>, run: &RunId, want: Want) -> Result<(), Denial> {
    let missing = || Denial::new(DenialCode::RunNotFound, format!("there is no run {run}"));
    let Taken { run: record, .. } = core.ports.store.take(run).await?.ok_or_else(missing)?;
    let over = record.state.ending();
    let now = core.now();
    let mut facts = record.facts.clone();
    match want {
        Want::Cancel => {
            if let Some(ending) = over {
                let why = format!("the run is over ({})", ending.outcome.as_str());
                return Err(Denial::new(DenialCode::RunOver, why));
            }
            facts.cancel_asked.get_or_insert(now);
        }
        Want::Teardown => {
            facts.teardown_asked.get_or_insert(now);
        }
        Want::Known(known) => {
            if record.holds {
                facts.sandbox = Some(*known);
            }
        }
    }
    if facts == record.facts {
        return Ok(());
    }
    core.ports
        .store
        .commit(run, record.fence, now, vec![Fact::Facts(Box::new(facts))])
        .await?;
    Ok(())
}
