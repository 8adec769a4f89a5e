//! Who asks, and the key under which a caller may ask twice.

use lazaret_api::public::Scope;
use lazaret_domain::{Denial, DenialCode, KeyId};
use std::str::FromStr;

/// Who asks: an API key that was checked, and what it may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The key's id; recorded with what it does.
    pub key: KeyId,
    /// What it may do.
    pub scope: Scope,
}

impl Principal {
    /// The controller itself, for what it does at its start: the first key, its own host.
    #[must_use]
    pub fn controller() -> Self {
        Self {
            key: KeyId::make(jiff::Timestamp::UNIX_EPOCH, 0),
            scope: Scope::Admin,
        }
    }

    /// Whether this principal may do what needs `scope`.
    ///
    /// # Errors
    /// `scope_too_narrow` if its own scope does not cover it.
    pub fn require(&self, scope: Scope) -> Result<(), Denial> {
        if self.scope >= scope {
            return Ok(());
        }
        let word = scope.as_str();
        Err(Denial::new(
            DenialCode::ScopeTooNarrow,
            format!("this needs a key of scope '{word}'"),
        ))
    }
}

/// The name a caller gives a request so that asking again is not doing it again. It belongs to the
/// caller's API key: two keys never see each other's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key of one copy among those that a fork makes under this one. No caller can send it.
    pub(crate) fn of_copy(&self, number: u32) -> Self {
        Self(format!("{} copy {number}", self.0))
    }
}

impl FromStr for IdempotencyKey {
    type Err = Denial;

    fn from_str(text: &str) -> Result<Self, Denial> {
        let plain = (1..=200).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
        if plain {
            Ok(Self(text.to_owned()))
        } else {
            Err(Denial::new(
                DenialCode::InvalidIdempotencyKey,
                "an idempotency key is 1 to 200 visible ASCII characters without spaces",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_covers_those_before_it_and_no_other() {
        let run = Principal {
            scope: Scope::Run,
            ..Principal::controller()
        };
        assert!(run.require(Scope::Read).is_ok() && run.require(Scope::Run).is_ok());
        assert_eq!(
            run.require(Scope::Operate).unwrap_err().code,
            DenialCode::ScopeTooNarrow
        );
    }

    #[test]
    fn idempotency_keys_are_short_and_visible() {
        assert!("acme/demo#12@0123abc".parse::<IdempotencyKey>().is_ok());
        for text in ["", "a b", "a\nb", "ü", &"x".repeat(201)] {
            assert_eq!(
                text.parse::<IdempotencyKey>().unwrap_err().code,
                DenialCode::InvalidIdempotencyKey
            );
        }
    }
}
