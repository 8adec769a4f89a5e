//! What the calls on the fake host have in common: finding things, refusing, and being stopped.

use super::{Boot, FakeExec, FakeHost, FakeSandbox, State};
use crate::ports::host_link::LinkState;
use bytes::Bytes;
use lazaret_api::host::{Accel, Sandbox};
use lazaret_domain::sandbox::SandboxState;
use lazaret_domain::{Denial, DenialCode, ExecId, Fence, SandboxId};
use tokio::sync::watch;

pub(super) fn denial(code: DenialCode) -> Denial {
    Denial::new(code, format!("the fake host says {code}"))
}

impl State {
    pub(super) fn sandbox(&mut self, id: &SandboxId) -> Result<&mut FakeSandbox, Denial> {
        self.sandboxes
            .get_mut(id)
            .ok_or_else(|| denial(DenialCode::SandboxNotFound))
    }

    /// The sandbox, for an effect under this fence.
    pub(super) fn fenced(
        &mut self,
        id: &SandboxId,
        fence: Fence,
    ) -> Result<&mut FakeSandbox, Denial> {
        let sandbox = self.sandbox(id)?;
        if fence < sandbox.fence {
            return Err(denial(DenialCode::StaleFence));
        }
        sandbox.fence = fence;
        Ok(sandbox)
    }
}

impl FakeSandbox {
    pub(super) fn alive(&mut self) -> Result<&mut Self, Denial> {
        match self.sandbox.state {
            SandboxState::Ready => Ok(self),
            SandboxState::Gone => Err(denial(DenialCode::SandboxGone)),
            SandboxState::Asleep => Err(denial(DenialCode::SandboxAsleep)),
            SandboxState::Forking => Err(denial(DenialCode::SandboxNotReady)),
        }
    }

    /// Puts it to sleep or wakes it, as the real host does.
    pub(super) fn rest(&mut self, wanted: SandboxState) -> Result<Sandbox, Denial> {
        let sandbox = &mut self.sandbox;
        match sandbox.state {
            SandboxState::Gone => return Err(denial(DenialCode::SandboxGone)),
            SandboxState::Forking => return Err(denial(DenialCode::SandboxNotReady)),
            SandboxState::Ready | SandboxState::Asleep => {}
        }
        if wanted == SandboxState::Asleep && self.execs.values().any(|e| e.exec.exit.is_none()) {
            return Err(denial(DenialCode::SandboxBusy));
        }
        if sandbox.state != wanted {
            sandbox.state = wanted;
            sandbox.asleep_since = (wanted == SandboxState::Asleep).then(jiff::Timestamp::now);
        }
        Ok(sandbox.clone())
    }

    pub(super) fn exec(&mut self, exec: &ExecId) -> Result<&mut FakeExec, Denial> {
        self.execs
            .get_mut(exec)
            .ok_or_else(|| denial(DenialCode::ExecNotFound))
    }
}

impl FakeHost {
    /// Fails as a call over a connection that is down does.
    pub(super) fn up(&self) -> Result<(), Denial> {
        match &*self.inner.link.borrow() {
            LinkState::Down { reason, .. } => Err(reason.clone()),
            LinkState::Connecting | LinkState::Up => Ok(()),
        }
    }

    /// Answers a call, or leaves its caller waiting for ever.
    pub(super) async fn answers(&self) -> Result<(), Denial> {
        let hangs = FakeHost::state(self).hangs;
        if hangs {
            std::future::pending::<()>().await;
        }
        self.up()
    }

    /// An effect: it may be stopped before and after, and is refused while the connection is down.
    pub(super) async fn effect<T>(
        &self,
        act: impl FnOnce(&mut State) -> Result<T, Denial>,
    ) -> Result<T, Denial> {
        self.crash.pass().await;
        self.answers().await?;
        let answer = act(&mut self.state());
        self.changed();
        self.crash.pass().await;
        answer
    }

    /// The boot of a sandbox, as far as it has come.
    pub(super) fn boot(&self, id: &SandboxId) -> Result<Sandbox, Denial> {
        self.up()?;
        let mut state = self.state();
        let boot = state.boot;
        let sandbox = state.sandbox(id)?;
        if sandbox.sandbox.state == SandboxState::Forking {
            match boot {
                Boot::Held => {}
                Boot::Ready => {
                    sandbox.sandbox.state = SandboxState::Ready;
                    sandbox.sandbox.boot_id = Some(format!("boot-{id}"));
                    sandbox.sandbox.kernel = Some("6.1-fake".to_owned());
                    sandbox.sandbox.accel = Some(Accel::Kvm);
                }
                Boot::Fails(cause) => sandbox.end(cause),
            }
        }
        Ok(sandbox.sandbox.clone())
    }

    /// New output of a command behind `offset`, and whether it has ended.
    pub(super) fn output_at(
        &self,
        id: &SandboxId,
        exec: &ExecId,
        offset: usize,
    ) -> Result<(Bytes, bool), Denial> {
        self.up()?;
        let mut state = self.state();
        let exec = state.sandbox(id)?.exec(exec)?;
        let new = exec.output.get(offset..).unwrap_or_default();
        Ok((Bytes::copy_from_slice(new), exec.exec.exit.is_some()))
    }
}

/// A reader of a command's output.
pub(super) struct Reader {
    pub(super) host: FakeHost,
    pub(super) changed: watch::Receiver<u64>,
    pub(super) id: SandboxId,
    pub(super) exec: ExecId,
    pub(super) offset: usize,
    pub(super) follow: bool,
    pub(super) left: usize,
    pub(super) over: bool,
}

impl Reader {
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, Denial>> {
        while !self.over {
            self.changed.mark_unchanged();
            match self.host.output_at(&self.id, &self.exec, self.offset) {
                Err(denial) => {
                    self.over = true;
                    return Some(Err(denial));
                }
                Ok((bytes, ended)) if !bytes.is_empty() => {
                    let bytes = bytes.slice(..bytes.len().min(self.left).min(1000));
                    self.offset += bytes.len();
                    self.left -= bytes.len();
                    self.over = self.left == 0;
                    if !bytes.is_empty() {
                        return Some(Ok(bytes));
                    }
                    self.over |= ended;
                }
                Ok((_, ended)) if ended || !self.follow => self.over = true,
                Ok(_) => self.changed.changed().await.ok()?,
            }
        }
        None
    }
}
