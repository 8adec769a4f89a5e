//! One stream of a command: whether it is a terminal, what that means, and whether anybody reads it.

use super::{Paint, inert};
use crate::failure::Failure;
use std::io::{ErrorKind, Write};

/// A stream and what is known about its reader.
pub(super) struct Stream {
    to: Box<dyn Write + Send>,
    /// Whether a terminal shows it.
    pub is_terminal: bool,
    colour: bool,
    outlives_reader: bool,
    closed: bool,
}

impl Stream {
    /// A stream; a terminal shows colours if they are wanted.
    pub(super) fn new(to: Box<dyn Write + Send>, is_terminal: bool, colours: bool) -> Self {
        Self {
            to,
            is_terminal,
            colour: is_terminal && colours,
            outlives_reader: false,
            closed: false,
        }
    }

    /// From here on a reader that goes away is no error; what is written afterwards is dropped.
    pub(super) fn outlive_reader(&mut self) {
        self.outlives_reader = true;
    }

    /// Writes a line.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub(super) fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.write(format!("{text}\n").as_bytes())
    }

    /// Writes what came from a guest: inert on a terminal, unchanged elsewhere.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub(super) fn guest(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.is_terminal {
            self.write(inert::inert(&String::from_utf8_lossy(bytes)).as_bytes())
        } else {
            self.write(bytes)
        }
    }

    /// Text in a colour, if colours are shown here.
    pub(super) fn paint(&self, paint: Paint, text: &str) -> String {
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

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.closed {
            return Ok(());
        }
        match self.to.write_all(bytes).and_then(|()| self.to.flush()) {
            Err(error) if self.outlives_reader && error.kind() == ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            written => Ok(written?),
        }
    }
}
