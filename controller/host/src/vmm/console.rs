//! The serial console of a guest: kept within bounds, and read for the few lines that say how the
//! guest is doing.
//!
//! Everything here is written by the guest. A hostile one can forge every line, and gains nothing
//! by it: the worst line ends its own sandbox.

use super::words::{last, tame};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::Instant;

/// Bytes kept from the beginning, and bytes kept of the latest.
const PART: usize = 256 << 10;
/// The longest line that is looked at.
const LINE: usize = 1024;

/// The most of the last lines that goes into an explanation, in bytes.
const EXPLAINED: usize = 4 << 10;

/// What the console has shown so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// PID 1 has control.
    pub up: bool,
    /// The guest API listens.
    pub ready: bool,
    /// A probe guest got as far as it should.
    pub probed: bool,
    /// The kernel panicked.
    pub panicked: bool,
    /// More was written than allowed.
    pub flooded: bool,
    /// The console was closed: QEMU has ended.
    pub closed: bool,
}

/// A console, shared between the task that reads it and whoever wants to see it.
#[derive(Clone, Debug)]
pub(crate) struct Console {
    kept: Arc<Mutex<Kept>>,
    seen: watch::Sender<Seen>,
    budget: u64,
    window: Duration,
}

impl Console {
    /// An empty console that allows `budget` bytes within each `window`.
    pub(crate) fn new(budget: u64, window: Duration) -> Self {
        Self {
            kept: Arc::default(),
            seen: watch::Sender::new(Seen::default()),
            budget,
            window,
        }
    }

    /// What it has shown, now and as it changes.
    pub(crate) fn seen(&self) -> watch::Receiver<Seen> {
        self.seen.subscribe()
    }

    /// Forgets what was seen, for another boot; what was kept is kept.
    pub(crate) fn start_over(&self) {
        self.seen.send_replace(Seen::default());
    }

    /// The first and the latest part as text.
    pub(crate) fn text(&self) -> String {
        self.kept
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .text()
    }

    /// The last lines, for an explanation: bounded and without control characters, because the
    /// guest writes them and they go to people and into records.
    pub(crate) fn last_lines(&self, count: usize) -> String {
        let text = tame(&self.text());
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        let lines = lines[lines.len().saturating_sub(count)..].join("\n");
        last(&lines, EXPLAINED).to_owned()
    }

    /// Reads until the stream ends or floods.
    pub(crate) async fn read(&self, mut stream: UnixStream) {
        let mut chunk = [0_u8; 4096];
        let mut scanner = Scanner::default();
        let (mut since, mut written) = (Instant::now(), 0_u64);
        while let Ok(count @ 1..) = stream.read(&mut chunk).await {
            let bytes = &chunk[..count];
            self.kept
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(bytes);
            if since.elapsed() > self.window {
                (since, written) = (Instant::now(), 0);
            }
            written += bytes.len() as u64;
            let flooded = written > self.budget;
            self.seen.send_if_modified(|seen| {
                let before = *seen;
                scanner.scan(bytes, seen);
                seen.flooded |= flooded;
                *seen != before
            });
            if flooded {
                return;
            }
        }
        self.seen.send_modify(|seen| seen.closed = true);
    }
}

#[derive(Debug, Default)]
struct Kept {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    dropped: u64,
}

impl Kept {
    fn push(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(PART - self.head.len()));
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(PART);
        self.tail.drain(..over);
        self.dropped += over as u64;
    }

    fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        let mut text = String::from_utf8_lossy(&self.head).into_owned();
        if self.dropped > 0 {
            text.push_str(&format!("\n[{} bytes were not kept]\n", self.dropped));
        }
        text.push_str(&String::from_utf8_lossy(&tail));
        text
    }
}

/// Puts lines together from pieces; of a longer line only the beginning is looked at.
#[derive(Default)]
struct Scanner {
    line: Vec<u8>,
}

impl Scanner {
    fn scan(&mut self, bytes: &[u8], seen: &mut Seen) {
        for byte in bytes {
            if *byte == b'\n' {
                self.look(seen);
                self.line.clear();
            } else if self.line.len() < LINE {
                self.line.push(*byte);
            }
        }
        // A panicking kernel may stop in the middle of its last line.
        self.look(seen);
    }

    fn look(&self, seen: &mut Seen) {
        let has = |mark: &str| {
            self.line
                .windows(mark.len())
                .any(|part| part == mark.as_bytes())
        };
        seen.up |= has("lazaret-guest: up");
        seen.ready |= has("lazaret-guest: ready");
        seen.probed |= has("lazaret-guest: probe ok");
        seen.panicked |= has("Kernel panic");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn marks_are_seen_across_any_split_of_the_stream() {
        let text =
            b"boot\nlazaret-guest: up\r\nlazaret-guest: ready\r\n[1.0] Kernel panic - not syncing";
        for cut in 0..text.len() {
            let console = Console::new(1 << 20, Duration::from_secs(3600));
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(&text[..cut]).await.unwrap();
            let write = async move {
                theirs.write_all(&text[cut..]).await.unwrap();
            };
            tokio::join!(console.read(ours), write);
            let seen = *console.seen().borrow();
            assert!(
                seen.up
                    && seen.ready
                    && seen.panicked
                    && seen.closed
                    && !seen.probed
                    && !seen.flooded,
                "{cut}"
            );
        }
    }

    #[tokio::test]
    async fn a_flood_is_noticed_and_not_read_on() {
        let console = Console::new(10_000, Duration::from_secs(3600));
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let flood = tokio::spawn(async move {
            // Ends with an error once the reader is gone.
            while theirs.write_all(&[b'x'; 4096]).await.is_ok() {}
        });
        console.read(ours).await;
        flood.await.unwrap();
        assert!(console.seen().borrow().flooded);
        assert!(console.text().len() < 20_000);
    }

    #[tokio::test]
    async fn the_guest_does_not_decide_how_long_an_explanation_is() {
        let console = Console::new(1 << 20, Duration::from_secs(3600));
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let write = async move {
            theirs.write_all(b"early\n").await.unwrap();
            for _ in 0..50 {
                theirs.write_all(&[b'x'; 10_000]).await.unwrap();
                theirs.write_all(b"\x1b]0;title\x07\n").await.unwrap();
            }
            theirs.write_all(b"Kernel panic\x1b[1A\n").await.unwrap();
        };
        tokio::join!(console.read(ours), write);
        let lines = console.last_lines(12);
        assert!(lines.len() <= EXPLAINED, "{}", lines.len());
        assert!(lines.ends_with("Kernel panic\u{fffd}[1A"), "{lines}");
        assert!(!lines.contains('\u{1b}') && !lines.contains("early"));
        assert!(console.last_lines(1000).len() <= EXPLAINED);
    }

    #[test]
    fn the_first_and_the_latest_part_are_kept() {
        let mut kept = Kept::default();
        kept.push(b"first line\n");
        for _ in 0..1000 {
            kept.push(&[b'x'; 1000]);
        }
        kept.push(b"last line\n");
        assert_eq!((kept.head.len(), kept.tail.len()), (PART, PART));
        let text = kept.text();
        assert!(text.starts_with("first line") && text.ends_with("last line\n"));
        assert!(text.contains(&format!("[{} bytes were not kept]", kept.dropped)));
    }
}
