//! How the output of a command travels: the layout of Docker's attach stream (a kind, three zero
//! bytes, a big-endian length, the payload), with two kinds of our own.
//!
//! ```text
//!  0        1  2  3  4        8
//!  ┌──────┬─────────┬────────┬─────────────
//!  │ kind │  0 0 0  │ length │ payload …
//!  └──────┴─────────┴────────┴─────────────
//! ```
//!
//! A stream ends after its `Exit` frame. One that ends without it was cut off, and must never be
//! taken for a success.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The length of a frame's header in bytes.
pub const HEADER: usize = 8;
/// The longest payload in bytes. A longer one is an error of the peer.
pub const MAX_PAYLOAD: usize = 256 * 1024;

/// One frame of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Bytes of standard output.
    Stdout(Bytes),
    /// Bytes of standard error.
    Stderr(Bytes),
    /// The end: [`crate::guest::ExecExit`] as JSON.
    Exit(Bytes),
    /// Output that is no longer there: [`Gap`] as JSON.
    Gap(Bytes),
}

/// Output between two offsets that was not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gap {
    /// The offset (in bytes of framed output) at which the stream goes on.
    pub resume_at: u64,
    /// How many bytes are missing.
    pub dropped: u64,
}

/// What was wrong with a stream of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A kind that does not exist.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// The three bytes after the kind are not zero.
    #[error("reserved bytes of a frame are not zero")]
    Reserved,
    /// A payload over [`MAX_PAYLOAD`].
    #[error("a frame of {0} bytes is longer than allowed")]
    TooLong(usize),
}

impl Frame {
    fn parts(&self) -> (u8, &Bytes) {
        match self {
            Self::Stdout(payload) => (1, payload),
            Self::Stderr(payload) => (2, payload),
            Self::Exit(payload) => (3, payload),
            Self::Gap(payload) => (4, payload),
        }
    }

    /// Payload and header in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        HEADER + self.parts().1.len()
    }

    /// The frame as bytes. A payload over [`MAX_PAYLOAD`] is the caller's fault and is cut there.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let (kind, payload) = self.parts();
        let payload = &payload[..payload.len().min(MAX_PAYLOAD)];
        let mut out = BytesMut::with_capacity(HEADER + payload.len());
        out.put_u8(kind);
        out.put_bytes(0, 3);
        out.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
        out.put_slice(payload);
        out.freeze()
    }

    /// Takes the next whole frame from the front of `buffer`, or nothing while it is incomplete.
    ///
    /// # Errors
    /// [`FrameError`] for bytes that no sender of ours writes; the stream cannot go on then.
    pub fn decode(buffer: &mut BytesMut) -> Result<Option<Self>, FrameError> {
        if buffer.len() < HEADER {
            return Ok(None);
        }
        let kind = buffer[0];
        if !(1..=4).contains(&kind) {
            return Err(FrameError::UnknownKind(kind));
        }
        if buffer[1..4] != [0, 0, 0] {
            return Err(FrameError::Reserved);
        }
        let length = u32::from_be_bytes([buffer[4], buffer[5], buffer[6], buffer[7]]) as usize;
        if length > MAX_PAYLOAD {
            return Err(FrameError::TooLong(length));
        }
        if buffer.len() < HEADER + length {
            return Ok(None);
        }
        buffer.advance(HEADER);
        let payload = buffer.split_to(length).freeze();
        Ok(Some(match kind {
            1 => Self::Stdout(payload),
            2 => Self::Stderr(payload),
            3 => Self::Exit(payload),
            _ => Self::Gap(payload),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_frame() -> impl Strategy<Value = Frame> {
        (0_u8..4, prop::collection::vec(any::<u8>(), 0..200)).prop_map(|(kind, payload)| {
            let payload = Bytes::from(payload);
            match kind {
                0 => Frame::Stdout(payload),
                1 => Frame::Stderr(payload),
                2 => Frame::Exit(payload),
                _ => Frame::Gap(payload),
            }
        })
    }

    proptest! {
        #[test]
        fn frames_survive_any_split_of_the_stream(
            frames in prop::collection::vec(any_frame(), 0..10),
            cuts in prop::collection::vec(1_usize..64, 1..40),
        ) {
            let stream: Vec<u8> = frames.iter().flat_map(|f| f.encode().to_vec()).collect();
            let (mut buffer, mut out, mut rest, mut turn) = (BytesMut::new(), Vec::new(), &stream[..], 0);
            while !rest.is_empty() {
                let take = cuts[turn % cuts.len()].min(rest.len());
                turn += 1;
                buffer.extend_from_slice(&rest[..take]);
                rest = &rest[take..];
                while let Some(frame) = Frame::decode(&mut buffer).unwrap() {
                    out.push(frame);
                }
            }
            prop_assert_eq!(out, frames);
            prop_assert!(buffer.is_empty());
        }

        #[test]
        fn any_bytes_are_a_frame_an_error_or_incomplete(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(frame)) = Frame::decode(&mut buffer) {
                prop_assert!(frame.encoded_len() <= HEADER + MAX_PAYLOAD);
            }
        }
    }
}
