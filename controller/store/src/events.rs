//! Events: appended in the transaction of what they tell, evicted when a run has too much output.

use crate::codec::{event, failed, get, int, json, uint, word};
use jiff::Timestamp;
use lazaret_api::public::{Event, EventBody, EventKind};
use lazaret_domain::RunId;
use lazaret_services::ports::store::StoreError;
use sqlx::{Sqlite, SqlitePool, Transaction};

/// Whether events of this kind may be evicted: those of which a guest decides how many there are.
fn evictable(kind: EventKind) -> bool {
    matches!(kind, EventKind::Log | EventKind::Egress)
}

/// Appends an event and answers how many evictable bytes it adds.
pub(crate) async fn append(
    transaction: &mut Transaction<'static, Sqlite>,
    run: &RunId,
    seq: u64,
    at: Timestamp,
    body: &EventBody,
) -> Result<u64, StoreError> {
    let text = json(body)?;
    let size = text.len() as u64;
    sqlx::query(
        "INSERT INTO events (run, seq, at, kind, size, body) VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(run.as_str())
    .bind(int(seq))
    .bind(at.to_string())
    .bind(word(&body.kind())?)
    .bind(int(size))
    .bind(text)
    .execute(&mut **transaction)
    .await
    .map_err(failed)?;
    Ok(if evictable(body.kind()) { size } else { 0 })
}

/// Evicts the oldest output of a run until little more than nine tenths of `cap` is left, and
/// answers what is left. Going below the cap in one sweep keeps sweeps rare.
pub(crate) async fn evict(
    transaction: &mut Transaction<'static, Sqlite>,
    run: &RunId,
    mut bytes: u64,
    cap: u64,
) -> Result<u64, StoreError> {
    let goal = cap / 10 * 9;
    while bytes > goal {
        let rows = sqlx::query(
            "SELECT seq, size FROM events WHERE run = $1 AND kind IN ('log', 'egress') ORDER BY seq LIMIT 200",
        )
        .bind(run.as_str())
        .fetch_all(&mut **transaction)
        .await
        .map_err(failed)?;
        let mut last = None;
        for row in &rows {
            if bytes <= goal {
                break;
            }
            last = Some(get::<i64>(row, "seq")?);
            bytes = bytes.saturating_sub(uint(get(row, "size")?)?);
        }
        let Some(last) = last else { return Ok(0) };
        sqlx::query(
            "DELETE FROM events WHERE run = $1 AND seq <= $2 AND kind IN ('log', 'egress')",
        )
        .bind(run.as_str())
        .bind(last)
        .execute(&mut **transaction)
        .await
        .map_err(failed)?;
    }
    Ok(bytes)
}

pub(crate) async fn after(
    pool: &SqlitePool,
    run: &RunId,
    after: u64,
    limit: u32,
) -> Result<Vec<Event>, StoreError> {
    let rows = sqlx::query(
        "SELECT seq, at, body FROM events WHERE run = $1 AND seq > $2 ORDER BY seq LIMIT $3",
    )
    .bind(run.as_str())
    .bind(int(after))
    .bind(i64::from(limit))
    .fetch_all(pool)
    .await
    .map_err(failed)?;
    rows.iter().map(event).collect()
}

pub(crate) async fn log_before(
    pool: &SqlitePool,
    run: &RunId,
    before: u64,
    limit: u32,
) -> Result<Vec<Event>, StoreError> {
    let rows = sqlx::query(
        "SELECT seq, at, body FROM events WHERE run = $1 AND kind = 'log' AND seq < $2 ORDER BY seq DESC LIMIT $3",
    )
    .bind(run.as_str())
    .bind(int(before))
    .bind(i64::from(limit))
    .fetch_all(pool)
    .await
    .map_err(failed)?;
    rows.iter().map(event).collect()
}
