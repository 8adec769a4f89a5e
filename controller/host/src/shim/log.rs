//! The log of a shim: a file in its sandbox's directory, with an end. What a guest does can cause
//! lines in it, and a guest may do it for days.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are written at most.
const MOST: u64 = 1 << 20;

static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// Standard error, up to a limit; silence after it.
#[derive(Debug, Default)]
pub(crate) struct Bounded;

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let before = WRITTEN.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if before < MOST {
            io::stderr().write_all(bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
