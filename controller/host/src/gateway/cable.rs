//! The cable: frames with a length before them on a byte stream, as QEMU's `-netdev stream` sends
//! them, and the device that the TCP/IP stack sees.
//!
//! Both directions are one bounded buffer each. A frame is looked at where it was read and built
//! where it is sent from. While the guest does not take what is to be sent, nothing more is taken
//! from it either: a guest that stops reading stalls its own network and nothing else.

use bytes::{Buf, BufMut, BytesMut};
use lazaret_api::guest::net;
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium};
use smoltcp::time::Instant;
use std::io;
use tokio::net::UnixStream;

/// The length before each frame.
pub(super) const PREFIX: usize = 4;
/// An Ethernet header.
const ETHERNET: usize = 14;
/// The longest frame that belongs on this link.
pub(super) const MAX_FRAME: usize = ETHERNET + net::MTU as usize;
/// The longest frame QEMU can send, whatever the guest does. Beyond it the stream is out of step.
const MAX_LENGTH: usize = 4096 + 65_536;
/// No more is read while this much waits to be looked at.
const INBOUND_LIMIT: usize = 512 * 1024;
/// No more is built while this much waits to be sent.
pub(super) const OUTBOUND_LIMIT: usize = 1024 * 1024;
/// What one read asks for.
const READ: usize = 256 * 1024;

/// Why a cable can't be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {length} bytes was announced, which no network card sends")]
pub struct CableFault {
    /// The announced length.
    pub length: usize,
}

/// Both directions of a cable.
#[derive(Debug, Default)]
pub(super) struct Wire {
    inbound: BytesMut,
    outbound: BytesMut,
    /// The length of the frame in front, if the stack may have it.
    staged: Option<usize>,
}

impl Wire {
    /// The frame in front, if it is complete.
    pub(super) fn front(&self) -> Result<Option<&[u8]>, CableFault> {
        let Some(prefix) = self.inbound.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
        if length > MAX_LENGTH {
            return Err(CableFault { length });
        }
        Ok(self.inbound.get(PREFIX..PREFIX + length))
    }

    /// Lets the stack have the frame in front.
    pub(super) fn stage(&mut self) {
        self.staged = self.front().ok().flatten().map(<[u8]>::len);
    }

    /// Goes on to the next frame.
    pub(super) fn advance(&mut self) {
        self.staged = None;
        if let Ok(Some(frame)) = self.front() {
            let length = frame.len();
            self.inbound.advance(PREFIX + length);
        }
    }

    /// Whether another frame may be built.
    pub(super) fn may_send(&self) -> bool {
        self.outbound.len() < OUTBOUND_LIMIT
    }

    /// Whether there is something to send.
    pub(super) fn wants_write(&self) -> bool {
        !self.outbound.is_empty()
    }

    /// Whether there is room for more from the guest.
    pub(super) fn wants_read(&self) -> bool {
        self.inbound.len() < INBOUND_LIMIT
    }

    /// Reads what is there. `false` at the end of the stream.
    pub(super) fn read_from(&mut self, cable: &UnixStream) -> io::Result<bool> {
        self.inbound.reserve(READ);
        match cable.try_read_buf(&mut self.inbound) {
            Ok(0) => Ok(false),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            Ok(_) | Err(_) => Ok(true),
        }
    }

    /// Writes what the other end takes.
    pub(super) fn write_to(&mut self, cable: &UnixStream) -> io::Result<()> {
        match cable.try_write(&self.outbound) {
            Ok(sent) => self.outbound.advance(sent),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    /// Takes bytes as if they had been read.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.inbound.extend_from_slice(bytes);
    }

    /// Takes what is to be sent, as if it had been written.
    pub(super) fn take_outbound(&mut self) -> BytesMut {
        self.outbound.split()
    }
}

impl Device for Wire {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Sender<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Sender<'_>)> {
        let length = self.staged.take()?;
        let frame = self.inbound.get(PREFIX..PREFIX + length)?;
        Some((Received(frame), Sender(&mut self.outbound)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sender<'_>> {
        self.may_send().then_some(Sender(&mut self.outbound))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = MAX_FRAME;
        // The cable is a byte stream between two processes: what arrives is what was sent.
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities.checksum.udp = Checksum::Tx;
        capabilities.checksum.icmpv4 = Checksum::Tx;
        capabilities
    }
}

/// A frame from the guest.
pub(super) struct Received<'a>(&'a [u8]);

impl smoltcp::phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

/// Room for a frame to the guest.
pub(super) struct Sender<'a>(&'a mut BytesMut);

impl smoltcp::phy::TxToken for Sender<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        self.0.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
        let start = self.0.len();
        self.0.resize(start + len, 0);
        f(&mut self.0[start..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in_however_the_stream_is_cut() {
        let mut wire = Wire::default();
        let stream = [&[0, 0, 0, 2, 7, 8][..], &[0, 0, 0, 0], &[0, 0, 0, 1, 9]].concat();
        let mut seen = Vec::new();
        for byte in stream {
            wire.feed(&[byte]);
            while let Some(frame) = wire.front().unwrap().map(<[u8]>::to_vec) {
                seen.push(frame);
                wire.advance();
            }
        }
        assert_eq!(seen, [vec![7, 8], vec![], vec![9]]);
    }

    #[test]
    fn a_length_no_card_sends_is_a_fault_before_anything_is_kept_for_it() {
        let mut wire = Wire::default();
        wire.feed(&u32::MAX.to_be_bytes());
        assert_eq!(
            wire.front(),
            Err(CableFault {
                length: 0xffff_ffff
            })
        );
        assert!(wire.inbound.capacity() < MAX_FRAME);
    }
}
