//! A git smart-HTTP server: the real `git http-backend` behind a small CGI bridge.

use super::{Asked, Served, tool};
use anyhow::Context;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio_util::io::ReaderStream;

/// The largest request that is bridged.
const MAX_REQUEST: usize = 64 << 20;

/// A git host with the repositories a test gives it.
pub struct GitServer {
    root: Arc<TempDir>,
    served: Served,
}

impl GitServer {
    /// Starts one without repositories.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn start() -> anyhow::Result<Self> {
        let root = Arc::new(tempfile::Builder::new().prefix("lazaret-git-").tempdir()?);
        let router = Router::new().fallback(bridge).with_state(Arc::clone(&root));
        Ok(Self {
            root,
            served: Served::start(router).await?,
        })
    }

    /// The base URL of its repositories, ending in a slash.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}/", self.served.address())
    }

    /// What it was asked so far.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        self.served.asked()
    }

    /// Makes a repository `owner/name` whose branch `main` holds one commit with these files, or
    /// adds a commit with them to one that is there. Returns the commit's id.
    ///
    /// # Errors
    /// If git fails.
    pub async fn commit(&self, repo: &str, files: &[(&str, &str)]) -> anyhow::Result<String> {
        let bare = self.root.path().join(format!("{repo}.git"));
        if !bare.exists() {
            tokio::fs::create_dir_all(&bare).await?;
            tool(
                "git",
                ["init", "--quiet", "--bare", "--initial-branch=main", "."],
                &bare,
            )
            .await?;
        }
        let work = tempfile::Builder::new()
            .prefix("lazaret-git-work-")
            .tempdir()?;
        let path = bare.to_str().context("the path is text")?;
        tool("git", ["clone", "--quiet", path, "."], work.path()).await?;
        for (name, content) in files {
            let file = work.path().join(name);
            tokio::fs::create_dir_all(file.parent().unwrap_or(Path::new("/"))).await?;
            tokio::fs::write(file, content).await?;
        }
        tool("git", ["add", "--all"], work.path()).await?;
        tool(
            "git",
            [
                "commit",
                "--quiet",
                "--allow-empty",
                "--message",
                "A commit",
            ],
            work.path(),
        )
        .await?;
        tool(
            "git",
            ["push", "--quiet", "origin", "HEAD:main"],
            work.path(),
        )
        .await?;
        tool("git", ["rev-parse", "HEAD"], work.path()).await
    }
}

async fn bridge(State(root): State<Arc<TempDir>>, request: Request) -> Response {
    match run(root.path(), request).await {
        Ok(response) => response,
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")).into_response(),
    }
}

async fn run(root: &Path, request: Request) -> anyhow::Result<Response> {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, MAX_REQUEST).await?;
    let header = |name: &str| {
        head.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned()
    };
    let mut child = tokio::process::Command::new("git")
        .arg("http-backend")
        .env_clear()
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REQUEST_METHOD", head.method.as_str())
        .env("PATH_INFO", head.uri.path())
        .env("QUERY_STRING", head.uri.query().unwrap_or_default())
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("GIT_PROTOCOL", header("git-protocol"))
        .env("REMOTE_ADDR", "127.0.0.1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()?;
    let mut input = child.stdin.take().context("standard input is piped")?;
    let output = child.stdout.take().context("standard output is piped")?;
    // The backend may answer before it has read everything; both go on at once.
    tokio::spawn(async move {
        let _ = input.write_all(&body).await;
    });
    let mut output = BufReader::new(output);
    let mut response = Response::new(Body::empty());
    loop {
        let mut line = String::new();
        anyhow::ensure!(
            output.read_line(&mut line).await? > 0,
            "git http-backend ended within its headers"
        );
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line
            .split_once(": ")
            .context("a header has a name and a value")?;
        if name.eq_ignore_ascii_case("status") {
            *response.status_mut() = value.split(' ').next().unwrap_or_default().parse()?;
        } else {
            response
                .headers_mut()
                .insert(name.parse::<HeaderName>()?, HeaderValue::from_str(value)?);
        }
    }
    // The child is reaped once its output has ended.
    let (mut sender, receiver) = tokio::io::duplex(64 << 10);
    tokio::spawn(async move {
        let _ = tokio::io::copy(&mut output, &mut sender).await;
        let _ = child.wait().await;
    });
    *response.body_mut() = Body::from_stream(ReaderStream::new(receiver.take(u64::MAX)));
    Ok(response)
}
