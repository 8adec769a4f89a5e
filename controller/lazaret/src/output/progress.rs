//! Progress on standard error: a spinner on a terminal, plain lines elsewhere.

use super::inert::inert_line;
use super::table::shortened;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// A task that takes longer than a second, as a person sees it.
pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Begins to show a task.
    #[must_use]
    pub fn start(what: &str) -> Self {
        if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) =
                ProgressStyle::with_template("{spinner} {msg} ({elapsed}) {prefix:.dim}")
            {
                bar.set_style(style);
            }
            bar.set_message(what.to_owned());
            bar.enable_steady_tick(Duration::from_millis(120));
            Self { bar: Some(bar) }
        } else {
            plain(what);
            Self { bar: None }
        }
    }

    /// Says what it is doing now.
    pub fn step(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(what.to_owned()),
            None => plain(what),
        }
    }

    /// Shows the latest line of a program; nothing where there is no terminal to show it on.
    pub fn detail(&self, line: &str) {
        if let Some(bar) = &self.bar {
            bar.set_prefix(shortened(&inert_line(line), 60));
        }
    }

    /// Says what came of it.
    pub fn done(self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        plain(what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Whoever closed standard error does not want to know.
fn plain(what: &str) {
    writeln!(std::io::stderr(), "{what}").ok();
}
