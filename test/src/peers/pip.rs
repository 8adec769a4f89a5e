//! A Python package index (PEP 503) with one package: `lazaret-demo` 1.0.0, whose module has
//! `ANSWER = 42`.

use super::{Served, tool};
use axum::Router;
use axum::extract::State;
use axum::response::Html;
use axum::routing::get;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::net::SocketAddr;

/// The index.
pub struct PyIndex {
    served: Served,
}

const WHEEL: &str = "lazaret_demo-1.0.0-py3-none-any.whl";

impl PyIndex {
    /// The package's name.
    pub const PACKAGE: &str = "lazaret-demo";

    /// Starts it. The index is below `/simple/`.
    ///
    /// # Errors
    /// If the wheel cannot be made or no port can be bound.
    pub async fn start() -> anyhow::Result<Self> {
        let wheel = pack().await?;
        let digest: String = Sha256::digest(&wheel)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let page = format!(
            "<!DOCTYPE html><html><body><a href=\"/files/{WHEEL}#sha256={digest}\">{WHEEL}</a></body></html>"
        );
        let router = Router::new()
            .route("/simple/lazaret-demo/", get(move || async { Html(page) }))
            .route(
                &format!("/files/{WHEEL}"),
                get(|State(wheel): State<Bytes>| async { wheel }),
            )
            .with_state(wheel);
        Ok(Self {
            served: Served::start(router).await?,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.served.address()
    }

    /// What it was asked so far.
    #[must_use]
    pub fn asked(&self) -> Vec<super::Asked> {
        self.served.asked()
    }
}

async fn pack() -> anyhow::Result<Bytes> {
    let dir = tempfile::tempdir()?;
    let files = [
        ("lazaret_demo.py", "ANSWER = 42\n"),
        (
            "lazaret_demo-1.0.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: lazaret-demo\nVersion: 1.0.0\n",
        ),
        (
            "lazaret_demo-1.0.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        ),
        (
            "lazaret_demo-1.0.0.dist-info/RECORD",
            "lazaret_demo.py,,\nlazaret_demo-1.0.0.dist-info/METADATA,,\nlazaret_demo-1.0.0.dist-info/WHEEL,,\n\
             lazaret_demo-1.0.0.dist-info/RECORD,,\n",
        ),
    ];
    tokio::fs::create_dir(dir.path().join("lazaret_demo-1.0.0.dist-info")).await?;
    for (name, text) in files {
        tokio::fs::write(dir.path().join(name), text).await?;
    }
    let args = [
        "-m",
        "zipfile",
        "-c",
        WHEEL,
        "lazaret_demo.py",
        "lazaret_demo-1.0.0.dist-info",
    ];
    tool("python3", args, dir.path()).await?;
    Ok(tokio::fs::read(dir.path().join(WHEEL)).await?.into())
}
