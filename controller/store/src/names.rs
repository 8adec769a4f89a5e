//! What was asked for under an idempotency key, but for runs: those are found where they are
//! accepted.

use crate::codec::{failed, get, parsed};
use lazaret_domain::{ExecId, KeyId, RunId};
use lazaret_services::ports::store::{Asked, Named, NamedExec, StoreError};
use sqlx::{Sqlite, SqlitePool, Transaction};

/// Stores which command of a run has this name, or finds the one that has it.
pub(crate) async fn exec(
    mut transaction: Transaction<'static, Sqlite>,
    run: &RunId,
    asked: &Asked,
    exec: &ExecId,
) -> Result<Named<NamedExec>, StoreError> {
    let row = sqlx::query(
        "SELECT digest, exec, started FROM named_execs WHERE by_key = $1 AND run = $2 AND name = $3",
    )
    .bind(asked.by.as_str())
    .bind(run.as_str())
    .bind(asked.name.as_str())
    .fetch_optional(&mut *transaction)
    .await
    .map_err(failed)?;
    if let Some(row) = row {
        if get::<String>(&row, "digest")? != asked.digest {
            return Ok(Named::OtherRequest);
        }
        return Ok(Named::Before(NamedExec {
            exec: parsed(get(&row, "exec")?)?,
            started: get::<i64>(&row, "started")? != 0,
        }));
    }
    sqlx::query(
        "INSERT INTO named_execs (by_key, run, name, digest, exec, started) VALUES ($1, $2, $3, $4, $5, 0)",
    )
    .bind(asked.by.as_str())
    .bind(run.as_str())
    .bind(asked.name.as_str())
    .bind(&asked.digest)
    .bind(exec.as_str())
    .execute(&mut *transaction)
    .await
    .map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(Named::New)
}

/// Notes that the command of this name was started.
pub(crate) async fn exec_started(
    pool: &SqlitePool,
    run: &RunId,
    asked: &Asked,
) -> Result<(), StoreError> {
    sqlx::query("UPDATE named_execs SET started = 1 WHERE by_key = $1 AND run = $2 AND name = $3")
        .bind(asked.by.as_str())
        .bind(run.as_str())
        .bind(asked.name.as_str())
        .execute(pool)
        .await
        .map_err(failed)?;
    Ok(())
}

/// Stores which API key has this name, or finds the one that has it. The key itself is stored in the
/// same transaction.
pub(crate) async fn key(
    transaction: &mut Transaction<'static, Sqlite>,
    asked: &Asked,
    key: &KeyId,
) -> Result<Named<KeyId>, StoreError> {
    let row = sqlx::query("SELECT digest, key FROM named_keys WHERE by_key = $1 AND name = $2")
        .bind(asked.by.as_str())
        .bind(asked.name.as_str())
        .fetch_optional(&mut **transaction)
        .await
        .map_err(failed)?;
    if let Some(row) = row {
        if get::<String>(&row, "digest")? != asked.digest {
            return Ok(Named::OtherRequest);
        }
        return Ok(Named::Before(parsed(get(&row, "key")?)?));
    }
    sqlx::query("INSERT INTO named_keys (by_key, name, digest, key) VALUES ($1, $2, $3, $4)")
        .bind(asked.by.as_str())
        .bind(asked.name.as_str())
        .bind(&asked.digest)
        .bind(key.as_str())
        .execute(&mut **transaction)
        .await
        .map_err(failed)?;
    Ok(Named::New)
}
