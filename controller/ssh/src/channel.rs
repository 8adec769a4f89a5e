//! A program of the host side, running at the far end of an SSH channel: its standard input and
//! output are a byte stream, the end of its standard error is kept for the message when it fails.

use russh::client::Msg;
use russh::{Channel, ChannelMsg};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio_util::sync::CancellationToken;

/// How much standard error is kept.
const STDERR_KEPT: usize = 2048;
/// What is read ahead of the HTTP/2 connection, in bytes.
const READ_AHEAD: usize = 256 * 1024;

/// The programs that may be asked for. Their names are the only command texts that ever cross the
/// SSH connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remote {
    /// The host API.
    Session,
    /// The host's way back to the controller.
    Uplink,
}

impl Remote {
    /// The command text.
    #[must_use]
    pub const fn command(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Uplink => "uplink",
        }
    }
}

/// What is known of a program's end.
#[derive(Clone, Debug, Default)]
pub struct Remains {
    shared: Arc<Mutex<Tail>>,
    closed: CancellationToken,
}

#[derive(Debug, Default)]
struct Tail {
    stderr: Vec<u8>,
    status: Option<u32>,
}

impl Remains {
    fn keep(&self, data: &[u8]) {
        let mut tail = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        tail.stderr.extend_from_slice(data);
        let excess = tail.stderr.len().saturating_sub(STDERR_KEPT);
        tail.stderr.drain(..excess);
    }

    fn ended(&self, status: u32) {
        self.shared
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .status = Some(status);
    }

    /// Resolves when the channel is closed and nothing more will become known.
    pub async fn complete(&self) {
        self.closed.cancelled().await;
    }

    /// The program's exit status, if it was told.
    #[must_use]
    pub fn status(&self) -> Option<u32> {
        self.shared
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .status
    }

    /// The end of its standard error as one line of printable text, empty if it said nothing.
    #[must_use]
    pub fn said(&self) -> String {
        let tail = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&tail.stderr);
        let printable: String = text
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        printable.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// A running program's standard input and output.
pub struct RemoteProgram {
    output: DuplexStream,
    input: Pin<Box<dyn AsyncWrite + Send>>,
    remains: Remains,
}

impl RemoteProgram {
    /// Takes a channel on which the program was asked for.
    pub(crate) fn over(channel: Channel<Msg>) -> Self {
        let (mut incoming, outgoing) = channel.split();
        let (mut pump, output) = tokio::io::duplex(READ_AHEAD);
        let remains = Remains::default();
        let kept = remains.clone();
        // Ends with the channel, or when the reader is dropped.
        tokio::spawn(async move {
            let _closed = kept.closed.clone().drop_guard();
            while let Some(message) = incoming.wait().await {
                match message {
                    ChannelMsg::Data { data } => match pump.write_all(&data).await {
                        Ok(()) => {}
                        Err(_) => break,
                    },
                    ChannelMsg::ExtendedData { data, .. } => kept.keep(&data),
                    ChannelMsg::ExitStatus { exit_status } => kept.ended(exit_status),
                    ChannelMsg::Failure => kept.keep(b"the host refused to run the command"),
                    ChannelMsg::Close => break,
                    // End of output is not the end: the exit status and late errors follow.
                    _ => {}
                }
            }
        });
        Self {
            output,
            input: Box::pin(outgoing.make_writer()),
            remains,
        }
    }

    /// What will be known of its end.
    #[must_use]
    pub fn remains(&self) -> Remains {
        self.remains.clone()
    }
}

impl AsyncRead for RemoteProgram {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.output).poll_read(cx, buf)
    }
}

impl AsyncWrite for RemoteProgram {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.input.as_mut().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.input.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.input.as_mut().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_error_is_kept_bounded_and_printable() {
        let remains = Remains::default();
        for _ in 0..1000 {
            remains.keep(b"noise noise noise\n");
        }
        remains.keep(b"\x1b[31mthe reason\x07\n");
        assert!(remains.said().len() <= STDERR_KEPT);
        assert!(
            remains.said().ends_with("[31mthe reason"),
            "{}",
            remains.said()
        );
        assert!(!remains.said().contains('\x1b'));
    }

    #[test]
    fn the_two_command_texts_are_plain_words() {
        assert_eq!(Remote::Session.command(), "session");
        assert_eq!(Remote::Uplink.command(), "uplink");
    }
}
