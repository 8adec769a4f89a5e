//! The machine: disk, clock, port, and the hosts as the controller sees them.

use super::{Check, Surroundings};
use crate::client::{self, Client};
use crate::failure::Failure;
use jiff::Timestamp;
use lazaret_domain::sandbox::Reach;
use std::path::Path;
use std::time::Duration;

/// Less free disk than this lets no sandbox start.
const LEAST_DISK: u64 = 2 << 30;
/// Less free disk than this is soon used up.
const LITTLE_DISK: u64 = 10 << 30;

pub(super) fn disk(around: &Surroundings) -> Check {
    let root = around.paths.root();
    let there = root
        .ancestors()
        .find(|dir| dir.exists())
        .unwrap_or(Path::new("/"));
    let shown = there.display();
    match rustix::fs::statvfs(there) {
        Err(error) => Check::fail(
            "disk",
            format!("cannot tell for {shown}: {error}"),
            "check that the disk is mounted",
        ),
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            judge_disk(free, &shown.to_string())
        }
    }
}

/// What so much free disk means.
pub(super) fn judge_disk(free: u64, shown: &str) -> Check {
    let gib = format!(
        "{}.{} GiB free at {shown}",
        free >> 30,
        ((free % (1 << 30)) * 10) >> 30
    );
    if free < LEAST_DISK {
        Check::fail("disk", gib, "make room: sandboxes are refused below 2 GiB")
    } else if free < LITTLE_DISK {
        Check::warn(
            "disk",
            gib,
            "make room: an image takes about 1 GiB, a sandbox up to its disk limit",
        )
    } else {
        Check::ok("disk", gib)
    }
}

pub(super) fn clock() -> Check {
    let built = std::env::current_exe()
        .and_then(std::fs::metadata)
        .and_then(|meta| meta.modified());
    let built = built
        .ok()
        .and_then(|at| Timestamp::try_from(at).ok())
        .unwrap_or(Timestamp::UNIX_EPOCH);
    judge_clock(Timestamp::now(), built)
}

/// A clock that runs before the program was built is wrong.
pub(super) fn judge_clock(now: Timestamp, built: Timestamp) -> Check {
    let shown = now.strftime("%F %T UTC").to_string();
    if now < built {
        let detail = format!("it says {shown}, which is before this program was built");
        Check::fail("clock", detail, "set the clock: timedatectl set-ntp true")
    } else {
        Check::ok("clock", shown)
    }
}

/// The listening port must be free, or be ours.
pub(super) async fn port(around: &Surroundings) -> Check {
    let settings = around.settings();
    let listen = settings.listen;
    match std::net::TcpListener::bind(listen) {
        Ok(_) => Check::ok("port", format!("{listen} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            if is_ours(&format!("http://{listen}/healthz")).await {
                Check::ok("port", format!("a controller listens on {listen}"))
            } else {
                let fix = "stop it, or set server.listen (lazaret up --port N)";
                Check::fail("port", format!("another program listens on {listen}"), fix)
            }
        }
        Err(error) => Check::fail(
            "port",
            format!("cannot listen on {listen}: {error}"),
            "set server.listen",
        ),
    }
}

async fn is_ours(url: &str) -> bool {
    let http = client::http()
        .timeout(Duration::from_secs(3))
        .no_proxy()
        .build();
    let Ok(http) = http else { return false };
    match http.get(url).send().await {
        Ok(response) => response.status().is_success(),
        Err(_) => false,
    }
}

/// Each host, its key included: an unknown or changed one shows here.
pub(super) async fn hosts(around: &Surroundings) -> Check {
    let asked = async { Client::new(&around.client.endpoint()?)?.hosts().await };
    let hosts = match tokio::time::timeout(Duration::from_secs(10), asked).await {
        Ok(Ok(list)) => list.hosts,
        Ok(Err(Failure::Unreachable { url, .. })) => {
            return Check::warn(
                "hosts",
                format!("no controller answers at {url}"),
                "start it: lazaret up",
            );
        }
        Ok(Err(Failure::Usage(why))) if why.contains("chmod") => {
            return Check::fail("hosts", why, "chmod 600 the client file");
        }
        Ok(Err(Failure::Usage(_))) => {
            return Check::warn("hosts", "no controller is set up yet", "run: lazaret up");
        }
        Ok(Err(failure)) => {
            return Check::fail(
                "hosts",
                failure.to_string(),
                "use a token with scope operate: lazaret key create",
            );
        }
        Err(_) => {
            return Check::fail(
                "hosts",
                "the controller does not answer within 10 s",
                "see its log",
            );
        }
    };
    let down: Vec<String> = hosts
        .iter()
        .filter(|host| matches!(host.reach, Reach::Unreachable { .. }))
        .map(|host| match &host.problem {
            Some(problem) => format!("{}: {} ({})", host.name, problem.message, problem.code),
            None => format!("{}: unreachable", host.name),
        })
        .collect();
    match (hosts.is_empty(), down.is_empty()) {
        (true, _) => Check::fail(
            "hosts",
            "none is enrolled",
            "lazaret host enroll USER@HOST --host-key SHA256:…",
        ),
        (false, true) => Check::ok(
            "hosts",
            format!("{} reachable, host keys as pinned", hosts.len()),
        ),
        (false, false) => Check::fail(
            "hosts",
            down.join("; "),
            "check its sshd, its address and its host key",
        ),
    }
}
