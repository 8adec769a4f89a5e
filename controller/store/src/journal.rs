//! The journal: taking a run, and committing facts under its fence.

use crate::codec::{failed, get, int, json, run, state_columns, step, uint};
use crate::events;
use jiff::Timestamp;
use lazaret_domain::{Fence, RunId};
use lazaret_services::ports::store::{Cursor, Fact, StepRecord, StoreError, Taken};
use sqlx::{Sqlite, Transaction};

/// The next fence: higher than every one before, over all runs and restarts.
pub(crate) async fn next_fence(
    transaction: &mut Transaction<'static, Sqlite>,
) -> Result<Fence, StoreError> {
    let value: i64 = sqlx::query_scalar(
        "UPDATE counters SET value = value + 1 WHERE name = 'fence' RETURNING value",
    )
    .fetch_one(&mut **transaction)
    .await
    .map_err(failed)?;
    Ok(Fence(uint(value)?))
}

pub(crate) async fn take(
    mut transaction: Transaction<'static, Sqlite>,
    id: &RunId,
) -> Result<Option<Taken>, StoreError> {
    let fence = next_fence(&mut transaction).await?;
    let row = sqlx::query("UPDATE runs SET fence = $2 WHERE id = $1 RETURNING *")
        .bind(id.as_str())
        .bind(int(fence.0))
        .fetch_optional(&mut *transaction)
        .await
        .map_err(failed)?;
    let Some(row) = row else { return Ok(None) };
    let record = run(&row)?;
    let steps = sqlx::query("SELECT * FROM steps WHERE run = $1 ORDER BY position")
        .bind(id.as_str())
        .fetch_all(&mut *transaction)
        .await
        .map_err(failed)?;
    let steps = steps.iter().map(step).collect::<Result<_, _>>()?;
    transaction.commit().await.map_err(failed)?;
    Ok(Some(Taken { run: record, steps }))
}

pub(crate) async fn commit(
    mut transaction: Transaction<'static, Sqlite>,
    id: &RunId,
    fence: Fence,
    at: Timestamp,
    facts: Vec<Fact>,
    log_cap: u64,
) -> Result<u64, StoreError> {
    let held = sqlx::query("SELECT last_seq, log_bytes FROM runs WHERE id = $1 AND fence = $2")
        .bind(id.as_str())
        .bind(int(fence.0))
        .fetch_optional(&mut *transaction)
        .await
        .map_err(failed)?
        .ok_or(StoreError::Fenced)?;
    let mut seq = uint(get(&held, "last_seq")?)?;
    let mut bytes = uint(get(&held, "log_bytes")?)?;
    for fact in facts {
        if let Fact::Event(body) = &fact {
            seq += 1;
            bytes += events::append(&mut transaction, id, seq, at, body).await?;
        } else {
            apply(&mut transaction, id, fact).await?;
        }
    }
    if bytes > log_cap {
        bytes = events::evict(&mut transaction, id, bytes, log_cap).await?;
    }
    sqlx::query("UPDATE runs SET last_seq = $2, log_bytes = $3 WHERE id = $1")
        .bind(id.as_str())
        .bind(int(seq))
        .bind(int(bytes))
        .execute(&mut *transaction)
        .await
        .map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(seq)
}

/// Stores the intent of a step, behind those before.
pub(crate) async fn begin(
    transaction: &mut Transaction<'static, Sqlite>,
    id: &RunId,
    name: &str,
) -> Result<StepRecord, StoreError> {
    let row = sqlx::query(
        "INSERT INTO steps (run, name, position, cursor)
         SELECT $1, $2, COUNT(*), $3 FROM steps WHERE run = $1 RETURNING *",
    )
    .bind(id.as_str())
    .bind(name)
    .bind(json(&Cursor::default())?)
    .fetch_one(&mut **transaction)
    .await
    .map_err(failed)?;
    step(&row)
}

/// Makes one fact true. A fact about a step that was never begun, or was begun before, is refused:
/// the journal would no longer tell what happened.
async fn apply(
    transaction: &mut Transaction<'static, Sqlite>,
    id: &RunId,
    fact: Fact,
) -> Result<(), StoreError> {
    let query = match fact {
        Fact::State(state) => {
            let (phase, ending) = state_columns(&state)?;
            sqlx::query("UPDATE runs SET phase = $2, ending = $3 WHERE id = $1")
                .bind(id.as_str())
                .bind(phase)
                .bind(ending)
        }
        Fact::Facts(facts) => sqlx::query("UPDATE runs SET facts = $2 WHERE id = $1")
            .bind(id.as_str())
            .bind(json(&*facts)?),
        Fact::Released => sqlx::query("UPDATE runs SET holds = 0 WHERE id = $1").bind(id.as_str()),
        Fact::Begun(name) => {
            begin(transaction, id, &name).await?;
            return Ok(());
        }
        Fact::Done(name, outcome) => sqlx::query(
            "UPDATE steps SET outcome = $3 WHERE run = $1 AND name = $2 AND outcome IS NULL",
        )
        .bind(id.as_str())
        .bind(name)
        .bind(outcome),
        Fact::Read(name, cursor) => sqlx::query(
            "UPDATE steps SET cursor = $3 WHERE run = $1 AND name = $2 AND outcome IS NULL",
        )
        .bind(id.as_str())
        .bind(name)
        .bind(json(&cursor)?),
        Fact::Diff(diff) => sqlx::query("INSERT INTO diffs (run, diff) VALUES ($1, $2)")
            .bind(id.as_str())
            .bind(json(&diff)?),
        // Numbered by the caller.
        Fact::Event(_) => return Ok(()),
    };
    let done = query.execute(&mut **transaction).await.map_err(failed)?;
    if done.rows_affected() == 1 {
        Ok(())
    } else {
        Err(StoreError::Corrupt(
            "a fact does not fit the journal".to_owned(),
        ))
    }
}
