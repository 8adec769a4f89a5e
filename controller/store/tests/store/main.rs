//! The store's promises: all or nothing, in order, under the newest fence, and no guessing when the
//! file is damaged or the disk is full.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

mod names;

use jiff::Timestamp;
use lazaret_api::host::{AccelChoice, Confinement, SandboxSpec};
use lazaret_api::public::{CreateRun, EgressChoice, EventBody};
use lazaret_domain::egress::EgressPolicy;
use lazaret_domain::run::{Cause, Ending, Outcome, RunState};
use lazaret_domain::sandbox::SandboxState;
use lazaret_domain::{ByteSize, Cpus, Denial, DenialCode, Fence, KeyId, RunId, SandboxId, Span};
use lazaret_services::ports::store::{
    Accepted, AllAccepted, Cap, Cursor, Fact, NewRun, NotAccepted, RunFacts, RunPlan, RunRecord,
    SandboxFacts, Store, StoreError,
};
use lazaret_store::{Limits, SqliteStore};
use std::os::unix::fs::PermissionsExt;

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn new(number: u64) -> NewRun {
    let spec = SandboxSpec {
        image: "sha256:0".to_owned(),
        memory: ByteSize::mebibytes(512),
        cpus: Cpus::ONE,
        disk: ByteSize::mebibytes(512),
        max_duration: Span::seconds(60),
        accel: AccelChoice::Kvm,
        egress: EgressPolicy::default(),
        git_base_url: "https://github.com/".to_owned(),
        boot_deadline: Span::seconds(60),
        boot_tries: 1,
        copy_of: None,
        idle_sleep: None,
        sleep_ttl: lazaret_api::host::default_sleep_ttl(),
    };
    let plan = RunPlan {
        parent: None,
        request: CreateRun::default(),
        egress: EgressChoice::Default,
        host: "box".parse().unwrap(),
        sandbox: SandboxId::make(now(), number),
        spec,
    };
    let (id, by) = (RunId::make(now(), number), KeyId::make(now(), 0));
    NewRun {
        id,
        by,
        at: now(),
        plan,
        idempotency: None,
        first_step: "first",
    }
}

fn note(text: &str) -> Fact {
    Fact::Event(EventBody::Note {
        text: text.to_owned(),
    })
}

async fn store(directory: &tempfile::TempDir) -> SqliteStore {
    SqliteStore::open(&directory.path().join("db"))
        .await
        .unwrap()
}

async fn accepted(store: &SqliteStore) -> RunRecord {
    newly(store.accept(vec![new(1)], cap(5)).await.unwrap()).remove(0)
}

/// A cap, with nobody being woken.
fn cap(most: u32) -> Cap {
    Cap {
        most,
        waking: Vec::new(),
    }
}

/// Runs that were accepted just now.
fn newly(accepted: AllAccepted) -> Vec<RunRecord> {
    let accepted = accepted.unwrap().into_iter();
    let new = accepted.map(|accepted| match accepted {
        Accepted::New(taken) => taken.run,
        before @ Accepted::Before(_) => panic!("{before:?}"),
    });
    new.collect()
}

#[tokio::test]
async fn the_file_and_its_journal_belong_to_their_owner_alone() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory).await;
    accepted(&store).await;
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
    }
}

#[tokio::test]
async fn what_was_stored_is_read_back_after_the_file_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let first = store(&directory).await;
    let run = accepted(&first).await;
    let taken = first.take(&run.id).await.unwrap().unwrap();
    let cursor = Cursor {
        offset: 7,
        stdout_rest: vec![0xc3],
        stderr_rest: Vec::new(),
    };
    let ending = Ending {
        outcome: Outcome::Lost,
        cause: Cause::new("x", "y"),
        exit_code: None,
    };
    let facts = vec![
        Fact::Begun("turn-1".to_owned()),
        Fact::Read("turn-1".to_owned(), cursor.clone()),
        Fact::Done("first".to_owned(), "{}".to_owned()),
        Fact::State(RunState::Done(ending.clone())),
        note("one"),
        note("two"),
    ];
    assert_eq!(
        first
            .commit(&run.id, taken.run.fence, now(), facts)
            .await
            .unwrap(),
        3
    );
    first.close().await;
    let second = store(&directory).await;
    let again = second.take(&run.id).await.unwrap().unwrap();
    assert_eq!(again.run.state, RunState::Done(ending));
    assert_eq!(again.run.plan, run.plan);
    assert!(again.run.fence > taken.run.fence);
    let names: Vec<_> = again
        .steps
        .iter()
        .map(|step| (step.name.as_str(), step.outcome.is_some()))
        .collect();
    assert_eq!(names, [("first", true), ("turn-1", false)]);
    assert_eq!(again.steps[1].cursor, cursor);
    let seqs: Vec<_> = second
        .events(&run.id, 0, 10)
        .await
        .unwrap()
        .iter()
        .map(|event| event.seq)
        .collect();
    assert_eq!(seqs, [1, 2, 3]);
}

#[tokio::test]
async fn a_commit_under_an_older_fence_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory).await;
    let run = accepted(&store).await;
    let old = store.take(&run.id).await.unwrap().unwrap().run.fence;
    let new = store.take(&run.id).await.unwrap().unwrap().run.fence;
    let refused = store
        .commit(&run.id, old, now(), vec![note("zombie"), Fact::Released])
        .await;
    assert_eq!(refused, Err(StoreError::Fenced));
    assert!(store.run(&run.id).await.unwrap().unwrap().holds);
    assert_eq!(
        store
            .commit(&run.id, new, now(), vec![note("driver")])
            .await
            .unwrap(),
        2
    );
    assert_eq!(
        store.commit(&run.id, Fence(u64::MAX), now(), vec![]).await,
        Err(StoreError::Fenced)
    );
}

#[tokio::test]
async fn facts_of_one_commit_become_true_together_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory).await;
    let run = accepted(&store).await;
    let fence = store.take(&run.id).await.unwrap().unwrap().run.fence;
    store
        .commit(
            &run.id,
            fence,
            now(),
            vec![Fact::Begun("create".to_owned())],
        )
        .await
        .unwrap();
    for wrong in [
        Fact::Begun("create".to_owned()),
        Fact::Done("never-begun".to_owned(), "{}".to_owned()),
        Fact::Read("never-begun".to_owned(), Cursor::default()),
    ] {
        let facts = vec![note("not told"), Fact::State(RunState::Running), wrong];
        assert!(store.commit(&run.id, fence, now(), facts).await.is_err());
    }
    let seen = store.run(&run.id).await.unwrap().unwrap();
    assert_eq!((seen.state, seen.last_seq), (RunState::Queued, 1));
    assert_eq!(store.events(&run.id, 0, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_cap_counts_what_is_held_and_not_what_was_released() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory).await;
    let run = newly(store.accept(vec![new(1)], cap(1)).await.unwrap()).remove(0);
    let refused = store.accept(vec![new(2)], cap(1)).await.unwrap();
    assert_eq!(refused.unwrap_err(), NotAccepted::CapReached(1));
    let fence = store.take(&run.id).await.unwrap().unwrap().run.fence;
    store
        .commit(&run.id, fence, now(), vec![Fact::Released])
        .await
        .unwrap();
    newly(store.accept(vec![new(2)], cap(1)).await.unwrap());
    assert_eq!(store.counts(&[]).await.unwrap().holding, 1);
}

#[tokio::test]
async fn of_runs_that_are_accepted_together_all_are_stored_or_none() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory).await;
    let named = |number, name: &str, digest: &str| NewRun {
        idempotency: Some((name.parse().unwrap(), digest.into())),
        ..new(number)
    };
    let two = vec![named(1, "a", "x"), named(2, "b", "x")];
    let ids: Vec<_> = newly(store.accept(two, cap(3)).await.unwrap())
        .into_iter()
        .map(|run| run.id)
        .collect();
    // The third has a place, the fourth has none.
    let refused = vec![named(3, "c", "x"), named(4, "d", "x")];
    let refused = store.accept(refused, cap(3)).await.unwrap().unwrap_err();
    assert_eq!(refused, NotAccepted::CapReached(2));
    let refused = vec![named(3, "c", "x"), named(4, "a", "y")];
    let refused = store.accept(refused, cap(3)).await.unwrap().unwrap_err();
    assert_eq!(refused, NotAccepted::OtherRequest);
    assert_eq!(store.counts(&[]).await.unwrap().holding, 2);
    // Their names are free as before, and what was stored is found in its place.
    let mixed = vec![named(5, "b", "x"), named(6, "c", "x")];
    let mixed = store.accept(mixed, cap(3)).await.unwrap().unwrap();
    let [Accepted::Before(before), Accepted::New(taken)] = &mixed[..] else {
        panic!("{mixed:?}");
    };
    assert_eq!((&before.id, &taken.run.id), (&ids[1], &new(6).id));
}

#[tokio::test]
async fn one_that_sleeps_gives_its_place_back_and_has_it_while_it_is_woken() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory).await;
    let run = accepted(&store).await;
    let facts = RunFacts {
        sandbox: Some(SandboxFacts {
            state: SandboxState::Asleep,
            accel: None,
            boot_id: None,
            kernel: None,
            deadline: None,
            asleep_since: None,
            kept: false,
            confinement: Confinement::default(),
        }),
        ..RunFacts::default()
    };
    let asleep = vec![Fact::Facts(Box::new(facts))];
    store
        .commit(&run.id, run.fence, now(), asleep)
        .await
        .unwrap();
    let waking = vec![run.id.clone()];
    assert_eq!(store.counts(&[]).await.unwrap().holding, 0);
    assert_eq!(store.counts(&waking).await.unwrap().holding, 1);
    let full = Cap { most: 1, waking };
    let refused = store.accept(vec![new(2)], full.clone()).await.unwrap();
    assert_eq!(refused.unwrap_err(), NotAccepted::CapReached(1));
    let other = newly(store.accept(vec![new(2)], cap(1)).await.unwrap()).remove(0);
    // One that is awake counts once, also if it is named among those that are woken.
    let named = store.counts(&[run.id, other.id]).await.unwrap();
    assert_eq!(named.holding, 2);
}

#[tokio::test]
async fn a_full_disk_refuses_the_write_and_keeps_what_was_there() {
    let directory = tempfile::tempdir().unwrap();
    // SQLite's own limit on pages answers just as a full disk does.
    let limits = Limits {
        pages: Some(80),
        ..Limits::default()
    };
    let store = SqliteStore::open_with(&directory.path().join("db"), limits)
        .await
        .unwrap();
    let run = accepted(&store).await;
    let fence = store.take(&run.id).await.unwrap().unwrap().run.fence;
    let mut told = 1;
    let error = loop {
        match store
            .commit(&run.id, fence, now(), vec![note(&"x".repeat(10_000))])
            .await
        {
            Ok(seq) => told = seq,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Failed(_)), "{error:?}");
    assert_eq!(Denial::from(error).code, DenialCode::StoreFailed);
    assert_eq!(store.run(&run.id).await.unwrap().unwrap().last_seq, told);
    assert_eq!(
        store.events(&run.id, 0, 1000).await.unwrap().len() as u64,
        told
    );
    // What needs no room is written all the same, and so is the rest once there is room.
    for _ in 0..3 {
        store.fence().await.unwrap();
        let large = vec![note(&"x".repeat(10_000))];
        let error = store.commit(&run.id, fence, now(), large).await;
        assert!(matches!(error, Err(StoreError::Failed(_))), "{error:?}");
    }
    store.fence().await.unwrap();
}

#[tokio::test]
async fn a_damaged_file_is_not_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    std::fs::write(
        &path,
        b"this is not a database, whatever its name says".repeat(100),
    )
    .unwrap();
    assert!(SqliteStore::open(&path).await.is_err());
    let missing = directory.path().join("no").join("such").join("place");
    assert!(SqliteStore::open(&missing).await.is_err());
}

#[tokio::test]
async fn a_page_that_was_overwritten_is_noticed_before_anything_is_done() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let first = store(&directory).await;
    for number in 0..50 {
        newly(first.accept(vec![new(number)], cap(100)).await.unwrap());
    }
    first.close().await;
    let mut bytes = std::fs::read(&path).unwrap();
    let from = bytes.len() / 2;
    bytes[from..].fill(0xff);
    std::fs::write(&path, bytes).unwrap();
    assert!(SqliteStore::open(&path).await.is_err());
}
