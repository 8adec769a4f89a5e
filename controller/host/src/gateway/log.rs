//! The egress log of one sandbox: what it tried to reach and what was decided.
//!
//! It is a ring: a guest can make it forget old records, never grow. So that a flood does not push
//! out everything else, an attempt that was recorded within the last minute is counted there, and
//! beyond [`MAX_NEW`] different ones of a kind in a minute the rest are counted in one record.
//!
//! A record that was handed out is final: whoever read it asks only for those after it. What follows
//! is counted in a record of its own.

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
/// The most records of a kind within [`WINDOW`] that only go on counting one that was handed out.
const MAX_MORE: u32 = 1000;
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
    /// Per kind, and whether they only go on counting: since when, and how many records were made
    /// since.
    made: HashMap<(String, bool, bool), (Timestamp, u32)>,
    last: u64,
    /// Up to here records were handed out.
    told: u64,
    /// Connections whose records are still to come.
    under_way: usize,
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
    /// those are no longer kept. What was handed out does not change any more.
    #[must_use]
    pub fn after(&self, seq: u64) -> EgressRecords {
        let mut ring = self.ring();
        let first = ring
            .records
            .front()
            .map_or(ring.last.saturating_add(1), |record| record.seq);
        let skipped =
            usize::try_from(seq.saturating_add(1).saturating_sub(first)).unwrap_or(usize::MAX);
        let records: Vec<_> = ring
            .records
            .iter()
            .skip(skipped)
            .take(ANSWERED)
            .cloned()
            .collect();
        let last = records.last().map_or(0, |record| record.seq);
        ring.told = ring.told.max(last);
        EgressRecords {
            records,
            dropped: first.saturating_sub(seq.saturating_add(1)),
        }
    }

    /// The number of the latest record, 0 before the first; nothing while connections are under way
    /// whose records are still to come.
    pub(crate) fn settled_at(&self) -> Option<u64> {
        let ring = self.ring();
        (ring.under_way == 0).then_some(ring.last)
    }

    /// A connection begins, whose record is made when it ends.
    pub(crate) fn begin(&self) {
        self.ring().under_way += 1;
    }

    /// It has ended, and its record is made.
    pub(crate) fn end(&self) {
        let mut ring = self.ring();
        ring.under_way = ring.under_way.saturating_sub(1);
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

    pub(crate) fn refuse(
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
        let known = match self.latest_of(now, &attempt) {
            Some(record) if record.open => return count(record.entry, volume),
            known => known.is_some(),
        };
        let limit = if known { MAX_MORE } else { MAX_NEW };
        let made = self
            .made
            .entry((attempt.kind.clone(), attempt.allowed, known))
            .or_insert((now, 0));
        if now.duration_since(made.0) >= WINDOW {
            *made = (now, 0);
        }
        made.1 = made.1.saturating_add(1);
        if made.1 <= limit {
            return self.push(now, attempt, volume);
        }
        let rest = Attempt {
            destination: "(various)".to_owned(),
            port: None,
            reason: if known {
                format!("more than {MAX_MORE} records in a minute")
            } else {
                format!("more than {MAX_NEW} different ones in a minute")
            },
            ..attempt
        };
        match self.latest_of(now, &rest) {
            Some(record) if record.open => count(record.entry, volume),
            _ => self.push(now, rest, volume),
        }
    }

    /// The record that was made of an attempt like it, if that was not long ago.
    fn latest_of(&mut self, now: Timestamp, attempt: &Attempt) -> Option<Latest<'_>> {
        let first = self.records.front()?.seq;
        let seq = *self.latest.get(attempt)?;
        let index = usize::try_from(seq.checked_sub(first)?).ok()?;
        let open = seq > self.told;
        let entry = self.records.get_mut(index)?;
        (now.duration_since(entry.at) < WINDOW).then_some(Latest { entry, open })
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

/// A record of an attempt, and whether a further one may be counted in it.
struct Latest<'ring> {
    entry: &'ring mut EgressRecord,
    open: bool,
}

/// Counts one more attempt in a record.
fn count(record: &mut EgressRecord, volume: Volume) {
    record.count = record.count.saturating_add(1);
    record.bytes_out = record.bytes_out.saturating_add(volume.bytes_out);
    record.bytes_in = record.bytes_in.saturating_add(volume.bytes_in);
    record.duration_ms = record.duration_ms.saturating_add(volume.duration_ms);
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
mod tests;
