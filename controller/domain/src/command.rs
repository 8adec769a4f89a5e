//! Argument vectors and environment names. A command is always a vector and never a shell string:
//! nothing between the caller and `execve` splits, joins, quotes or expands it.

use crate::{Denial, DenialCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use utoipa::ToSchema;

/// A program and its arguments, 1 to 256 of them, 128 KiB in all, without NUL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema, JsonSchema)]
#[serde(transparent)]
#[schema(min_items = 1, max_items = 256)]
pub struct Argv(#[schemars(length(min = 1, max = 256))] Vec<String>);

impl Argv {
    /// Checks a vector.
    ///
    /// # Errors
    /// `invalid_command` for a vector that is empty, too long, holds NUL or an empty program.
    pub fn new(words: Vec<String>) -> Result<Self, Denial> {
        let refuse = |why: &str| {
            Err(Denial::new(
                DenialCode::InvalidCommand,
                format!("a command {why}"),
            ))
        };
        if words.is_empty() || words[0].is_empty() {
            return refuse("needs a program as its first word");
        }
        if words.len() > 256 || words.iter().map(String::len).sum::<usize>() > 128 * 1024 {
            return refuse("has at most 256 words and 128 KiB");
        }
        if words.iter().any(|word| word.contains('\0')) {
            return refuse("holds no NUL");
        }
        Ok(Self(words))
    }

    /// A vector that is known to be well formed at the place it is written.
    ///
    /// # Errors
    /// As [`Argv::new`].
    pub fn of<const N: usize>(words: [&str; N]) -> Result<Self, Denial> {
        Self::new(words.map(str::to_owned).to_vec())
    }

    /// Program and arguments.
    #[must_use]
    pub fn words(&self) -> &[String] {
        &self.0
    }

    /// For people: the words joined, quoted where needed. Never given to a shell.
    #[must_use]
    pub fn display(&self) -> String {
        let quote = |word: &String| {
            let plain = !word.is_empty()
                && word
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"_-./:=,@%+".contains(&b));
            if plain {
                word.clone()
            } else {
                format!("'{}'", word.replace('\'', "'\\''"))
            }
        };
        self.0.iter().map(quote).collect::<Vec<_>>().join(" ")
    }
}

impl<'de> Deserialize<'de> for Argv {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Vec::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// The name of an environment variable: `[A-Za-z_][A-Za-z0-9_]{0,127}`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct EnvName(String);

impl EnvName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for EnvName {
    type Err = Denial;

    fn from_str(text: &str) -> Result<Self, Denial> {
        let ok = (1..=128).contains(&text.len())
            && !text.as_bytes()[0].is_ascii_digit()
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if ok {
            Ok(Self(text.to_owned()))
        } else {
            Err(Denial::new(
                DenialCode::InvalidName,
                "an environment name is letters, digits and _, not starting with a digit",
            ))
        }
    }
}

impl<'de> Deserialize<'de> for EnvName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_a_program_and_bounds() {
        assert_eq!(Argv::of(["make", "test"]).unwrap().display(), "make test");
        assert_eq!(
            Argv::of(["sh", "-c", "echo 'a b'"]).unwrap().display(),
            "sh -c 'echo '\\''a b'\\'''"
        );
        for words in [
            vec![],
            vec![String::new()],
            vec!["a\0b".into()],
            vec!["x".into(); 257],
            vec!["x".repeat(200_000)],
        ] {
            assert_eq!(
                Argv::new(words).unwrap_err().code,
                DenialCode::InvalidCommand
            );
        }
    }

    #[test]
    fn environment_names_are_plain() {
        assert!("PATH".parse::<EnvName>().is_ok());
        for text in ["", "1A", "A=B", "A B", "A\0"] {
            assert!(text.parse::<EnvName>().is_err(), "{text:?}");
        }
    }
}
