//! The host API: HTTP/2 on SSH channel 1, answered by `lazaret host session`; the session passes
//! what concerns one sandbox on to that sandbox's shim over a Unix socket, same paths, same types.
//!
//! | request | does |
//! | --- | --- |
//! | `GET /v1/ping` | 204; every answer of this API names its generation in the protocol header |
//! | `GET /v1/info` | [`HostInfo`] |
//! | `GET /v1/sandboxes` | every [`Sandbox`] the host has a directory for |
//! | `PUT /v1/sandboxes/{id}` | [`SandboxSpec`] → [`Sandbox`]; creates it; again with the same spec: the same sandbox; with another: `spec_mismatch` |
//! | `GET /v1/sandboxes/{id}` | [`Sandbox`]; with `?until=settled&wait_ms=N` waits until it is no longer forking, or so long |
//! | `DELETE /v1/sandboxes/{id}` | ends and removes it from every state, idempotent; answers when nothing is left |
//! | `POST /v1/sandboxes/{id}/sleep` | [`Sandbox`], asleep: its memory is saved and its VMM ended; `sandbox_busy` while commands run or files move; idempotent |
//! | `POST /v1/sandboxes/{id}/wake?from=memory\|disk` | [`Sandbox`], ready again; from disk: it boots anew, what was in memory is given up; idempotent. What was saved stays until the guest has answered |
//! | `POST /v1/sandboxes/{id}/copies` | [`CopyInto`] → [`Copied`]: copies of the sandbox as it is at one moment, memory and disk, each a sandbox of its own. Idempotent by their ids |
//! | `PUT /v1/sandboxes/{id}/keep` | [`Keep`] → [`Sandbox`]; one that is kept may sleep for ever |
//! | `PUT /v1/sandboxes/{id}/execs/{exec}` | [`ExecRequest`] → [`Exec`]; starts it once, whoever asks how often |
//! | `GET …/execs/{exec}` | [`Exec`] |
//! | `GET …/execs/{exec}/output?offset=N&follow=BOOL` | [`crate::frame`]s from that offset on |
//! | `DELETE …/execs/{exec}` | cancels it; idempotent |
//! | `GET …/list?path=` · `GET …/files?path=` · `PUT …/files?path=&area=` | as the guest API |
//! | `GET …/console` | what the serial console showed, text, first and latest part |
//! | `GET …/egress?after=N` | [`EgressRecords`] |
//!
//! Calls with an effect carry the fence header; one lower than the highest seen for that sandbox is
//! refused with `stale_fence`. Errors are a [`lazaret_domain::Denial`] as JSON.

use crate::guest::{ExecExit, ExecSpec};
use jiff::Timestamp;
use lazaret_domain::egress::EgressPolicy;
use lazaret_domain::sandbox::{EndCause, SandboxState};
use lazaret_domain::{ByteSize, Cpus, Denial, ExecId, SandboxId, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How the guest's instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// Hardware virtualisation.
    Kvm,
    /// Software emulation: slow, and not a security boundary in QEMU's own view.
    Tcg,
}

/// What the operator allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AccelChoice {
    /// KVM or nothing. The default.
    Kvm,
    /// Software emulation, knowingly.
    Tcg,
    /// KVM if a probe guest boots with it, else software emulation with a warning.
    Auto,
}

/// What is known about a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInfo {
    /// The version of `lazaret` there.
    pub version: String,
    /// The protocol generation it speaks.
    pub protocol: u32,
    /// The accelerator that was proven by a probe boot, or why none was.
    pub accel: Result<Accel, Denial>,
    /// QEMU's version, or why there is none.
    pub vmm: Result<String, Denial>,
    /// The digest of the guest image (its manifest), or why there is none.
    pub image: Result<String, Denial>,
    /// Free bytes where sandboxes are kept.
    pub disk_free: u64,
    /// The host's wall clock.
    pub clock: Timestamp,
    /// The host's boot id.
    pub boot_id: String,
    /// How many sandboxes it may hold at once.
    pub max_sandboxes: u32,
}

/// What a sandbox is to be. Compared whole when the same id is asked for again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxSpec {
    /// The image by digest, as in [`HostInfo::image`]; nothing else is booted.
    pub image: String,
    /// Memory of the guest.
    pub memory: ByteSize,
    /// Virtual CPUs.
    pub cpus: Cpus,
    /// The size of its disk.
    pub disk: ByteSize,
    /// It is ended after being awake for so long, by the host, whatever else happens.
    pub max_duration: Span,
    /// The sandbox that this one is a copy of. Such a one comes into being by `copies` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_of: Option<SandboxId>,
    /// It is put to sleep after running no command and moving no file for so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_sleep: Option<Span>,
    /// It is ended after sleeping for so long, unless it is kept.
    #[serde(default = "default_sleep_ttl")]
    pub sleep_ttl: Span,
    /// What accelerators are allowed.
    pub accel: AccelChoice,
    /// What it may reach besides the gateway's services.
    pub egress: EgressPolicy,
    /// The base URL of repositories, for the guest's git.
    pub git_base_url: String,
    /// Each boot try is given up after this long.
    pub boot_deadline: Span,
    /// How many times booting is tried.
    pub boot_tries: u8,
}

/// The default of [`SandboxSpec::sleep_ttl`].
#[must_use]
pub fn default_sleep_ttl() -> Span {
    Span::seconds(24 * 3600)
}

/// Whether a sandbox is exempt from its sleep TTL. Its longest duration still counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keep {
    /// Whether it is.
    pub keep: bool,
}

/// The most copies that are made at once.
pub const MAX_COPIES: usize = 8;

/// The copies that are to be made of a sandbox. The machine of each is that of the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyInto {
    /// Their ids, 1 to [`MAX_COPIES`].
    pub copies: Vec<SandboxId>,
}

/// The copies of a sandbox, on their way up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// The copies.
    pub copies: Vec<Sandbox>,
    /// For how long the sandbox stood still, in milliseconds. Nothing, if all copies were there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<u64>,
}

impl SandboxSpec {
    /// The specification of a copy of that sandbox.
    #[must_use]
    pub fn copied(&self, from: &SandboxId) -> Self {
        Self {
            copy_of: Some(from.clone()),
            ..self.clone()
        }
    }
}

/// What a sandbox is woken from.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum WakeFrom {
    /// Its memory, as it fell asleep.
    #[default]
    Memory,
    /// Its disk alone: it boots.
    Disk,
}

/// What a template is to be made for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateSpec {
    /// The image by digest.
    pub image: String,
    /// Memory of the guest.
    pub memory: ByteSize,
    /// Virtual CPUs.
    pub cpus: Cpus,
    /// The size of its disk.
    pub disk: ByteSize,
    /// What accelerators are allowed.
    pub accel: AccelChoice,
    /// Each boot try is given up after this long.
    pub boot_deadline: Span,
}

impl TemplateSpec {
    /// The template that such a sandbox is forked from.
    #[must_use]
    pub fn of(spec: &SandboxSpec) -> Self {
        Self {
            image: spec.image.clone(),
            memory: spec.memory,
            cpus: spec.cpus,
            disk: spec.disk,
            accel: spec.accel,
            boot_deadline: spec.boot_deadline,
        }
    }
}

/// A template: a frozen guest that sandboxes are forked from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// Its name, made from all that it depends on.
    pub name: String,
    /// The image it was booted from.
    pub image: String,
    /// How its instructions are executed.
    pub accel: Accel,
    /// Memory of the guest.
    pub memory: ByteSize,
    /// Virtual CPUs.
    pub cpus: Cpus,
    /// The size of its disk.
    pub disk: ByteSize,
}

/// How long each stage took, in milliseconds since the sandbox was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct BootStages {
    /// The shim runs and has all it needs to start the VMM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shim_ms: Option<u64>,
    /// The VMM process runs and its monitor answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vmm_ms: Option<u64>,
    /// The vCPU of a fork runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_ms: Option<u64>,
    /// The kernel has handed over to the guest agent; a fork does not boot one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_ms: Option<u64>,
    /// The guest agent answered and was adopted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_ms: Option<u64>,
    /// Whether it was forked from a template rather than booted.
    #[serde(default)]
    pub forked: bool,
    /// Whether that fork was up already, as a spare, when the sandbox was asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spare: bool,
    /// How many forks, or else boots, were tried.
    pub tries: u8,
}

/// What confines a VMM process, as it was really applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct Confinement {
    /// The uid it runs as.
    pub uid: u32,
    /// Whether that uid belongs to this sandbox alone.
    pub own_uid: bool,
    /// Whether QEMU's seccomp sandbox is on.
    pub seccomp: bool,
    /// Whether it can gain no privileges and dies with its shim.
    pub no_new_privs: bool,
    /// The cgroup controllers whose limits are in force; empty where none could be set.
    pub cgroup: Vec<String>,
}

/// A sandbox as its host sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Its id.
    pub id: SandboxId,
    /// What it is to be.
    pub spec: SandboxSpec,
    /// Its state.
    pub state: SandboxState,
    /// Why it ended, once it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When the host will end it: what is left of its longest duration, or, asleep, of its sleep TTL.
    /// One that sleeps and is kept has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Since when it sleeps, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asleep_since: Option<Timestamp>,
    /// Whether it is exempt from its sleep TTL.
    #[serde(default)]
    pub kept: bool,
    /// The accelerator in use, once chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accel: Option<Accel>,
    /// The guest's boot id, once ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// The guest's kernel release, once ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// How long each stage took.
    #[serde(default)]
    pub stages: BootStages,
    /// What confines its VMM.
    #[serde(default)]
    pub confinement: Confinement,
}

/// Why a sandbox is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The cause.
    pub cause: EndCause,
    /// Detail for people: the last console lines, QEMU's error.
    pub detail: String,
    /// When.
    pub at: Timestamp,
}

/// A command to run in a sandbox, with its standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// What to run.
    pub spec: ExecSpec,
    /// Standard input, base64, at most 1 MiB decoded; then end of file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stdin: String,
    /// The most framed output kept, in bytes: the first half and the latest half of it.
    #[serde(default = "default_output_cap")]
    pub output_cap: u64,
}

/// The default of [`ExecRequest::output_cap`]: 16 MiB.
#[must_use]
pub fn default_output_cap() -> u64 {
    16 << 20
}

/// A command as its host sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Its id.
    pub id: ExecId,
    /// When it was started.
    pub started_at: Timestamp,
    /// How it ended, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExecExit>,
    /// Bytes of framed output so far.
    pub output_len: u64,
}

/// What the gateway decided about one attempt to reach something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct EgressRecord {
    /// Per-sandbox number without gaps, from 1.
    pub seq: u64,
    /// When.
    #[schema(value_type = String)]
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// `dns`, `tcp`, `udp`, `icmp`, `ipv6`, `service` or `frame`.
    pub kind: String,
    /// The name or address asked for; never a path or payload.
    pub destination: String,
    /// The port, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Whether it was allowed.
    pub allowed: bool,
    /// The rule that allowed it, or why it was refused.
    pub reason: String,
    /// How many attempts of just this kind this record stands for.
    pub count: u64,
    /// Bytes from the guest, for connections that have ended.
    #[serde(default)]
    pub bytes_out: u64,
    /// Bytes to the guest, for connections that have ended.
    #[serde(default)]
    pub bytes_in: u64,
    /// How long the connection lasted, in milliseconds.
    #[serde(default)]
    pub duration_ms: u64,
}

/// Egress records after a number, oldest first, at most 1,000.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressRecords {
    /// The records.
    pub records: Vec<EgressRecord>,
    /// How many older ones are no longer kept.
    pub dropped: u64,
}
