//! The shim of a spare, until the spare becomes a sandbox.
//!
//! ```text
//!   spares/X: fork · warm · offered ──claim──► sandboxes/ID: the shim of that sandbox
//!                │ the session that made it has ended, or anything of it has
//!                └──► nothing is left
//! ```
//!
//! Claiming is one exchange on a socket: a session sends the record of the sandbox that it wants, and
//! the spare moves its own directory to the sandbox's place. It takes one claim and is no spare any
//! more, so no two sandboxes come of one spare, whoever asks at once. Unclaimed it lives no longer
//! than the session that made it, which holds the other end of its standard input.

use super::driver::{Begun, Driver, newborn, terminated};
use super::{RECORD, SHIM, STATUS, activity::Activity, alone, console_of, own};
use crate::gateway::EgressLog;
use crate::process::Identity;
use crate::state::{Record, SandboxDir, State};
use crate::template::Key;
use crate::vmm::Cage;
use anyhow::{Context, bail, ensure};
use lazaret_domain::SandboxId;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::timeout;

/// In the directory of a spare: the key of the template that it is to be forked from.
pub(crate) const KEY: &str = "key.json";
/// In the directory of a spare that can be claimed: the same.
pub(crate) const OFFER: &str = "offer.json";
/// Where it is claimed.
const SOCKET: &str = "claim.sock";
/// The longest record, and how long sending it may take.
const RECORD_SIZE: u64 = 2 << 20;
const PATIENCE: Duration = Duration::from_secs(5);
/// The answer to a claim that was taken.
const TAKEN: &[u8] = b"taken";

/// Holds a spare until it is claimed, and then the sandbox to its end.
///
/// # Errors
/// What kept it from being a spare, or ended it as one. Nothing of it is left then.
pub async fn run(state: State, id: SandboxId) -> anyhow::Result<()> {
    alone();
    let dir = state.spare(&id);
    let outcome = spare(&state, &dir, &id).await;
    let (claim, begun) = match outcome {
        Ok(claimed) => claimed,
        Err(why) => {
            let cgroup = &state.config().cgroup;
            Cage::left_by(cgroup, id.as_str()).open().await;
            let _ = std::fs::remove_dir_all(dir.path());
            return Err(why);
        }
    };
    let sandbox = state.sandbox(&claim.record.id);
    let mut asker = claim.asker;
    own(state, sandbox, claim.record, Some(begun), move || {
        // Whoever asked may have gone; the sandbox is there all the same, and is found by its id.
        tokio::spawn(async move { asker.write_all(TAKEN).await });
    })
    .await
}

/// A claim, and where its outcome is told.
struct Claim {
    record: Record,
    asker: UnixStream,
}

async fn spare(state: &State, dir: &SandboxDir, id: &SandboxId) -> anyhow::Result<(Claim, Begun)> {
    let record: Record = dir.read(RECORD).context("the spare has no record")?;
    let key: Key = dir.read(KEY).context("the spare has no key")?;
    dir.write(SHIM, &Identity::own()?)?;
    dir.keep_cage(id)?;
    let session = io::stdin().as_fd().try_clone_to_owned()?;
    let mut session = pipe::Receiver::from_owned_fd(session).context("standard input is a pipe")?;
    let driver = Driver {
        state: state.clone(),
        dir: dir.clone(),
        published: watch::Sender::new(newborn(&record)),
        console: console_of(state),
        guest: watch::Sender::new(None),
        egress: EgressLog::default(),
        activity: Activity::default(),
        layers: AtomicU32::new(0),
        record: record.clone(),
    };
    let ready = super::say_ready;
    let offered = offer(state, dir, &record, &key, ready);
    let ended = async {
        let mut nothing = [0_u8; 64];
        while let Ok(1..) = session.read(&mut nothing).await {}
    };
    tokio::select! {
        biased;
        claimed = driver.stand_by(offered) => claimed,
        () = ended => bail!("its session has ended"),
        () = terminated() => bail!("it was told to stop"),
    }
}

/// Offers the spare until somebody claims it.
async fn offer(
    state: &State,
    dir: &SandboxDir,
    spare: &Record,
    key: &Key,
    ready: impl FnOnce() -> io::Result<()>,
) -> anyhow::Result<Claim> {
    let socket = dir.join(SOCKET);
    let listener = UnixListener::bind(&socket).context("listen for claims")?;
    dir.write(OFFER, key)?;
    ready()?;
    loop {
        let (mut asker, _) = listener.accept().await?;
        let asked = timeout(PATIENCE, read_record(&mut asker)).await;
        let record = match asked.context("a claim took too long").flatten() {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!(%error, "a claim that cannot be read");
                continue;
            }
        };
        ensure!(
            same_machine(spare, &record),
            "it was claimed for another machine than it is"
        );
        for name in [OFFER, SOCKET, KEY] {
            let _ = std::fs::remove_file(dir.join(name));
        }
        dir.write(RECORD, &record)?;
        dir.write(STATUS, &newborn(&record))?;
        std::fs::rename(dir.path(), state.sandbox(&record.id).path())
            .context("move to the sandbox's place")?;
        return Ok(Claim { record, asker });
    }
}

async fn read_record(asker: &mut UnixStream) -> anyhow::Result<Record> {
    let mut text = Vec::new();
    asker.take(RECORD_SIZE).read_to_end(&mut text).await?;
    Ok(serde_json::from_slice(&text)?)
}

/// Whether a sandbox is to be just such a machine. What lies beneath it is in the key, which its
/// session has compared.
fn same_machine(spare: &Record, wanted: &Record) -> bool {
    let machine = |record: &Record| {
        let spec = &record.spec;
        (spec.image.clone(), spec.memory, spec.cpus, spec.disk)
    };
    wanted.spec.copy_of.is_none() && machine(spare) == machine(wanted)
}

/// Claims a spare for a sandbox. Its directory is the sandbox's then, and its shim answers there.
///
/// # Errors
/// If it does not take the claim: it is claimed already, or it is gone.
pub(crate) async fn claim(spare: &SandboxDir, record: &Record) -> anyhow::Result<()> {
    let exchange = async {
        let mut stream = UnixStream::connect(spare.join(SOCKET)).await?;
        stream.write_all(&serde_json::to_vec(record)?).await?;
        stream.shutdown().await?;
        let mut answer = Vec::new();
        stream.take(64).read_to_end(&mut answer).await?;
        ensure!(answer == TAKEN, "it did not take the claim");
        Ok(())
    };
    timeout(PATIENCE, exchange)
        .await
        .context("the spare did not answer")?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostConfig;
    use jiff::Timestamp;
    use std::sync::Arc;

    fn record(number: u64) -> Record {
        let spec = serde_json::json!({
            "image": "0".repeat(64), "memory": "512M", "cpus": 1, "disk": "64M", "max_duration": "1h",
            "accel": "tcg", "egress": lazaret_domain::egress::EgressPolicy::default(),
            "git_base_url": "https://git.test/", "boot_deadline": "1m", "boot_tries": 1,
        });
        Record {
            id: SandboxId::make(Timestamp::UNIX_EPOCH, number),
            spec: serde_json::from_value(spec).unwrap(),
            created_at: Timestamp::UNIX_EPOCH,
        }
    }

    struct Place {
        _root: tempfile::TempDir,
        state: State,
        spare: SandboxDir,
        key: Key,
    }

    fn place() -> Place {
        let root = tempfile::tempdir().unwrap();
        let state = State::open(root.path().join("s"), HostConfig::default()).unwrap();
        let spare = state.spare(&record(0).id);
        crate::state::private_dir(spare.path()).unwrap();
        let key = Key::for_tests();
        Place {
            _root: root,
            state,
            spare,
            key,
        }
    }

    #[tokio::test]
    async fn of_two_hundred_claims_at_once_one_is_taken() {
        let place = Arc::new(place());
        let (told, mut offered) = watch::channel(false);
        let offering = tokio::spawn({
            let place = Arc::clone(&place);
            async move {
                let ready = || {
                    told.send_replace(true);
                    Ok(())
                };
                let spare = record(0);
                let claim = offer(&place.state, &place.spare, &spare, &place.key, ready).await;
                let mut claim = claim.unwrap();
                claim.asker.write_all(TAKEN).await.unwrap();
                claim.record.id
            }
        });
        offered.wait_for(|offered| *offered).await.unwrap();
        let claims = (1..=200_u64).map(|number| {
            let place = Arc::clone(&place);
            async move {
                let wanted = record(number);
                claim(&place.spare, &wanted).await.ok().map(|()| wanted.id)
            }
        });
        let taken: Vec<_> = futures::future::join_all(claims)
            .await
            .into_iter()
            .flatten()
            .collect();
        assert_eq!(taken, [offering.await.unwrap()]);
        assert_eq!(
            place.state.ids().unwrap(),
            taken,
            "it is there, and no other"
        );
        assert!(place.state.spare_ids().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_spare_is_claimed_for_a_machine_like_it_and_never_over_another_sandbox() {
        let place = place();
        let mut larger = record(1);
        larger.spec.memory = lazaret_domain::ByteSize::mebibytes(640);
        let taken = record(2);
        std::fs::create_dir_all(place.state.sandbox(&taken.id).join("x")).unwrap();
        for wanted in [larger, taken] {
            let spare = record(0);
            let offered = offer(&place.state, &place.spare, &spare, &place.key, || Ok(()));
            let asked = async {
                while !place.spare.join(OFFER).exists() {
                    tokio::task::yield_now().await;
                }
                claim(&place.spare, &wanted).await
            };
            let (offered, asked) = tokio::join!(offered, asked);
            let why = format!("{:#}", offered.err().unwrap());
            assert!(
                why.contains("for another machine") || why.contains("move to the sandbox's place"),
                "{why}"
            );
            let told = format!("{:#}", asked.unwrap_err());
            assert!(told.contains("did not take the claim"), "{told}");
            assert!(!place.state.sandbox(&wanted.id).join(RECORD).exists());
            for name in [OFFER, SOCKET] {
                let _ = std::fs::remove_file(place.spare.join(name));
            }
        }
    }
}
