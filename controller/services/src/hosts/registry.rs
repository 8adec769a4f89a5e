//! The links to all hosts that are not retired, and what each last said of itself.

use crate::core::Core;
use crate::ports::host_link::{HostAddress, HostLink, LinkState};
use crate::ports::store::HostRecord;
use lazaret_api::PROTOCOL;
use lazaret_api::host::{Accel, AccelChoice, HostInfo};
use lazaret_api::public::HostAdmission;
use lazaret_domain::sandbox::Reach;
use lazaret_domain::{Denial, DenialCode, HostName};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

/// What a host said is asked again after this long when a run is placed.
const FRESH: Duration = Duration::from_secs(5);
/// What a host said is asked again after this long in any case.
const REFRESH: Duration = Duration::from_secs(30);

struct Entry {
    admission: HostAdmission,
    link: Arc<dyn HostLink>,
    info: Option<(Instant, HostInfo)>,
    /// Ends the task that refreshes `info`.
    _refresher: DropGuard,
}

/// All links, by name.
#[derive(Default)]
pub(crate) struct Registry {
    entries: Mutex<BTreeMap<HostName, Entry>>,
}

/// How a link's state is shown.
pub(crate) fn reach_of(state: &LinkState) -> Reach {
    match state {
        LinkState::Down { since, .. } => Reach::Unreachable { since: *since },
        LinkState::Connecting | LinkState::Up => Reach::Reachable,
    }
}

/// Where a stored host is.
pub(crate) fn address_of(record: &HostRecord) -> HostAddress {
    HostAddress {
        user: record.user.clone(),
        host: record.host.clone(),
        port: record.port,
        host_key: record.host_key.clone(),
    }
}

/// Waits until a link is up or known to be down.
pub(crate) async fn settled(link: &dyn HostLink, patience: Duration) -> Result<(), Denial> {
    let unreachable = || {
        Denial::new(
            DenialCode::HostUnreachable,
            "the host did not answer in time",
        )
    };
    let mut state = link.state();
    let known = timeout(
        patience,
        state.wait_for(|state| *state != LinkState::Connecting),
    )
    .await;
    let known = known
        .map_err(|_| unreachable())?
        .map_err(|_| unreachable())?
        .clone();
    match known {
        LinkState::Down { reason, .. } => Err(reason),
        LinkState::Connecting | LinkState::Up => Ok(()),
    }
}

/// Whether what a host says of itself allows a new sandbox under these settings.
fn fit(info: &HostInfo, accel: AccelChoice) -> Result<&str, Denial> {
    if info.protocol != PROTOCOL {
        let why = format!(
            "the host speaks protocol {}, the controller {PROTOCOL}; install the same version",
            info.protocol
        );
        return Err(Denial::new(DenialCode::HostVersion, why));
    }
    info.vmm.as_ref().map_err(Denial::clone)?;
    let proven = *info.accel.as_ref().map_err(Denial::clone)?;
    if accel == AccelChoice::Kvm && proven != Accel::Kvm {
        let why = "KVM does not work on the host, and software emulation is used only if host.accel says so";
        return Err(Denial::new(DenialCode::NoAccelerator, why));
    }
    info.image.as_deref().map_err(Denial::clone)
}

/// How soon a host is asked again: when it says so, while it is still probing.
fn ask_again_after(info: &HostInfo) -> Duration {
    match &info.accel {
        Err(denial) if denial.code == DenialCode::AcceleratorProbing => {
            Duration::from_secs(denial.retry_after.unwrap_or(1).clamp(1, 30).into())
        }
        _ => REFRESH,
    }
}

impl Registry {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<HostName, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a host in and keeps asking it what it is.
    pub(crate) fn adopt(&self, core: &Arc<Core>, record: HostRecord, link: Arc<dyn HostLink>) {
        let stop = CancellationToken::new();
        let entry = Entry {
            admission: record.admission,
            link: Arc::clone(&link),
            info: None,
            _refresher: stop.clone().drop_guard(),
        };
        self.entries().insert(record.name.clone(), entry);
        let (weak, name) = (Arc::downgrade(core), record.name);
        core.spawn(async move {
            let refreshing = async {
                let mut state = link.state();
                loop {
                    if state
                        .wait_for(|state| *state == LinkState::Up)
                        .await
                        .is_err()
                    {
                        return;
                    }
                    let Some(core) = weak.upgrade() else { return };
                    let again = match core.hosts.refresh(&name, Duration::from_secs(120)).await {
                        Ok(info) => ask_again_after(&info),
                        Err(denial) => {
                            tracing::warn!(host = %name, %denial, "a host did not say what it is");
                            REFRESH
                        }
                    };
                    drop(core);
                    // A change of the link is a reason to ask again, and so is the time.
                    timeout(again, state.changed()).await.ok();
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = refreshing => {}
            }
        });
    }

    pub(crate) fn retire(&self, name: &HostName) {
        self.entries().remove(name);
    }

    pub(crate) fn set_admission(&self, name: &HostName, admission: HostAdmission) {
        if let Some(entry) = self.entries().get_mut(name) {
            entry.admission = admission;
        }
    }

    /// The link to a host; none to one that is retired.
    pub(crate) fn link(&self, name: &HostName) -> Option<Arc<dyn HostLink>> {
        self.entries()
            .get(name)
            .map(|entry| Arc::clone(&entry.link))
    }

    pub(crate) fn links(&self) -> Vec<(HostName, Arc<dyn HostLink>)> {
        self.entries()
            .iter()
            .map(|(name, entry)| (name.clone(), Arc::clone(&entry.link)))
            .collect()
    }

    /// The state of a host's link and what it last said of itself.
    pub(crate) fn look(&self, name: &HostName) -> (Option<LinkState>, Option<HostInfo>) {
        let entries = self.entries();
        let Some(entry) = entries.get(name) else {
            return (None, None);
        };
        let state = entry.link.state().borrow().clone();
        (
            Some(state),
            entry.info.as_ref().map(|(_, info)| info.clone()),
        )
    }

    /// Asks a host what it is.
    pub(crate) async fn refresh(
        &self,
        name: &HostName,
        patience: Duration,
    ) -> Result<HostInfo, Denial> {
        let gone = || {
            Denial::new(
                DenialCode::HostNotFound,
                format!("there is no host '{name}'"),
            )
        };
        let link = self.link(name).ok_or_else(gone)?;
        let info = timeout(patience, link.info()).await.map_err(|_| {
            Denial::new(
                DenialCode::HostUnreachable,
                format!("host '{name}' did not answer in time"),
            )
        })??;
        if let Some(entry) = self.entries().get_mut(name) {
            entry.info = Some((Instant::now(), info.clone()));
        }
        Ok(info)
    }

    async fn recent(&self, name: &HostName, patience: Duration) -> Result<HostInfo, Denial> {
        let known = self
            .entries()
            .get(name)
            .and_then(|entry| entry.info.clone());
        match known {
            Some((at, info)) if at.elapsed() < FRESH => Ok(info),
            _ => self.refresh(name, patience).await,
        }
    }

    /// Chooses the host for a new sandbox: active, reachable, fit, and with the fewest sandboxes.
    /// Answers it with the image it has.
    ///
    /// # Errors
    /// `no_host`, `host_drained`, `sandbox_cap`, or the reason of the last host that cannot take it.
    pub(crate) async fn choose(
        &self,
        accel: AccelChoice,
        holding: &BTreeMap<HostName, u32>,
        patience: Duration,
    ) -> Result<(HostName, String), Denial> {
        let known: Vec<_> = self
            .entries()
            .iter()
            .map(|(name, entry)| (name.clone(), entry.admission, Arc::clone(&entry.link)))
            .collect();
        let mut refusal = if known.is_empty() {
            Denial::new(
                DenialCode::NoHost,
                "no host is enrolled; enrol one with 'lazaret host enroll'",
            )
        } else {
            Denial::new(
                DenialCode::HostDrained,
                "every host is drained; enrol another or make one active again",
            )
        };
        let mut best: Option<(u32, HostName, String)> = None;
        for (name, admission, link) in known {
            if admission != HostAdmission::Active {
                continue;
            }
            let held = holding.get(&name).copied().unwrap_or(0);
            let candidate = async {
                settled(&*link, patience).await?;
                let info = self.recent(&name, patience).await?;
                if held >= info.max_sandboxes {
                    let why = format!(
                        "host '{name}' holds as many sandboxes as it may ({held}); tear down finished runs"
                    );
                    return Err(Denial::new(DenialCode::SandboxCap, why).retry_after(15));
                }
                fit(&info, accel).map(str::to_owned)
            };
            match candidate.await {
                Ok(image) if best.as_ref().is_none_or(|(least, ..)| held < *least) => {
                    best = Some((held, name, image));
                }
                Ok(_) => {}
                Err(denial) => refusal = denial,
            }
        }
        best.map(|(_, name, image)| (name, image)).ok_or(refusal)
    }
}
