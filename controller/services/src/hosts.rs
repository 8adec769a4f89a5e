//! Hosts: the machines that run sandboxes.
//!
//! The store says which hosts there are; the [`Registry`] holds a link to each that is not retired
//! and keeps what it last said of itself. Choosing a host is the first step of accepting a run, and
//! refuses, with the host's own reason, before anything is stored.

mod address;
mod registry;

pub(crate) use registry::{Registry, address_of, reach_of};

use crate::Principal;
use crate::core::Core;
use crate::ports::host_link::{HostAddress, LinkState};
use crate::ports::store::HostRecord;
use lazaret_api::public::{EnrollHost, Host, HostAdmission, HostList, Scope};
use lazaret_domain::run::Cause;
use lazaret_domain::sandbox::Reach;
use lazaret_domain::{Denial, DenialCode, HostName};
use std::sync::Arc;

/// The machines that run sandboxes.
#[derive(Clone)]
pub struct Hosts {
    pub(crate) core: Arc<Core>,
}

impl Hosts {
    /// Enrols a host after connecting to it once. The same host again is success and makes it
    /// active. Needs `admin`.
    ///
    /// # Errors
    /// `invalid_request`, `invalid_name`, `already_exists`, `scope_too_narrow`, `store_failed`, or
    /// why the host cannot be reached.
    pub async fn enroll(&self, by: &Principal, request: EnrollHost) -> Result<Host, Denial> {
        by.require(Scope::Admin)?;
        let place = address::parse(&request.address, &request.host_key)?;
        let name = match request.name {
            Some(name) => name,
            None => address::name_for(&place.host)?,
        };
        let HostAddress {
            user,
            host,
            port,
            host_key,
        } = place.clone();
        let record = HostRecord {
            name: name.clone(),
            user,
            host,
            port,
            host_key,
            admission: HostAdmission::Active,
        };
        let known = self
            .core
            .ports
            .store
            .hosts()
            .await?
            .into_iter()
            .find(|host| host.name == name);
        if known.is_some_and(|known| {
            HostRecord {
                admission: HostAdmission::Active,
                ..known
            } != record
        }) {
            let why = format!(
                "a host named '{name}' is enrolled with another address or key; choose another name"
            );
            return Err(Denial::new(DenialCode::AlreadyExists, why).at("name"));
        }
        let registry = &self.core.hosts;
        if registry.link(&name).is_none() {
            let link = self.core.ports.links.connect(&name, &place);
            registry::settled(&*link, self.core.settings.pace.patience).await?;
            self.core.ports.store.put_host(&record).await?;
            registry.adopt(&self.core, record, link);
        } else {
            self.core.ports.store.put_host(&record).await?;
            registry.set_admission(&name, HostAdmission::Active);
        }
        registry
            .refresh(&name, self.core.settings.pace.patience)
            .await
            .ok();
        tracing::info!(host = %name, by = %by.key, "host enrolled");
        self.one(&name).await
    }

    /// All hosts. Needs `operate`.
    ///
    /// # Errors
    /// `scope_too_narrow`, `store_failed`.
    pub async fn list(&self, by: &Principal) -> Result<HostList, Denial> {
        by.require(Scope::Operate)?;
        Ok(HostList {
            hosts: self.all().await?,
        })
    }

    /// Says whether new sandboxes go to a host. One that is retired is never asked again: runs that
    /// are still on it are lost. Needs `admin`.
    ///
    /// # Errors
    /// `host_not_found`, `scope_too_narrow`, `store_failed`.
    pub async fn set_admission(
        &self,
        by: &Principal,
        name: &HostName,
        admission: HostAdmission,
    ) -> Result<Host, Denial> {
        by.require(Scope::Admin)?;
        let stored = self
            .core
            .ports
            .store
            .hosts()
            .await?
            .into_iter()
            .find(|host| host.name == *name);
        let stored = stored.ok_or_else(|| {
            Denial::new(
                DenialCode::HostNotFound,
                format!("there is no host '{name}'"),
            )
        })?;
        let record = HostRecord {
            admission,
            ..stored
        };
        self.core.ports.store.put_host(&record).await?;
        if admission == HostAdmission::Retired {
            self.core.hosts.retire(name);
        } else if self.core.hosts.link(name).is_none() {
            let link = self.core.ports.links.connect(name, &address_of(&record));
            self.core.hosts.adopt(&self.core, record, link);
        } else {
            self.core.hosts.set_admission(name, admission);
        }
        tracing::info!(host = %name, ?admission, by = %by.key, "host admission changed");
        self.one(name).await
    }

    async fn one(&self, name: &HostName) -> Result<Host, Denial> {
        let hosts = self.all().await?;
        hosts
            .into_iter()
            .find(|host| host.name == *name)
            .ok_or_else(|| {
                Denial::new(
                    DenialCode::HostNotFound,
                    format!("there is no host '{name}'"),
                )
            })
    }

    /// All hosts as they are shown.
    pub(crate) async fn all(&self) -> Result<Vec<Host>, Denial> {
        let holding = self.core.holding().await?;
        let records = self.core.ports.store.hosts().await?;
        Ok(records
            .into_iter()
            .map(|record| {
                let sandboxes = holding.get(&record.name).copied().unwrap_or(0);
                self.view(record, sandboxes)
            })
            .collect())
    }

    fn view(&self, record: HostRecord, sandboxes: u32) -> Host {
        let (state, info) = self.core.hosts.look(&record.name);
        let mut problem = match &state {
            Some(LinkState::Down { reason, .. }) => Some(Cause::from(reason)),
            _ => None,
        };
        let (mut accel, mut vmm, mut image) = (None, None, None);
        if let Some(info) = info {
            let mut keep = |denial: Denial| {
                problem.get_or_insert_with(|| Cause::from(&denial));
            };
            accel = info.accel.map_err(&mut keep).ok();
            vmm = info.vmm.map_err(&mut keep).ok();
            image = info.image.map_err(&mut keep).ok();
        }
        Host {
            address: format!(
                "{}@{}:{}",
                record.user,
                address::bracketed(&record.host),
                record.port
            ),
            name: record.name,
            host_key: record.host_key,
            admission: record.admission,
            reach: state.as_ref().map_or(Reach::Reachable, reach_of),
            problem,
            accel,
            vmm,
            image,
            sandboxes,
        }
    }
}
