//! How long a host is waited for.

use futures::StreamExt;
use lazaret_domain::{Denial, DenialCode};
use lazaret_services::ports::host_link::ByteStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// When something last happened about a request. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Progress(Arc<Mutex<Instant>>);

impl Default for Progress {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Progress {
    /// Something happened.
    pub(super) fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Waits until nothing has happened for so long.
    pub(super) async fn stalled(&self, patience: Duration) -> Denial {
        loop {
            let deadline = *self.0.lock().unwrap_or_else(PoisonError::into_inner) + patience;
            if Instant::now() >= deadline {
                return silent(patience);
            }
            sleep_until(deadline).await;
        }
    }
}

/// What comes within that time.
///
/// # Errors
/// `host_unreachable` if it does not.
pub(super) async fn within<T>(
    patience: Duration,
    coming: impl Future<Output = T>,
) -> Result<T, Denial> {
    timeout(patience, coming)
        .await
        .map_err(|_| silent(patience))
}

/// The same stream; if nothing comes for so long, it ends with `host_unreachable`.
pub(super) fn bounded(stream: ByteStream, patience: Duration) -> ByteStream {
    Box::pin(futures::stream::unfold(
        Some(stream),
        move |stream| async move {
            let mut stream = stream?;
            match within(patience, stream.next()).await {
                Ok(piece) => piece.map(|piece| (piece, Some(stream))),
                Err(denial) => Some((Err(denial), None)),
            }
        },
    ))
}

fn silent(patience: Duration) -> Denial {
    Denial::new(
        DenialCode::HostUnreachable,
        format!(
            "the host did nothing about a call for {} s",
            patience.as_secs()
        ),
    )
}
