//! A real sshd, a real account and a stand-in for the host side.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use lazaret_domain::{HostName, SandboxId};
use lazaret_services::ports::host_link::{HostAddress, HostLink, HostLinks, LinkState};
use lazaret_ssh::{ClientKey, SshLinks, SshSettings, UplinkBody, UplinkService};
use lazaret_test::station::Ground;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What a test waits for at most; only a defect makes it wait so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The stand-in, built beside this test.
pub(crate) fn stub() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let stub = profile.join("examples/host_stub");
    assert!(
        stub.is_file(),
        "{} is missing: it is built with the tests of this crate",
        stub.display()
    );
    stub
}

pub(crate) async fn ground() -> Ground {
    Ground::prepare(&stub(), toml::Table::new()).await.unwrap()
}

pub(crate) fn address(ground: &Ground) -> HostAddress {
    let host = ground.host().unwrap();
    HostAddress {
        user: host.account.name.clone(),
        host: "127.0.0.1".into(),
        port: ground.port(),
        host_key: host.host_key.clone(),
    }
}

/// Answers every route with the sandbox it saw.
pub(crate) fn routes() -> UplinkService {
    UplinkService::new(tower::service_fn(|request: Request<Incoming>| async move {
        let sandbox = request
            .extensions()
            .get::<SandboxId>()
            .map(ToString::to_string)
            .unwrap_or_default();
        let header = request
            .headers()
            .contains_key(lazaret_api::uplink::SANDBOX_HEADER);
        let text = format!("sandbox={sandbox} header={header}");
        let body: UplinkBody = Full::new(Bytes::from(text))
            .map_err(|never| match never {})
            .boxed_unsync();
        Ok::<_, Infallible>(Response::new(body))
    }))
}

pub(crate) fn quick() -> SshSettings {
    SshSettings {
        first_pause: Duration::from_millis(20),
        longest_pause: Duration::from_millis(200),
        ..SshSettings::default()
    }
}

pub(crate) fn links(key: &std::path::Path, settings: SshSettings) -> SshLinks {
    SshLinks::new(ClientKey::load(key).unwrap(), routes(), settings)
}

pub(crate) fn name() -> HostName {
    "here".parse().unwrap()
}

pub(crate) fn link(ground: &Ground) -> Arc<dyn HostLink> {
    links(&ground.host().unwrap().client_key, quick()).connect(&name(), &address(ground))
}

/// Waits until the link's state is as wanted.
pub(crate) async fn until(
    link: &Arc<dyn HostLink>,
    wanted: impl Fn(&LinkState) -> bool,
) -> LinkState {
    let mut state = link.state();
    let found = tokio::time::timeout(PATIENCE, state.wait_for(wanted)).await;
    match found {
        Ok(state) => state.unwrap().clone(),
        Err(_) => panic!("the state stayed {:?}", *link.state().borrow()),
    }
}

/// Waits until a file in the host's state directory holds a line, and returns its lines.
pub(crate) async fn lines(
    ground: &Ground,
    file: &str,
    wanted: impl Fn(&[String]) -> bool,
) -> Vec<String> {
    let path = ground.state().join(file);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if wanted(&lines) {
            return lines;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "{file} holds {lines:?}"
        );
        tokio::task::yield_now().await;
    }
}

pub(crate) fn set_mode(ground: &Ground, mode: &str) {
    std::fs::write(ground.state().join("mode"), mode).unwrap();
}
