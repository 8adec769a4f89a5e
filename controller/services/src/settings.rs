//! What the operator decided, as far as the use cases need it.

use lazaret_api::host::AccelChoice;
use lazaret_api::public::EgressMode;
use lazaret_domain::egress::{EgressRule, Pinned};
use lazaret_domain::{ByteSize, Cpus, Span};
use std::time::Duration;

/// The settings of the use cases. The limits are both the default of a run and its maximum.
#[derive(Clone, Debug)]
pub struct ServicesSettings {
    /// The product's version, as `system` shows it.
    pub version: String,
    /// Sandboxes at once, over all hosts.
    pub max_sandboxes: u32,
    /// Memory of a sandbox.
    pub memory: ByteSize,
    /// Virtual CPUs of a sandbox.
    pub cpus: Cpus,
    /// The disk of a sandbox.
    pub disk: ByteSize,
    /// A sandbox is ended after this long.
    pub max_duration: Span,
    /// A sandbox in which nothing goes on is put to sleep after this long; never, if nothing is said.
    pub idle_sleep: Option<Span>,
    /// One that sleeps is ended after this long, unless it is kept.
    pub sleep_ttl: Span,
    /// Which accelerators are allowed.
    pub accel: AccelChoice,
    /// Each boot try is given up after this long.
    pub boot_deadline: Span,
    /// How many times booting is tried.
    pub boot_tries: u8,
    /// The base URL of repositories; `owner/name.git` is appended to it.
    pub git_base_url: String,
    /// What runs may reach.
    pub egress: EgressSettings,
    /// How often things are tried again.
    pub pace: Pace,
}

/// What runs may reach.
#[derive(Clone, Debug)]
pub struct EgressSettings {
    /// What a run gets that does not say.
    pub default: EgressMode,
    /// What a run gets besides, if it does not say and the default is sealed.
    pub domains: Vec<EgressRule>,
    /// Hosts together with their addresses: the only way to a private address.
    pub pinned: Vec<Pinned>,
    /// Whether a run may ask for `open`.
    pub open_allowed: bool,
}

/// How often things are tried again. Tests shorten it; operators do not see it.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The first wait before something is tried again. It doubles up to `retry_max`.
    pub retry_min: Duration,
    /// The longest wait before something is tried again.
    pub retry_max: Duration,
    /// How long output is gathered before it is written.
    pub gather: Duration,
    /// How often the gateway's decisions are fetched, and a finished run's sandbox is looked at.
    pub look: Duration,
    /// How often hosts are compared with the store.
    pub reconcile: Duration,
    /// A sandbox that no run knows is left alone for this long.
    pub stray_grace: Duration,
    /// How long past its deadline a sandbox on an unreachable host counts as perhaps alive.
    pub lost_grace: Duration,
    /// How long a host may take to answer a driver's call: more than the longest that it waits itself.
    pub call: Duration,
    /// How long an answer waits for a host: for it to connect, for a removal, for a cancel.
    pub patience: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            retry_min: Duration::from_millis(250),
            retry_max: Duration::from_secs(15),
            gather: Duration::from_millis(40),
            look: Duration::from_secs(2),
            reconcile: Duration::from_secs(30),
            stray_grace: Duration::from_secs(120),
            lost_grace: Duration::from_secs(120),
            call: Duration::from_secs(60),
            patience: Duration::from_secs(10),
        }
    }
}

impl Default for ServicesSettings {
    fn default() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            max_sandboxes: 5,
            memory: ByteSize::mebibytes(1024),
            cpus: Cpus::ONE,
            disk: ByteSize::mebibytes(8 * 1024),
            max_duration: Span::seconds(3600),
            idle_sleep: Some(Span::seconds(15 * 60)),
            sleep_ttl: Span::seconds(24 * 3600),
            accel: AccelChoice::Kvm,
            boot_deadline: Span::seconds(60),
            boot_tries: 3,
            git_base_url: "https://github.com/".to_owned(),
            egress: EgressSettings {
                default: EgressMode::Sealed,
                domains: Vec::new(),
                pinned: Vec::new(),
                open_allowed: false,
            },
            pace: Pace::default(),
        }
    }
}
