//! A real host for tests: the product's own program as a session on pipes, as sshd would start it,
//! over a state directory of its own. Dropping it kills whatever a failed test left running.

use axum::body::Body;
use base64::Engine as _;
use bytes::{Bytes, BytesMut};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::Timestamp;
use lazaret_api::FENCE_HEADER;
use lazaret_api::frame::Frame;
use lazaret_api::guest::{ExecExit, ExecLimits, ExecSpec};
use lazaret_api::host::{AccelChoice, Exec, ExecRequest, Sandbox, SandboxSpec};
use lazaret_domain::egress::EgressPolicy;
use lazaret_domain::sandbox::SandboxState;
use lazaret_domain::{Argv, ByteSize, Cpus, Denial, ExecId, SandboxId, Span};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;
use tokio::process::{Child, Command};

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

/// One session with it.
pub(crate) struct Session {
    child: Child,
    sender: SendRequest<Body>,
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub stdout: String,
    pub stderr: String,
    pub exit: ExecExit,
}

impl TestHost {
    /// With some settings besides those every test needs.
    pub(crate) fn new(settings: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("lzh").tempdir().unwrap();
        let settings = format!(
            "images_dir = {:?}\nmin_free_disk = \"64M\"\n{settings}\n",
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

    /// All processes that have this state directory in their command line, besides sessions.
    pub(crate) fn processes(&self) -> Vec<(i32, String)> {
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

/// A fresh id.
pub(crate) fn new_id() -> SandboxId {
    SandboxId::make(Timestamp::now(), rand::random())
}

/// The specification most tests use.
pub(crate) fn spec() -> SandboxSpec {
    let image = lazaret_image::list(&images()).unwrap();
    let image = image
        .first()
        .expect("LAZARET_TEST_IMAGES holds no image; `make test` builds one");
    SandboxSpec {
        image: image.digest.clone(),
        memory: ByteSize::mebibytes(512),
        cpus: Cpus::ONE,
        disk: ByteSize::mebibytes(1024),
        max_duration: Span::seconds(3600),
        accel: AccelChoice::Tcg,
        egress: EgressPolicy::default(),
        git_base_url: "https://git.test/".into(),
        boot_deadline: Span::seconds(90),
        boot_tries: 3,
    }
}

/// A command as the agent, for as long as it takes.
pub(crate) fn command<const N: usize>(words: [&str; N]) -> ExecRequest {
    let env = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("HOME", "/home/agent"),
    ];
    ExecRequest {
        spec: ExecSpec {
            argv: Argv::of(words).unwrap(),
            env: env
                .into_iter()
                .map(|(name, value)| (name.parse().unwrap(), value.to_owned()))
                .collect(),
            cwd: "/workspace".into(),
            limits: ExecLimits::default(),
        },
        stdin: String::new(),
        output_cap: 1 << 20,
    }
}

pub(crate) fn with_stdin(request: ExecRequest, stdin: &str) -> ExecRequest {
    ExecRequest {
        stdin: base64::engine::general_purpose::STANDARD.encode(stdin),
        ..request
    }
}

pub(crate) fn exec_id(text: &str) -> ExecId {
    text.parse().unwrap()
}

/// Frames as what they mean. The last must be an exit frame.
pub(crate) fn ran(bytes: &[u8]) -> Ran {
    let mut buffer = BytesMut::from(bytes);
    let (mut stdout, mut stderr, mut exit) = (Vec::new(), Vec::new(), None);
    while let Some(frame) = Frame::decode(&mut buffer).unwrap() {
        match frame {
            Frame::Stdout(payload) => stdout.extend_from_slice(&payload),
            Frame::Stderr(payload) => stderr.extend_from_slice(&payload),
            Frame::Gap(_) => {}
            Frame::Exit(payload) => {
                exit = Some(serde_json::from_slice(&payload).unwrap());
                break;
            }
        }
    }
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ran {
        stdout: text(stdout),
        stderr: text(stderr),
        exit: exit.expect("the stream ends with an exit frame"),
    }
}

impl Session {
    /// Any request; the answer whole.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        fence: Option<u64>,
        body: Body,
    ) -> (StatusCode, Bytes) {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://host{path}"));
        if let Some(fence) = fence {
            request = request.header(FENCE_HEADER, fence);
        }
        let mut sender = self.sender.clone();
        sender.ready().await.unwrap();
        let response = sender
            .send_request(request.body(body).unwrap())
            .await
            .unwrap();
        let status = response.status();
        (
            status,
            response.into_body().collect().await.unwrap().to_bytes(),
        )
    }

    async fn value<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        fence: Option<u64>,
        body: Body,
    ) -> Result<T, Denial> {
        let (status, bytes) = self.ask(method, path, fence, body).await;
        if status.is_success() {
            Ok(serde_json::from_slice(&bytes).unwrap())
        } else {
            Err(serde_json::from_slice(&bytes).unwrap_or_else(|_| panic!("{status}: {bytes:?}")))
        }
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Denial> {
        self.value(Method::GET, path, None, Body::empty()).await
    }

    pub(crate) async fn create(
        &self,
        id: &SandboxId,
        spec: &SandboxSpec,
    ) -> Result<Sandbox, Denial> {
        let body = Body::from(serde_json::to_vec(spec).unwrap());
        self.value(Method::PUT, &format!("/v1/sandboxes/{id}"), Some(1), body)
            .await
    }

    pub(crate) async fn inspect(&self, id: &SandboxId) -> Result<Sandbox, Denial> {
        self.get(&format!("/v1/sandboxes/{id}")).await
    }

    /// The sandbox once it is no longer forking.
    pub(crate) async fn settled(&self, id: &SandboxId) -> Sandbox {
        loop {
            let path = format!("/v1/sandboxes/{id}?until=settled&wait_ms=30000");
            let sandbox: Sandbox = self.get(&path).await.unwrap();
            if sandbox.state != SandboxState::Forking {
                return sandbox;
            }
        }
    }

    /// Creates one and waits until it is ready.
    pub(crate) async fn ready(&self, spec: &SandboxSpec) -> Sandbox {
        let id = new_id();
        self.create(&id, spec).await.unwrap();
        let sandbox = self.settled(&id).await;
        assert_eq!(sandbox.state, SandboxState::Ready, "{:?}", sandbox.end);
        sandbox
    }

    /// The sandbox once it is gone.
    pub(crate) async fn gone(&self, id: &SandboxId) -> Sandbox {
        loop {
            let sandbox = self.inspect(id).await.unwrap();
            if sandbox.state == SandboxState::Gone {
                return sandbox;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn destroy(&self, id: &SandboxId) -> Result<(), Denial> {
        self.destroy_as(id, 1).await
    }

    pub(crate) async fn destroy_as(&self, id: &SandboxId, fence: u64) -> Result<(), Denial> {
        let (status, bytes) = self
            .ask(
                Method::DELETE,
                &format!("/v1/sandboxes/{id}"),
                Some(fence),
                Body::empty(),
            )
            .await;
        if status == StatusCode::NO_CONTENT {
            Ok(())
        } else {
            Err(serde_json::from_slice(&bytes).unwrap())
        }
    }

    pub(crate) async fn start(
        &self,
        id: &SandboxId,
        exec: &ExecId,
        request: &ExecRequest,
    ) -> Result<Exec, Denial> {
        let body = Body::from(serde_json::to_vec(request).unwrap());
        self.value(
            Method::PUT,
            &format!("/v1/sandboxes/{id}/execs/{exec}"),
            Some(1),
            body,
        )
        .await
    }

    pub(crate) async fn output(&self, id: &SandboxId, exec: &ExecId, follow: bool) -> Bytes {
        let path = format!("/v1/sandboxes/{id}/execs/{exec}/output?offset=0&follow={follow}");
        let (status, bytes) = self.ask(Method::GET, &path, None, Body::empty()).await;
        assert_eq!(status, StatusCode::OK, "{bytes:?}");
        bytes
    }

    /// Runs a command to its end.
    pub(crate) async fn run(&self, id: &SandboxId, request: &ExecRequest) -> Ran {
        let exec = exec_id(&format!("e{:016x}", rand::random::<u64>()));
        self.start(id, &exec, request).await.unwrap();
        ran(&self.output(id, &exec, true).await)
    }

    /// Closes the session and waits for its process.
    pub(crate) async fn close(self) -> std::process::ExitStatus {
        let Self { mut child, sender } = self;
        drop(sender);
        child.wait().await.unwrap()
    }

    /// Kills the session, as a lost machine or connection would.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
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
