//! Words that a guest had a say in, made fit to be passed on: bounded, and without control
//! characters, with which a terminal could be made to show something else.

/// The longest line in bytes.
const LINE: usize = 400;
/// What a line that was cut ends with.
const CUT: &str = "…";

/// Text without control characters, in lines of bounded length; line ends stay.
pub(crate) fn tame(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(tame_line).collect();
    lines.join("\n")
}

fn tame_line(line: &str) -> String {
    let plain: String = line
        .chars()
        .map(|c| match c {
            '\t' => ' ',
            c if c.is_control() => char::REPLACEMENT_CHARACTER,
            c => c,
        })
        .collect();
    let kept = first(&plain, LINE);
    if kept.len() < plain.len() {
        format!("{kept}{CUT}")
    } else {
        plain
    }
}

/// The beginning of a text, at most so many bytes.
pub(crate) fn first(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// The end of a text, at most so many bytes.
pub(crate) fn last(text: &str, most: usize) -> &str {
    let begin =
        (text.len().saturating_sub(most)..=text.len()).find(|at| text.is_char_boundary(*at));
    &text[begin.unwrap_or(text.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_and_control_characters_replaced() {
        let hostile = format!(
            "\u{1b}[2Jcleared\ta\u{7}\r\nb\u{9b}1m\n{}\n",
            "ä".repeat(5000)
        );
        let tamed = tame(&hostile);
        let lines: Vec<&str> = tamed.lines().collect();
        assert_eq!(lines[..2], ["\u{fffd}[2Jcleared a\u{fffd}", "b\u{fffd}1m"]);
        assert_eq!(lines[2].len(), LINE + CUT.len());
        assert!(!tamed.chars().any(|c| c.is_control() && c != '\n'));
    }

    #[test]
    fn a_text_is_cut_between_characters_on_either_side() {
        assert_eq!((first("äöü", 3), last("äöü", 3)), ("ä", "ü"));
        assert_eq!((first("abc", 9), last("abc", 9)), ("abc", "abc"));
        assert_eq!((first("ä", 0), last("ä", 0)), ("", ""));
    }
}
