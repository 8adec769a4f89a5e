//! Where a command writes: results to standard output, everything else to standard error.
//!
//! - `--json`: exactly one JSON document on standard output; nothing else goes there.
//! - Colour only where the stream is a terminal and `NO_COLOR` is not set.
//! - Text that came from a guest is made [inert](inert::inert) before a terminal sees it, and passed
//!   through unchanged where the output is a file or a pipe.

pub mod inert;
pub mod progress;
mod stream;
pub mod table;

use crate::failure::{Exit, Failure};
use serde::Serialize;
use std::io::{IsTerminal, Write};
use stream::Stream;

/// The two streams of a command, and how to write to them.
pub struct Output {
    out: Stream,
    err: Stream,
    /// Whether `--json` was given.
    pub json: bool,
}

/// A colour with a meaning.
#[derive(Clone, Copy, Debug)]
pub enum Paint {
    /// It went well.
    Good,
    /// A person should look.
    Warn,
    /// It went wrong.
    Bad,
    /// Beside the point.
    Dim,
    /// A heading.
    Bold,
}

impl Output {
    /// The process' own streams.
    #[must_use]
    pub fn of_process(json: bool) -> Self {
        let (out, err) = (std::io::stdout(), std::io::stderr());
        let (out_terminal, err_terminal) = (out.is_terminal(), err.is_terminal());
        let colours = colours_wanted();
        Self::on(
            Stream::new(Box::new(out), out_terminal, colours),
            Stream::new(Box::new(err), err_terminal, colours),
            json,
        )
    }

    /// Streams that write elsewhere, as pipes do.
    #[must_use]
    pub fn to(out: Box<dyn Write + Send>, err: Box<dyn Write + Send>, json: bool) -> Self {
        Self::on(
            Stream::new(out, false, false),
            Stream::new(err, false, false),
            json,
        )
    }

    fn on(out: Stream, err: Stream, json: bool) -> Self {
        Self { out, err, json }
    }

    /// From here on a reader that goes away ends its stream and not the command: what is written
    /// to that stream afterwards is dropped. For commands whose exit status says how something
    /// went, which nobody knows yet when `| head` has seen enough.
    pub fn outlive_readers(&mut self) {
        self.out.outlive_reader();
        self.err.outlive_reader();
    }

    /// A line on standard output.
    ///
    /// # Errors
    /// Where the stream cannot be written.
    pub fn line(&mut self, text: impl AsRef<str>) -> Result<(), Failure> {
        self.out.line(text.as_ref())
    }

    /// A line on standard error: progress, hints, states.
    ///
    /// # Errors
    /// Where the stream cannot be written.
    pub fn note(&mut self, text: impl AsRef<str>) -> Result<(), Failure> {
        self.err.line(text.as_ref())
    }

    /// One JSON document on standard output.
    ///
    /// # Errors
    /// Where the stream cannot be written.
    pub fn document(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(value)
            .map_err(|error| Failure::doing("cannot write JSON", error))?;
        self.line(text)
    }

    /// Text of a guest on standard output: inert on a terminal, unchanged elsewhere.
    ///
    /// # Errors
    /// Where the stream cannot be written.
    pub fn guest(&mut self, text: &str) -> Result<(), Failure> {
        self.out.guest(text.as_bytes())
    }

    /// Text of a guest on standard error, as [`Output::guest`].
    ///
    /// # Errors
    /// Where the stream cannot be written.
    pub fn guest_error(&mut self, text: &str) -> Result<(), Failure> {
        self.err.guest(text.as_bytes())
    }

    /// Bytes of a guest on standard output: inert on a terminal, unchanged elsewhere.
    ///
    /// # Errors
    /// Where the stream cannot be written.
    pub fn guest_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.out.guest(bytes)
    }

    /// Text in a colour, if standard output shows colours.
    #[must_use]
    pub fn paint(&self, paint: Paint, text: &str) -> String {
        self.out.paint(paint, text)
    }

    /// Text in a colour for a [note](Output::note), if standard error shows colours.
    #[must_use]
    pub fn paint_note(&self, paint: Paint, text: &str) -> String {
        self.err.paint(paint, text)
    }

    /// Reports why a command failed and gives the exit status for it. Whatever cannot be written
    /// here has nowhere else to go.
    pub fn report(&mut self, failure: &Failure) -> Exit {
        let exit = failure.exit();
        if exit == Exit::Done {
            return exit;
        }
        if self.json && !matches!(failure, Failure::Output(_)) {
            self.document(&failure.document()).ok();
        }
        let text = failure.to_string();
        let text = if self.err.is_terminal {
            inert::inert(&text)
        } else {
            text
        };
        self.note(format!("lazaret: {text}")).ok();
        exit
    }
}

/// Whether a terminal may be sent colours: not where `NO_COLOR` is set to something.
pub(crate) fn colours_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests;
