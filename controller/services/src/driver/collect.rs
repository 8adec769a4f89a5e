//! All that a command says, read whole.

use crate::ports::host_link::HostLink;
use bytes::BytesMut;
use futures::StreamExt;
use lazaret_api::frame::Frame;
use lazaret_api::guest::ExecExit;
use lazaret_domain::{Denial, DenialCode, ExecId, SandboxId};

/// All that a command said, up to a bound.
#[derive(Clone, Debug)]
pub(crate) struct Collected {
    /// How it ended.
    pub(crate) exit: ExecExit,
    /// Its standard output.
    pub(crate) stdout: Vec<u8>,
    /// Its standard error.
    pub(crate) stderr: Vec<u8>,
    /// Whether there was more.
    pub(crate) truncated: bool,
}

/// Reads a command's output from its start to its exit, at most `cap` bytes of each stream.
///
/// # Errors
/// What the host refused; `host_unreachable` if the stream was cut off before the exit, so that it is
/// worth asking again; `internal` if it is out of form, which it would be again.
pub(crate) async fn collect(
    link: &dyn HostLink,
    sandbox: &SandboxId,
    exec: &ExecId,
    cap: usize,
) -> Result<Collected, Denial> {
    let cut = || {
        Denial::new(
            DenialCode::HostUnreachable,
            "the output of a command was cut off",
        )
    };
    let garbled = || {
        Denial::new(
            DenialCode::Internal,
            "the host sent output that is out of form",
        )
    };
    let mut stream = link.output(sandbox, exec, 0, true).await?;
    let (mut buffer, mut stdout, mut stderr, mut truncated) =
        (BytesMut::new(), Vec::new(), Vec::new(), false);
    loop {
        while let Some(frame) = Frame::decode(&mut buffer).map_err(|_| garbled())? {
            let (kept, bytes) = match frame {
                Frame::Stdout(bytes) => (&mut stdout, bytes),
                Frame::Stderr(bytes) => (&mut stderr, bytes),
                Frame::Gap(_) => {
                    truncated = true;
                    continue;
                }
                Frame::Exit(json) => {
                    let exit = serde_json::from_slice(&json).map_err(|_| garbled())?;
                    return Ok(Collected {
                        exit,
                        stdout,
                        stderr,
                        truncated,
                    });
                }
            };
            let room = cap.saturating_sub(kept.len()).min(bytes.len());
            truncated |= room < bytes.len();
            kept.extend_from_slice(&bytes[..room]);
        }
        buffer.extend_from_slice(&stream.next().await.ok_or_else(cut)??);
    }
}
