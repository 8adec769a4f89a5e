//! What an operator sets about the HTTP face.
//!
//! The names by which this server may be addressed come from the public URL, from the address it
//! listens on where that is a loopback one, and from nowhere else: a page on another name cannot
//! reach it through a browser, whatever its DNS says.

use crate::origin::{Authority, Origin};
use crate::server::Deadlines;
use ipnet::IpNet;
use lazaret_domain::{Denial, DenialCode};
use std::net::SocketAddr;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A JSON body is at most this long, 1 MB.
pub const JSON_BODY: usize = 1 << 20;
/// An upload is at most this long, 96 MB.
pub const UPLOAD_BODY: usize = 96 << 20;
/// One client may ask this often in a second, on average.
pub const REQUESTS_PER_SECOND: u32 = 200;
/// And this often at once.
pub const REQUEST_BURST: u32 = 2000;
/// A body may pause for this long, and not longer, between two pieces.
pub const BODY_PAUSE: Duration = Duration::from_secs(30);
/// A JSON body is read within this time, from its first byte to its last.
pub const JSON_WITHIN: Duration = Duration::from_secs(60);
/// An upload is read within this time: the largest needs 110 kB a second.
pub const UPLOAD_WITHIN: Duration = Duration::from_secs(15 * 60);
/// One client may hold this many connections, a quarter of all.
pub const CONNECTIONS_PER_CLIENT: usize = 256;
/// One client, and one key, may have this many requests under way, streams included.
pub const REQUESTS_EACH: usize = 256;
/// One client, and one key, may have this many event streams open, a quarter of all.
pub const STREAMS_EACH: usize = 128;
/// One client, and one key, may have this many uploads under way, half of all.
pub const UPLOADS_EACH: usize = 2;
/// An open stream asks this often whether its key is still good.
pub const RECHECK_EVERY: Duration = Duration::from_secs(60);
/// How often a silent stream says that it is alive.
pub const COMMENT_EVERY: Duration = Duration::from_secs(10);

/// The settings of the edge.
#[derive(Clone, Debug)]
pub struct EdgeSettings {
    /// Where callers reach this server, without a trailing slash.
    pub public_url: String,
    /// The names in `Host` that are ours.
    pub hosts: Vec<Authority>,
    /// The origins a browser may name.
    pub origins: Vec<Origin>,
    /// The networks of proxies whose `X-Forwarded-For` counts.
    pub trusted_proxies: Vec<IpNet>,
    /// The longest JSON body, in bytes. It holds for MCP messages too.
    pub json_body: usize,
    /// The longest upload, in bytes.
    pub upload_body: usize,
    /// The longest pause between two pieces of a body.
    pub body_pause: Duration,
    /// The longest that reading a JSON body takes. It holds for MCP messages too.
    pub json_within: Duration,
    /// The longest that reading an upload takes.
    pub upload_within: Duration,
    /// How often one client may ask in a second, on average.
    pub requests_per_second: u32,
    /// How often one client may ask at once.
    pub request_burst: u32,
    /// How many connections one client may hold; a trusted proxy may hold any number.
    pub connections_per_client: usize,
    /// How many requests of one client, and of one key, may be under way at the same time.
    pub requests_each: usize,
    /// How many event streams one client, and one key, may have open at the same time.
    pub streams_each: usize,
    /// How many uploads of one client, and of one key, may be under way at the same time.
    pub uploads_each: usize,
    /// How long a connection may keep its slot without getting on.
    pub deadlines: Deadlines,
    /// How often an open stream asks whether its key is still good.
    pub recheck_every: Duration,
    /// How often a silent stream says that it is alive; callers are promised 15 seconds.
    pub comment_every: Duration,
    /// Whether clients of the 2025 revisions get MCP sessions. Only a handler that asks its client
    /// back needs them; the product's tools never do, so they are off.
    pub mcp_sessions: bool,
    /// Ends streams and MCP calls that wait, so that a stop does not wait for them.
    pub stop: CancellationToken,
}

impl EdgeSettings {
    /// Settings for a server that listens on `listen` and is known as `public_url`.
    ///
    /// # Errors
    /// `invalid_request` for a public URL that is not `http(s)://host[:port]` without a path.
    pub fn new(
        public_url: &str,
        listen: SocketAddr,
        stop: CancellationToken,
    ) -> Result<Self, Denial> {
        let trimmed = public_url.strip_suffix('/').unwrap_or(public_url);
        let origin = trimmed.parse::<Origin>().map_err(|()| {
            Denial::new(
                DenialCode::InvalidRequest,
                "the public URL is http(s)://host[:port] without a path",
            )
            .at("server.public_url")
        })?;
        let mut hosts = vec![origin.authority().clone()];
        let mut origins = vec![origin];
        if listen.ip().is_loopback() {
            for name in ["localhost", "127.0.0.1", "[::1]"] {
                let origin = Origin::plain(Authority::new(name, listen.port()));
                hosts.push(origin.authority().clone());
                origins.push(origin);
            }
        }
        Ok(Self {
            public_url: trimmed.to_owned(),
            hosts,
            origins,
            trusted_proxies: Vec::new(),
            json_body: JSON_BODY,
            upload_body: UPLOAD_BODY,
            body_pause: BODY_PAUSE,
            json_within: JSON_WITHIN,
            upload_within: UPLOAD_WITHIN,
            requests_per_second: REQUESTS_PER_SECOND,
            request_burst: REQUEST_BURST,
            connections_per_client: CONNECTIONS_PER_CLIENT,
            requests_each: REQUESTS_EACH,
            streams_each: STREAMS_EACH,
            uploads_each: UPLOADS_EACH,
            deadlines: Deadlines::default(),
            recheck_every: RECHECK_EVERY,
            comment_every: COMMENT_EVERY,
            mcp_sessions: false,
            stop,
        })
    }
}
