//! A command of the client, carried out in this process, and what it said.

use crate::script::client;
use clap::FromArgMatches;
use lazaret::cli::Cli;
use lazaret::output::Output;
use serde_json::Value;
use std::io::Write;
use std::sync::{Arc, Mutex};

/// What a command said.
pub(crate) struct Said {
    pub(crate) exit: u8,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    pub(crate) async fn of(words: &[&str], url: &str) -> Self {
        Self::through(words, url, Buffer::default()).await
    }

    pub(crate) async fn through(words: &[&str], url: &str, out: Buffer) -> Self {
        let words = ["lazaret"].iter().chain(words);
        let cli =
            Cli::from_arg_matches(&lazaret::cli::command().try_get_matches_from(words).unwrap())
                .unwrap();
        let err = Buffer::default();
        let mut output = Output::to(
            Box::new(out.clone()),
            Box::new(err.clone()),
            lazaret::wants_json(&cli.command),
        );
        let exit = match lazaret::verbs::run(cli.command, &client(url), &mut output).await {
            Ok(exit) => exit,
            Err(failure) => output.report(&failure),
        };
        Self {
            exit: exit.code(),
            out: out.text(),
            err: err.text(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }

    pub(crate) fn text(&self) -> String {
        format!(
            "--- stdout\n{}--- stderr\n{}--- exit {}",
            self.out, self.err, self.exit
        )
    }
}

/// What was written, and how many more writes it takes.
#[derive(Clone)]
pub(crate) struct Buffer(Arc<Mutex<Vec<u8>>>, usize);

impl Default for Buffer {
    fn default() -> Self {
        Self::of(usize::MAX)
    }
}

impl Buffer {
    pub(crate) fn of(writes: usize) -> Self {
        Self(Arc::default(), writes)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.1 = match self.1.checked_sub(1) {
            Some(left) => left,
            None => return Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
