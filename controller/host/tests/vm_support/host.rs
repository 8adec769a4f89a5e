//! A real host for tests: the product's own program as a session on pipes, as sshd would start it,
//! over a state directory of its own. Dropping it kills whatever a failed test left running.

#[path = "session.rs"]
mod session;

#[allow(unused_imports, reason = "each test program uses its part")]
pub(crate) use session::{Session, command, exec_id, new_id, ran, say, spec, with_stdin};

use hyper_util::rt::{TokioExecutor, TokioIo};
use lazaret_domain::SandboxId;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;
use tokio::process::Command;

/// Where the test script has put the guest image. A test without it must fail, not pass.
pub(crate) fn images() -> PathBuf {
    let dir = std::env::var_os("LAZARET_TEST_IMAGES")
        .expect("LAZARET_TEST_IMAGES must name a directory with a guest image; `make test` builds one and sets it");
    PathBuf::from(dir)
}

/// A host with a state directory of its own.
pub(crate) struct TestHost {
    dir: TempDir,
    settings: String,
}

impl TestHost {
    /// With some settings besides those every test needs.
    pub(crate) fn new(settings: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("lzh").tempdir().unwrap();
        // What is tested here is booting, unless a test is about templates.
        let templates = match settings.contains("templates") {
            true => "",
            false => "templates = false\n",
        };
        let spares = match settings.contains("spares") {
            true => "",
            false => "spares = 0\n",
        };
        let least = match settings.contains("min_free_disk") {
            true => "",
            false => "min_free_disk = \"64M\"\n",
        };
        let settings = format!(
            "images_dir = {:?}\n{least}{templates}{spares}{settings}\n",
            images()
        );
        std::fs::create_dir(dir.path().join("s")).unwrap();
        let host = Self { dir, settings };
        host.set("");
        host
    }

    /// Adds settings for later processes.
    pub(crate) fn set(&self, more: &str) {
        std::fs::write(
            self.state().join("host.toml"),
            format!("{}{more}\n", self.settings),
        )
        .unwrap();
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub(crate) fn sandbox_dir(&self, id: &SandboxId) -> PathBuf {
        self.state().join("sandboxes").join(id.as_str())
    }

    /// A session, as sshd starts one.
    pub(crate) async fn session(&self) -> Session {
        let mut child = Command::new(env!("CARGO_BIN_EXE_lazaret-host"))
            .args(["host", "gate", "--state"])
            .arg(self.state())
            .env("SSH_ORIGINAL_COMMAND", "session")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let io = tokio::io::join(child.stdout.take().unwrap(), child.stdin.take().unwrap());
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .handshake(TokioIo::new(io))
            .await
            .unwrap();
        tokio::spawn(connection);
        Session { child, sender }
    }

    /// A process of a sandbox, from what the host wrote down.
    pub(crate) fn pid(&self, id: &SandboxId, role: &str) -> i32 {
        let text = std::fs::read(self.sandbox_dir(id).join(format!("{role}.json"))).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        i32::try_from(value["pid"].as_i64().unwrap()).unwrap()
    }

    /// All processes that have this state directory in their command line, besides sessions and the
    /// shims that wait for a sandbox, which are a session's.
    pub(crate) fn processes(&self) -> Vec<(i32, String)> {
        let all = self.all_processes().into_iter();
        all.filter(|process| !waits(process)).collect()
    }

    /// The shims that wait for a sandbox.
    pub(crate) fn waiting(&self) -> Vec<i32> {
        let all = self.all_processes().into_iter();
        all.filter(waits).map(|(pid, _)| pid).collect()
    }

    /// The same with those shims.
    pub(crate) fn all_processes(&self) -> Vec<(i32, String)> {
        let state = self.state();
        let needle = state.to_str().unwrap();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<i32>().ok())
            else {
                continue;
            };
            let Ok(bytes) = std::fs::read(entry.path().join("cmdline")) else {
                continue;
            };
            let line = String::from_utf8_lossy(&bytes).replace('\0', " ");
            if line.contains(needle) && !line.contains(" gate ") && !line.is_empty() {
                found.push((pid, line));
            }
        }
        found
    }

    /// Waits until no process of this host is left.
    pub(crate) async fn quiet(&self) {
        until("no process of the host is left", || {
            self.processes().is_empty()
        })
        .await;
    }
}

/// One that has a sandbox works in its directory, and one that outlived its session is a leftover.
fn waits((pid, line): &(i32, String)) -> bool {
    let works_in = std::fs::read_link(format!("/proc/{pid}/cwd"));
    line.contains(" --waiting")
        && works_in.is_ok_and(|dir| dir == Path::new("/"))
        && is_a_session_s(*pid)
}

fn is_a_session_s(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    let parent = parent.unwrap_or_default().trim();
    std::fs::read(format!("/proc/{parent}/cmdline")).is_ok_and(|line| {
        String::from_utf8_lossy(&line)
            .replace('\0', " ")
            .contains(" host ")
    })
}

impl Drop for TestHost {
    fn drop(&mut self) {
        for (pid, _) in self.processes() {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

/// Waits for something to be so; a test that waits in vain is ended by the test runner.
pub(crate) async fn until(what: &str, mut so: impl FnMut() -> bool) {
    for turn in 0_u64.. {
        if so() {
            return;
        }
        assert!(turn < 60_000, "in vain: {what}");
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

/// Whether a process runs; one that waits to be reaped does not.
pub(crate) fn runs(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|text| {
        !text
            .rsplit_once(')')
            .is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'))
    })
}

/// The descriptors of a process, by what they are.
pub(crate) fn descriptors(pid: i32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten();
    entries
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .collect()
}

/// Whether a path is below a directory.
pub(crate) fn is_below(path: &Path, dir: &Path) -> bool {
    path.starts_with(dir)
}

/// Sends a signal to a process this test started.
pub(crate) fn signal(pid: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}
