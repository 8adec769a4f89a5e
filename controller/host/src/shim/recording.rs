//! The output of one command, on disk: frames at offsets that never change, of which the first half
//! and the latest half are kept.
//!
//! ```text
//!   0 ........ half            start ....... start ....... len
//!   ├─ part-0 ──┤   dropped    ├─ part-start ┤├─ part-… ───┤
//! ```
//!
//! Parts are files named by the offset of their first byte, always cut between two frames. The
//! first part is never dropped; of the others, the oldest is dropped when there are too many. A
//! reader inside a dropped stretch gets a gap frame and goes on at its end. The command's exit frame
//! is the last of the stream. Who reads later (the session, once the shim is gone) finds all of it
//! in the directory.

use bytes::Bytes;
use lazaret_api::frame::{Frame, Gap, HEADER, MAX_PAYLOAD};
use lazaret_api::guest::ExecExit;
use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

/// Parts besides the first that are kept, the growing one included.
const LATER_PARTS: usize = 4;
/// Bytes read at once.
const CHUNK: u64 = 64 << 10;
/// The smallest and the largest cap on kept output.
pub(crate) const CAP: std::ops::RangeInclusive<u64> = (4 << 10)..=(1 << 30);

/// Where the next frame goes.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    /// The part it is appended to begins here.
    part: u64,
    /// Parts that begin here are dropped first.
    dropped: Vec<u64>,
}

/// Which parts there are: starts and lengths, in order, without overlap.
#[derive(Debug, Default)]
struct Index {
    parts: VecDeque<(u64, u64)>,
    len: u64,
}

impl Index {
    /// Finds the place of a frame of that length, and makes room.
    fn place(&mut self, frame: u64, cap: u64) -> Place {
        let half = cap / 2;
        let limit = |start: u64| {
            if start == 0 {
                half
            } else {
                half / LATER_PARTS as u64
            }
        };
        let mut dropped = Vec::new();
        let fits = self
            .parts
            .back()
            .is_some_and(|(start, len)| len + frame <= limit(*start));
        if !fits {
            self.parts.push_back((self.len, 0));
            while self.parts.len() > 1 + LATER_PARTS {
                // The first part stays; the oldest of the others goes.
                dropped.extend(self.parts.remove(1).map(|(start, _)| start));
            }
        }
        let last = self.parts.len() - 1;
        self.parts[last].1 += frame;
        self.len += frame;
        Place {
            part: self.parts[last].0,
            dropped,
        }
    }

    /// What is at an offset, of what lies before `end`.
    fn at(&self, offset: u64, end: u64) -> At {
        for (start, len) in &self.parts {
            if offset < *start {
                return At::Gap(Gap {
                    resume_at: *start,
                    dropped: *start - offset,
                });
            }
            if offset < start + len {
                return At::Bytes {
                    part: *start,
                    skip: offset - start,
                    left: (start + len).min(end).saturating_sub(offset),
                };
            }
        }
        At::End
    }
}

#[derive(Debug, PartialEq, Eq)]
enum At {
    Bytes { part: u64, skip: u64, left: u64 },
    Gap(Gap),
    End,
}

/// How far a recording is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes of framed output so far.
    pub len: u64,
    /// Whether the exit frame is among them.
    pub finished: bool,
}

/// A recording that can be read while it grows.
#[derive(Debug)]
pub(crate) struct Recording {
    dir: PathBuf,
    index: Mutex<Index>,
    progress: watch::Sender<Progress>,
}

/// How far the whole frames at the front of some bytes reach.
#[derive(Debug, PartialEq, Eq)]
enum Whole {
    /// So many bytes.
    Frames(usize),
    /// There is none: the first is so many bytes long.
    Longer(u64),
}

fn whole_frames(bytes: &[u8]) -> Whole {
    let mut at = 0;
    while let Some(header) = bytes.get(at..at + HEADER) {
        let length = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let next = at + HEADER + length as usize;
        if next > bytes.len() {
            if at == 0 {
                return Whole::Longer(next as u64);
            }
            break;
        }
        at = next;
    }
    match at {
        0 => Whole::Longer(u64::MAX),
        whole => Whole::Frames(whole),
    }
}

fn part_file(dir: &Path, start: u64) -> PathBuf {
    dir.join(format!("part-{start:020}"))
}

impl Recording {
    /// An empty recording in a directory that is there.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            index: Mutex::default(),
            progress: watch::Sender::default(),
        }
    }

    /// What another process left in that directory. It will not grow.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub(crate) fn left_in(dir: PathBuf) -> io::Result<Self> {
        let mut parts = Vec::new();
        for entry in std::fs::read_dir(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if let Some(start) = name
                .to_str()
                .and_then(|name| name.strip_prefix("part-")?.parse::<u64>().ok())
            {
                parts.push((start, entry.metadata()?.len()));
            }
        }
        parts.sort_unstable();
        let len = parts.last().map_or(0, |(start, len)| start + len);
        let index = Mutex::new(Index {
            parts: parts.into(),
            len,
        });
        Ok(Self {
            dir,
            index,
            progress: watch::Sender::new(Progress {
                len,
                finished: true,
            }),
        })
    }

    /// How far it is, now and as it grows.
    pub(crate) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Whole frames at an offset and before `end`, or a gap frame; with the offset after them. Nothing
    /// if there are none. What follows may be dropped before it is read, so half a frame is never
    /// given: the gap would lie in the middle of it. `end` comes from the progress: what lies beyond it may not be written yet.
    ///
    /// # Errors
    /// If a part cannot be read.
    pub(crate) async fn read_at(&self, offset: u64, end: u64) -> io::Result<Option<(Bytes, u64)>> {
        loop {
            if offset >= end {
                return Ok(None);
            }
            let at = self
                .index
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .at(offset, end);
            match at {
                At::End => return Ok(None),
                At::Gap(gap) => {
                    let payload = serde_json::to_vec(&gap)?;
                    return Ok(Some((Frame::Gap(payload.into()).encode(), gap.resume_at)));
                }
                At::Bytes { part, skip, left } => match self.read_frames(part, skip, left).await {
                    // It was dropped after we looked.
                    Err(error)
                        if error.kind() == io::ErrorKind::NotFound
                            && self.index_has_moved(part) => {}
                    read => {
                        return read.map(|bytes| {
                            let next = offset + bytes.len() as u64;
                            Some((bytes, next))
                        });
                    }
                },
            }
        }
    }

    fn index_has_moved(&self, part: u64) -> bool {
        !self
            .index
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .parts
            .iter()
            .any(|(start, _)| *start == part)
    }

    /// Frames as many as fit a chunk, or one that is longer.
    async fn read_frames(&self, part: u64, skip: u64, left: u64) -> io::Result<Bytes> {
        let mut bytes = self.read_part(part, skip, left.min(CHUNK)).await?;
        let whole = match whole_frames(&bytes) {
            Whole::Frames(length) => length,
            Whole::Longer(length) if length <= left => {
                return self.read_part(part, skip, length).await;
            }
            // The offset was not one between two frames; whoever gave it sees that.
            Whole::Longer(_) => bytes.len(),
        };
        Ok(bytes.split_to(whole))
    }

    async fn read_part(&self, part: u64, skip: u64, count: u64) -> io::Result<Bytes> {
        let file = part_file(&self.dir, part);
        let mut bytes = vec![0; usize::try_from(count).map_err(io::Error::other)?];
        // One hop to another thread, where tokio's own file would take three.
        tokio::task::spawn_blocking(move || {
            std::fs::File::open(file)?.read_exact_at(&mut bytes, skip)?;
            Ok(bytes.into())
        })
        .await
        .map_err(io::Error::other)?
    }
}

/// The one who writes a recording.
#[derive(Debug)]
pub(crate) struct Recorder {
    recording: Arc<Recording>,
    cap: u64,
    open: Option<(u64, File)>,
    /// A write was not finished: what followed would be taken for its rest.
    torn: bool,
}

impl Recorder {
    /// Writes to an empty recording, keeping about `cap` bytes.
    pub(crate) fn new(recording: Arc<Recording>, cap: u64) -> Self {
        Self {
            recording,
            cap,
            open: None,
            torn: false,
        }
    }

    /// Appends output, in frames small enough to be dropped in pieces.
    pub(crate) async fn output(&mut self, frame: Frame) -> io::Result<()> {
        let longest = usize::try_from(self.cap / 32)
            .unwrap_or(MAX_PAYLOAD)
            .min(MAX_PAYLOAD)
            - HEADER;
        let (mut payload, make): (Bytes, fn(Bytes) -> Frame) = match frame {
            Frame::Stdout(payload) => (payload, Frame::Stdout),
            Frame::Stderr(payload) => (payload, Frame::Stderr),
            Frame::Exit(_) | Frame::Gap(_) => return Ok(()),
        };
        while !payload.is_empty() {
            let piece = payload.split_to(payload.len().min(longest));
            self.append(&make(piece).encode(), false).await?;
        }
        Ok(())
    }

    /// Appends the exit frame. Nothing follows it. If it cannot be written, readers are sent away
    /// without it: to them the stream was cut off, and they will ask how the command ended.
    pub(crate) async fn finish(mut self, exit: &ExecExit) -> io::Result<()> {
        let written = match self.torn {
            true => Ok(()),
            false => self.append(&exit_frame(exit), true).await,
        };
        self.recording
            .progress
            .send_modify(|progress| progress.finished = true);
        written
    }

    async fn append(&mut self, bytes: &[u8], last: bool) -> io::Result<()> {
        let length = bytes.len() as u64;
        self.torn = true;
        let (place, progress) = {
            let mut index = self
                .recording
                .index
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            (
                index.place(length, self.cap),
                Progress {
                    len: index.len,
                    finished: last,
                },
            )
        };
        for start in place.dropped {
            tokio::fs::remove_file(part_file(&self.recording.dir, start)).await?;
        }
        let file = match &mut self.open {
            Some((start, file)) if *start == place.part => file,
            slot => {
                let path = part_file(&self.recording.dir, place.part);
                let file = File::options()
                    .append(true)
                    .create(true)
                    .mode(0o600)
                    .open(path)
                    .await?;
                &mut slot.insert((place.part, file)).1
            }
        };
        file.write_all(bytes).await?;
        file.flush().await?;
        self.torn = false;
        // Readers are told only of bytes that are in the file.
        self.recording.progress.send_replace(progress);
        Ok(())
    }
}

/// An exit as the frame that ends a stream.
pub(crate) fn exit_frame(exit: &ExecExit) -> Bytes {
    Frame::Exit(serde_json::to_vec(exit).unwrap_or_default().into()).encode()
}

#[cfg(test)]
mod tests;
