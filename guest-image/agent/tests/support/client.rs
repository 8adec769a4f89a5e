//! A client of the guest API, as the shim is one.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "each test program uses a part, and a failing test is the report"
)]

use base64::Engine as _;
use bytes::{Bytes, BytesMut};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lazaret_api::frame::Frame;
use lazaret_api::guest::{Adopt, ExecExit, ExecLimits, ExecSpec};
use lazaret_domain::{Argv, Denial};
use serde::de::DeserializeOwned;
use std::io::Read;
use std::time::SystemTime;
use tokio::io::{AsyncRead, AsyncWrite};

/// A connection to a guest.
#[derive(Clone)]
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
}

/// Who a guest is told to be.
pub fn identity() -> Adopt {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    Adopt {
        sandbox: "s0123456789abcdef".parse().unwrap(),
        wall_clock_ns: i64::try_from(now.as_nanos()).unwrap(),
        entropy: base64::engine::general_purpose::STANDARD.encode([1_u8; 64]),
        machine_id: "0123456789abcdef0123456789abcdef".into(),
        git_base_url: "https://github.com/".into(),
    }
}

impl Client {
    pub async fn connect(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        Self { sender }
    }

    pub async fn adopt(&self) -> Answer {
        self.call(
            Method::POST,
            "/v1/adopt",
            serde_json::to_vec(&identity()).unwrap().into(),
        )
        .await
    }

    /// Posts a value as JSON.
    pub async fn post(&self, path: &str, value: &impl serde::Serialize) -> Answer {
        let body = serde_json::to_vec(value).unwrap();
        self.call(Method::POST, path, body.into()).await
    }

    pub async fn put(&self, path: &str, archive: Bytes) -> Answer {
        self.call(Method::PUT, path, archive).await
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
        self.sender.clone().send_request(request).await.unwrap()
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

    /// The next whole line, which is not given again.
    pub async fn next_line(&mut self) -> String {
        loop {
            if let Some(end) = self.stdout.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.stdout.drain(..=end).collect();
                return String::from_utf8_lossy(&line[..end]).into_owned();
            }
            assert!(self.more().await, "the command ended without a line");
        }
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
