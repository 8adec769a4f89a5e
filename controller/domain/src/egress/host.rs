//! Host names, canonical once at parse: what is matched, dialled and logged is the same value.

use crate::id::id_traits;
use crate::{Denial, DenialCode};
use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use utoipa::ToSchema;

/// A domain name in canonical form: lower case, A-labels, no trailing dot, and never an IP address
/// in any spelling.
///
/// Upper case and internationalised names are brought to that form. Everything else that could be
/// read in two ways is refused rather than repaired: NUL, `%`, line ends, spaces, underscores, user
/// info, ports, empty labels, a trailing dot, labels over 63 and names over 253 characters, and
/// names whose last label is a number, which resolvers and URL parsers take for addresses
/// (`2852039166`, `0xA9FEA9FE`, `0251.0376.0251.0376`, `169.254.43518`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, ToSchema, JsonSchema)]
#[serde(transparent)]
pub struct DomainName(String);

/// The longest text worth looking at: four bytes for each of 253 characters.
const LONGEST_INPUT: usize = 4 * 253;

impl DomainName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this name lies below another one; a name does not lie below itself.
    #[must_use]
    pub fn is_below(&self, parent: &Self) -> bool {
        self.0
            .strip_suffix(parent.as_str())
            .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
    }

    /// The number of labels.
    #[must_use]
    pub fn labels(&self) -> usize {
        self.0.split('.').count()
    }
}

impl FromStr for DomainName {
    type Err = Denial;

    fn from_str(text: &str) -> Result<Self, Denial> {
        let refuse = |why: &str| {
            Err(Denial::new(
                DenialCode::InvalidEgress,
                format!("not a host name: {why}"),
            ))
        };
        if text.is_empty() {
            return refuse("it is empty");
        }
        if text.len() > LONGEST_INPUT {
            return refuse("it is longer than 253 characters");
        }
        if text.ends_with('.') {
            return refuse("leave out the dot at the end");
        }
        let Ok(name) = Uts46::new().to_ascii(
            text.as_bytes(),
            AsciiDenyList::STD3,
            Hyphens::CheckFirstLast,
            DnsLength::Verify,
        ) else {
            return refuse(
                "labels are 1 to 63 letters, digits and inner dashes, with dots between them, 253 characters in all",
            );
        };
        if last_label_is_a_number(&name) {
            return refuse("its last label is a number, so it could be taken for an IP address");
        }
        Ok(Self(name.into_owned()))
    }
}
id_traits!(DomainName);

/// Whether a URL parser or `inet_aton` would read the name as an IPv4 address.
fn last_label_is_a_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let hexadecimal = last
        .strip_prefix("0x")
        .is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
    hexadecimal || last.bytes().all(|b| b.is_ascii_digit())
}
