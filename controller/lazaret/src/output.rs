//! Where a command writes: results to standard output, everything else to standard error.
//!
//! - `--json`: exactly one JSON document on standard output; nothing else goes there.
//! - Colour only where the stream is a terminal and `NO_COLOR` is not set.
//! - Text that came from a guest is made [inert](inert::inert) before a terminal sees it, and passed
//!   through unchanged where the output is a file or a pipe.

pub mod inert;
pub mod progress;
pub mod table;

use crate::failure::{Exit, Failure};
use serde::Serialize;
use std::io::{IsTerminal, Write};

/// The two streams of a command, and how to write to them.
pub struct Output {
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
    /// Whether `--json` was given.
    pub json: bool,
    /// Whether standard output is a terminal.
    pub out_is_terminal: bool,
    /// Whether standard error is a terminal.
    pub err_is_terminal: bool,
    colour: bool,
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
        let out_is_terminal = std::io::stdout().is_terminal();
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            out: Box::new(std::io::stdout()),
            err: Box::new(std::io::stderr()),
            json,
            out_is_terminal,
            err_is_terminal: std::io::stderr().is_terminal(),
            colour: out_is_terminal && !no_colour,
        }
    }

    /// Streams that write elsewhere, as pipes do.
    #[must_use]
    pub fn to(out: Box<dyn Write + Send>, err: Box<dyn Write + Send>, json: bool) -> Self {
        Self {
            out,
            err,
            json,
            out_is_terminal: false,
            err_is_terminal: false,
            colour: false,
        }
    }

    /// A line on standard output.
    ///
    /// # Errors
    /// Where the stream cannot be written.
    pub fn line(&mut self, text: impl AsRef<str>) -> Result<(), Failure> {
        writeln!(self.out, "{}", text.as_ref())?;
        Ok(())
    }

    /// A line on standard error: progress, hints, states.
    ///
    /// # Errors
    /// Where the stream cannot be written.
    pub fn note(&mut self, text: impl AsRef<str>) -> Result<(), Failure> {
        writeln!(self.err, "{}", text.as_ref())?;
        Ok(())
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
        if self.out_is_terminal {
            self.out.write_all(inert::inert(text).as_bytes())?;
        } else {
            self.out.write_all(text.as_bytes())?;
        }
        self.out.flush()?;
        Ok(())
    }

    /// Text of a guest on standard error, as [`Output::guest`].
    ///
    /// # Errors
    /// Where the stream cannot be written.
    pub fn guest_error(&mut self, text: &str) -> Result<(), Failure> {
        if self.err_is_terminal {
            self.err.write_all(inert::inert(text).as_bytes())?;
        } else {
            self.err.write_all(text.as_bytes())?;
        }
        self.err.flush()?;
        Ok(())
    }

    /// Bytes of a guest on standard output: inert on a terminal, unchanged elsewhere.
    ///
    /// # Errors
    /// Where the stream cannot be written.
    pub fn guest_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.out_is_terminal {
            return self.guest(&String::from_utf8_lossy(bytes));
        }
        self.out.write_all(bytes)?;
        self.out.flush()?;
        Ok(())
    }

    /// A word in a colour, if colours are wanted.
    #[must_use]
    pub fn paint(&self, paint: Paint, text: &str) -> String {
        if !self.colour {
            return text.to_owned();
        }
        let code = match paint {
            Paint::Good => "32",
            Paint::Warn => "33",
            Paint::Bad => "31",
            Paint::Dim => "2",
            Paint::Bold => "1",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
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
        let text = if self.err_is_terminal {
            inert::inert(&text)
        } else {
            text
        };
        writeln!(self.err, "lazaret: {text}").ok();
        exit
    }
}
