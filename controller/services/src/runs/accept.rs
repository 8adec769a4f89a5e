//! Accepting a task. Everything that can be refused is refused here, before anything is allocated:
//! form, bounds, egress, the host, the cap. What is accepted is stored whole and never changes.

use crate::again::{digest, other_request};
use crate::core::Core;
use crate::driver;
use crate::ports::store::{Accepted, NewRun, NotAccepted, RunPlan, RunRecord};
use crate::settings::ServicesSettings;
use crate::{IdempotencyKey, Principal};
use lazaret_api::host::SandboxSpec;
use lazaret_api::public::{AgentKind, CreateRun, EgressChoice, EgressMode};
use lazaret_domain::egress::EgressPolicy;
use lazaret_domain::{ByteSize, Denial, DenialCode, RunId, SandboxId};
use std::sync::Arc;

/// The longest task in words, in bytes.
const TASK_CAP: usize = 64 * 1024;
/// The smallest memory that a guest boots with.
const MEMORY_MIN: ByteSize = ByteSize::mebibytes(128);
/// The most egress rules of one run.
const RULES_CAP: usize = 256;

/// What a run is to be, but for its host.
struct Wanted {
    egress: EgressChoice,
    policy: EgressPolicy,
    memory: ByteSize,
    cpus: lazaret_domain::Cpus,
    max_duration: lazaret_domain::Span,
}

/// The policy behind a choice, and the choice as it is shown.
fn egress(
    settings: &ServicesSettings,
    choice: &EgressChoice,
) -> Result<(EgressChoice, EgressPolicy), Denial> {
    let operator = &settings.egress;
    let open = |allowed: bool| {
        if !allowed {
            let why =
                "'open' is not allowed by the operator's settings; name the hosts that are needed";
            return Err(Denial::new(DenialCode::EgressDenied, why).at("egress"));
        }
        let policy = EgressPolicy {
            open: true,
            pinned: operator.pinned.clone(),
            ..EgressPolicy::default()
        };
        Ok((EgressChoice::Mode(EgressMode::Open), policy))
    };
    let rules = |rules: &[lazaret_domain::egress::EgressRule]| {
        let policy = EgressPolicy {
            rules: rules.to_vec(),
            pinned: operator.pinned.clone(),
            open: false,
        };
        (EgressChoice::Rules(rules.to_vec()), policy)
    };
    let sealed = || {
        (
            EgressChoice::Mode(EgressMode::Sealed),
            EgressPolicy::default(),
        )
    };
    match choice {
        EgressChoice::Mode(EgressMode::Sealed) => Ok(sealed()),
        EgressChoice::Mode(EgressMode::Open) => open(operator.open_allowed),
        EgressChoice::Rules(list) if list.len() > RULES_CAP => {
            let why = format!("a run has at most {RULES_CAP} egress rules");
            Err(Denial::new(DenialCode::InvalidEgress, why).at("egress"))
        }
        // An empty list allows nothing, as it says.
        EgressChoice::Rules(list) if list.is_empty() => Ok(sealed()),
        EgressChoice::Rules(list) => match list.iter().find(|rule| rule.is_wide()) {
            Some(wide) if !operator.open_allowed => {
                let why = format!(
                    "{} is as good as 'open', which the operator's settings do not allow; name the hosts or smaller \
                     networks (/16 or smaller, IPv6 /32)",
                    wide.as_str()
                );
                Err(Denial::new(DenialCode::EgressDenied, why).at("egress"))
            }
            _ => Ok(rules(list)),
        },
        EgressChoice::Default => match operator.default {
            EgressMode::Open => open(true),
            EgressMode::Sealed if operator.domains.is_empty() => Ok(sealed()),
            EgressMode::Sealed => Ok(rules(&operator.domains)),
        },
    }
}

/// Checks a request against the operator's settings.
fn check(settings: &ServicesSettings, request: &CreateRun) -> Result<Wanted, Denial> {
    match request.agent {
        AgentKind::Command if request.command.is_none() => {
            let why = "the command agent needs a command: program and arguments";
            return Err(Denial::new(DenialCode::NothingToDo, why).at("command"));
        }
        AgentKind::Command => {}
    }
    if request
        .task
        .as_ref()
        .is_some_and(|task| task.len() > TASK_CAP)
    {
        return Err(Denial::new(
            DenialCode::TooLarge,
            format!("a task has at most {TASK_CAP} bytes"),
        )
        .at("task"));
    }
    if request.git_ref.is_some() && request.repo.is_none() {
        return Err(Denial::new(DenialCode::InvalidRef, "a ref needs a repository").at("ref"));
    }
    let memory = request.memory.unwrap_or(settings.memory);
    if memory > settings.memory || (request.memory.is_some() && memory < MEMORY_MIN) {
        let why = format!(
            "memory is from {MEMORY_MIN} to the operator's setting, {}",
            settings.memory
        );
        return Err(Denial::new(DenialCode::InvalidSize, why).at("memory"));
    }
    let cpus = request.cpus.unwrap_or(settings.cpus);
    if cpus > settings.cpus {
        let why = format!(
            "vCPUs are at most the operator's setting, {}",
            settings.cpus
        );
        return Err(Denial::new(DenialCode::InvalidCpus, why).at("cpus"));
    }
    let max_duration = request.max_duration.unwrap_or(settings.max_duration);
    if max_duration > settings.max_duration {
        let why = format!(
            "the longest duration is at most the operator's setting, {}",
            settings.max_duration
        );
        return Err(Denial::new(DenialCode::InvalidDuration, why).at("max_duration"));
    }
    let (egress, policy) = egress(settings, &request.egress)?;
    Ok(Wanted {
        egress,
        policy,
        memory,
        cpus,
        max_duration,
    })
}

fn spec(settings: &ServicesSettings, wanted: Wanted, image: String) -> SandboxSpec {
    let base = settings.git_base_url.trim_end_matches('/');
    SandboxSpec {
        image,
        memory: wanted.memory,
        cpus: wanted.cpus,
        disk: settings.disk,
        max_duration: wanted.max_duration,
        copy_of: None,
        idle_sleep: settings.idle_sleep,
        sleep_ttl: settings.sleep_ttl,
        accel: settings.accel,
        egress: wanted.policy,
        git_base_url: format!("{base}/"),
        boot_deadline: settings.boot_deadline,
        boot_tries: settings.boot_tries,
    }
}

pub(super) fn cap(holding: u32) -> Denial {
    let why = format!(
        "the cap on sandboxes is reached ({holding}); finished runs keep theirs until they are torn down or sleep: \
         tear one down, put one to sleep, or try again later"
    );
    Denial::new(DenialCode::SandboxCap, why).retry_after(15)
}

/// Accepts a task, or finds the run it was accepted as before, and gives it its driver.
pub(crate) async fn accept(
    core: &Arc<Core>,
    by: &Principal,
    key: Option<IdempotencyKey>,
    request: CreateRun,
) -> Result<RunRecord, Denial> {
    if core.stop.is_cancelled() {
        return Err(Denial::new(DenialCode::Stopping, "the controller is stopping").retry_after(5));
    }
    let wanted = check(&core.settings, &request)?;
    let idempotency = match key {
        None => None,
        Some(key) => Some((key, digest(&request)?)),
    };
    // Known requests are answered also while no host could take a new one.
    if let Some((key, digest)) = &idempotency
        && let Some((before, record)) = core.ports.store.accepted_before(&by.key, key).await?
    {
        return if before == *digest {
            Ok(record)
        } else {
            Err(other_request())
        };
    }
    let holding = core.holding().await?;
    let held = holding.values().sum();
    if held >= core.settings.max_sandboxes {
        return Err(cap(held));
    }
    let (host, image) = core
        .hosts
        .choose(core.settings.accel, &holding, core.settings.pace.patience)
        .await?;
    let now = core.now();
    let plan = RunPlan {
        egress: wanted.egress.clone(),
        spec: spec(&core.settings, wanted, image),
        sandbox: SandboxId::make(now, core.ports.random.bits()),
        request,
        host,
        parent: None,
    };
    let new = NewRun {
        id: RunId::make(now, core.ports.random.bits()),
        by: by.key.clone(),
        at: now,
        plan,
        idempotency,
        first_step: driver::FIRST_STEP,
    };
    let accepted = accept_all(core, vec![new]).await?;
    let (record, new) = accepted.into_iter().next().ok_or_else(none)?;
    if new {
        tracing::info!(run = %record.id, sandbox = %record.plan.sandbox, host = %record.plan.host, by = %by.key, "run accepted");
    }
    Ok(record)
}

/// Accepts runs, all or none, and gives those that are new their drivers. The answers are in order,
/// each with whether it is new.
pub(super) async fn accept_all(
    core: &Arc<Core>,
    new: Vec<NewRun>,
) -> Result<Vec<(RunRecord, bool)>, Denial> {
    let _turn = core.places.turn().await;
    let most = core.places.cap(core.settings.max_sandboxes);
    let accepted = match core.ports.store.accept(new, most).await? {
        Ok(accepted) => accepted,
        Err(NotAccepted::OtherRequest) => return Err(other_request()),
        Err(NotAccepted::CapReached(holding)) => return Err(cap(holding)),
    };
    let take = |accepted| match accepted {
        Accepted::Before(record) => (*record, false),
        Accepted::New(taken) => {
            let record = taken.run.clone();
            driver::start_new(core, *taken);
            (record, true)
        }
    };
    Ok(accepted.into_iter().map(take).collect())
}

/// The store answered for fewer runs than it was asked to accept.
fn none() -> Denial {
    Denial::new(DenialCode::StoreFailed, "the run was not accepted")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazaret_domain::{Argv, Cpus, Span};

    fn plain() -> CreateRun {
        CreateRun {
            command: Some(Argv::of(["true"]).unwrap()),
            ..CreateRun::default()
        }
    }

    fn code(request: &CreateRun) -> DenialCode {
        check(&ServicesSettings::default(), request)
            .err()
            .unwrap()
            .code
    }

    #[test]
    fn a_run_gets_at_most_what_the_operator_allows() {
        assert!(check(&ServicesSettings::default(), &plain()).is_ok());
        assert_eq!(code(&CreateRun::default()), DenialCode::NothingToDo);
        assert_eq!(
            code(&CreateRun {
                memory: Some(ByteSize::mebibytes(1025)),
                ..plain()
            }),
            DenialCode::InvalidSize
        );
        assert_eq!(
            code(&CreateRun {
                memory: Some(ByteSize::mebibytes(1)),
                ..plain()
            }),
            DenialCode::InvalidSize
        );
        assert_eq!(
            code(&CreateRun {
                cpus: Some(Cpus::try_from(2).unwrap()),
                ..plain()
            }),
            DenialCode::InvalidCpus
        );
        assert_eq!(
            code(&CreateRun {
                max_duration: Some(Span::seconds(3601)),
                ..plain()
            }),
            DenialCode::InvalidDuration
        );
        assert_eq!(
            code(&CreateRun {
                task: Some("x".repeat(TASK_CAP + 1)),
                ..plain()
            }),
            DenialCode::TooLarge
        );
        assert_eq!(
            code(&CreateRun {
                git_ref: Some("main".parse().unwrap()),
                ..plain()
            }),
            DenialCode::InvalidRef
        );
    }

    #[test]
    fn egress_is_sealed_unless_somebody_said_otherwise() {
        let mut settings = ServicesSettings::default();
        let policy = |settings: &ServicesSettings, choice| {
            egress(settings, &choice).map(|(_, policy)| policy)
        };
        assert_eq!(
            policy(&settings, EgressChoice::Default).unwrap(),
            EgressPolicy::default()
        );
        assert_eq!(
            policy(&settings, EgressChoice::Rules(Vec::new())).unwrap(),
            EgressPolicy::default()
        );
        let open = EgressChoice::Mode(EgressMode::Open);
        assert_eq!(
            policy(&settings, open.clone()).unwrap_err().code,
            DenialCode::EgressDenied
        );
        for wide in [
            "0.0.0.0/0",
            "128.0.0.0/1:22",
            "10.0.0.0/8",
            "::/0",
            "2000::/3",
        ] {
            let list =
                EgressChoice::Rules(vec!["example.org".parse().unwrap(), wide.parse().unwrap()]);
            let denial = policy(&settings, list).unwrap_err();
            assert_eq!(denial.code, DenialCode::EgressDenied, "{wide}");
        }
        let narrow = ["10.1.0.0/16", "2001:db8::/32", "192.0.2.1/32"];
        let list = narrow.map(|rule| rule.parse().unwrap()).to_vec();
        policy(&settings, EgressChoice::Rules(list)).unwrap();
        settings.egress.open_allowed = true;
        assert!(policy(&settings, open).unwrap().open);
        settings.egress.domains = vec!["example.org".parse().unwrap()];
        assert_eq!(
            policy(&settings, EgressChoice::Default)
                .unwrap()
                .rules
                .len(),
            1
        );
        let sealed = EgressChoice::Mode(EgressMode::Sealed);
        assert_eq!(
            policy(&settings, sealed).unwrap(),
            EgressPolicy::default(),
            "sealed means sealed"
        );
    }
}
