//! Hosts and API keys.

use crate::codec::{failed, from_word, get, parsed, time, word};
use crate::names;
use jiff::Timestamp;
use lazaret_domain::KeyId;
use lazaret_services::hex;
use lazaret_services::ports::store::{Asked, HostRecord, KeyRecord, Named, StoreError};
use sqlx::sqlite::SqliteRow;
use sqlx::{Sqlite, SqlitePool, Transaction};

fn host(row: &SqliteRow) -> Result<HostRecord, StoreError> {
    Ok(HostRecord {
        name: parsed(get(row, "name")?)?,
        user: get(row, "account")?,
        host: get(row, "address")?,
        port: u16::try_from(get::<i64>(row, "port")?)
            .map_err(|_| StoreError::Corrupt("a host's port".to_owned()))?,
        host_key: get(row, "host_key")?,
        admission: from_word(get(row, "admission")?)?,
    })
}

pub(crate) async fn hosts(pool: &SqlitePool) -> Result<Vec<HostRecord>, StoreError> {
    let rows = sqlx::query("SELECT * FROM hosts ORDER BY name")
        .fetch_all(pool)
        .await
        .map_err(failed)?;
    rows.iter().map(host).collect()
}

pub(crate) async fn put_host(pool: &SqlitePool, host: &HostRecord) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO hosts (name, account, address, port, host_key, admission) VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (name) DO UPDATE SET account = $2, address = $3, port = $4, host_key = $5, admission = $6",
    )
    .bind(host.name.as_str())
    .bind(&host.user)
    .bind(&host.host)
    .bind(i64::from(host.port))
    .bind(&host.host_key)
    .bind(word(&host.admission)?)
    .execute(pool)
    .await
    .map_err(failed)?;
    Ok(())
}

fn api_key(row: &SqliteRow) -> Result<KeyRecord, StoreError> {
    Ok(KeyRecord {
        id: parsed(get(row, "id")?)?,
        name: get(row, "name")?,
        scope: from_word(get(row, "scope")?)?,
        hash: hex::decode(get(row, "hash")?)
            .ok_or_else(|| StoreError::Corrupt("a key's hash".to_owned()))?,
        created_at: parsed(get(row, "created_at")?)?,
        expires_at: time(get(row, "expires_at")?)?,
        revoked_at: time(get(row, "revoked_at")?)?,
    })
}

/// Stores a key. That none was made under this name before, and that it is stored, is one
/// transaction, so asking twice at once makes one key.
pub(crate) async fn add_key(
    mut transaction: Transaction<'static, Sqlite>,
    key: &KeyRecord,
    asked: Option<&Asked>,
) -> Result<Named<KeyId>, StoreError> {
    if let Some(asked) = asked {
        match names::key(&mut transaction, asked, &key.id).await? {
            Named::New => {}
            known => return Ok(known),
        }
    }
    sqlx::query(
        "INSERT INTO api_keys (id, name, scope, hash, created_at, expires_at, revoked_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(key.id.as_str())
    .bind(&key.name)
    .bind(word(&key.scope)?)
    .bind(hex::encode(&key.hash))
    .bind(key.created_at.to_string())
    .bind(key.expires_at.map(|at| at.to_string()))
    .bind(key.revoked_at.map(|at| at.to_string()))
    .execute(&mut *transaction)
    .await
    .map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(Named::New)
}

pub(crate) async fn key(pool: &SqlitePool, id: &KeyId) -> Result<Option<KeyRecord>, StoreError> {
    let row = sqlx::query("SELECT * FROM api_keys WHERE id = $1")
        .bind(id.as_str())
        .fetch_optional(pool)
        .await
        .map_err(failed)?;
    row.as_ref().map(api_key).transpose()
}

pub(crate) async fn keys(pool: &SqlitePool) -> Result<Vec<KeyRecord>, StoreError> {
    let rows = sqlx::query("SELECT * FROM api_keys ORDER BY id")
        .fetch_all(pool)
        .await
        .map_err(failed)?;
    rows.iter().map(api_key).collect()
}

/// Sets the time of revocation unless it is set: the first one counts.
pub(crate) async fn revoke_key(
    pool: &SqlitePool,
    id: &KeyId,
    at: Timestamp,
) -> Result<(), StoreError> {
    sqlx::query("UPDATE api_keys SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL")
        .bind(id.as_str())
        .bind(at.to_string())
        .execute(pool)
        .await
        .map_err(failed)?;
    Ok(())
}
