//! An npm registry with one package: `lazaret-demo` 1.0.0, which exports the number 42.

use super::{Served, tool};
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::HeaderMap;
use serde_json::{Value, json};
use sha2::{Digest, Sha512};
use std::net::SocketAddr;

/// The registry.
pub struct NpmRegistry {
    served: Served,
}

impl NpmRegistry {
    /// The package's name.
    pub const PACKAGE: &str = "lazaret-demo";

    /// Starts it.
    ///
    /// # Errors
    /// If the package cannot be packed or no port can be bound.
    pub async fn start() -> anyhow::Result<Self> {
        let archive = pack().await?;
        let router = Router::new()
            .route("/lazaret-demo", get(describe))
            .route(
                "/lazaret-demo/-/lazaret-demo-1.0.0.tgz",
                get(|State(archive): State<Bytes>| async { archive }),
            )
            .with_state(archive);
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
    let package = dir.path().join("package");
    tokio::fs::create_dir(&package).await?;
    let manifest = json!({ "name": NpmRegistry::PACKAGE, "version": "1.0.0", "main": "index.js", "license": "MIT" });
    tokio::fs::write(package.join("package.json"), manifest.to_string()).await?;
    tokio::fs::write(package.join("index.js"), "module.exports = 42;\n").await?;
    tool("tar", ["-czf", "package.tgz", "package"], dir.path()).await?;
    Ok(tokio::fs::read(dir.path().join("package.tgz"))
        .await?
        .into())
}

/// The archive's address is given with the name the client used, as real registries do.
async fn describe(State(archive): State<Bytes>, headers: HeaderMap) -> Json<Value> {
    let host = headers
        .get("host")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let integrity = format!("sha512-{}", STANDARD.encode(Sha512::digest(&archive)));
    Json(json!({
        "name": NpmRegistry::PACKAGE,
        "dist-tags": { "latest": "1.0.0" },
        "versions": { "1.0.0": {
            "name": NpmRegistry::PACKAGE,
            "version": "1.0.0",
            "main": "index.js",
            "dist": { "integrity": integrity, "tarball": format!("http://{host}/lazaret-demo/-/lazaret-demo-1.0.0.tgz") },
        } },
    }))
}
