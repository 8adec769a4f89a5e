//! Moves bytes between a command's pipes and the frames of its caller.

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use lazaret_api::frame::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::mpsc;

/// How much is read at once.
const CHUNK: usize = 32 * 1024;

/// Writes the caller's bytes to the command, until either has enough.
pub(super) async fn feed<S: Stream<Item = Bytes>>(input: S, mut pipe: Sender) {
    let mut input = std::pin::pin!(input);
    while let Some(bytes) = input.next().await {
        if pipe.write_all(&bytes).await.is_err() {
            // It closed its standard input, which is its right.
            return;
        }
    }
}

/// Reads both outputs until their ends, or until nobody wants them.
pub(super) async fn read(
    stdout: Option<Receiver>,
    stderr: Option<Receiver>,
    frames: mpsc::Sender<Frame>,
) {
    tokio::join!(
        one(stdout, &frames, Frame::Stdout),
        one(stderr, &frames, Frame::Stderr)
    );
}

async fn one(pipe: Option<Receiver>, frames: &mpsc::Sender<Frame>, frame: fn(Bytes) -> Frame) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = BytesMut::new();
    loop {
        // A place in the queue first: what is not read yet stays in the pipe and slows the command.
        let Ok(place) = frames.reserve().await else {
            return;
        };
        buffer.reserve(CHUNK);
        match pipe.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) => place.send(frame(buffer.split().freeze())),
        }
    }
}
