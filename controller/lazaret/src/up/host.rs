//! This machine as a host: set up, enrolled, and proven by a probe boot.

use super::progress;
use crate::accel;
use crate::failure::Failure;
use crate::paths::Paths;
use crate::settings::Settings;
use lazaret_api::host::Accel;
use lazaret_api::public::{EnrollHost, Host};
use lazaret_domain::sandbox::Reach;
use lazaret_domain::{DenialCode, HostName};
use lazaret_host::local::{self, LocalHost, LocalSettings};
use lazaret_services::{Principal, Services};
use std::time::Duration;

/// The account that sandboxes run as.
const ACCOUNT: &str = "lazaret";
/// Booting probe guests, retried, may take this long under software emulation.
const PROOF: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(500);

/// Makes this machine a host with an sshd of its own.
pub(super) async fn enrol_machine(
    paths: &Paths,
    settings: &Settings,
) -> Result<LocalHost, Failure> {
    let mut host = toml::Table::new();
    host.insert(
        "images_dir".into(),
        paths.images().display().to_string().into(),
    );
    host.insert("accel".into(), accel::word(settings.services.accel).into());
    host.insert(
        "max_sandboxes".into(),
        i64::from(settings.services.max_sandboxes).into(),
    );
    let request = LocalSettings {
        base: paths.host(),
        account: ACCOUNT.into(),
        program: std::env::current_exe()
            .map_err(|error| Failure::doing("cannot find this program", error))?,
        port: None,
        host,
    };
    let shown = progress("Making this machine a host");
    let mut tell = |step: &str| shown.step(&format!("Making this machine a host: {step}"));
    local::enrol(request, &mut tell)
        .await
        .map_err(|error| Failure::Failed(error.to_string()))
}

/// Enrols it with the controller and waits until a probe guest has decided about its accelerator.
pub(super) async fn enrol(services: &Services, local: &LocalHost) -> Result<Accel, Failure> {
    let by = Principal::controller();
    let shown = progress("Enrolling this machine over SSH");
    let request = |name: HostName| EnrollHost {
        name: Some(name),
        address: format!("{}@127.0.0.1:{}", local.account.name, local.sshd.port()),
        host_key: local.host_key.clone(),
    };
    let host = match services.hosts.enroll(&by, request("local".parse()?)).await {
        Err(denial) if denial.code == DenialCode::AlreadyExists => {
            // The same machine under a second name would take its own sandboxes for strays.
            let known = services.hosts.list(&by).await?.hosts;
            if known.iter().any(|host| host.host_key == local.host_key) {
                return Err(Failure::Failed(format!(
                    "this machine is enrolled at another port than {}; retire that entry first: lazaret host ls, lazaret host retire NAME",
                    local.sshd.port()
                )));
            }
            let name = format!("local-{}", local.sshd.port());
            services.hosts.enroll(&by, request(name.parse()?)).await?
        }
        enrolled => enrolled?,
    };
    shown.step("Booting a probe guest to see which accelerator works");
    let proven = tokio::time::timeout(PROOF, prove(services, &by, host)).await;
    proven.unwrap_or_else(|_| {
        Err(Failure::Failed(
            "no probe guest came up; see: lazaret doctor".into(),
        ))
    })
}

async fn prove(services: &Services, by: &Principal, host: Host) -> Result<Accel, Failure> {
    let name = host.name.clone();
    let mut now = host;
    loop {
        match (&now.reach, now.accel, &now.problem) {
            (Reach::Reachable, Some(accel), _) => return Ok(accel),
            (Reach::Reachable, None, Some(problem))
                if problem.code != DenialCode::AcceleratorProbing.as_str() =>
            {
                return Err(Failure::Failed(format!(
                    "{}: {} ({})",
                    name, problem.message, problem.code
                )));
            }
            _ => {}
        }
        tokio::time::sleep(LOOK).await;
        let list = services.hosts.list(by).await?;
        now = list
            .hosts
            .into_iter()
            .find(|host| host.name == name)
            .ok_or_else(|| Failure::Failed(format!("the host {name} is no longer enrolled")))?;
    }
}
