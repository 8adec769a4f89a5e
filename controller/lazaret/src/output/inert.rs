//! Makes text from a guest inert: a terminal shows it and obeys nothing in it.
//!
//! A terminal takes orders from the text it shows: it moves the cursor over lines already printed,
//! sets its title, pastes, answers back. So every control character is replaced by its picture
//! (`␛`), except newline and tab; a carriage return before a newline is dropped, any other becomes
//! a newline, so that a progress bar shows its states one after another. The C1 controls, and the
//! characters that reorder or hide text, are replaced by `�`.

/// The text, harmless for a terminal.
#[must_use]
pub fn inert(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\n' | '\t' => out.push(c),
            '\r' => {
                if chars.peek().is_some_and(|next| *next != '\n') {
                    out.push('\n');
                }
            }
            '\u{7f}' => out.push('␡'),
            c if u32::from(c) < 0x20 => {
                out.push(char::from_u32(0x2400 + u32::from(c)).unwrap_or('�'));
            }
            '\u{80}'..='\u{9f}' => out.push('�'),
            // Bidirectional controls, invisible operators and tags: what is read is not what is there.
            '\u{200e}'
            | '\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}' => out.push('�'),
            '\u{e0000}'..='\u{e007f}' => out.push('�'),
            c => out.push(c),
        }
    }
    out
}

/// The same for something that is shown within a line: line breaks and tabs are pictures too.
#[must_use]
pub fn inert_line(text: &str) -> String {
    inert(text).replace('\n', "␤").replace('\t', "␉")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_order() {
        for (hostile, shown) in [
            ("\u{1b}[2J", "␛[2J"),
            ("\u{1b}]0;title\u{7}", "␛]0;title␇"),
            ("a\u{9b}31m", "a�31m"),
            ("10%\r20%\r\n", "10%\n20%\n"),
            ("evil\u{202e}txt", "evil�txt"),
            ("a\u{8}b\0c\u{7f}", "a␈b␀c␡"),
            ("plain ü 日本\tx\n", "plain ü 日本\tx\n"),
        ] {
            assert_eq!(inert(hostile), shown);
        }
        assert_eq!(inert_line("a\nb\tc"), "a␤b␉c");
    }

    #[test]
    fn no_control_character_but_newline_and_tab_is_left() {
        let all: String = (0..0x3000_u32).filter_map(char::from_u32).collect();
        assert!(
            inert(&all)
                .chars()
                .all(|c| !c.is_control() || c == '\n' || c == '\t')
        );
    }
}
