//! Aligned columns and aligned `label value` pairs.

use super::inert::inert_line;

/// Rows under a heading, in columns two spaces apart; no trailing blanks. Cells are made inert.
#[must_use]
pub fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let mut lines: Vec<Vec<String>> = vec![heading.iter().map(|cell| (*cell).to_owned()).collect()];
    lines.extend(
        rows.iter()
            .map(|row| row.iter().map(|cell| inert_line(cell)).collect()),
    );
    let mut widths = vec![0; heading.len()];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let text: Vec<String> = lines.iter().map(|line| align(line, &widths)).collect();
    text.join("\n")
}

/// `label  value` lines; a pair without a value is left out. Values are made inert.
#[must_use]
pub fn pairs(pairs: &[(&str, Option<String>)]) -> String {
    let width = pairs
        .iter()
        .map(|(label, _)| label.len())
        .max()
        .unwrap_or(0);
    let lines: Vec<String> = pairs
        .iter()
        .filter_map(|(label, value)| {
            value
                .as_ref()
                .map(|value| format!("{label:width$}  {}", inert_line(value)))
        })
        .collect();
    lines.join("\n")
}

/// At most so many characters, the last of which then is `…`.
#[must_use]
pub fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

fn align(cells: &[String], widths: &[usize]) -> String {
    let mut line = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        line.push_str(cell);
        line.extend(std::iter::repeat_n(
            ' ',
            width.saturating_sub(cell.chars().count()) + 2,
        ));
    }
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_hold_no_line_break() {
        let rows = vec![
            vec!["a".into(), "1\u{1b}[2J".into()],
            vec!["long name".into(), "x\ny".into()],
        ];
        assert_eq!(
            table(&["NAME", "VALUE"], &rows),
            "NAME       VALUE\na          1␛[2J\nlong name  x␤y"
        );
    }

    #[test]
    fn pairs_without_a_value_are_left_out() {
        assert_eq!(
            pairs(&[("run", Some("r1".into())), ("branch", None)]),
            "run     r1"
        );
    }

    #[test]
    fn long_text_is_shortened_by_characters() {
        assert_eq!(shortened("äöüß", 3), "äö…");
        assert_eq!(shortened("abc", 3), "abc");
    }
}
