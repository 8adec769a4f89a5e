//! From framed output to log events: no byte lost or doubled, whatever the bytes are and wherever
//! the stream was cut.
//!
//! A [`Gatherer`] takes frames and gives events together with the [`Cursor`] that says how far they
//! reach. Both are committed at once, so a controller that is killed between two commits reads the
//! rest again from just there. A character whose last bytes have not come waits in the cursor.

use crate::ports::store::Cursor;
use lazaret_api::frame::{Frame, Gap};
use lazaret_api::guest::ExecExit;
use lazaret_api::public::EventBody;

/// The longest text of one log event, in bytes, hence in characters too.
pub(crate) const TEXT_CAP: usize = 16_000;
/// So much gathered text is written at once.
pub(crate) const GATHER_CAP: usize = 64 * 1024;

/// Which output of a command is shown, and under what name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Both streams, under their names.
    Both,
    /// Standard error alone, as `setup`.
    Setup,
}

/// The most of a standard output that is kept aside.
const ASIDE_CAP: usize = 64 * 1024;

/// A frame that ends a stream was of a form that no sender of ours writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Garbled;

/// Gathers the output of one command.
#[derive(Debug)]
pub(crate) struct Gatherer {
    shown: Shown,
    cursor: Cursor,
    events: Vec<EventBody>,
    bytes: usize,
    /// Standard output that is not shown, while it is whole.
    aside: Option<Vec<u8>>,
}

/// Decodes what is whole in `bytes` behind `rest`, keeping the first bytes of a last character that
/// is not whole. What can never become a character is replaced at once.
fn decode(rest: &mut Vec<u8>, bytes: &[u8]) -> String {
    rest.extend_from_slice(bytes);
    let mut text = String::with_capacity(rest.len());
    let mut left = rest.as_slice();
    loop {
        match std::str::from_utf8(left) {
            Ok(good) => {
                text.push_str(good);
                rest.clear();
                return text;
            }
            Err(error) => {
                let (good, bad) = left.split_at(error.valid_up_to());
                text.push_str(&String::from_utf8_lossy(good));
                match error.error_len() {
                    Some(length) => {
                        text.push('\u{fffd}');
                        left = &bad[length..];
                    }
                    None => {
                        *rest = bad.to_vec();
                        return text;
                    }
                }
            }
        }
    }
}

/// Cuts a text into pieces of at most [`TEXT_CAP`] bytes, between characters, rather after a line.
fn pieces(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        if text.is_empty() {
            return None;
        }
        let mut cut = text.len().min(TEXT_CAP);
        while !text.is_char_boundary(cut) {
            cut -= 1;
        }
        if cut < text.len() {
            cut = text[..cut].rfind('\n').map_or(cut, |line| line + 1);
        }
        let (piece, rest) = text.split_at(cut);
        text = rest;
        Some(piece)
    })
}

impl Gatherer {
    /// Goes on from where the output was read.
    pub(crate) fn from(cursor: Cursor, shown: Shown) -> Self {
        let whole = shown == Shown::Setup && cursor.offset == 0;
        Self {
            aside: whole.then(Vec::new),
            shown,
            cursor,
            events: Vec::new(),
            bytes: 0,
        }
    }

    /// The offset at which reading goes on.
    pub(crate) fn offset(&self) -> u64 {
        self.cursor.offset
    }

    /// The standard output that is not shown, if it was read from its start and is not long.
    pub(crate) fn aside(&mut self) -> Option<Vec<u8>> {
        self.aside.take()
    }

    /// Whether so much is gathered that it should be written now.
    pub(crate) fn full(&self) -> bool {
        self.bytes >= GATHER_CAP
    }

    /// Whether there is nothing to tell. What was read and is not shown can be read again, so it is
    /// not worth a commit of its own.
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    fn log(&mut self, stream: &str, text: &str) {
        self.bytes += text.len();
        for piece in pieces(text) {
            if let Some(EventBody::Log { stream: last, text }) = self.events.last_mut()
                && last == stream
                && text.len() + piece.len() <= TEXT_CAP
            {
                text.push_str(piece);
                continue;
            }
            self.events.push(EventBody::Log {
                stream: stream.to_owned(),
                text: piece.to_owned(),
            });
        }
    }

    fn stderr_name(&self) -> &'static str {
        match self.shown {
            Shown::Both => "stderr",
            Shown::Setup => "setup",
        }
    }

    /// Takes a frame; the exit frame gives how the command ended.
    pub(crate) fn push(&mut self, frame: &Frame) -> Result<Option<ExecExit>, Garbled> {
        match frame {
            Frame::Stdout(bytes) => {
                if self.shown == Shown::Both {
                    let text = decode(&mut self.cursor.stdout_rest, bytes);
                    self.log("stdout", &text);
                } else if let Some(aside) = &mut self.aside {
                    aside.extend_from_slice(bytes);
                    if aside.len() > ASIDE_CAP {
                        self.aside = None;
                    }
                }
            }
            Frame::Stderr(bytes) => {
                let text = decode(&mut self.cursor.stderr_rest, bytes);
                self.log(self.stderr_name(), &text);
            }
            Frame::Gap(json) => {
                let gap: Gap = serde_json::from_slice(json).map_err(|_| Garbled)?;
                if gap.resume_at < self.cursor.offset {
                    return Err(Garbled);
                }
                self.close();
                self.aside = None;
                self.events.push(EventBody::Gap {
                    missing: gap.dropped,
                    unit: "bytes".to_owned(),
                });
                self.cursor.offset = gap.resume_at;
                return Ok(None);
            }
            Frame::Exit(json) => {
                let exit = serde_json::from_slice(json).map_err(|_| Garbled)?;
                self.close();
                return Ok(Some(exit));
            }
        }
        self.cursor.offset += frame.encoded_len() as u64;
        Ok(None)
    }

    /// No more bytes come: what waited for the rest of a character is shown as it is.
    fn close(&mut self) {
        let rests = [
            ("stdout", std::mem::take(&mut self.cursor.stdout_rest)),
            (
                self.stderr_name(),
                std::mem::take(&mut self.cursor.stderr_rest),
            ),
        ];
        for (stream, rest) in rests {
            let text = String::from_utf8_lossy(&rest).into_owned();
            self.log(stream, &text);
        }
    }

    /// The gathered events and how far they reach, to be committed together.
    pub(crate) fn take(&mut self) -> (Vec<EventBody>, Cursor) {
        self.bytes = 0;
        (std::mem::take(&mut self.events), self.cursor.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn text_of(events: &[EventBody], name: &str) -> String {
        let logs = events.iter().filter_map(|event| match event {
            EventBody::Log { stream, text } if stream == name => Some(text.as_str()),
            _ => None,
        });
        logs.collect()
    }

    fn exit() -> Frame {
        let exit = serde_json::json!({"end": "exited", "code": 0, "duration_ms": 1});
        Frame::Exit(Bytes::from(exit.to_string()))
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_with_a_restart_anywhere_give_the_same_text(
            out in prop_oneof![prop::collection::vec(any::<u8>(), 0..200), "\\PC{0,60}".prop_map(String::into_bytes)],
            err in prop::collection::vec(any::<u8>(), 0..50),
            cuts in prop::collection::vec(1_usize..9, 1..20),
            restarts in prop::collection::vec(any::<bool>(), 1..20),
        ) {
            let (mut frames, mut rest, mut error, mut turn) = (Vec::new(), &out[..], &err[..], 0);
            while !rest.is_empty() || !error.is_empty() {
                let cut = cuts[turn % cuts.len()];
                turn += 1;
                for (part, make) in [(&mut rest, Frame::Stdout as fn(Bytes) -> Frame), (&mut error, Frame::Stderr)] {
                    let (now, later) = part.split_at(cut.min(part.len()));
                    if !now.is_empty() {
                        frames.push(make(Bytes::copy_from_slice(now)));
                    }
                    *part = later;
                }
            }
            frames.push(exit());
            let mut gatherer = Gatherer::from(Cursor::default(), Shown::Both);
            let mut events = Vec::new();
            for (number, frame) in frames.iter().enumerate() {
                gatherer.push(frame).unwrap();
                if restarts[number % restarts.len()] {
                    let (more, cursor) = gatherer.take();
                    events.extend(more);
                    gatherer = Gatherer::from(cursor, Shown::Both);
                }
            }
            events.extend(gatherer.take().0);
            prop_assert_eq!(text_of(&events, "stdout"), String::from_utf8_lossy(&out).into_owned());
            prop_assert_eq!(text_of(&events, "stderr"), String::from_utf8_lossy(&err).into_owned());
            let whole: u64 = frames[..frames.len() - 1].iter().map(|f| f.encoded_len() as u64).sum();
            prop_assert_eq!(gatherer.offset(), whole);
        }
    }

    #[test]
    fn no_event_is_longer_than_a_reader_must_take() {
        let mut gatherer = Gatherer::from(Cursor::default(), Shown::Both);
        let long = "ü".repeat(60_000);
        gatherer
            .push(&Frame::Stdout(Bytes::from(long.clone())))
            .unwrap();
        assert!(gatherer.full());
        let (events, _) = gatherer.take();
        assert_eq!(text_of(&events, "stdout"), long);
        for event in &events {
            let EventBody::Log { text, .. } = event else {
                panic!("{event:?}")
            };
            assert!(text.chars().count() <= 20_000);
        }
    }

    #[test]
    fn a_gap_is_told_and_reading_goes_on_behind_it() {
        let mut gatherer = Gatherer::from(Cursor::default(), Shown::Both);
        gatherer
            .push(&Frame::Stdout(Bytes::from_static(b"a\xc3")))
            .unwrap();
        let gap = serde_json::to_vec(&Gap {
            resume_at: 5000,
            dropped: 4990,
        })
        .unwrap();
        gatherer.push(&Frame::Gap(gap.into())).unwrap();
        assert_eq!(gatherer.offset(), 5000);
        let (events, _) = gatherer.take();
        assert_eq!(text_of(&events, "stdout"), "a\u{fffd}");
        assert!(matches!(&events[1], EventBody::Gap { missing: 4990, unit } if unit == "bytes"));
        let backwards = serde_json::to_vec(&Gap {
            resume_at: 1,
            dropped: 1,
        })
        .unwrap();
        assert_eq!(gatherer.push(&Frame::Gap(backwards.into())), Err(Garbled));
    }

    #[test]
    fn the_setup_shows_what_git_says_and_not_the_commit_id() {
        let mut gatherer = Gatherer::from(Cursor::default(), Shown::Setup);
        gatherer
            .push(&Frame::Stderr(Bytes::from_static(b"Cloning\n")))
            .unwrap();
        gatherer
            .push(&Frame::Stdout(Bytes::from_static(b"0123\n")))
            .unwrap();
        let (events, cursor) = gatherer.take();
        assert_eq!(text_of(&events, "setup"), "Cloning\n");
        assert_eq!(events.len(), 1);
        assert_eq!(gatherer.aside().unwrap(), b"0123\n");
        let mut resumed = Gatherer::from(cursor, Shown::Setup);
        assert_eq!(resumed.aside(), None, "it is not whole");
    }
}
