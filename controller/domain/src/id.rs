//! Identifiers. Each is parsed once; a value of the type is always well formed.
//!
//! Run and sandbox ids are made by us: a letter, nine characters of time (milliseconds since 1970,
//! base 32, so that ids sort by age) and seven of randomness. They are accepted in the wider form of
//! [`is_identifier`] nowhere: an id of another shape is not ours.

use crate::{Denial, DenialCode};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use utoipa::ToSchema;

/// Crockford's base 32 in lower case: no i, l, o, u.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const TIME_CHARS: usize = 9;
const RANDOM_CHARS: usize = 7;

/// Writes the lowest `5 * chars` bits of `value` in base 32, most significant first.
fn encode(out: &mut String, value: u64, chars: usize) {
    for index in (0..chars).rev() {
        let digit = (value >> (5 * index)) & 31;
        out.push(char::from(ALPHABET[usize::try_from(digit).unwrap_or(0)]));
    }
}

macro_rules! made_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, ToSchema, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Makes an id from the time and at least 35 random bits.
            #[must_use]
            pub fn make(at: Timestamp, random: u64) -> Self {
                let mut text = String::with_capacity(1 + TIME_CHARS + RANDOM_CHARS);
                text.push($prefix);
                encode(&mut text, u64::try_from(at.as_millisecond()).unwrap_or(0), TIME_CHARS);
                encode(&mut text, random, RANDOM_CHARS);
                Self(text)
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Denial;

            fn from_str(text: &str) -> Result<Self, Denial> {
                let mut letters = text.chars();
                let shaped = text.len() == 1 + TIME_CHARS + RANDOM_CHARS
                    && letters.next() == Some($prefix)
                    && letters.all(|letter| u8::try_from(letter).is_ok_and(|b| ALPHABET.contains(&b)));
                if shaped {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(Denial::new(
                        DenialCode::InvalidId,
                        concat!($what, " id is '", $prefix, "' and 16 characters of 0-9 a-z without i, l, o, u"),
                    ))
                }
            }
        }
        id_traits!($name);
    };
}

macro_rules! id_traits {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?
                    .parse()
                    .map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use id_traits;

made_id!(
    /// A run: one delegated task.
    RunId, 'r', "a run"
);
made_id!(
    /// A sandbox: one microVM and its identity.
    SandboxId, 's', "a sandbox"
);
made_id!(
    /// An API key's public half, by which it is looked up and listed.
    KeyId, 'k', "a key"
);

/// Whether a text is `[A-Za-z0-9_.-]{1,128}` and neither `.` nor `..`: the widest form of any name
/// of ours that becomes a file or directory name.
#[must_use]
pub fn is_identifier(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text != "."
        && text != ".."
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

/// One command run in a sandbox, named by whoever asked for it: asking again for the same id never
/// runs it twice. Form: [`is_identifier`], starting with a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, ToSchema, JsonSchema)]
#[serde(transparent)]
pub struct ExecId(String);

impl ExecId {
    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ExecId {
    type Err = Denial;

    fn from_str(text: &str) -> Result<Self, Denial> {
        if is_identifier(text) && text.as_bytes()[0].is_ascii_alphanumeric() {
            Ok(Self(text.to_owned()))
        } else {
            Err(Denial::new(
                DenialCode::InvalidId,
                "an exec id is 1 to 128 characters of A-Z a-z 0-9 _ . - and starts with a letter or digit",
            ))
        }
    }
}
id_traits!(ExecId);

/// The number that makes an old lease harmless: a host refuses an effect whose fence is lower than
/// the highest it has seen for that sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub u64);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn made_ids_read_back_and_sort_by_age() {
        let early = RunId::make(Timestamp::from_millisecond(1_000).unwrap(), u64::MAX);
        let late = RunId::make(Timestamp::from_millisecond(2_000).unwrap(), 0);
        assert!(early < late);
        assert_eq!(early.as_str().parse::<RunId>().unwrap(), early);
    }

    #[test]
    fn ids_out_of_form_are_refused() {
        let long = "a".repeat(129);
        let hostile = [
            "../../root",
            "..",
            ".",
            "",
            "a/b",
            "a b",
            "a\nb",
            long.as_str(),
            "%2e%2e",
            "日本",
            "a;b",
            "a\0b",
        ];
        for text in hostile {
            assert_eq!(
                text.parse::<RunId>().unwrap_err().code,
                DenialCode::InvalidId,
                "{text:?}"
            );
            assert_eq!(
                text.parse::<SandboxId>().unwrap_err().code,
                DenialCode::InvalidId,
                "{text:?}"
            );
            assert_eq!(
                text.parse::<ExecId>().unwrap_err().code,
                DenialCode::InvalidId,
                "{text:?}"
            );
        }
        assert!("-rf".parse::<ExecId>().is_err());
    }

    proptest! {
        #[test]
        fn every_accepted_id_is_a_plain_file_name(text in "\\PC{0,40}") {
            if let Ok(id) = text.parse::<ExecId>() {
                prop_assert!(!id.as_str().contains(['/', '\0', '\n', ' ']));
                prop_assert!(id.as_str() != "." && id.as_str() != "..");
            }
        }
    }
}
