//! The first run: a command in a microVM of its own, shown live, then torn down.

use super::progress;
use crate::failure::Failure;
use crate::output::Output;
use crate::verbs::delegate;
use futures::StreamExt;
use lazaret_api::public::{CreateRun, EgressChoice, EgressMode, EventBody};
use lazaret_domain::run::Outcome;
use lazaret_domain::{Argv, DenialCode};
use lazaret_services::{Principal, Services};

/// What the demo runs in its sandbox. It needs no network, and shows that there is none.
const SCRIPT: &str = "\
echo \"kernel   $(uname -sr), a kernel of its own (boot $(cut -c1-8 /proc/sys/kernel/random/boot_id))\"
echo \"user     $(id -un), uid $(id -u)\"
echo \"work     $(pwd)\"
if getent hosts example.com >/dev/null 2>&1; then echo 'network  open'; else echo 'network  sealed: example.com has no address in here'; fi
echo 'Hello from inside.'";

/// What to do about a demo that did not succeed.
pub(super) fn hint(failure: &Failure) -> &'static str {
    match failure {
        Failure::Refused { code, .. } if *code == DenialCode::SandboxCap.as_str() => {
            "Runs of before hold all places: lazaret ls, and lazaret teardown RUN for those that are done."
        }
        _ => {
            "See the lines above, and: lazaret doctor. 'lazaret up --no-demo' leaves the demo out."
        }
    }
}

/// Delegates, shows the log, and tears down.
pub(super) async fn run(
    services: &Services,
    by: &Principal,
    out: &mut Output,
) -> Result<(), Failure> {
    let request = CreateRun {
        command: Some(Argv::of(["sh", "-c", SCRIPT])?),
        task: Some("the demo of 'lazaret up'".into()),
        egress: EgressChoice::Mode(EgressMode::Sealed),
        ..CreateRun::default()
    };
    let run = services.runs.delegate(by, None, request).await?;
    out.note(format!(
        "demo        run {} in a microVM of its own",
        run.run
    ))?;
    let shown = progress("Booting its microVM");
    let mut events = services.runs.follow(by, &run.run, 0).await?;
    let mut booting = Some(shown);
    let mut outcome = None;
    while let Some(event) = events.next().await {
        if matches!(event.body, EventBody::Log { .. } | EventBody::End { .. }) {
            booting = None;
        }
        if let EventBody::End { outcome: how, .. } = &event.body {
            outcome = Some(*how);
        }
        if booting.is_none() {
            delegate::print(&event, out)?;
        }
    }
    services.runs.teardown(by, &run.run).await?;
    match outcome {
        Some(Outcome::Succeeded) => Ok(()),
        _ => Err(Failure::Failed("its run ended otherwise".into())),
    }
}
