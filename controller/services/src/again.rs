//! Asking again under a name: the same request finds what was done before, another one is refused.
//!
//! What a caller asked for under an [`IdempotencyKey`](crate::IdempotencyKey) is told apart by a
//! digest: the request itself, which may hold what must not be kept, is not stored with the name.

use crate::hex;
use lazaret_domain::{Denial, DenialCode};
use serde::Serialize;
use sha2::{Digest, Sha256};

/// What tells two requests apart.
///
/// # Errors
/// `internal` for one that cannot be written; a fault of ours.
pub(crate) fn digest(request: &impl Serialize) -> Result<String, Denial> {
    let text = serde_json::to_vec(request).map_err(|error| {
        Denial::new(
            DenialCode::Internal,
            format!("a request could not be written: {error}"),
        )
    })?;
    Ok(hex::encode(&Sha256::digest(&text)))
}

/// The name belongs to another request.
pub(crate) fn other_request() -> Denial {
    let why = "this idempotency key was used with another request; use a new key";
    Denial::new(DenialCode::IdempotencyMismatch, why)
}

/// It was done, will not be done twice, and its answer cannot be given again.
pub(crate) fn already_done(why: impl Into<String>) -> Denial {
    Denial::new(DenialCode::AlreadyDone, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazaret_api::public::{CreateRun, ExecRun};
    use lazaret_domain::Argv;

    #[test]
    fn two_requests_are_the_same_only_if_every_field_is() {
        let run = || CreateRun {
            command: Some(Argv::of(["true"]).unwrap()),
            ..CreateRun::default()
        };
        let same = digest(&run()).unwrap();
        assert_eq!(digest(&run()).unwrap(), same);
        let other = CreateRun {
            task: Some(String::new()),
            ..run()
        };
        assert_ne!(digest(&other).unwrap(), same);
        let exec = |stdin: Option<&str>| ExecRun {
            command: Argv::of(["true"]).unwrap(),
            stdin: stdin.map(str::to_owned),
            max_duration: None,
        };
        let same = digest(&exec(None)).unwrap();
        assert_eq!(digest(&exec(None)).unwrap(), same);
        assert_ne!(digest(&exec(Some(""))).unwrap(), same);
    }
}
