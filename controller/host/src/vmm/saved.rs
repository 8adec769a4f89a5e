//! A machine in a file: its devices and its memory, compressed (LZ4 frame format) with a checksum over
//! all of it. QEMU would load a state with a flipped bit; this does not give it one to the end.
//!
//! QEMU writes and reads through a pipe, a thread of ours packs and unpacks at its other end.

use super::{Holds, Vmm};
use crate::state::private_file;
use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

/// What the file ends with: the decoder takes one that was cut between two blocks for whole.
const END: &[u8; 8] = b"lazaret\n";

/// Stops a machine and writes all of it into a file that only we may read. It stays stopped.
///
/// # Errors
/// QEMU or the disk refuses. The file is gone then; the machine may be stopped.
pub(crate) async fn save(vmm: &mut Vmm, file: &Path) -> io::Result<()> {
    let (reader, writer) = io::pipe()?;
    let into = private_file(file)?;
    into.set_len(0)?;
    let packing = tokio::task::spawn_blocking(move || pack(reader, into));
    let saved = vmm.save(&File::from(OwnedFd::from(writer))).await;
    // QEMU's own end is closed by now, or it has failed and is killed with the pipe.
    let packed = packing.await.map_err(io::Error::other)?;
    // A full disk is the cause and a broken pipe its effect.
    let outcome = packed.and(saved);
    if outcome.is_err() {
        let _ = std::fs::remove_file(file);
    }
    outcome
}

/// Loads a machine from such a file and lets it run. The file is not changed.
///
/// # Errors
/// The file was altered or cut off, or QEMU refuses it.
pub(crate) async fn load(vmm: &mut Vmm, file: &Path) -> io::Result<()> {
    let from = File::open(file)?;
    let (reader, writer) = io::pipe()?;
    let unpacking = tokio::task::spawn_blocking(move || unpack(from, writer));
    let state = File::from(OwnedFd::from(reader));
    let loaded = vmm.load(&state, Holds::Everything).await;
    drop(state);
    // QEMU stops reading where its state ends; that all of it was whole is known only after that.
    let unpacked = unpacking.await.map_err(io::Error::other)?;
    match (unpacked, loaded) {
        (Err(error), _) if error.kind() != io::ErrorKind::BrokenPipe => Err(io::Error::new(
            error.kind(),
            format!("what was saved cannot be read: {error}"),
        )),
        (_, Err(error)) => Err(error),
        (_, Ok(())) => vmm.go_on().await,
    }
}

/// Loads a machine from a file that holds it as QEMU wrote it, and lets it run.
///
/// # Errors
/// QEMU refuses it.
pub(crate) async fn load_plain(vmm: &mut Vmm, file: &Path) -> io::Result<()> {
    vmm.load(&File::open(file)?, Holds::Everything).await?;
    vmm.go_on().await
}

fn pack(mut from: impl Read, into: impl Write) -> io::Result<()> {
    let info = FrameInfo::new()
        .block_size(BlockSize::Max1MB)
        .block_mode(BlockMode::Independent)
        .content_checksum(true);
    let mut encoder = FrameEncoder::with_frame_info(info, into);
    io::copy(&mut from, &mut encoder)?;
    let mut into = encoder.finish().map_err(io::Error::other)?;
    into.write_all(END)?;
    into.flush()
}

fn unpack(from: impl Read, mut into: impl Write) -> io::Result<()> {
    let mut decoder = FrameDecoder::new(from);
    let mut piece = vec![0; 1 << 20];
    let mut open = true;
    loop {
        let count = decoder.read(&mut piece)?;
        if count == 0 {
            let mut end = [0; END.len()];
            decoder.get_mut().read_exact(&mut end)?;
            return match &end {
                END => Ok(()),
                _ => Err(io::ErrorKind::InvalidData.into()),
            };
        }
        // Who has read enough closes the pipe; the checksum at the very end still has to be right.
        if open && let Err(error) = into.write_all(&piece[..count]) {
            if error.kind() != io::ErrorKind::BrokenPipe {
                return Err(error);
            }
            open = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed() -> Vec<u8> {
        let mut bytes = Vec::new();
        let memory: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
        pack(memory.as_slice(), &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_is_packed_comes_back() {
        let mut back = Vec::new();
        unpack(packed().as_slice(), &mut back).unwrap();
        assert_eq!(back.len(), 3_000_000);
        assert!((0..3_000_000_u32).all(|n| back[n as usize] == (n % 251) as u8));
    }

    #[test]
    fn a_flipped_bit_anywhere_and_every_cut_are_found() {
        let whole = packed();
        for at in (0..whole.len()).step_by(whole.len() / 97) {
            let mut flipped = whole.clone();
            flipped[at] ^= 4;
            assert!(
                unpack(flipped.as_slice(), io::sink()).is_err(),
                "flipped at {at}"
            );
            assert!(unpack(&whole[..at], io::sink()).is_err(), "cut at {at}");
        }
        assert!(unpack(&whole[..whole.len() - 1], io::sink()).is_err());
    }
}
