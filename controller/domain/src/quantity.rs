//! Sizes, durations and vCPU counts, with the bounds that hold for every one of them. What an
//! operator or a host allows is narrower and is checked where it is known.

use crate::{Denial, DenialCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use utoipa::ToSchema;

/// A duration in whole milliseconds, rounded to the nearest: sums and differences of what is told
/// stay right on the average.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(
        duration
            .saturating_add(Duration::from_micros(500))
            .as_millis(),
    )
    .unwrap_or(u64::MAX)
}

macro_rules! text_serde {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
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

/// Splits `"512M"` into its number and its unit. The number is decimal digits only.
fn split(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if digits == 0 || digits > 12 {
        return None;
    }
    number.parse().ok().map(|number| (number, unit))
}

/// A size in bytes, written with a binary unit: `512M`, `1G`. From 1 byte to 1 PiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema, JsonSchema)]
#[schema(value_type = String, example = "1G")]
#[schemars(with = "String")]
pub struct ByteSize(u64);

impl ByteSize {
    const UNITS: [(&'static str, u64); 5] = [
        ("T", 1 << 40),
        ("G", 1 << 30),
        ("M", 1 << 20),
        ("K", 1 << 10),
        ("", 1),
    ];

    /// A size of so many mebibytes.
    #[must_use]
    pub const fn mebibytes(count: u64) -> Self {
        Self(count << 20)
    }

    /// A size of so many bytes.
    #[must_use]
    pub const fn from_bytes(count: u64) -> Self {
        Self(count)
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The size in whole mebibytes, rounded down.
    #[must_use]
    pub const fn as_mebibytes(self) -> u64 {
        self.0 >> 20
    }
}

impl FromStr for ByteSize {
    type Err = Denial;

    fn from_str(text: &str) -> Result<Self, Denial> {
        let refuse = || {
            Denial::new(
                DenialCode::InvalidSize,
                "a size is a whole number with K, M, G or T (binary units), such as 512M or 1G, from 1 to 1024T",
            )
        };
        let (number, unit) = split(text).ok_or_else(refuse)?;
        let unit = unit
            .strip_suffix("iB")
            .or_else(|| unit.strip_suffix('B'))
            .unwrap_or(unit)
            .to_ascii_uppercase();
        let (_, factor) = Self::UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(refuse)?;
        let bytes = number
            .checked_mul(*factor)
            .filter(|bytes| (1..=1 << 50).contains(bytes))
            .ok_or_else(refuse)?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, factor) = Self::UNITS
            .iter()
            .find(|(_, factor)| self.0.is_multiple_of(*factor))
            .unwrap_or(&("", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}
text_serde!(ByteSize);

/// A length of time, written with units: `90s`, `15m`, `1h`, `1h30m`, `2d`. From 1 ms to 366 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema, JsonSchema)]
#[schema(value_type = String, example = "1h")]
#[schemars(with = "String")]
pub struct Span(Duration);

impl Span {
    const UNITS: [(&'static str, u64); 5] = [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
        ("ms", 1),
    ];

    /// A span of so many seconds.
    #[must_use]
    pub const fn seconds(count: u64) -> Self {
        Self(Duration::from_secs(count))
    }

    /// The span as a duration.
    #[must_use]
    pub const fn duration(self) -> Duration {
        self.0
    }
}

impl FromStr for Span {
    type Err = Denial;

    fn from_str(text: &str) -> Result<Self, Denial> {
        let refuse = || {
            Denial::new(
                DenialCode::InvalidDuration,
                "a duration is one or more whole numbers with d, h, m, s or ms, such as 90s, 15m or 1h30m, \
                 more than zero and at most 366d",
            )
        };
        let mut rest = text;
        let mut total = 0_u64;
        let mut last_unit = u64::MAX;
        while !rest.is_empty() {
            let (number, after) = split(rest).ok_or_else(refuse)?;
            let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
            let (unit, next) = after.split_at(letters);
            let (_, factor) = Self::UNITS
                .iter()
                .find(|(name, _)| *name == unit)
                .ok_or_else(refuse)?;
            if *factor >= last_unit {
                return Err(refuse());
            }
            last_unit = *factor;
            total = number
                .checked_mul(*factor)
                .and_then(|ms| ms.checked_add(total))
                .ok_or_else(refuse)?;
            rest = next;
        }
        if total == 0 || total > 366 * 86_400_000 {
            return Err(refuse());
        }
        Ok(Self(Duration::from_millis(total)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        for (unit, factor) in Self::UNITS {
            let count = rest / factor;
            rest %= factor;
            if count > 0 {
                write!(f, "{count}{unit}")?;
            }
        }
        Ok(())
    }
}
text_serde!(Span);

/// A count of virtual CPUs, 1 to 64.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ToSchema, JsonSchema,
)]
#[serde(transparent)]
#[schema(minimum = 1, maximum = 64)]
pub struct Cpus(#[schemars(range(min = 1, max = 64))] u8);

impl Cpus {
    /// One virtual CPU.
    pub const ONE: Self = Self(1);

    /// The count.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<u64> for Cpus {
    type Error = Denial;

    fn try_from(count: u64) -> Result<Self, Denial> {
        u8::try_from(count)
            .ok()
            .filter(|count| (1..=64).contains(count))
            .map(Self)
            .ok_or_else(|| Denial::new(DenialCode::InvalidCpus, "a sandbox has 1 to 64 vCPUs"))
    }
}

impl FromStr for Cpus {
    type Err = Denial;

    fn from_str(text: &str) -> Result<Self, Denial> {
        text.parse::<u64>()
            .map_err(|_| {
                Denial::new(
                    DenialCode::InvalidCpus,
                    "a vCPU count is a whole number from 1 to 64",
                )
            })?
            .try_into()
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer)?
            .try_into()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_duration_is_told_to_the_nearest_millisecond() {
        let told = |micros| millis(Duration::from_micros(micros));
        assert_eq!([0, 499, 500, 1499, 1500].map(told), [0, 0, 1, 1, 2]);
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }

    #[test]
    fn sizes_are_read_and_written_in_binary_units() {
        assert_eq!("1G".parse::<ByteSize>().unwrap().bytes(), 1 << 30);
        assert_eq!("512MiB".parse::<ByteSize>().unwrap().to_string(), "512M");
        for text in [
            "lots",
            "",
            "0",
            "-1",
            "1.5G",
            "1X",
            "99999999T",
            "0G",
            "1e9",
            " 1G",
            "1G ",
        ] {
            assert_eq!(
                text.parse::<ByteSize>().unwrap_err().code,
                DenialCode::InvalidSize,
                "{text:?}"
            );
        }
    }

    #[test]
    fn spans_are_read_and_written_largest_unit_first() {
        assert_eq!(
            "1h30m".parse::<Span>().unwrap().duration(),
            Duration::from_secs(5400)
        );
        assert_eq!(Span::seconds(90).to_string(), "1m30s");
        for text in [
            "",
            "0",
            "0s",
            "-1s",
            "10",
            "1m1h",
            "1.5h",
            "1w",
            "367d",
            "99999999999d",
            "1s1s",
            "s",
        ] {
            assert_eq!(
                text.parse::<Span>().unwrap_err().code,
                DenialCode::InvalidDuration,
                "{text:?}"
            );
        }
    }

    #[test]
    fn cpus_are_bounded() {
        assert!(serde_json::from_str::<Cpus>("0").is_err());
        assert!(serde_json::from_str::<Cpus>("65").is_err());
        assert!(serde_json::from_str::<Cpus>("-1").is_err());
        assert_eq!("2".parse::<Cpus>().unwrap().get(), 2);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(ms in 1_u64..=366 * 86_400_000, bytes in 1_u64..=1 << 50) {
            let span = Span(Duration::from_millis(ms));
            prop_assert_eq!(span.to_string().parse::<Span>().unwrap(), span);
            let size = ByteSize(bytes);
            // More than twelve digits is more than anybody types; such sizes are not read back.
            if size.to_string().len() <= 12 {
                prop_assert_eq!(size.to_string().parse::<ByteSize>().unwrap(), size);
            }
        }
    }
}
