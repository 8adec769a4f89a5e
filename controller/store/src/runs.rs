//! Accepting and reading runs.

use crate::codec::{failed, from_json, get, int, json, run, uint};
use crate::events;
use crate::journal::{self, next_fence};
use lazaret_api::public::{Diff, EventBody};
use lazaret_domain::run::{RunPhase, RunState};
use lazaret_domain::{KeyId, RunId, SandboxId};
use lazaret_services::IdempotencyKey;
use lazaret_services::ports::store::{
    Accepted, AllAccepted, Cap, Counts, NewRun, NotAccepted, RunFacts, RunRecord, StoreError, Taken,
};
use sqlx::{Sqlite, SqliteExecutor, SqlitePool, Transaction};

/// Accepts runs, all or none. That they were not accepted before, that the cap is not reached, and
/// that they are stored is one transaction, so neither can be passed by asking twice at once.
pub(crate) async fn accept(
    mut transaction: Transaction<'static, Sqlite>,
    new: Vec<NewRun>,
    cap: Cap,
) -> Result<AllAccepted, StoreError> {
    let before = counts(&mut *transaction, &cap.waking).await?.holding;
    let (mut holding, mut all) = (before, Vec::with_capacity(new.len()));
    for new in new {
        let accepted = match known(&mut transaction, &new).await? {
            Some(Ok(record)) => Accepted::Before(Box::new(record)),
            // In both cases what was written before it goes with the transaction.
            Some(Err(refused)) => return Ok(Err(refused)),
            None if holding >= cap.most => return Ok(Err(NotAccepted::CapReached(before))),
            None => {
                holding += 1;
                Accepted::New(Box::new(insert(&mut transaction, new).await?))
            }
        };
        all.push(accepted);
    }
    transaction.commit().await.map_err(failed)?;
    Ok(Ok(all))
}

/// What the request was accepted as before.
async fn known(
    transaction: &mut Transaction<'static, Sqlite>,
    new: &NewRun,
) -> Result<Option<Result<RunRecord, NotAccepted>>, StoreError> {
    let Some((name, digest)) = &new.idempotency else {
        return Ok(None);
    };
    let before = before(&mut **transaction, &new.by, name).await?;
    Ok(before.map(|(before, record)| {
        if before == *digest {
            Ok(record)
        } else {
            Err(NotAccepted::OtherRequest)
        }
    }))
}

async fn insert(
    transaction: &mut Transaction<'static, Sqlite>,
    new: NewRun,
) -> Result<Taken, StoreError> {
    let fence = next_fence(transaction).await?;
    let record = RunRecord {
        id: new.id,
        by: new.by,
        created_at: new.at,
        plan: new.plan,
        state: RunState::Queued,
        facts: RunFacts::default(),
        holds: true,
        fence,
        last_seq: 1,
    };
    sqlx::query(
        "INSERT INTO runs (id, by_key, created_at, sandbox, plan, phase, facts, holds, fence, last_seq, log_bytes)
         VALUES ($1, $2, $3, $4, $5, $6, $7, 1, $8, $9, 0)",
    )
    .bind(record.id.as_str())
    .bind(record.by.as_str())
    .bind(record.created_at.to_string())
    .bind(record.plan.sandbox.as_str())
    .bind(json(&record.plan)?)
    .bind(record.state.phase().as_str())
    .bind(json(&record.facts)?)
    .bind(int(record.fence.0))
    .bind(int(record.last_seq))
    .execute(&mut **transaction)
    .await
    .map_err(failed)?;
    let accepted = EventBody::State {
        state: RunPhase::Queued,
        detail: Some("accepted".to_owned()),
    };
    events::append(transaction, &record.id, record.last_seq, new.at, &accepted).await?;
    let step = journal::begin(transaction, &record.id, new.first_step).await?;
    if let Some((name, digest)) = &new.idempotency {
        sqlx::query("INSERT INTO idempotency (by_key, name, digest, run) VALUES ($1, $2, $3, $4)")
            .bind(record.by.as_str())
            .bind(name.as_str())
            .bind(digest)
            .bind(record.id.as_str())
            .execute(&mut **transaction)
            .await
            .map_err(failed)?;
    }
    let steps = vec![step];
    Ok(Taken { run: record, steps })
}

/// The digest of the request that came under this name before, and its run.
pub(crate) async fn before<'e>(
    executor: impl SqliteExecutor<'e>,
    by: &KeyId,
    name: &IdempotencyKey,
) -> Result<Option<(String, RunRecord)>, StoreError> {
    let row = sqlx::query(
        "SELECT runs.*, idempotency.digest FROM idempotency JOIN runs ON runs.id = idempotency.run
         WHERE idempotency.by_key = $1 AND idempotency.name = $2",
    )
    .bind(by.as_str())
    .bind(name.as_str())
    .fetch_optional(executor)
    .await
    .map_err(failed)?;
    row.map(|row| Ok((get(&row, "digest")?, run(&row)?)))
        .transpose()
}

pub(crate) async fn by_id(pool: &SqlitePool, id: &RunId) -> Result<Option<RunRecord>, StoreError> {
    let row = sqlx::query("SELECT * FROM runs WHERE id = $1")
        .bind(id.as_str())
        .fetch_optional(pool)
        .await
        .map_err(failed)?;
    row.as_ref().map(run).transpose()
}

pub(crate) async fn by_sandbox(
    pool: &SqlitePool,
    sandbox: &SandboxId,
) -> Result<Option<RunRecord>, StoreError> {
    let row = sqlx::query("SELECT * FROM runs WHERE sandbox = $1")
        .bind(sandbox.as_str())
        .fetch_optional(pool)
        .await
        .map_err(failed)?;
    row.as_ref().map(run).transpose()
}

/// Ids sort by age, so the page before an id holds older runs.
pub(crate) async fn page(
    pool: &SqlitePool,
    before: Option<&RunId>,
    limit: u32,
    active: bool,
) -> Result<Vec<RunRecord>, StoreError> {
    let rows = sqlx::query(
        "SELECT * FROM runs WHERE ($1 = '' OR id < $1) AND ($2 = 0 OR phase <> 'done') ORDER BY id DESC LIMIT $3",
    )
    .bind(before.map_or("", RunId::as_str))
    .bind(i64::from(active))
    .bind(i64::from(limit))
    .fetch_all(pool)
    .await
    .map_err(failed)?;
    rows.iter().map(run).collect()
}

pub(crate) async fn open(pool: &SqlitePool) -> Result<Vec<RunRecord>, StoreError> {
    let rows = sqlx::query("SELECT * FROM runs WHERE holds = 1 OR phase <> 'done' ORDER BY id")
        .fetch_all(pool)
        .await
        .map_err(failed)?;
    rows.iter().map(run).collect()
}

/// A sandbox that sleeps has given its place back, unless it is being woken.
pub(crate) async fn counts<'e>(
    executor: impl SqliteExecutor<'e>,
    waking: &[RunId],
) -> Result<Counts, StoreError> {
    let row = sqlx::query(
        "SELECT COUNT(CASE WHEN phase <> 'done' THEN 1 END) AS active,
             COUNT(CASE WHEN holds = 1 AND (COALESCE(json_extract(facts, '$.sandbox.state'), '') <> 'asleep'
                 OR id IN (SELECT value FROM json_each($1))) THEN 1 END) AS holding
         FROM runs WHERE holds = 1 OR phase <> 'done'",
    )
    .bind(json(&waking)?)
    .fetch_one(executor)
    .await
    .map_err(failed)?;
    let count = |column| -> Result<u32, StoreError> {
        Ok(u32::try_from(uint(get(&row, column)?)?).unwrap_or(u32::MAX))
    };
    Ok(Counts {
        active: count("active")?,
        holding: count("holding")?,
    })
}

pub(crate) async fn diff(pool: &SqlitePool, id: &RunId) -> Result<Option<Diff>, StoreError> {
    let text: Option<String> = sqlx::query_scalar("SELECT diff FROM diffs WHERE run = $1")
        .bind(id.as_str())
        .fetch_optional(pool)
        .await
        .map_err(failed)?;
    text.as_deref().map(from_json).transpose()
}
