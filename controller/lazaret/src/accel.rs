//! The word for what accelerators are allowed, as the command line and both settings files write it.

use lazaret_api::host::AccelChoice;

/// The word.
#[must_use]
pub fn word(choice: AccelChoice) -> &'static str {
    match choice {
        AccelChoice::Auto => "auto",
        AccelChoice::Kvm => "kvm",
        AccelChoice::Tcg => "tcg",
    }
}

/// What a word means.
///
/// # Errors
/// Which words there are.
pub fn parse(text: &str) -> Result<AccelChoice, String> {
    [AccelChoice::Auto, AccelChoice::Kvm, AccelChoice::Tcg]
        .into_iter()
        .find(|choice| word(*choice) == text)
        .ok_or_else(|| "it is one of auto, kvm and tcg".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_the_protocol() {
        for choice in [AccelChoice::Auto, AccelChoice::Kvm, AccelChoice::Tcg] {
            assert_eq!(parse(word(choice)), Ok(choice));
            assert_eq!(
                serde_json::to_value(choice).unwrap().as_str(),
                Some(word(choice))
            );
        }
        assert!(parse("hvf").is_err() && parse("KVM").is_err());
    }
}
