//! The guest API: HTTP/2 on the virtio-serial port `control`, spoken by the shim.
//!
//! | request | does |
//! | --- | --- |
//! | `GET /v1/health` | [`Health`] |
//! | `POST /v1/adopt` | [`Adopt`] → [`Adopted`]; nothing else but health is answered before. Once; and again after a `nap`, for a copy that becomes another sandbox: what ran is killed then |
//! | `POST /v1/warm` | [`Adopt`], before adoption only: goes through what every run goes through, being adopted too, without becoming anybody; answers when all that it started has ended |
//! | `POST /v1/nap` | stops all work where it stands and writes the disk out; only health, `adopt` and `wake` are answered then. Idempotent |
//! | `POST /v1/wake` | [`Wake`] → [`Clock`]: new entropy and the wall clock; work still stands still, and the clock can be set again |
//! | `POST /v1/go-on` | work goes on. Idempotent |
//! | `PUT /v1/clock` | [`Clock`] → [`Clock`]: sets the wall clock, and what it says then |
//! | `POST /v1/exec` | body: [`ExecSpec`] as one length-prefixed (u32, big-endian) JSON, then standard input; answer: [`crate::frame`]s, the last of which is an exit frame. Dropping the answer kills the command's process group |
//! | `GET /v1/list?path=P` | [`Listing`] of a directory of the workspace |
//! | `GET /v1/files?path=P` | the file or tree as a tar stream; a tree begins with the directory itself, as `.` |
//! | `PUT /v1/files?path=P&area=workspace\|uploads` | takes a tar stream into a directory |
//! | `POST /v1/shutdown` | syncs and powers off |
//!
//! Errors are a [`lazaret_domain::Denial`] as JSON with a fitting status. Paths are
//! [`lazaret_domain::GuestPath`]s below [`WORKSPACE`] (or [`UPLOADS`]) and are resolved beneath it
//! in fact: no symbolic link leads out.

use lazaret_domain::{Argv, EnvName, SandboxId, Span};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name of the virtio-serial port.
pub const CONTROL_PORT: &str = "control";
/// Where a run's work lies in the guest.
pub const WORKSPACE: &str = "/workspace";
/// The read-only uploads area in the guest.
pub const UPLOADS: &str = "/uploads";
/// The user that runs work as.
pub const AGENT_USER: &str = "agent";
/// That user's uid and gid.
pub const AGENT_UID: u32 = 1000;
/// The largest [`ExecSpec`] as JSON, in bytes.
pub const MAX_SPEC: usize = 512 * 1024;

/// The static network settings, the same in every sandbox. The gateway is the only neighbour.
pub mod net {
    use std::net::Ipv4Addr;

    /// The guest's own address.
    pub const GUEST: Ipv4Addr = Ipv4Addr::new(198, 19, 255, 2);
    /// The gateway's address: router, DNS server and HTTP services.
    pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 19, 255, 1);
    /// The prefix length of the link.
    pub const PREFIX: u8 = 30;
    /// The gateway's name.
    pub const GATEWAY_NAME: &str = "gateway.lazaret";
    /// The first synthetic address that stands for a name; they go on below 198.19.255.0.
    pub const SYNTHETIC_FIRST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
    /// The guest's hardware address.
    pub const GUEST_MAC: [u8; 6] = [0x02, 0x4c, 0x5a, 0, 0, 2];
    /// The gateway's hardware address.
    pub const GATEWAY_MAC: [u8; 6] = [0x02, 0x4c, 0x5a, 0, 0, 1];
    /// The size of the largest IP packet on the cable.
    pub const MTU: u16 = 65_000;
}

/// The state of the guest agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The agent's version.
    pub version: String,
    /// The protocol generation it speaks.
    pub protocol: u32,
    /// The kernel's release.
    pub kernel: String,
    /// The kernel's boot id, once the guest was adopted: before that it is not drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Milliseconds since the kernel started.
    pub uptime_ms: u64,
    /// Whether it was told who it is.
    pub adopted: bool,
    /// Whether its work stands still.
    #[serde(default)]
    pub napping: bool,
}

/// Tells a guest who it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adopt {
    /// Its sandbox id, which also becomes its host name.
    pub sandbox: SandboxId,
    /// The wall clock: nanoseconds since 1970.
    pub wall_clock_ns: i64,
    /// 64 fresh random bytes, base64, credited to the kernel's pool before any user code runs.
    pub entropy: String,
    /// The machine id: 32 hexadecimal digits.
    pub machine_id: String,
    /// The base URL of repositories, ending in `/`, that git is told to reach through the gateway.
    pub git_base_url: String,
}

/// The guest's confirmation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// The boot id now in force.
    pub boot_id: String,
    /// The kernel's release.
    pub kernel: String,
    /// The guest's wall clock after it was set: nanoseconds since 1970.
    pub wall_clock_ns: i64,
}

/// A wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clock {
    /// Nanoseconds since 1970.
    pub wall_clock_ns: i64,
}

/// Tells a guest that napped what it missed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wake {
    /// The wall clock: nanoseconds since 1970.
    pub wall_clock_ns: i64,
    /// 64 fresh random bytes, base64: the saved state may be woken more than once.
    pub entropy: String,
}

/// A command to run as [`AGENT_USER`], never as root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    /// Program and arguments; the program is looked up in the environment's `PATH`.
    pub argv: Argv,
    /// The whole environment; nothing is inherited.
    #[serde(default)]
    pub env: BTreeMap<EnvName, String>,
    /// The working directory, absolute.
    pub cwd: String,
    /// The limits.
    #[serde(default)]
    pub limits: ExecLimits,
}

/// The limits of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExecLimits {
    /// After this its process group gets SIGTERM.
    pub max_duration: Span,
    /// After this much longer it gets SIGKILL.
    pub kill_grace: Span,
    /// Processes and threads of the user at once.
    pub processes: u32,
    /// Open files of one process.
    pub open_files: u32,
}

impl Default for ExecLimits {
    fn default() -> Self {
        Self {
            max_duration: Span::seconds(3600),
            kill_grace: Span::seconds(5),
            processes: 4096,
            open_files: 65_536,
        }
    }
}

/// Why a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecEnd {
    /// By itself, or by a signal from inside.
    Exited,
    /// It ran over its longest duration.
    TimedOut,
    /// Its caller went away or cancelled it.
    Cancelled,
    /// It could not be started (`message` says why).
    NotStarted,
    /// Its sandbox ended under it.
    SandboxEnded,
}

/// How a command ended. The payload of the exit frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecExit {
    /// Why.
    pub end: ExecEnd,
    /// The exit status, if it exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The signal that ended it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// One sentence where that helps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How long it ran, in milliseconds: by the guest's clock as the guest sends it, by the host's
    /// (from asking the guest to its last answer) as everybody else reads it.
    pub duration_ms: u64,
    /// The number of the gateway's last decision by then, 0 before the first, if no connection was
    /// under way whose decision is told when it ends. The host's word, also if a guest sends one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_seq: Option<u64>,
}

impl ExecExit {
    /// Whether it exited by itself with status 0.
    #[must_use]
    pub fn success(&self) -> bool {
        self.end == ExecEnd::Exited && self.code == Some(0)
    }
}

/// What a directory entry is.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link; never followed.
    Symlink,
    /// A device, FIFO or socket.
    Other,
}

/// One entry of a directory.
#[derive(
    Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema, schemars::JsonSchema,
)]
pub struct FileEntry {
    /// Its name; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// What it is.
    pub kind: FileKind,
    /// Its size in bytes.
    pub size: u64,
    /// Its permission bits.
    pub mode: u32,
    /// When it was last changed: seconds since 1970.
    pub modified: i64,
}

/// A directory's entries by name, at most 10,000 of them.
#[derive(
    Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema, schemars::JsonSchema,
)]
pub struct Listing {
    /// The entries.
    pub entries: Vec<FileEntry>,
    /// Whether there are more than were listed.
    pub truncated: bool,
}
