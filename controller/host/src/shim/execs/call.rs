//! One command as a call to the guest: what is sent, and what comes back.

use crate::shim::guest::Guest;
use crate::shim::recording::Recorder;
use axum::body::Body;
use base64::Engine as _;
use bytes::{BufMut, Bytes, BytesMut};
use http::Method;
use http_body_util::BodyExt;
use lazaret_api::frame::Frame;
use lazaret_api::guest::{ExecExit, MAX_SPEC};
use lazaret_api::host::ExecRequest;
use lazaret_domain::{Denial, DenialCode};

/// The longest standard input.
const STDIN: usize = 1 << 20;

/// Sends the command and records what it writes, until its exit frame.
pub(super) async fn follow(
    guest: &Guest,
    body: Body,
    recorder: &mut Recorder,
) -> Result<ExecExit, Denial> {
    let response = guest.send(Method::POST, "/v1/exec", body).await?;
    if !response.status().is_success() {
        return Err(crate::wire::denial_of(response).await);
    }
    let cut = || {
        Denial::new(
            DenialCode::GuestUnreachable,
            "the guest's answer was cut off before the command's end",
        )
    };
    let mut stream = response.into_body();
    let mut buffer = BytesMut::new();
    loop {
        while let Some(frame) = Frame::decode(&mut buffer).map_err(|error| {
            Denial::new(
                DenialCode::GuestUnreachable,
                format!("the guest sent no frames: {error}"),
            )
        })? {
            if let Frame::Exit(payload) = frame {
                return serde_json::from_slice(&payload).map_err(|_| cut());
            }
            recorder
                .output(frame)
                .await
                .map_err(|error| crate::state::internal("record output", &error))?;
        }
        let Some(Ok(part)) = stream.frame().await else {
            return Err(cut());
        };
        if let Ok(data) = part.into_data() {
            buffer.extend_from_slice(&data);
        }
    }
}

/// The body of a guest's exec call: the specification with its length before it, then the input.
pub(super) fn guest_body(request: &ExecRequest) -> Result<Body, Denial> {
    let stdin = base64::engine::general_purpose::STANDARD
        .decode(&request.stdin)
        .map_err(|_| {
            Denial::new(DenialCode::InvalidRequest, "standard input is base64").at("stdin")
        })?;
    let spec = serde_json::to_vec(&request.spec)
        .map_err(|error| crate::state::internal("write a command", &error))?;
    let too_large = |what: &str| {
        Denial::new(
            DenialCode::TooLarge,
            format!("{what} is larger than allowed"),
        )
    };
    if stdin.len() > STDIN {
        return Err(too_large("standard input").at("stdin"));
    }
    let length = u32::try_from(spec.len())
        .ok()
        .filter(|_| spec.len() <= MAX_SPEC)
        .ok_or_else(|| too_large("the command").at("spec"))?;
    let mut body = BytesMut::with_capacity(4 + spec.len() + stdin.len());
    body.put_u32(length);
    body.put_slice(&spec);
    body.put_slice(&stdin);
    Ok(Body::from(Bytes::from(body)))
}
