//! One session with a test's host: requests as the controller makes them, and what they answer.

use super::images;
use axum::body::Body;
use base64::Engine as _;
use bytes::{Bytes, BytesMut};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper::client::conn::http2::SendRequest;
use jiff::Timestamp;
use lazaret_api::FENCE_HEADER;
use lazaret_api::frame::Frame;
use lazaret_api::guest::{ExecExit, ExecLimits, ExecSpec};
use lazaret_api::host::{AccelChoice, Copied, CopyInto, Exec, ExecRequest, Sandbox, SandboxSpec};
use lazaret_domain::egress::EgressPolicy;
use lazaret_domain::sandbox::SandboxState;
use lazaret_domain::{Argv, ByteSize, Cpus, Denial, ExecId, SandboxId, Span};
use serde::de::DeserializeOwned;
use tokio::process::Child;

/// One session with it.
pub(crate) struct Session {
    pub(super) child: Child,
    pub(super) sender: SendRequest<Body>,
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub stdout: String,
    pub stderr: String,
    pub exit: ExecExit,
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
        copy_of: None,
        idle_sleep: None,
        sleep_ttl: lazaret_api::host::default_sleep_ttl(),
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

    /// Puts a document and reads the answer.
    pub(crate) async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        document: &impl serde::Serialize,
    ) -> Result<T, Denial> {
        let body = Body::from(serde_json::to_vec(document).unwrap());
        self.value(Method::PUT, path, None, body).await
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

    async fn order(&self, method: Method, path: &str, body: Body) -> Result<Sandbox, Denial> {
        let path = format!("/v1/sandboxes/{path}");
        self.value(method, &path, Some(1), body).await
    }

    pub(crate) async fn sleep(&self, id: &SandboxId) -> Result<Sandbox, Denial> {
        let path = format!("{id}/sleep");
        self.order(Method::POST, &path, Body::empty()).await
    }

    /// Wakes it from its memory or, if `from` says so, from its disk.
    pub(crate) async fn wake(&self, id: &SandboxId, from: &str) -> Result<Sandbox, Denial> {
        let path = format!("{id}/wake?from={from}");
        self.order(Method::POST, &path, Body::empty()).await
    }

    pub(crate) async fn keep(&self, id: &SandboxId, keep: bool) -> Result<Sandbox, Denial> {
        let body = Body::from(format!("{{\"keep\":{keep}}}"));
        self.order(Method::PUT, &format!("{id}/keep"), body).await
    }

    /// Copies of it, on their way up.
    pub(crate) async fn copies(
        &self,
        id: &SandboxId,
        copies: &[SandboxId],
    ) -> Result<Copied, Denial> {
        let wanted = CopyInto {
            copies: copies.to_vec(),
        };
        let body = Body::from(serde_json::to_vec(&wanted).unwrap());
        let path = format!("/v1/sandboxes/{id}/copies");
        self.value(Method::POST, &path, Some(1), body).await
    }

    /// The sandbox once it is in that state.
    pub(crate) async fn until(&self, id: &SandboxId, state: SandboxState) -> Sandbox {
        loop {
            let sandbox = self.inspect(id).await.unwrap();
            if sandbox.state == state {
                return sandbox;
            }
            assert_ne!(sandbox.state, SandboxState::Gone, "{:?}", sandbox.end);
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
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

/// What a script says in a sandbox; it must succeed.
pub(crate) async fn say(session: &Session, id: &SandboxId, script: &str) -> String {
    let ran = session.run(id, &command(["sh", "-c", script])).await;
    assert!(ran.exit.success(), "{script}: {ran:?}");
    ran.stdout
}
