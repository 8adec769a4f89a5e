//! Reading bodies: at most so many bytes, in at most so much time. A client that stops in the
//! middle of a body holds memory, an upload slot, a place in the server; it must not for ever.

use crate::settings::EdgeSettings;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use bytes::BytesMut;
use http_body_util::BodyExt;
use lazaret_domain::{Denial, DenialCode};
use std::time::Duration;
use tokio::time::timeout;

/// What a body may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Bytes.
    bytes: usize,
    /// Between two pieces of it.
    pause: Duration,
    /// From its first byte to its last.
    whole: Duration,
}

impl Bounds {
    /// Of JSON, and of MCP messages.
    pub(crate) fn json(settings: &EdgeSettings) -> Self {
        Self {
            bytes: settings.json_body,
            pause: settings.body_pause,
            whole: settings.json_within,
        }
    }

    /// Of an upload.
    pub(crate) fn upload(settings: &EdgeSettings) -> Self {
        Self {
            bytes: settings.upload_body,
            pause: settings.body_pause,
            whole: settings.upload_within,
        }
    }
}

/// Reads a body whole.
///
/// # Errors
/// `too_large` for one that is longer than allowed, with or without a length announced;
/// `invalid_request` for one that stops or takes too long.
pub(crate) async fn read(headers: &HeaderMap, body: Body, bounds: Bounds) -> Result<Bytes, Denial> {
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > bounds.bytes) {
        return Err(too_large(bounds.bytes));
    }
    let reading = pieces(body, bounds);
    timeout(bounds.whole, reading)
        .await
        .unwrap_or_else(|_| Err(too_slow()))
}

async fn pieces(mut body: Body, bounds: Bounds) -> Result<Bytes, Denial> {
    let mut whole = BytesMut::new();
    while !body.is_end_stream() {
        let next = timeout(bounds.pause, body.frame()).await;
        let Some(frame) = next.map_err(|_| too_slow())? else {
            break;
        };
        let frame = frame.map_err(|_| {
            Denial::new(
                DenialCode::InvalidRequest,
                "the body could not be read to its end",
            )
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if data.len() > bounds.bytes - whole.len() {
            return Err(too_large(bounds.bytes));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

fn too_large(limit: usize) -> Denial {
    Denial::new(
        DenialCode::TooLarge,
        format!("the body is longer than {limit} bytes"),
    )
}

fn too_slow() -> Denial {
    Denial::new(
        DenialCode::InvalidRequest,
        "the body did not come to its end in time; send it again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{StreamExt, stream};
    use std::convert::Infallible;
    use tokio::time::Instant;

    const BOUNDS: Bounds = Bounds {
        bytes: 100,
        pause: Duration::from_secs(30),
        whole: Duration::from_secs(60),
    };

    /// So many pieces of one byte, each after so many seconds; then nothing, and no end.
    fn dripping(pieces: usize, seconds: u64) -> Body {
        let drops = stream::repeat(()).take(pieces).then(move |()| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok::<_, Infallible>(Bytes::from_static(b"x"))
        });
        Body::from_stream(drops.chain(stream::pending()))
    }

    async fn of(body: Body) -> Result<Bytes, Denial> {
        read(&HeaderMap::new(), body, BOUNDS).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_or_takes_too_long_is_given_up() {
        for (pieces, each, after) in [(0, 0, 30), (1, 20, 50), (90, 10, 60)] {
            let begun = Instant::now();
            let denial = of(dripping(pieces, each)).await.unwrap_err();
            assert_eq!(denial.code, DenialCode::InvalidRequest);
            assert_eq!(begun.elapsed().as_secs(), after, "{pieces} times {each} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_is_read_whole_within_its_time() {
        let slow = dripping(5, 10).into_data_stream().take(5);
        assert_eq!(of(Body::from_stream(slow)).await.unwrap(), "xxxxx");
    }
}
