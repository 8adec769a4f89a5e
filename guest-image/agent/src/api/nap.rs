//! Who a guest is, and how it naps: adopted once, put to rest any number of times, and after a rest
//! woken as itself or adopted as somebody else.
//!
//! ```text
//!   (new) ──adopt──► at work ⇄ napping ──adopt──► at work, as another
//!                nap / wake, go on
//! ```
//!
//! Work stands still from before the machine is stopped until after it has its clock and entropy: no
//! process of the user runs on what was true before.

use super::body::{self, Body, Input};
use super::{Guest, Identity, MAX_ADOPT, from_json};
use bytes::Bytes;
use http::{Response, StatusCode};
use lazaret_api::guest::{Adopt, Wake};
use lazaret_domain::{Denial, DenialCode};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{Mutex, MutexGuard};

/// Whether a guest naps, and whose turn it is to change that.
#[derive(Default)]
pub(super) struct Nap {
    turn: Mutex<()>,
    napping: Arc<AtomicBool>,
}

impl Nap {
    pub(super) fn napping(&self) -> bool {
        self.napping.load(Ordering::SeqCst)
    }

    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.napping)
    }

    fn set(&self, _turn: &MutexGuard<'_, ()>, napping: bool) {
        self.napping.store(napping, Ordering::SeqCst);
    }
}

impl Guest {
    /// Stops all work and writes the disk out.
    pub(super) async fn lie_down(&self) -> Result<(), Denial> {
        let turn = self.nap.turn.lock().await;
        if self.nap.napping() {
            return Ok(());
        }
        self.ready()?;
        // From here on nothing new begins.
        self.nap.set(&turn, true);
        if let Err(error) = self.engine.stand_still().await {
            self.nap.set(&turn, false);
            return Err(fault("stop its work", &error));
        }
        // On another thread: it may take long, and the agent has but one.
        let synced = tokio::task::spawn_blocking(self.machine.sync()).await;
        synced.map_err(|error| fault("write its disk out", &io::Error::other(error)))
    }

    pub(super) async fn wake<B>(&self, mut input: Input<B>) -> Result<Response<Body>, Denial>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let wake: Wake = from_json(&input.whole(MAX_ADOPT).await?)?;
        let _turn = self.nap.turn.lock().await;
        self.has_name()?;
        Ok(body::json(StatusCode::OK, &self.machine.wake(&wake)?))
    }

    /// Lets work go on.
    pub(super) async fn get_up(&self) -> Result<(), Denial> {
        let turn = self.nap.turn.lock().await;
        self.has_name()?;
        self.go_on(&turn)
    }

    pub(super) async fn adopt<B>(&self, mut input: Input<B>) -> Result<Response<Body>, Denial>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let adopt: Adopt = from_json(&input.whole(MAX_ADOPT).await?)?;
        // Held over the whole of it: two adoptions cannot interleave.
        let turn = self.nap.turn.lock().await;
        let now = self
            .identity()
            .as_ref()
            .map(|identity| identity.sandbox.clone());
        let answer = match now {
            None => self.machine.adopt(&adopt)?,
            Some(now) if self.nap.napping() && now != adopt.sandbox => {
                // What ran belongs to the one this was copied from, and so does its random state.
                self.engine
                    .end_all()
                    .await
                    .map_err(|error| fault("end what it was copied with", &error))?;
                let answer = self.machine.adopt_again(&adopt)?;
                self.go_on(&turn)?;
                answer
            }
            Some(now) => {
                return Err(Denial::new(
                    DenialCode::AlreadyExists,
                    format!("this guest was adopted as {now}"),
                ));
            }
        };
        *self.identity() = Some(Identity {
            sandbox: adopt.sandbox,
            boot_id: answer.boot_id.clone(),
        });
        Ok(body::json(StatusCode::OK, &answer))
    }

    /// Goes through what every run goes through, as somebody it is not to be: it is not adopted by
    /// that, and has entropy of its own. Nothing that was started is left when this answers.
    pub(super) async fn warm<B>(&self, mut input: Input<B>) -> Result<Response<Body>, Denial>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let rehearsed: Adopt = from_json(&input.whole(MAX_ADOPT).await?)?;
        // Held over the whole of it: nobody is adopted while something runs that was not its own.
        let _turn = self.nap.turn.lock().await;
        if let Some(identity) = &*self.identity() {
            return Err(Denial::new(
                DenialCode::AlreadyExists,
                format!("this guest was adopted as {}", identity.sandbox),
            ));
        }
        self.machine.adopt(&rehearsed)?;
        crate::warm::spare(&self.engine).await;
        // Once more as it will be: over files that are there, and that the disk has.
        let sync = self.machine.sync();
        tokio::task::spawn_blocking(sync).await.ok();
        self.machine.adopt(&rehearsed)?;
        Ok(body::json(StatusCode::OK, &serde_json::json!({})))
    }

    fn go_on(&self, turn: &MutexGuard<'_, ()>) -> Result<(), Denial> {
        self.engine
            .go_on()
            .map_err(|error| fault("go on with its work", &error))?;
        self.nap.set(turn, false);
        Ok(())
    }
}

fn fault(what: &str, error: &io::Error) -> Denial {
    Denial::new(
        DenialCode::Internal,
        format!("the guest could not {what}: {error}"),
    )
}
