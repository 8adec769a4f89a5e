//! Effects go on without their caller.

use lazaret_domain::{Denial, DenialCode};

/// Carries out `effect` to its end, whether or not the client still waits for the answer. A client
/// that goes away drops the handler; it must not drop half an effect.
pub(crate) async fn detached<T: Send + 'static>(
    effect: impl Future<Output = Result<T, Denial>> + Send + 'static,
) -> Result<T, Denial> {
    tokio::spawn(effect).await.unwrap_or_else(|fault| {
        tracing::error!(%fault, "an effect did not come to its end");
        Err(Denial::new(
            DenialCode::Internal,
            "a fault of ours; the server's log has more",
        ))
    })
}
