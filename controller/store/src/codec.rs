//! Between rows and records. What cannot be read back is a damaged store, never a guess.

use jiff::Timestamp;
use lazaret_api::public::Event;
use lazaret_domain::Fence;
use lazaret_domain::run::{RunPhase, RunState};
use lazaret_services::ports::store::{RunRecord, StepRecord, StoreError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use std::str::FromStr;

/// A failure of the database, as the port knows it.
#[expect(
    clippy::needless_pass_by_value,
    reason = "it is what map_err hands over"
)]
pub(crate) fn failed(error: sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
            StoreError::Corrupt(error.to_string())
        }
        _ => StoreError::Failed(error.to_string()),
    }
}

/// A document as text.
pub(crate) fn json(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Failed(error.to_string()))
}

/// A document from text.
pub(crate) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Corrupt(error.to_string()))
}

/// A word of ours (a phase, a scope) as it is stored.
pub(crate) fn word(value: &impl Serialize) -> Result<String, StoreError> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => Ok(text),
        _ => Err(StoreError::Failed("a word that is not a word".to_owned())),
    }
}

/// A word of ours, read back.
pub(crate) fn from_word<T: DeserializeOwned>(text: String) -> Result<T, StoreError> {
    serde_json::from_value(serde_json::Value::String(text))
        .map_err(|error| StoreError::Corrupt(error.to_string()))
}

/// A name or time, read back through its own parser.
pub(crate) fn parsed<T: FromStr>(text: &str) -> Result<T, StoreError> {
    text.parse()
        .map_err(|_| StoreError::Corrupt(format!("{text:?} is out of form")))
}

/// A number for the database, which has no unsigned ones.
pub(crate) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A number from the database.
pub(crate) fn uint(value: i64) -> Result<u64, StoreError> {
    u64::try_from(value).map_err(|_| StoreError::Corrupt("a negative number".to_owned()))
}

/// A column of a row.
pub(crate) fn get<'row, T>(row: &'row SqliteRow, column: &'static str) -> Result<T, StoreError>
where
    T: sqlx::Decode<'row, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    row.try_get(column).map_err(failed)
}

/// A run's state as its two columns.
pub(crate) fn state_columns(
    state: &RunState,
) -> Result<(&'static str, Option<String>), StoreError> {
    Ok((
        state.phase().as_str(),
        state.ending().map(json).transpose()?,
    ))
}

/// A run from its row.
pub(crate) fn run(row: &SqliteRow) -> Result<RunRecord, StoreError> {
    let ending: Option<String> = get(row, "ending")?;
    let state = match (from_word(get(row, "phase")?)?, ending) {
        (RunPhase::Queued, None) => RunState::Queued,
        (RunPhase::Starting, None) => RunState::Starting,
        (RunPhase::Running, None) => RunState::Running,
        (RunPhase::Parked, None) => RunState::Parked,
        (RunPhase::Done, Some(ending)) => RunState::Done(from_json(&ending)?),
        _ => {
            return Err(StoreError::Corrupt(
                "a run's phase and ending disagree".to_owned(),
            ));
        }
    };
    Ok(RunRecord {
        id: parsed(get(row, "id")?)?,
        by: parsed(get(row, "by_key")?)?,
        created_at: parsed(get(row, "created_at")?)?,
        plan: from_json(get(row, "plan")?)?,
        state,
        facts: from_json(get(row, "facts")?)?,
        holds: get::<i64>(row, "holds")? != 0,
        fence: Fence(uint(get(row, "fence")?)?),
        last_seq: uint(get(row, "last_seq")?)?,
    })
}

/// A step from its row.
pub(crate) fn step(row: &SqliteRow) -> Result<StepRecord, StoreError> {
    Ok(StepRecord {
        position: u32::try_from(get::<i64>(row, "position")?)
            .map_err(|_| StoreError::Corrupt("a step's position".to_owned()))?,
        name: get(row, "name")?,
        cursor: from_json(get(row, "cursor")?)?,
        outcome: get(row, "outcome")?,
    })
}

/// An event from its row.
pub(crate) fn event(row: &SqliteRow) -> Result<Event, StoreError> {
    Ok(Event {
        seq: uint(get(row, "seq")?)?,
        at: parsed(get(row, "at")?)?,
        body: from_json(get(row, "body")?)?,
    })
}

/// An optional time from its column.
pub(crate) fn time(text: Option<&str>) -> Result<Option<Timestamp>, StoreError> {
    text.map(parsed).transpose()
}
