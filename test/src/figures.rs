//! What the benches share: how often, and what many measurements come to.

/// A number from the environment, or else this one.
#[must_use]
pub fn number(name: &str, otherwise: usize) -> usize {
    let told = std::env::var(name).ok();
    told.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Median and 99th percentile; 0 of nothing.
#[must_use]
pub fn spread(mut values: Vec<u64>) -> (u64, u64) {
    values.sort_unstable();
    let at =
        |part: usize| values.get((values.len() * part / 100).min(values.len().saturating_sub(1)));
    (at(50).copied().unwrap_or(0), at(99).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_nearly_the_last() {
        assert_eq!(spread(vec![]), (0, 0));
        assert_eq!(spread(vec![7]), (7, 7));
        assert_eq!(spread((1..=200).rev().collect()), (101, 199));
    }
}
