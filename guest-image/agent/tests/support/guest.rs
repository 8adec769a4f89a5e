//! A guest in this process, reached over HTTP/2 on a stream in memory.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part")]

use base64::Engine as _;
use bytes::{Bytes, BytesMut};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lazaret_api::frame::Frame;
use lazaret_api::guest::{Adopt, Adopted, ExecExit, ExecLimits, ExecSpec, Health};
use lazaret_domain::{Argv, Denial};
use lazaret_guest::api::Guest;
use lazaret_guest::exec::Engine;
use lazaret_guest::files::Areas;
use lazaret_guest::machine::Machine;
use lazaret_guest::serve;
use serde::de::DeserializeOwned;
use std::io;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

/// A machine that counts what was done to it.
#[derive(Clone, Default)]
struct PaperMachine(Arc<AtomicU32>);

impl Machine for PaperMachine {
    fn health(&self) -> io::Result<Health> {
        Ok(Health {
            version: "0".into(),
            protocol: 1,
            kernel: "k".into(),
            boot_id: "b".into(),
            uptime_ms: 1,
            adopted: false,
        })
    }

    fn adopt(&self, adopt: &Adopt) -> Result<Adopted, Denial> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(Adopted {
            boot_id: "b".into(),
            kernel: "k".into(),
            wall_clock_ns: adopt.wall_clock_ns,
        })
    }
}

/// A guest, its directories, and a client of it.
pub struct TestGuest {
    dir: tempfile::TempDir,
    machine: PaperMachine,
    client: SendRequest<Full<Bytes>>,
    server: JoinHandle<()>,
    wire: JoinHandle<()>,
}

impl TestGuest {
    /// A guest that nobody adopted yet.
    pub async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["workspace", "uploads", "outside"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let machine = PaperMachine::default();
        let areas = Areas {
            workspace: dir.path().join("workspace"),
            uploads: dir.path().join("uploads"),
            owner: None,
        };
        let guest = Arc::new(Guest::new(machine.clone(), Engine::ordinary(), areas));
        let (ours, mut near) = tokio::io::duplex(64 * 1024);
        let (mut far, theirs) = tokio::io::duplex(64 * 1024);
        let server = tokio::spawn(async move {
            let _ = serve::connection(theirs, &guest).await;
        });
        let wire = tokio::spawn(async move {
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        });
        let (client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(ours))
            .await
            .unwrap();
        tokio::spawn(connection);
        Self {
            dir,
            machine,
            client,
            server,
            wire,
        }
    }

    /// A guest that is ready for work.
    pub async fn adopted() -> Self {
        let guest = Self::new().await;
        assert_eq!(guest.adopt().await.status, StatusCode::OK);
        guest
    }

    pub async fn adopt(&self) -> Answer {
        let adopt = Adopt {
            sandbox: "s0123456789abcdef".parse().unwrap(),
            wall_clock_ns: 1,
            entropy: base64::engine::general_purpose::STANDARD.encode([1_u8; 64]),
            machine_id: "0123456789abcdef0123456789abcdef".into(),
            git_base_url: "https://github.com/".into(),
        };
        self.call(
            Method::POST,
            "/v1/adopt",
            serde_json::to_vec(&adopt).unwrap().into(),
        )
        .await
    }

    pub fn adoptions(&self) -> u32 {
        self.machine.0.load(Ordering::SeqCst)
    }

    pub fn workspace(&self) -> PathBuf {
        self.dir.path().join("workspace")
    }

    pub fn uploads(&self) -> PathBuf {
        self.dir.path().join("uploads")
    }

    pub fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, Bytes::new()).await
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> http::Response<Incoming> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://guest{path}"))
            .body(Full::new(body))
            .unwrap();
        self.client.clone().send_request(request).await.unwrap()
    }

    pub async fn call(&self, method: Method, path: &str, body: Bytes) -> Answer {
        let response = self.send(method, path, body).await;
        let status = response.status();
        Answer {
            status,
            body: response.into_body().collect().await.unwrap().to_bytes(),
        }
    }

    pub fn spec(&self, words: &[&str]) -> ExecSpec {
        ExecSpec {
            argv: Argv::new(words.iter().map(|word| (*word).to_owned()).collect()).unwrap(),
            env: [("PATH".parse().unwrap(), "/usr/bin:/bin".to_owned())].into(),
            cwd: "/".into(),
            limits: ExecLimits::default(),
        }
    }

    pub async fn start(&self, words: &[&str], stdin: &[u8]) -> Running {
        self.start_spec(&self.spec(words), stdin).await
    }

    pub async fn start_spec(&self, spec: &ExecSpec, stdin: &[u8]) -> Running {
        let spec = serde_json::to_vec(spec).unwrap();
        let mut body = u32::try_from(spec.len()).unwrap().to_be_bytes().to_vec();
        body.extend(spec);
        body.extend(stdin);
        let response = self.send(Method::POST, "/v1/exec", body.into()).await;
        assert_eq!(response.status(), StatusCode::OK);
        Running {
            body: response.into_body(),
            buffer: BytesMut::new(),
            stdout: Vec::new(),
            stderr: Vec::new(),
            exit: None,
        }
    }

    pub async fn run(&self, words: &[&str], stdin: &[u8]) -> Done {
        self.start(words, stdin).await.finish().await
    }

    pub async fn run_spec(&self, spec: &ExecSpec, stdin: &[u8]) -> Done {
        self.start_spec(spec, stdin).await.finish().await
    }

    /// Breaks the connection.
    pub fn cut(&self) {
        self.wire.abort();
    }

    /// Waits until the guest has ended the connection.
    pub async fn ended(self) {
        self.server.await.unwrap();
    }
}

/// A whole answer.
pub struct Answer {
    pub status: StatusCode,
    pub body: Bytes,
}

impl Answer {
    pub fn json<T: DeserializeOwned>(&self) -> T {
        assert!(
            self.status.is_success(),
            "{}: {}",
            self.status,
            String::from_utf8_lossy(&self.body)
        );
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn denial(&self) -> Denial {
        assert!(!self.status.is_success(), "this was to be refused");
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The entries of a tar stream: name and content.
    pub fn untar(&self) -> Vec<(String, Vec<u8>)> {
        assert!(
            self.status.is_success(),
            "{}",
            String::from_utf8_lossy(&self.body)
        );
        let mut archive = tar::Archive::new(&self.body[..]);
        let entries = archive.entries().unwrap();
        entries
            .map(|entry| {
                let mut entry = entry.unwrap();
                let name = entry
                    .path()
                    .unwrap()
                    .display()
                    .to_string()
                    .trim_end_matches('/')
                    .to_owned();
                let mut content = Vec::new();
                entry.read_to_end(&mut content).unwrap();
                (name, content)
            })
            .collect()
    }
}

/// A command that is running.
pub struct Running {
    body: Incoming,
    buffer: BytesMut,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    exit: Option<ExecExit>,
}

/// A command that has ended.
pub struct Done {
    pub stdout: String,
    pub stderr: String,
    pub exit: ExecExit,
}

impl Running {
    /// Reads one more piece; says whether there was one.
    async fn more(&mut self) -> bool {
        let Some(piece) = self.body.frame().await else {
            return false;
        };
        if let Ok(data) = piece.unwrap().into_data() {
            self.buffer.extend_from_slice(&data);
        }
        while let Some(frame) = Frame::decode(&mut self.buffer).unwrap() {
            assert!(self.exit.is_none(), "nothing comes after the exit");
            match frame {
                Frame::Stdout(bytes) => self.stdout.extend_from_slice(&bytes),
                Frame::Stderr(bytes) => self.stderr.extend_from_slice(&bytes),
                Frame::Exit(bytes) => self.exit = Some(serde_json::from_slice(&bytes).unwrap()),
                Frame::Gap(_) => panic!("a guest leaves nothing out"),
            }
        }
        true
    }

    pub async fn some_output(&mut self) {
        while self.stdout.is_empty() {
            assert!(self.more().await, "the command ended without output");
        }
    }

    pub async fn first_line(&mut self) -> String {
        while !self.stdout.contains(&b'\n') {
            assert!(self.more().await, "the command ended without a line");
        }
        String::from_utf8_lossy(&self.stdout)
            .lines()
            .next()
            .unwrap()
            .to_owned()
    }

    pub async fn finish(mut self) -> Done {
        while self.more().await {}
        Done {
            stdout: String::from_utf8_lossy(&self.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&self.stderr).into_owned(),
            exit: self.exit.expect("the stream ends with an exit"),
        }
    }
}

/// Whether a process is there and not a zombie.
pub fn still_runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next())
        .is_some_and(|state| state != 'Z')
}

/// Waits until something holds; a minute without it is a failure.
pub async fn until(mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .expect("it never came to hold");
}

/// A tar stream of entries.
pub fn tar_of(entries: &[(tar::Header, Vec<u8>)]) -> Bytes {
    let mut builder = tar::Builder::new(Vec::new());
    for (header, content) in entries {
        builder.append(header, &content[..]).unwrap();
    }
    builder.into_inner().unwrap().into()
}

pub fn file_entry(name: &str, content: &[u8], mode: u32) -> (tar::Header, Vec<u8>) {
    let (mut header, content) = raw_entry(name, content);
    header.set_mode(mode);
    header.set_cksum();
    (header, content)
}

/// An entry with a name that the library would not write.
pub fn raw_entry(name: &str, content: &[u8]) -> (tar::Header, Vec<u8>) {
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    (header, content.to_vec())
}

pub fn link_entry(name: &str, target: &str, kind: tar::EntryType) -> (tar::Header, Vec<u8>) {
    let (mut header, content) = raw_entry(name, b"");
    header.set_entry_type(kind);
    header.set_link_name(target).unwrap();
    header.set_cksum();
    (header, content)
}
