//! An sshd of the same directory that outlived whoever started it: `lazaret up` was killed, and its
//! sshd goes on. It holds the port that the next one needs.

use super::LocalError;
use crate::process::Identity;
use std::path::Path;
use std::time::Duration;

/// How long it may take to end before it is killed, and then to be gone.
const DEADLINE: Duration = Duration::from_secs(5);

/// Ends it with the connections it serves, and returns once it has ended. Only a process whose
/// command line names our configuration is ours.
///
/// # Errors
/// If it does not end.
pub(super) async fn end(pid_file: &Path, config: &Path) -> Result<(), LocalError> {
    let Some(sshd) = find(pid_file, config) else {
        return Ok(());
    };
    for connection in Identity::children_of(sshd.pid) {
        connection.ask_to_end();
    }
    sshd.ask_to_end();
    if sshd.ended_within(DEADLINE).await || sshd.kill(DEADLINE).await {
        return Ok(());
    }
    Err(LocalError::Sshd {
        said: format!("the earlier one, process {}, does not end", sshd.pid),
    })
}

fn find(pid_file: &Path, config: &Path) -> Option<Identity> {
    let pid: i32 = std::fs::read_to_string(pid_file)
        .ok()?
        .trim()
        .parse()
        .ok()?;
    // Who it is comes first: whatever has the number later is not hit.
    let known = Identity::of(pid).ok()?;
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let config = config.as_os_str().as_encoded_bytes();
    let ours = command.windows(config.len()).any(|part| part == config);
    ours.then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// Takes its time to end when it is asked to, as an sshd may.
    fn slow(word: &Path, ready: &Path) -> Child {
        let script = "trap 'sleep 0.4; exit 0' TERM; : > \"$1\"; while :; do sleep 0.05; done";
        let child = Command::new("sh")
            .args(["-c", script])
            .arg(word)
            .arg(ready)
            .spawn()
            .unwrap();
        while !ready.exists() {
            std::thread::yield_now();
        }
        child
    }

    #[tokio::test]
    async fn a_forerunner_has_ended_when_the_next_one_begins() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let config = at("sshd_config");
        let mut child = slow(&config, &at("ready"));
        std::fs::write(at("sshd.pid"), child.id().to_string()).unwrap();
        let known = Identity::of(child.id().try_into().unwrap()).unwrap();
        end(&at("sshd.pid"), &config).await.unwrap();
        assert!(!known.is_alive());
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn a_process_that_only_has_its_number_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut child = slow(&at("another_config"), &at("ready"));
        std::fs::write(at("sshd.pid"), child.id().to_string()).unwrap();
        end(&at("sshd.pid"), &at("sshd_config")).await.unwrap();
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        end(&at("sshd.pid"), &at("sshd_config")).await.unwrap();
        end(&at("no.pid"), &at("sshd_config")).await.unwrap();
    }
}
