//! A stored run as it is shown: its facts, and whether its host can be asked at this moment.
//! Fences, keys, journal and idempotency are never shown.

use crate::core::Core;
use crate::hosts::reach_of;
use crate::ports::store::{RunRecord, SandboxFacts};
use lazaret_api::public::{Run, SandboxView};
use lazaret_domain::BranchName;
use lazaret_domain::run::RunPhase;
use lazaret_domain::sandbox::{Reach, SandboxState};

fn sandbox(core: &Core, record: &RunRecord) -> Option<SandboxView> {
    let facts = record.facts.sandbox.as_ref();
    let asked_for = matches!(
        record.state.phase(),
        RunPhase::Starting | RunPhase::Running | RunPhase::Parked
    );
    if facts.is_none() && !asked_for {
        return None;
    }
    let state = facts.map_or(SandboxState::Forking, |facts| facts.state);
    let reach = match core.hosts.look(&record.plan.host).0 {
        Some(link) if record.holds => reach_of(&link),
        _ => Reach::Reachable,
    };
    Some(SandboxView {
        id: record.plan.sandbox.clone(),
        host: record.plan.host.clone(),
        state: if record.holds {
            state
        } else {
            SandboxState::Gone
        },
        reach,
        accel: facts.and_then(|facts| facts.accel),
        boot_id: facts.and_then(|facts| facts.boot_id.clone()),
        kernel: facts.and_then(|facts| facts.kernel.clone()),
        deadline: facts.and_then(|facts: &SandboxFacts| facts.deadline),
        asleep_since: facts.and_then(|facts| facts.asleep_since),
        kept: facts.is_some_and(|facts| facts.kept),
        confinement: facts.map(|facts| facts.confinement.clone()),
    })
}

/// The run as callers see it.
pub(crate) fn run(core: &Core, record: RunRecord) -> Run {
    let ending = record.state.ending();
    Run {
        state: record.state.phase(),
        outcome: ending.map(|ending| ending.outcome),
        cause: ending.map(|ending| ending.cause.clone()),
        exit_code: ending.and_then(|ending| ending.exit_code),
        sandbox: sandbox(core, &record),
        branch: record
            .facts
            .base
            .as_ref()
            .map(|_| BranchName::of(&record.id)),
        base: record.facts.base,
        run: record.id,
        parent: record.plan.parent.map(|parent| parent.run),
        repo: record.plan.request.repo,
        git_ref: record.plan.request.git_ref,
        agent: record.plan.request.agent,
        command: record.plan.request.command,
        task: record.plan.request.task,
        egress: record.plan.egress,
        created_at: record.created_at,
        ended_at: record.facts.ended_at,
        torn_down_at: record.facts.torn_down_at,
        stages: record.facts.stages,
    }
}
