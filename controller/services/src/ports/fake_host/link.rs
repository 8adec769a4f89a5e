//! The fake host as a [`HostLink`].

use super::inside::{Reader, denial};
use super::play::cancelled;
use super::{FakeExec, FakeHost, FakeSandbox};
use crate::ports::host_link::{Area, ByteStream, HostLink, LinkState};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use lazaret_api::guest::{FileEntry, FileKind, Listing};
use lazaret_api::host::{
    BootStages, Confinement, Copied, EgressRecords, Exec, ExecRequest, HostInfo, Sandbox,
    SandboxSpec, WakeFrom,
};
use lazaret_domain::sandbox::SandboxState;
use lazaret_domain::{Denial, DenialCode, ExecId, Fence, GuestPath, SandboxId};
use std::collections::BTreeMap;
use std::io::Read;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

#[async_trait]
impl HostLink for FakeHost {
    fn state(&self) -> watch::Receiver<LinkState> {
        self.inner.link.subscribe()
    }

    async fn info(&self) -> Result<HostInfo, Denial> {
        self.up()?;
        Ok(FakeHost::state(self).info.clone())
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>, Denial> {
        self.up()?;
        Ok(FakeHost::state(self)
            .sandboxes
            .values()
            .map(|sandbox| sandbox.sandbox.clone())
            .collect())
    }

    async fn create(
        &self,
        fence: Fence,
        id: &SandboxId,
        spec: &SandboxSpec,
    ) -> Result<Sandbox, Denial> {
        self.effect(|state| {
            if state.sandboxes.contains_key(id) {
                let known = state.fenced(id, fence)?;
                let same = known.sandbox.spec == *spec;
                return if same {
                    Ok(known.sandbox.clone())
                } else {
                    Err(denial(DenialCode::SpecMismatch))
                };
            }
            if let Some(refusal) = &state.refuse_create {
                return Err(refusal.clone());
            }
            *state.effects.created.entry(id.clone()).or_default() += 1;
            let now = Timestamp::now();
            let sandbox = Sandbox {
                id: id.clone(),
                spec: spec.clone(),
                state: SandboxState::Forking,
                end: None,
                created_at: now,
                deadline: Some(now + spec.max_duration.duration()),
                asleep_since: None,
                kept: false,
                accel: None,
                boot_id: None,
                kernel: None,
                stages: BootStages {
                    shim_ms: Some(1),
                    vmm_ms: Some(1),
                    kernel_ms: Some(2),
                    agent_ms: Some(3),
                    tries: 1,
                    ..BootStages::default()
                },
                confinement: Confinement::default(),
            };
            let (execs, files) = (BTreeMap::new(), BTreeMap::new());
            let fake = FakeSandbox {
                sandbox: sandbox.clone(),
                fence,
                execs,
                files,
                egress: Vec::new(),
            };
            state.sandboxes.insert(id.clone(), fake);
            Ok(sandbox)
        })
        .await
    }

    async fn inspect(&self, id: &SandboxId) -> Result<Sandbox, Denial> {
        self.answers().await?;
        self.boot(id)
    }

    async fn settled(&self, id: &SandboxId, wait: Duration) -> Result<Sandbox, Denial> {
        self.answers().await?;
        let settled = async {
            let mut changed = self.inner.changed.subscribe();
            loop {
                changed.mark_unchanged();
                let sandbox = self.boot(id)?;
                if sandbox.state != SandboxState::Forking {
                    return Ok(sandbox);
                }
                changed.changed().await.ok();
            }
        };
        match timeout(wait, settled).await {
            Ok(answer) => answer,
            Err(_) => self.boot(id),
        }
    }

    async fn destroy(&self, fence: Fence, id: &SandboxId) -> Result<(), Denial> {
        self.effect(|state| {
            if state.stuck.contains(id) {
                return Err(denial(DenialCode::HostBusy));
            }
            if state.sandboxes.contains_key(id) {
                state.fenced(id, fence)?;
                state.sandboxes.remove(id);
                *state.effects.destroyed.entry(id.clone()).or_default() += 1;
            }
            Ok(())
        })
        .await
    }

    async fn sleep(&self, fence: Fence, id: &SandboxId) -> Result<Sandbox, Denial> {
        self.effect(|state| {
            let sandbox = state.fenced(id, fence)?;
            sandbox.rest(SandboxState::Asleep)
        })
        .await
    }

    async fn wake(&self, fence: Fence, id: &SandboxId, _: WakeFrom) -> Result<Sandbox, Denial> {
        self.effect(|state| {
            if let Some(refusal) = &state.refuse_wake {
                return Err(refusal.clone());
            }
            let sandbox = state.fenced(id, fence)?;
            sandbox.rest(SandboxState::Ready)
        })
        .await
    }

    async fn copies(
        &self,
        fence: Fence,
        id: &SandboxId,
        copies: &[SandboxId],
    ) -> Result<Copied, Denial> {
        self.effect(|state| {
            let source = state.fenced(id, fence)?.alive()?;
            let (spec, files) = (source.sandbox.spec.copied(id), source.files.clone());
            let like = source.sandbox.clone();
            let mut made = Vec::new();
            for copy in copies {
                let sandbox = Sandbox {
                    id: copy.clone(),
                    spec: spec.clone(),
                    state: SandboxState::Forking,
                    boot_id: None,
                    ..like.clone()
                };
                *state.effects.created.entry(copy.clone()).or_default() += 1;
                made.push(sandbox.clone());
                let fake = FakeSandbox {
                    sandbox,
                    fence,
                    execs: BTreeMap::new(),
                    files: files.clone(),
                    egress: Vec::new(),
                };
                state.sandboxes.insert(copy.clone(), fake);
            }
            Ok(Copied {
                copies: made,
                pause_ms: Some(1),
            })
        })
        .await
    }

    async fn keep(&self, fence: Fence, id: &SandboxId, keep: bool) -> Result<Sandbox, Denial> {
        self.effect(|state| {
            let sandbox = state.fenced(id, fence)?;
            sandbox.sandbox.kept = keep;
            sandbox.rest(sandbox.sandbox.state)
        })
        .await
    }

    async fn start_exec(
        &self,
        fence: Fence,
        id: &SandboxId,
        exec: &ExecId,
        request: &ExecRequest,
    ) -> Result<Exec, Denial> {
        self.effect(|state| {
            let script = state.script.clone();
            let sandbox = state.fenced(id, fence)?;
            if let Some(known) = sandbox.execs.get(exec) {
                return if known.request == *request {
                    Ok(known.exec.clone())
                } else {
                    Err(denial(DenialCode::SpecMismatch))
                };
            }
            sandbox.alive()?;
            let described = Exec {
                id: exec.clone(),
                started_at: Timestamp::now(),
                exit: None,
                output_len: 0,
            };
            let mut fake = FakeExec {
                exec: described,
                request: request.clone(),
                output: Vec::new(),
            };
            let play = script(exec, request);
            fake.add(&play.frames, play.exit);
            let answer = fake.exec.clone();
            sandbox.execs.insert(exec.clone(), fake);
            *state
                .effects
                .started
                .entry((id.clone(), exec.clone()))
                .or_default() += 1;
            Ok(answer)
        })
        .await
    }

    async fn exec(&self, id: &SandboxId, exec: &ExecId) -> Result<Exec, Denial> {
        self.up()?;
        Ok(FakeHost::state(self).sandbox(id)?.exec(exec)?.exec.clone())
    }

    async fn output(
        &self,
        id: &SandboxId,
        exec: &ExecId,
        offset: u64,
        follow: bool,
    ) -> Result<ByteStream, Denial> {
        self.answers().await?;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        self.output_at(id, exec, offset)?;
        let left = FakeHost::state(self).cut_after.unwrap_or(usize::MAX);
        let (changed, host) = (self.inner.changed.subscribe(), self.clone());
        let (id, exec) = (id.clone(), exec.clone());
        let reader = Reader {
            host,
            changed,
            id,
            exec,
            offset,
            follow,
            left,
            over: false,
        };
        let bytes = stream::unfold(reader, |mut reader| async move {
            let next = reader.next().await?;
            Some((next, reader))
        });
        Ok(bytes.boxed())
    }

    async fn cancel_exec(&self, fence: Fence, id: &SandboxId, exec: &ExecId) -> Result<(), Denial> {
        self.effect(|state| {
            let known = state.fenced(id, fence)?.exec(exec)?;
            if known.exec.exit.is_none() {
                known.add(&[], Some(cancelled()));
                *state
                    .effects
                    .cancelled
                    .entry((id.clone(), exec.clone()))
                    .or_default() += 1;
            }
            Ok(())
        })
        .await
    }

    async fn list_files(&self, id: &SandboxId, path: &GuestPath) -> Result<Listing, Denial> {
        self.up()?;
        let mut state = FakeHost::state(self);
        let files = &state.sandbox(id)?.alive()?.files;
        if !path.is_root() {
            return Err(denial(DenialCode::FileNotFound));
        }
        let entry = |(name, bytes): (&String, &Bytes)| FileEntry {
            name: name.clone(),
            kind: FileKind::File,
            size: bytes.len() as u64,
            mode: 0o644,
            modified: 0,
        };
        Ok(Listing {
            entries: files.iter().map(entry).collect(),
            truncated: false,
        })
    }

    async fn read_tar(&self, id: &SandboxId, path: &GuestPath) -> Result<ByteStream, Denial> {
        self.up()?;
        let mut state = FakeHost::state(self);
        let bytes = state
            .sandbox(id)?
            .alive()?
            .files
            .get(path.as_str())
            .cloned();
        let bytes = bytes.ok_or_else(|| denial(DenialCode::FileNotFound))?;
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        let fault = |_| denial(DenialCode::Internal);
        builder
            .append_data(&mut header, path.as_str(), &*bytes)
            .map_err(fault)?;
        let tar = Bytes::from(builder.into_inner().map_err(fault)?);
        let pieces: Vec<_> = tar
            .chunks(4096)
            .map(|piece| Ok(Bytes::copy_from_slice(piece)))
            .collect();
        Ok(stream::iter(pieces).boxed())
    }

    async fn write_tar(
        &self,
        fence: Fence,
        id: &SandboxId,
        _: Area,
        _: &GuestPath,
        mut tar: ByteStream,
    ) -> Result<(), Denial> {
        let mut bytes = Vec::new();
        while let Some(piece) = tar.next().await {
            bytes.extend_from_slice(&piece?);
        }
        self.effect(|state| {
            let sandbox = state.fenced(id, fence)?.alive()?;
            let fault = |_| denial(DenialCode::InvalidRequest);
            for entry in tar::Archive::new(&*bytes).entries().map_err(fault)? {
                let mut entry = entry.map_err(fault)?;
                let name = entry.path().map_err(fault)?.to_string_lossy().into_owned();
                let mut content = Vec::new();
                entry.read_to_end(&mut content).map_err(fault)?;
                sandbox.files.insert(name, content.into());
            }
            Ok(())
        })
        .await
    }

    async fn console(&self, id: &SandboxId) -> Result<String, Denial> {
        self.up()?;
        FakeHost::state(self)
            .sandbox(id)
            .map(|_| "lazaret-guest: ready\n".to_owned())
    }

    async fn egress(&self, id: &SandboxId, after: u64) -> Result<EgressRecords, Denial> {
        self.answers().await?;
        let mut state = FakeHost::state(self);
        if state.no_egress {
            return Err(denial(DenialCode::HostBusy));
        }
        let records = state
            .sandbox(id)?
            .egress
            .iter()
            .filter(|record| record.seq > after)
            .take(1000)
            .cloned()
            .collect();
        Ok(EgressRecords {
            records,
            dropped: 0,
        })
    }
}
