//! Colour for each stream by itself, and readers that go away.

use super::*;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex};

/// Takes so many writes, then its reader is gone.
#[derive(Clone)]
struct Pipe {
    left: usize,
    text: Arc<Mutex<String>>,
}

fn pipe(left: usize) -> Pipe {
    Pipe {
        left,
        text: Arc::default(),
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.left == 0 {
            return Err(ErrorKind::BrokenPipe.into());
        }
        self.left -= 1;
        let mut text = self.text.lock().unwrap();
        text.push_str(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn each_stream_has_its_own_colours() {
    for (out_is_terminal, err_is_terminal) in [(true, false), (false, true)] {
        let stream = |is_terminal| Stream::new(Box::new(pipe(0)), is_terminal, true);
        let out = Output::on(stream(out_is_terminal), stream(err_is_terminal), false);
        let coloured = |text: String| text.contains('\u{1b}');
        assert_eq!(coloured(out.paint(Paint::Bad, "x")), out_is_terminal);
        assert_eq!(coloured(out.paint_note(Paint::Bad, "x")), err_is_terminal);
    }
}

#[test]
fn a_reader_that_goes_away_ends_its_stream_alone_where_that_was_asked_for() {
    let (first, second) = (pipe(1), pipe(9));
    let mut out = Output::to(Box::new(first.clone()), Box::new(second.clone()), false);
    out.outlive_readers();
    for _ in 0..3 {
        out.guest("out\n").unwrap();
        out.note("err").unwrap();
    }
    assert_eq!(first.text.lock().unwrap().as_str(), "out\n");
    assert_eq!(second.text.lock().unwrap().as_str(), "err\nerr\nerr\n");
}

#[test]
fn elsewhere_it_ends_the_command() {
    let mut out = Output::to(Box::new(pipe(0)), Box::new(pipe(0)), false);
    assert_eq!(out.line("x").unwrap_err().exit(), Exit::Done);
}
