//! `lazaret logs`: the output of a run, its tail or as it is written.

use super::delegate;
use crate::cli::Logs;
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use lazaret_api::public::EventBody;
use lazaret_domain::RunId;
use std::collections::VecDeque;

const DEFAULT_LINES: u32 = 200;
const PAGE: u32 = 500;

/// Prints the tail of a run's log, or follows it.
///
/// # Errors
/// As the controller refuses, or where it cannot be reached.
pub async fn logs(args: &Logs, client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    if !args.follow {
        let text = client
            .log_tail(&args.run, args.lines.unwrap_or(DEFAULT_LINES))
            .await?;
        out.guest(&text)?;
        return Ok(Exit::Done);
    }
    let after = match args.lines {
        Some(lines) => match catch_up(&args.run, lines, client, out).await? {
            Some(after) => after,
            None => return Ok(Exit::Done),
        },
        None => 0,
    };
    let mut follower = client.follow(&args.run, after);
    while let Some(news) = follower.next().await? {
        delegate::tell(&news, out)?;
    }
    Ok(Exit::Done)
}

/// Prints the last lines of what there is and gives the number of the last event seen; none where
/// the run is over.
async fn catch_up(
    run: &RunId,
    lines: u32,
    client: &Client,
    out: &mut Output,
) -> Result<Option<u64>, Failure> {
    let keep = usize::try_from(lines).unwrap_or(usize::MAX);
    let mut tail = Tail::new(keep);
    let mut after = 0;
    loop {
        let page = client.events(run, after, PAGE).await?;
        for event in &page.events {
            if let EventBody::Log { text, .. } = &event.body {
                tail.push(text);
            }
        }
        if page.complete || page.events.is_empty() {
            out.guest(&tail.text())?;
            return Ok((!page.complete).then_some(page.last.max(after)));
        }
        after = page.last;
    }
}

/// The last so many lines of a text that comes in pieces.
struct Tail {
    keep: usize,
    lines: VecDeque<String>,
    open: bool,
}

impl Tail {
    fn new(keep: usize) -> Self {
        Self {
            keep,
            lines: VecDeque::new(),
            open: false,
        }
    }

    fn push(&mut self, text: &str) {
        for piece in text.split_inclusive('\n') {
            match self.lines.back_mut() {
                Some(last) if self.open => last.push_str(piece),
                _ => self.lines.push_back(piece.to_owned()),
            }
            self.open = !piece.ends_with('\n');
            if self.lines.len() > self.keep {
                self.lines.pop_front();
            }
        }
    }

    fn text(self) -> String {
        self.lines.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_counts_lines_and_not_pieces() {
        let mut tail = Tail::new(2);
        for piece in ["one\ntw", "o\nthr", "ee", "\nfo", "ur"] {
            tail.push(piece);
        }
        assert_eq!(tail.text(), "three\nfour");
    }
}
