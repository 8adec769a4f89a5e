//! Hosts.
use crate::Principal;
use lazaret_api::public::{EnrollHost, Host, HostAdmission, HostList};
use lazaret_domain::{Denial, HostName};

/// The machines that run sandboxes.
#[derive(Clone)]
pub struct Hosts {}

impl Hosts {
    /// Enrols a host after connecting to it. The same host again is success. Needs `admin`.
    ///
    /// # Errors
    /// `invalid_name`, `already_exists`, or why it cannot be reached.
    pub async fn enroll(&self, by: &Principal, request: EnrollHost) -> Result<Host, Denial> {
        let _ = (by, request);
        Err(crate::unbuilt())
    }

    /// All hosts. Needs `operate`.
    ///
    /// # Errors
    /// `scope_too_narrow`, `store_failed`.
    pub async fn list(&self, by: &Principal) -> Result<HostList, Denial> {
        let _ = by;
        Err(crate::unbuilt())
    }

    /// Says whether new sandboxes go to a host. Needs `admin`.
    ///
    /// # Errors
    /// `host_not_found`, `scope_too_narrow`, `store_failed`.
    pub async fn set_admission(&self, by: &Principal, name: &HostName, admission: HostAdmission) -> Result<Host, Denial> {
        let _ = (by, name, admission);
        Err(crate::unbuilt())
    }
}
