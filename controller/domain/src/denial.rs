//! Every "no" of the product is a named reason with a stable code.
//!
//! A [`Denial`] travels unchanged from where it is decided (domain, host, store) to whoever reads
//! it: `problem+json` over HTTP, a tool error over MCP, an exit code and a line on the command
//! line. The code is part of the API contract; the message is for people and says what to do next.
//! Faces choose status numbers from the [`DenialClass`]; the domain knows no HTTP.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What kind of "no" it is, from which a face chooses its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialClass {
    /// The input is out of form. Nothing was allocated.
    Invalid,
    /// Who asks is not known.
    Unauthenticated,
    /// Who asks is known and may not.
    Forbidden,
    /// The thing does not exist, or is not the caller's.
    NotFound,
    /// The thing is in a state in which this cannot be done.
    Conflict,
    /// The thing existed and is gone for good.
    Gone,
    /// The input is larger than allowed.
    TooLarge,
    /// A cap is reached; trying later can help.
    Capacity,
    /// Something this depends on cannot be reached or is not ready.
    Unavailable,
    /// A fault of ours.
    Internal,
}

macro_rules! denial_codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $class:ident;)*) => {
        /// The stable code of a [`Denial`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema, JsonSchema)]
        pub enum DenialCode {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl DenialCode {
            /// All codes, in the order of their declaration.
            pub const ALL: &'static [DenialCode] = &[$(DenialCode::$name),*];

            /// The code as it is written on every surface.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(DenialCode::$name => $text,)* }
            }

            /// The kind of denial this code belongs to.
            #[must_use]
            pub fn class(self) -> DenialClass {
                match self { $(DenialCode::$name => DenialClass::$class,)* }
            }
        }
    };
}

denial_codes! {
    /// A body, query or header that is not of the documented form.
    InvalidRequest = "invalid_request", Invalid;
    /// A field that the schema does not have.
    UnknownField = "unknown_field", Invalid;
    /// A run, sandbox, exec or key id out of form.
    InvalidId = "invalid_id", Invalid;
    /// A repository that is not `owner/name`.
    InvalidRepo = "invalid_repo", Invalid;
    /// A git ref out of form.
    InvalidRef = "invalid_ref", Invalid;
    /// A path that is absolute where it may not be, or holds `..`, NUL or the like.
    InvalidPath = "invalid_path", Invalid;
    /// A name (host, upload, key) out of form.
    InvalidName = "invalid_name", Invalid;
    /// A size out of form or out of bounds.
    InvalidSize = "invalid_size", Invalid;
    /// A duration out of form, zero, negative or out of bounds.
    InvalidDuration = "invalid_duration", Invalid;
    /// A vCPU count out of bounds.
    InvalidCpus = "invalid_cpus", Invalid;
    /// A command that is empty, too long or holds NUL.
    InvalidCommand = "invalid_command", Invalid;
    /// An egress rule or policy out of form.
    InvalidEgress = "invalid_egress", Invalid;
    /// An idempotency key out of form.
    InvalidIdempotencyKey = "invalid_idempotency_key", Invalid;
    /// An agent this build does not have.
    UnknownAgent = "unknown_agent", Invalid;
    /// No command and no task was given.
    NothingToDo = "nothing_to_do", Invalid;
    /// The content type is not the documented one.
    UnsupportedMediaType = "unsupported_media_type", Invalid;
    /// The method is not one of the route's.
    MethodNotAllowed = "method_not_allowed", Invalid;

    /// No credential, or one that is not valid.
    Unauthenticated = "unauthenticated", Unauthenticated;
    /// The credential's scope does not cover this.
    ScopeTooNarrow = "scope_too_narrow", Forbidden;
    /// The Host header is not one of this server's names.
    ForeignHost = "foreign_host", Forbidden;
    /// The Origin header is not this server's.
    ForeignOrigin = "foreign_origin", Forbidden;
    /// Too many failures or requests from this client.
    RateLimited = "rate_limited", Capacity;

    /// No such route.
    NoSuchRoute = "no_such_route", NotFound;
    /// No such run, or not the caller's.
    RunNotFound = "run_not_found", NotFound;
    /// No such sandbox on this host.
    SandboxNotFound = "sandbox_not_found", NotFound;
    /// No such exec in this sandbox.
    ExecNotFound = "exec_not_found", NotFound;
    /// No such host.
    HostNotFound = "host_not_found", NotFound;
    /// No such key.
    KeyNotFound = "key_not_found", NotFound;
    /// No such file in the workspace.
    FileNotFound = "file_not_found", NotFound;
    /// The run has no diff: no repository, or it ended before there was one.
    NoDiff = "no_diff", NotFound;
    /// The path is not a regular file.
    NotAFile = "not_a_file", Invalid;
    /// The file or body is larger than allowed.
    TooLarge = "too_large", TooLarge;

    /// The run is over.
    RunOver = "run_over", Conflict;
    /// The run has not come so far yet.
    RunNotReady = "run_not_ready", Conflict;
    /// The same idempotency key was used with another request.
    IdempotencyMismatch = "idempotency_mismatch", Conflict;
    /// It was done before under this idempotency key, and its answer cannot be given again.
    AlreadyDone = "already_done", Conflict;
    /// The same id was used with another specification.
    SpecMismatch = "spec_mismatch", Conflict;
    /// A newer executor holds this step.
    StaleFence = "stale_fence", Conflict;
    /// The sandbox is not ready for this.
    SandboxNotReady = "sandbox_not_ready", Conflict;
    /// The sandbox sleeps; it has to be woken for this.
    SandboxAsleep = "sandbox_asleep", Conflict;
    /// The sandbox runs commands or moves files.
    SandboxBusy = "sandbox_busy", Conflict;
    /// What was saved of the sandbox does not fit the host any more, or is damaged; it can be booted
    /// from its disk.
    SavedStateUnfit = "saved_state_unfit", Conflict;
    /// The sandbox was copied so often that its disk lies in as many layers as a host opens.
    TooManyLayers = "too_many_layers", Conflict;
    /// The sandbox is being or has been ended.
    SandboxGone = "sandbox_gone", Gone;
    /// The host is drained or retired.
    HostDrained = "host_drained", Conflict;
    /// A thing of that name exists.
    AlreadyExists = "already_exists", Conflict;

    /// The cap on concurrent sandboxes is reached.
    SandboxCap = "sandbox_cap", Capacity;
    /// The cap on requests in flight to a host is reached.
    HostBusy = "host_busy", Capacity;
    /// Too little disk space on the host.
    DiskFull = "disk_full", Capacity;

    /// No host is enrolled.
    NoHost = "no_host", Unavailable;
    /// The host cannot be reached.
    HostUnreachable = "host_unreachable", Unavailable;
    /// The host presented another key than the pinned one.
    HostKeyMismatch = "host_key_mismatch", Unavailable;
    /// The host refused our key or our forced command is missing there.
    HostRefused = "host_refused", Unavailable;
    /// The host speaks another version of the host API.
    HostVersion = "host_version", Unavailable;
    /// The guest image is missing.
    ImageMissing = "image_missing", Unavailable;
    /// The guest image does not match its manifest.
    ImageAltered = "image_altered", Unavailable;
    /// QEMU is missing or cannot be used.
    VmmMissing = "vmm_missing", Unavailable;
    /// No accelerator that the settings allow works on this host.
    NoAccelerator = "no_accelerator", Unavailable;
    /// The host is finding out which accelerator works; it knows shortly.
    AcceleratorProbing = "accelerator_probing", Unavailable;
    /// The guest did not come up within its deadline, after all retries.
    BootFailed = "boot_failed", Unavailable;
    /// The sandbox did not wake; it still sleeps, and nothing of it is lost.
    WakeFailed = "wake_failed", Unavailable;
    /// The guest agent stopped answering.
    GuestUnreachable = "guest_unreachable", Unavailable;
    /// The uplink to the controller is down.
    UplinkDown = "uplink_down", Unavailable;
    /// The controller's store cannot be read or written (disk full, damaged); nothing is done then.
    StoreFailed = "store_failed", Unavailable;
    /// The service is stopping.
    Stopping = "stopping", Unavailable;

    /// The destination is not allowed by the egress policy.
    EgressDenied = "egress_denied", Forbidden;
    /// The run has no grant for this repository.
    RepoNotGranted = "repo_not_granted", Forbidden;
    /// Pushing to a repository is not allowed.
    PushRefused = "push_refused", Forbidden;
    /// The git host cannot be reached or did not answer as a git host does.
    GitUpstream = "git_upstream", Unavailable;
    /// A fault of ours; the log has more.
    Internal = "internal", Internal;
}

impl std::fmt::Display for DenialCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for DenialCode {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL
            .iter()
            .copied()
            .find(|code| code.as_str() == text)
            .ok_or(())
    }
}

/// A refusal: a stable code, one sentence for people, and when to try again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message} ({code})")]
pub struct Denial {
    /// The stable code.
    pub code: DenialCode,
    /// One or two sentences: what was refused and what to do next. Holds no secret.
    pub message: String,
    /// Seconds after which trying again can help, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u32>,
    /// The input field that is out of form, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

impl Denial {
    /// A denial with this code and message.
    #[must_use]
    pub fn new(code: DenialCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            retry_after: None,
            field: None,
        }
    }

    /// The same, naming the input field at fault.
    #[must_use]
    pub fn at(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// The same, saying when to try again, in seconds.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// The kind of denial.
    #[must_use]
    pub fn class(&self) -> DenialClass {
        self.code.class()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_read_back() {
        for code in DenialCode::ALL {
            assert_eq!(code.as_str().parse(), Ok(*code));
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}
