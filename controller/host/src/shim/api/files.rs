//! File calls: passed on to the guest, which does the work and may be hostile. It can keep neither a
//! caller waiting nor a place for ever, and it can say no only in the ways a file call can fail.

use super::{Owner, TRANSFERS, query};
use crate::shim::guest::Guest;
use crate::wire::{Answer, Moved, Pace, denial_of, fence, paced};
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Method, StatusCode, header};
use lazaret_domain::{Denial, DenialCode, GuestPath};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// How long either end of a body may be silent, and how long the guest may take to begin its answer
/// once it has the whole request.
const SILENCE: Duration = Duration::from_secs(60);
/// The longest sentence of a guest that is passed on, in characters.
const SENTENCE: usize = 300;

/// The query of the file calls, checked here although the guest checks it too.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Files {
    #[serde(default)]
    #[expect(
        dead_code,
        reason = "parsing it is the check; the query is passed on as it came"
    )]
    path: GuestPath,
    #[serde(default)]
    #[expect(dead_code, reason = "as above")]
    area: Option<Area>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Area {
    Workspace,
    Uploads,
}

pub(super) async fn to_guest(State(shim): Owner, request: Request) -> Answer {
    let (parts, body) = request.into_parts();
    query(Query::<Files>::try_from_uri(&parts.uri))?;
    if parts.method != Method::GET {
        shim.dir.pass_fence(fence(&parts.headers)?)?;
    }
    let (guest, going) = shim.ready_guest()?;
    let Ok(place) = Arc::clone(&shim.transfers).try_acquire_owned() else {
        let text = format!("a sandbox moves files in at most {TRANSFERS} requests at once");
        return Err(Denial::new(DenialCode::HostBusy, text)
            .retry_after(1)
            .into());
    };
    let rest = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let ask = Ask {
        method: parts.method,
        path: format!("/v1{rest}"),
        body,
    };
    Ok(carry(&guest, ask, (place, going), SILENCE).await?)
}

/// What the guest is asked.
pub(super) struct Ask {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Body,
}

/// Asks the guest and gives back what it answers, with headers of ours. The place is held until the
/// answer has been read, cut or dropped.
pub(super) async fn carry(
    guest: &Guest,
    ask: Ask,
    place: impl Send + 'static,
    silence: Duration,
) -> Result<Response, Denial> {
    let pace = Pace {
        origin: silence,
        taker: silence,
    };
    let kind = content_type(&ask);
    let (body, moved) = paced(ask.body, pace, ());
    // An upload may take long as long as it goes on; what follows it may not.
    let patience = async {
        match moved.await {
            Ok(Moved::TakerSilent) => unreachable("it takes no more of the request"),
            Ok(Moved::OriginSilent) => Denial::new(
                DenialCode::InvalidRequest,
                format!("nothing came of the body for {silence:?}"),
            ),
            _ => {
                tokio::time::sleep(silence).await;
                unreachable("it has the request and does not answer")
            }
        }
    };
    let answered = async {
        let response = guest.send(ask.method, &ask.path, body).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(of_a_file_call(&denial_of(response).await))
    };
    let response = tokio::select! {
        biased;
        denial = patience => return Err(denial),
        response = answered => response?,
    };
    let body = paced(response.into_body(), pace, place).0;
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, kind)], body).into_response())
}

/// What the guest API answers with.
fn content_type(ask: &Ask) -> HeaderValue {
    let tar = ask.method == Method::GET && ask.path.starts_with("/v1/files");
    HeaderValue::from_static(if tar {
        "application/x-tar"
    } else {
        "application/json"
    })
}

/// A guest's refusal, if it is one that a file call can have. Any other is not the guest's to give:
/// it would be taken for the host's or the controller's own.
fn of_a_file_call(said: &Denial) -> Denial {
    match said.code {
        DenialCode::FileNotFound
        | DenialCode::NotAFile
        | DenialCode::InvalidPath
        | DenialCode::AlreadyExists
        | DenialCode::DiskFull
        | DenialCode::TooLarge
        // The body is not a tar stream.
        | DenialCode::InvalidRequest => Denial::new(said.code, sentence(&said.message)),
        _ => unreachable("it refused in a way that is not documented"),
    }
}

/// A guest's words in one line of bounded length.
fn sentence(words: &str) -> String {
    let printable = words.chars().map(|c| if c.is_control() { ' ' } else { c });
    printable.take(SENTENCE).collect()
}

fn unreachable(why: &str) -> Denial {
    Denial::new(
        DenialCode::GuestUnreachable,
        format!("the guest agent does not do what it was asked: {why}"),
    )
}
