//! Whatever stands for the output of a command, its frames are the same however it is cut, written
//! again they are the same bytes, and none makes its reader wait for more than a frame may hold.
//!
//! Input: a byte that says how the stream is cut, then the stream.
#![no_main]

use bytes::BytesMut;
use lazaret_api::frame::{Frame, FrameError, Gap, HEADER, MAX_PAYLOAD};
use lazaret_api::guest::ExecExit;
use serde::{Serialize, de::DeserializeOwned};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((cut, stream)) = input.split_first() else {
        return;
    };
    let whole = read(stream, stream.len().max(1));
    assert_eq!(read(stream, usize::from(*cut) + 1), whole);
    let (frames, rest, error) = whole;
    let written: Vec<u8> = frames
        .iter()
        .flat_map(Frame::encode)
        .chain(rest.clone())
        .collect();
    assert_eq!(written, stream);
    assert!(error.is_some() || rest.len() < HEADER + MAX_PAYLOAD);
    for frame in frames {
        match frame {
            Frame::Exit(json) => stable::<ExecExit>(&json),
            Frame::Gap(json) => stable::<Gap>(&json),
            Frame::Stdout(_) | Frame::Stderr(_) => {}
        }
    }
});

/// The frames of a stream that comes in pieces, what is left of it, and what is wrong with that.
fn read(stream: &[u8], piece: usize) -> (Vec<Frame>, Vec<u8>, Option<FrameError>) {
    let (mut buffer, mut frames, mut error) = (BytesMut::new(), Vec::new(), None);
    for piece in stream.chunks(piece) {
        buffer.extend_from_slice(piece);
        while error.is_none() {
            match Frame::decode(&mut buffer) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(fault) => error = Some(fault),
            }
        }
    }
    (frames, buffer.to_vec(), error)
}

/// What reads is written so that it reads the same again.
fn stable<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(json: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<T>(json) {
        let written = serde_json::to_vec(&value).expect("JSON");
        assert_eq!(
            serde_json::from_slice::<T>(&written).expect("the same"),
            value
        );
    }
}
