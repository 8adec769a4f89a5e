//! Verbs about API keys: `key create`, `ls`, `revoke`.

use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::output::table::table;
use lazaret_api::public::{CreateKey, Key, NewKey, Scope};
use lazaret_domain::{KeyId, Span};

/// The request that the arguments of `key create` mean.
#[must_use]
pub fn request(scope: Scope, name: Option<String>, expires: Option<Span>) -> CreateKey {
    CreateKey {
        scope,
        name,
        expires,
    }
}

/// Makes a key.
///
/// # Errors
/// As the controller refuses, or where it cannot be reached; so for every verb here.
pub async fn create(
    request: CreateKey,
    client: &Client,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let new = client.create_key(&request).await?;
    show_new(&new, out)
}

/// Shows a new key: the token alone on standard output, the rest on standard error.
///
/// # Errors
/// Where the output cannot be written.
pub fn show_new(new: &NewKey, out: &mut Output) -> Result<Exit, Failure> {
    if out.json {
        out.document(new)?;
        return Ok(Exit::Done);
    }
    out.line(&new.token)?;
    out.note(format!(
        "Key {} with scope {}. This is the only time its token is shown.",
        new.key.id,
        scope(new.key.scope)
    ))?;
    Ok(Exit::Done)
}

/// Lists keys.
///
/// # Errors
/// As [`create`].
pub async fn ls(client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    let list = client.keys().await?;
    if out.json {
        out.document(&list)?;
        return Ok(Exit::Done);
    }
    let rows: Vec<Vec<String>> = list.keys.iter().map(row).collect();
    out.line(table(
        &["ID", "NAME", "SCOPE", "CREATED", "EXPIRES", "REVOKED"],
        &rows,
    ))?;
    Ok(Exit::Done)
}

/// Revokes a key.
///
/// # Errors
/// As [`create`].
pub async fn revoke(id: &KeyId, client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    let key = client.revoke_key(id).await?;
    if out.json {
        out.document(&key)?;
    } else {
        out.line(format!("{} no longer works", key.id))?;
    }
    Ok(Exit::Done)
}

fn row(key: &Key) -> Vec<String> {
    let date = |at: Option<jiff::Timestamp>| {
        at.map_or_else(
            || "-".to_owned(),
            |at| at.strftime("%Y-%m-%d %H:%M").to_string(),
        )
    };
    vec![
        key.id.to_string(),
        key.name.clone(),
        scope(key.scope).to_owned(),
        date(Some(key.created_at)),
        date(key.expires_at),
        date(key.revoked_at),
    ]
}

fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Read => "read",
        Scope::Run => "run",
        Scope::Operate => "operate",
        Scope::Admin => "admin",
    }
}
