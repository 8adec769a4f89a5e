//! Answers are short: what a model is given costs it room.

use lazaret_api::public::EventPage;

/// A page of events ends before it is longer than so many bytes, as JSON.
const PAGE_BYTES: usize = 64 * 1024;
/// A text is cut after so many bytes; the structured value beside it is not.
const TEXT_BYTES: usize = 20_000;

/// As much of a page as an answer may hold, and at least one event. The rest is in the next page.
///
/// # Errors
/// An event that cannot be written as JSON; a fault of ours.
pub(super) fn page(mut page: EventPage) -> serde_json::Result<EventPage> {
    let (mut size, mut kept) = (0, 0);
    for event in &page.events {
        size += serde_json::to_vec(event)?.len();
        if size > PAGE_BYTES && kept > 0 {
            break;
        }
        kept += 1;
    }
    if kept < page.events.len() {
        page.events.truncate(kept);
        page.last = page.events.last().map_or(page.last, |event| event.seq);
        page.complete = false;
    }
    Ok(page)
}

/// The text as far as an answer may hold it, and a mark where it was cut.
pub(super) fn text(text: String) -> String {
    cut(text, TEXT_BYTES)
}

/// At most so many bytes, whole characters only.
fn cut(mut text: String, bytes: usize) -> String {
    if text.len() > bytes {
        let end = (0..=bytes)
            .rev()
            .find(|end| text.is_char_boundary(*end))
            .unwrap_or(0);
        text.truncate(end);
        text.push_str("\n[cut]");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazaret_api::public::{Event, EventBody};

    #[test]
    fn a_page_is_as_long_as_an_answer_may_be_and_goes_on_where_it_ended() {
        let made = |lengths: &[usize]| EventPage {
            events: (5..)
                .zip(lengths)
                .map(|(seq, length)| Event {
                    seq,
                    at: jiff::Timestamp::UNIX_EPOCH,
                    body: EventBody::Note {
                        text: "x".repeat(*length),
                    },
                })
                .collect(),
            last: 4 + lengths.len() as u64,
            complete: true,
        };
        let kept = |lengths: &[usize]| {
            let page = page(made(lengths)).unwrap();
            (page.events.len(), page.last, page.complete)
        };
        assert_eq!(kept(&[]), (0, 4, true));
        assert_eq!(kept(&[10, 10]), (2, 6, true));
        assert_eq!(kept(&[30_000, 30_000, 30_000]), (2, 6, false));
        assert_eq!(kept(&[PAGE_BYTES * 2, 10]), (1, 5, false));
        assert_eq!(kept(&[PAGE_BYTES * 2]), (1, 5, true));
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert!(cut("é".repeat(20), 7).starts_with("ééé\n"));
    }
}
