//! What a run did: its events, one after the other without gap, and the tail of its log.

use super::{Runs, within};
use crate::Principal;
use crate::core::Core;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use lazaret_api::public::{Event, EventBody, EventPage};
use lazaret_domain::run::RunPhase;
use lazaret_domain::{Denial, RunId};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::watch;

/// Events are read in pages of this size while following.
const PAGE: u32 = 256;
/// The most text that a log tail has, in bytes.
const TAIL_CAP: usize = 4 << 20;

/// Puts an explicit gap wherever numbers are missing: events that were evicted. The gap takes the
/// number of the last event that it stands for, so a reader goes on from it.
fn with_gaps(after: u64, events: Vec<Event>) -> Vec<Event> {
    let mut last = after;
    let mut out = Vec::with_capacity(events.len());
    for event in events {
        if event.seq > last + 1 {
            let body = EventBody::Gap {
                missing: event.seq - last - 1,
                unit: "events".to_owned(),
            };
            out.push(Event {
                seq: event.seq - 1,
                at: event.at,
                body,
            });
        }
        last = event.seq;
        out.push(event);
    }
    out
}

/// One reader's place in the events of a run.
struct Follower {
    core: Arc<Core>,
    run: RunId,
    feed: watch::Receiver<u64>,
    after: u64,
    ready: VecDeque<Event>,
    ended: bool,
}

impl Follower {
    /// The next event; none after the last, or when the controller stops.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.after = event.seq;
                self.ended |= matches!(event.body, EventBody::End { .. });
                return Some(event);
            }
            if self.ended {
                return None;
            }
            // Marked as seen before the store is read: what comes in between is news again.
            self.feed.mark_unchanged();
            let events = self
                .core
                .ports
                .store
                .events(&self.run, self.after, PAGE)
                .await
                .ok()?;
            if !events.is_empty() {
                self.ready = with_gaps(self.after, events).into();
                continue;
            }
            tokio::select! {
                changed = self.feed.changed() => changed.ok()?,
                () = self.core.stop.cancelled() => return None,
            }
        }
    }
}

impl Runs {
    /// Events after a number; `limit` is 1 to 1000. Needs `read`.
    ///
    /// # Errors
    /// `run_not_found`, `invalid_request`, `scope_too_narrow`, `store_failed`.
    pub async fn events(
        &self,
        by: &Principal,
        run: &RunId,
        after: u64,
        limit: u32,
    ) -> Result<EventPage, Denial> {
        let record = self.record(by, run).await?;
        let limit = within("limit", limit, 1000)?;
        let stored = self.core.ports.store.events(run, after, limit).await?;
        let events = with_gaps(after, stored);
        let last = events
            .last()
            .map_or(after.min(record.last_seq), |event| event.seq);
        let complete = match events.last() {
            Some(event) => matches!(event.body, EventBody::End { .. }),
            None => record.state.phase() == RunPhase::Done,
        };
        Ok(EventPage {
            events,
            last,
            complete,
        })
    }

    /// Events after a number, then those to come, without gap or double; ends after `end`. It reads
    /// from the store at the reader's own speed. A number from the future gets a gap event and the
    /// rest from there, of a run that is over its `end`. Needs `read`.
    ///
    /// # Errors
    /// `run_not_found`, `scope_too_narrow`, `store_failed`.
    pub async fn follow(
        &self,
        by: &Principal,
        run: &RunId,
        after: u64,
    ) -> Result<BoxStream<'static, Event>, Denial> {
        let feed = self.core.feeds.subscribe(run);
        let record = self.record(by, run).await?;
        let done = record.state.phase() == RunPhase::Done;
        let mut ready = VecDeque::new();
        let mut from = after.min(record.last_seq);
        if after > record.last_seq {
            // Of a run that is over the reader gets the end all the same: it waits for that.
            from -= u64::from(done);
            let body = EventBody::Gap {
                missing: 0,
                unit: "events".to_owned(),
            };
            ready.push_back(Event {
                seq: from,
                at: self.core.now(),
                body,
            });
        }
        let follower = Follower {
            core: Arc::clone(&self.core),
            run: run.clone(),
            feed,
            after: from,
            ready,
            ended: done && after == record.last_seq,
        };
        let events = stream::unfold(follower, |mut follower| async move {
            let event = follower.next().await?;
            Some((event, follower))
        });
        Ok(events.boxed())
    }

    /// The last lines of the log, 1 to 5000 of them. Needs `read`.
    ///
    /// # Errors
    /// `run_not_found`, `invalid_request`, `scope_too_narrow`, `store_failed`.
    pub async fn log_tail(
        &self,
        by: &Principal,
        run: &RunId,
        lines: u32,
    ) -> Result<String, Denial> {
        self.record(by, run).await?;
        let lines = within("lines", lines, 5000)? as usize;
        let (mut before, mut parts, mut seen, mut size) = (u64::MAX, Vec::new(), 0, 0);
        // One line more than asked for: the first may be the end of a longer one.
        'pages: loop {
            let events = self.core.ports.store.log_before(run, before, PAGE).await?;
            if events.is_empty() {
                break;
            }
            for event in events {
                before = event.seq;
                if let EventBody::Log { text, .. } = event.body {
                    seen += text.matches('\n').count();
                    size += text.len();
                    parts.push(text);
                }
                if seen > lines || size > TAIL_CAP {
                    break 'pages;
                }
            }
        }
        parts.reverse();
        Ok(last_lines(&parts.concat(), lines).to_owned())
    }
}

/// The last lines of a text. A line that is not ended counts.
fn last_lines(text: &str, lines: usize) -> &str {
    let body = text.strip_suffix('\n').unwrap_or(text);
    let from = body
        .rmatch_indices('\n')
        .nth(lines - 1)
        .map_or(0, |(at, _)| at + 1);
    &text[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(seq: u64) -> Event {
        let body = EventBody::Note {
            text: String::new(),
        };
        Event {
            seq,
            at: jiff::Timestamp::UNIX_EPOCH,
            body,
        }
    }

    #[test]
    fn missing_numbers_become_a_gap_and_nothing_else_does() {
        let seqs = |after, list: &[u64]| {
            let events = with_gaps(after, list.iter().copied().map(event).collect());
            let show = |event: &Event| match event.body {
                EventBody::Gap { missing, .. } => format!("{}(-{missing})", event.seq),
                _ => event.seq.to_string(),
            };
            events.iter().map(show).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(seqs(0, &[1, 2, 3]), "1 2 3");
        assert_eq!(seqs(2, &[3]), "3");
        assert_eq!(seqs(0, &[4, 5, 9]), "3(-3) 4 5 8(-3) 9");
        assert_eq!(seqs(7, &[]), "");
    }

    #[test]
    fn the_tail_counts_lines_also_one_that_is_not_ended() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(last_lines("a\nb\nc", 2), "b\nc");
        assert_eq!(last_lines("a\n", 5), "a\n");
        assert_eq!(last_lines("", 1), "");
        assert_eq!(last_lines("\n\n\n", 1), "\n");
    }
}
