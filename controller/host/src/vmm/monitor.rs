//! QEMU's monitor (QMP), as far as it is needed: greeting, handshake, and then silence that is read
//! away so that QEMU never waits for us.

use std::io;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

/// The longest line QEMU writes in a handshake.
const LINE: u64 = 64 << 10;

/// An open monitor.
pub(super) struct Monitor {
    reader: JoinHandle<()>,
    _writer: tokio::net::unix::OwnedWriteHalf,
}

impl Monitor {
    /// Takes the greeting and leaves the negotiation mode: QEMU has set up its machine then.
    pub(super) async fn greet(stream: UnixStream) -> io::Result<Self> {
        let (reader, mut writer) = stream.into_split();
        let mut reader = BufReader::new(reader);
        expect(&mut reader, "QMP").await?;
        writer
            .write_all(b"{\"execute\":\"qmp_capabilities\"}\n")
            .await?;
        expect(&mut reader, "return").await?;
        writer
            .write_all(b"{\"execute\":\"query-status\"}\n")
            .await?;
        expect(&mut reader, "return").await?;
        let reader = tokio::spawn(async move {
            let _ = tokio::io::copy_buf(&mut reader, &mut tokio::io::sink()).await;
        });
        Ok(Self {
            reader,
            _writer: writer,
        })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Reads lines until one is an object with this key; events in between are passed over.
async fn expect(
    reader: &mut BufReader<tokio::net::unix::OwnedReadHalf>,
    key: &str,
) -> io::Result<()> {
    loop {
        let mut line = Vec::new();
        if (&mut *reader)
            .take(LINE)
            .read_until(b'\n', &mut line)
            .await?
            == 0
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let value: serde_json::Value = serde_json::from_slice(&line)?;
        if value.get(key).is_some() {
            return Ok(());
        }
        if let Some(error) = value.get("error") {
            return Err(io::Error::other(format!("QEMU's monitor refused: {error}")));
        }
    }
}
