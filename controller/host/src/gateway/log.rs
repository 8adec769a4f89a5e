//! The egress log of one sandbox: what it tried to reach and what was decided.
//!
//! It is a ring: a guest can make it forget old records, never grow. So that a flood does not push
//! out everything else, an attempt that was recorded within the last minute is counted there, and
//! beyond [`MAX_NEW`] different ones of a kind in a minute the rest are counted in one record.

use jiff::{SignedDuration, Timestamp};
use lazaret_api::host::{EgressRecord, EgressRecords};
use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most records kept.
const KEPT: usize = 4096;
/// The most records one call answers with.
const ANSWERED: usize = 1000;
/// The most new records of a kind within [`WINDOW`].
const MAX_NEW: u32 = 200;
/// For how long equal attempts are counted in one record.
const WINDOW: SignedDuration = SignedDuration::from_secs(60);
/// The longest destination or reason, in bytes.
const MAX_TEXT: usize = 300;

/// What a record says, apart from numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Attempt {
    kind: String,
    destination: String,
    port: Option<u16>,
    allowed: bool,
    reason: String,
}

/// What a connection moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Volume {
    /// Bytes from the guest.
    pub(super) bytes_out: u64,
    /// Bytes to the guest.
    pub(super) bytes_in: u64,
    /// How long it lasted.
    pub(super) duration_ms: u64,
}

#[derive(Debug, Default)]
struct Ring {
    records: VecDeque<EgressRecord>,
    /// The record in which a further attempt like it is counted.
    latest: HashMap<Attempt, u64>,
    /// Per kind: since when, and how many records were made since.
    made: HashMap<(String, bool), (Timestamp, u32)>,
    last: u64,
}

/// The egress log of one sandbox. Cheap to clone; all clones are one log.
#[derive(Clone, Debug, Default)]
pub struct EgressLog(Arc<Mutex<Ring>>);

impl EgressLog {
    /// An empty log.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The records with a higher number, oldest first, at most 1,000. `dropped` says how many of
    /// those are no longer kept. A record can still be counted up after it was read.
    #[must_use]
    pub fn after(&self, seq: u64) -> EgressRecords {
        let ring = self.ring();
        let first = ring
            .records
            .front()
            .map_or(ring.last + 1, |record| record.seq);
        let skipped = usize::try_from((seq + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        EgressRecords {
            records: ring
                .records
                .iter()
                .skip(skipped)
                .take(ANSWERED)
                .cloned()
                .collect(),
            dropped: first.saturating_sub(seq.saturating_add(1)),
        }
    }

    pub(super) fn allow(
        &self,
        kind: &str,
        destination: &dyn Display,
        port: Option<u16>,
        reason: &dyn Display,
    ) {
        self.add(kind, destination, port, true, reason, Volume::default());
    }

    pub(super) fn refuse(
        &self,
        kind: &str,
        destination: &dyn Display,
        port: Option<u16>,
        reason: &dyn Display,
    ) {
        self.add(kind, destination, port, false, reason, Volume::default());
    }

    pub(super) fn add(
        &self,
        kind: &str,
        destination: &dyn Display,
        port: Option<u16>,
        allowed: bool,
        reason: &dyn Display,
        volume: Volume,
    ) {
        let (destination, reason) = (
            bounded(destination.to_string()),
            bounded(reason.to_string()),
        );
        let attempt = Attempt {
            kind: kind.to_owned(),
            destination,
            port,
            allowed,
            reason,
        };
        self.ring().add(Timestamp::now(), attempt, volume);
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn add(&mut self, now: Timestamp, attempt: Attempt, volume: Volume) {
        if self.count_in_latest(now, &attempt, volume) {
            return;
        }
        let made = self
            .made
            .entry((attempt.kind.clone(), attempt.allowed))
            .or_insert((now, 0));
        if now.duration_since(made.0) >= WINDOW {
            *made = (now, 0);
        }
        made.1 = made.1.saturating_add(1);
        if made.1 <= MAX_NEW {
            return self.push(now, attempt, volume);
        }
        let rest = Attempt {
            destination: "(various)".to_owned(),
            port: None,
            reason: format!("more than {MAX_NEW} different ones in a minute"),
            ..attempt
        };
        if !self.count_in_latest(now, &rest, volume) {
            self.push(now, rest, volume);
        }
    }

    /// Counts an attempt in the record that was made of one like it, if that was not long ago.
    fn count_in_latest(&mut self, now: Timestamp, attempt: &Attempt, volume: Volume) -> bool {
        let Some(first) = self.records.front().map(|record| record.seq) else {
            return false;
        };
        let index = self
            .latest
            .get(attempt)
            .and_then(|seq| usize::try_from(seq.checked_sub(first)?).ok());
        let Some(record) = index.and_then(|index| self.records.get_mut(index)) else {
            return false;
        };
        if now.duration_since(record.at) >= WINDOW {
            return false;
        }
        record.count = record.count.saturating_add(1);
        record.bytes_out = record.bytes_out.saturating_add(volume.bytes_out);
        record.bytes_in = record.bytes_in.saturating_add(volume.bytes_in);
        record.duration_ms = record.duration_ms.saturating_add(volume.duration_ms);
        true
    }

    fn push(&mut self, now: Timestamp, attempt: Attempt, volume: Volume) {
        if self.records.len() >= KEPT
            && let Some(old) = self.records.pop_front()
        {
            let EgressRecord {
                kind,
                destination,
                port,
                allowed,
                reason,
                seq,
                ..
            } = old;
            let old = Attempt {
                kind,
                destination,
                port,
                allowed,
                reason,
            };
            if self.latest.get(&old) == Some(&seq) {
                self.latest.remove(&old);
            }
        }
        self.last += 1;
        self.latest.insert(attempt.clone(), self.last);
        let Attempt {
            kind,
            destination,
            port,
            allowed,
            reason,
        } = attempt;
        self.records.push_back(EgressRecord {
            seq: self.last,
            at: now,
            kind,
            destination,
            port,
            allowed,
            reason,
            count: 1,
            bytes_out: volume.bytes_out,
            bytes_in: volume.bytes_in,
            duration_ms: volume.duration_ms,
        });
    }
}

/// Text from outside, cut to a length a record may have.
fn bounded(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT)
            .rev()
            .find(|end| text.is_char_boundary(*end))
            .unwrap_or(0);
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(destination: &str) -> Attempt {
        Attempt {
            kind: "dns".to_owned(),
            destination: destination.to_owned(),
            port: None,
            allowed: false,
            reason: "no rule".to_owned(),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn equal_attempts_are_counted_in_one_record_until_a_minute_is_over() {
        let log = EgressLog::new();
        for second in [0, 1, 59, 60] {
            log.ring()
                .add(at(second), attempt("a.example"), Volume::default());
        }
        let counts: Vec<_> = log
            .after(0)
            .records
            .iter()
            .map(|record| (record.seq, record.count))
            .collect();
        assert_eq!(counts, [(1, 3), (2, 1)]);
        assert_eq!(log.after(1).records.len(), 1);
        assert_eq!(log.after(u64::MAX - 1).records.len(), 0);
    }

    #[test]
    fn a_flood_of_different_attempts_neither_grows_the_log_nor_flushes_it() {
        let log = EgressLog::new();
        log.ring()
            .add(at(0), attempt("first.example"), Volume::default());
        for index in 0..50_000 {
            log.ring().add(
                at(1),
                attempt(&format!("{index}.example")),
                Volume::default(),
            );
        }
        let records = log.after(0).records;
        assert_eq!(records[0].destination, "first.example");
        assert_eq!(records.len(), 201);
        assert_eq!(
            records.iter().map(|record| record.count).sum::<u64>(),
            50_001
        );
    }

    #[test]
    fn the_ring_says_how_many_records_are_gone() {
        let log = EgressLog::new();
        for index in 0..2 * KEPT {
            let minute = i64::try_from(index).unwrap() * 60;
            log.ring().add(
                at(minute),
                attempt(&format!("{index}.example")),
                Volume::default(),
            );
        }
        assert_eq!(log.ring().records.len(), KEPT);
        assert_eq!(log.ring().latest.len(), KEPT);
        let kept = u64::try_from(KEPT).unwrap();
        let answer = log.after(0);
        assert_eq!(
            (answer.dropped, answer.records[0].seq, answer.records.len()),
            (kept, kept + 1, ANSWERED)
        );
        assert_eq!(log.after(2 * kept - 1).records.len(), 1);
        assert_eq!(log.after(2 * kept), EgressRecords::default());
    }
}
