//! QEMU's monitor (QMP), as far as it is needed: the handshake, writing a machine's state out, and
//! loading one. A task reads all that QEMU says, so that QEMU never waits for us.
//!
//! Formats and commands: QEMU 7.2, `docs/interop/qmp-spec.txt` and `qapi/migration.json`.

use bytes::{Buf, BytesMut};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// The longest line that is taken from QEMU.
const LINE: usize = 64 << 10;
/// How often QEMU is asked whether it is through.
const LOOK: Duration = Duration::from_millis(1);
/// The name under which QEMU knows a state file that it was handed.
const STATE: &str = "state";
/// So fast that a state of some hundred kB is never held back: 1 TiB/s.
const UNLIMITED: u64 = 1 << 40;

/// What a state holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// The devices alone: the memory is a shared file.
    Devices,
    /// The memory too.
    Everything,
}

/// An open monitor. One question at a time.
pub(crate) struct Monitor {
    stream: Arc<UnixStream>,
    replies: mpsc::Receiver<Value>,
    migration: watch::Receiver<String>,
    reader: JoinHandle<()>,
}

impl Monitor {
    /// Takes the greeting and leaves the negotiation mode: QEMU has set up its machine then.
    pub(super) async fn greet(stream: UnixStream) -> io::Result<Self> {
        let stream = Arc::new(stream);
        let (answered, replies) = mpsc::channel(4);
        let (status, migration) = watch::channel(String::new());
        let reader = tokio::spawn(read(Arc::clone(&stream), answered, status));
        let mut monitor = Self {
            stream,
            replies,
            migration,
            reader,
        };
        monitor.reply().await?;
        monitor.ask("qmp_capabilities", json!({}), None).await?;
        monitor.ask("query-status", json!({}), None).await?;
        Ok(monitor)
    }

    /// Stops the machine and writes the state of its devices; its memory is a shared file already
    /// and is left out. The machine stays stopped.
    ///
    /// # Errors
    /// QEMU refuses or cannot write.
    pub(crate) async fn freeze(&mut self, state: &File) -> io::Result<()> {
        self.write_out(state, Holds::Devices).await
    }

    /// Stops the machine and writes its devices and its memory. It stays stopped.
    ///
    /// # Errors
    /// QEMU refuses or cannot write; the machine may be stopped then.
    pub(crate) async fn save(&mut self, state: &File) -> io::Result<()> {
        self.write_out(state, Holds::Everything).await
    }

    /// Stops the machine and writes all of it, after laying a new, empty layer over its disk: what the
    /// disk was at this moment does not change any more. It stays stopped. `layers` counts
    /// those that are in place, `top` is the last of them.
    ///
    /// # Errors
    /// QEMU refuses or cannot write; the machine may be stopped then, and the layer in place.
    pub(crate) async fn copy(
        &mut self,
        state: &File,
        layer: &Path,
        layers: &mut u32,
        top: &mut Option<PathBuf>,
    ) -> io::Result<()> {
        self.ask("stop", json!({}), None).await?;
        let (below, next) = (node(*layers), node(*layers + 1));
        let cache = json!({ "direct": false, "no-flush": true });
        let added = json!({
            "driver": "qcow2", "node-name": next, "discard": "unmap", "cache": cache, "backing": null,
            "file": { "driver": "file", "filename": layer, "discard": "unmap", "cache": cache },
        });
        self.ask("blockdev-add", added, None).await?;
        let over = json!({ "node": below, "overlay": next });
        self.ask("blockdev-snapshot", over, None).await?;
        *layers += 1;
        *top = Some(layer.to_owned());
        self.write_out(state, Holds::Everything).await
    }

    async fn write_out(&mut self, state: &File, holds: Holds) -> io::Result<()> {
        self.ask("stop", json!({}), None).await?;
        self.prepare(holds).await?;
        let unlimited = json!({ "max-bandwidth": UNLIMITED });
        self.ask("migrate-set-parameters", unlimited, None).await?;
        self.hand_over(state).await?;
        let uri = json!({ "uri": format!("fd:{STATE}") });
        self.ask("migrate", uri, None).await?;
        self.migrated().await?;
        // Told that it is through, QEMU still has to let go of the disk before it can go on.
        while self.status().await? == "finish-migrate" {
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    async fn status(&mut self) -> io::Result<String> {
        let answer = self.ask("query-status", json!({}), None).await?;
        Ok(answer["status"].as_str().unwrap_or_default().to_owned())
    }

    /// Loads the state of the devices into a machine that was started to wait for it. The machine
    /// does not run before [`Self::run`].
    ///
    /// # Errors
    /// QEMU refuses the state.
    pub(crate) async fn load(&mut self, state: &File, holds: Holds) -> io::Result<()> {
        // The address of the card is known: nobody has to be told where it is now.
        let silent = json!({ "announce-rounds": 0 });
        self.ask("migrate-set-parameters", silent, None).await?;
        self.prepare(holds).await?;
        self.hand_over(state).await?;
        let uri = json!({ "uri": format!("fd:{STATE}") });
        self.ask("migrate-incoming", uri, None).await?;
        self.migrated().await
    }

    /// Lets the machine run.
    ///
    /// # Errors
    /// QEMU refuses.
    pub(crate) async fn run(&mut self) -> io::Result<()> {
        self.ask("cont", json!({}), None).await.map(drop)
    }

    /// Has QEMU end in order, so that its disk is whole.
    ///
    /// # Errors
    /// QEMU refuses.
    pub(crate) async fn quit(&mut self) -> io::Result<()> {
        self.ask("quit", json!({}), None).await.map(drop)
    }

    async fn prepare(&mut self, holds: Holds) -> io::Result<()> {
        let devices = holds == Holds::Devices;
        let capabilities = json!({ "capabilities": [
            { "capability": "events", "state": true },
            { "capability": "x-ignore-shared", "state": devices },
        ] });
        self.ask("migrate-set-capabilities", capabilities, None)
            .await
            .map(drop)
    }

    async fn hand_over(&mut self, state: &File) -> io::Result<()> {
        let name = json!({ "fdname": STATE });
        self.ask("getfd", name, Some(state.as_fd())).await.map(drop)
    }

    /// Waits until QEMU says that it is through.
    async fn migrated(&mut self) -> io::Result<()> {
        let over = |status: &String| matches!(status.as_str(), "completed" | "failed");
        let status = self
            .migration
            .wait_for(over)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))?
            .clone();
        if status == "completed" {
            Ok(())
        } else {
            Err(io::Error::other("QEMU could not take the machine's state"))
        }
    }

    /// Sends a command, with a descriptor in the same message if there is one, and takes its answer.
    async fn ask(
        &mut self,
        command: &str,
        arguments: Value,
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<Value> {
        let line = format!(
            "{}\n",
            json!({ "execute": command, "arguments": arguments })
        );
        let mut sent = 0;
        while sent < line.len() {
            let (bytes, fds) = (&line.as_bytes()[sent..], fd.filter(|_| sent == 0));
            sent += self
                .stream
                .async_io(Interest::WRITABLE, || send(&self.stream, bytes, fds))
                .await?;
        }
        let mut answer = self.reply().await?;
        match answer.get("error") {
            None => Ok(answer["return"].take()),
            Some(error) => Err(io::Error::other(format!(
                "QEMU's monitor refused {command}: {}",
                error["desc"].as_str().unwrap_or("no reason given")
            ))),
        }
    }

    async fn reply(&mut self) -> io::Result<Value> {
        let ended = || io::ErrorKind::UnexpectedEof.into();
        self.replies.recv().await.ok_or_else(ended)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// What QEMU calls the disk's layer of that number; it was started with the first, 0.
fn node(layer: u32) -> String {
    format!("layer{layer}")
}

fn send(stream: &UnixStream, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    Ok(sendmsg(
        stream,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?)
}

/// Sorts what QEMU says: answers, and how a migration goes. Other events are passed over.
async fn read(
    stream: Arc<UnixStream>,
    answered: mpsc::Sender<Value>,
    migration: watch::Sender<String>,
) {
    let mut buffer = BytesMut::new();
    while stream.readable().await.is_ok() {
        match stream.try_read_buf(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => return,
        }
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line = buffer.split_to(end);
            buffer.advance(1);
            let Ok(value) = serde_json::from_slice::<Value>(&line) else {
                return;
            };
            if value["event"] == "MIGRATION" {
                let status = value["data"]["status"].as_str().unwrap_or_default();
                migration.send_replace(status.to_owned());
            } else if value.get("event").is_none() && answered.send(value).await.is_err() {
                return;
            }
        }
        if buffer.len() > LINE {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, SeekFrom, Write};
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    /// Plays QEMU: answers each command in turn, with events in between.
    fn qemu(answers: Vec<Value>) -> (UnixStream, JoinHandle<Vec<Value>>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let play = tokio::spawn(async move {
            let mut stream = BufReader::new(theirs);
            stream
                .get_mut()
                .write_all(b"{\"QMP\":{}}\n{\"event\":\"NIC_RX_FILTER_CHANGED\"}\n")
                .await
                .unwrap();
            let mut asked = Vec::new();
            for answer in answers {
                let mut line = String::new();
                if stream.read_line(&mut line).await.unwrap() == 0 {
                    break;
                }
                asked.push(serde_json::from_str(&line).unwrap());
                let line = format!("{{\"event\":\"RESUME\"}}\n{answer}\n");
                stream.get_mut().write_all(line.as_bytes()).await.unwrap();
            }
            asked
        });
        (ours, play)
    }

    #[tokio::test]
    async fn the_handshake_passes_over_events() {
        let ok = json!({ "return": {} });
        let (stream, play) = qemu(vec![ok.clone(), ok]);
        Monitor::greet(stream).await.unwrap();
        let asked = play.await.unwrap();
        assert_eq!(asked[0]["execute"], "qmp_capabilities");
        assert_eq!(asked[1]["execute"], "query-status");
    }

    #[tokio::test]
    async fn a_refusal_is_told_with_qemu_s_words() {
        let ok = json!({ "return": {} });
        let no = json!({ "error": { "class": "GenericError", "desc": "not now" } });
        let (stream, _play) = qemu(vec![ok.clone(), ok, no]);
        let mut monitor = Monitor::greet(stream).await.unwrap();
        let error = monitor.run().await.unwrap_err().to_string();
        assert!(
            error.contains("cont") && error.contains("not now"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_failed_migration_is_an_error_and_the_end_of_qemu_too() {
        let ok = json!({ "return": {} });
        let failed = json!({ "event": "MIGRATION", "data": { "status": "failed" } });
        let both = format!("{ok}\n{failed}");
        let mut answers = vec![ok; 5];
        // The last answer is followed by the event.
        let (stream, _play) = {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let play = tokio::spawn(async move {
                let mut stream = BufReader::new(theirs);
                stream.get_mut().write_all(b"{\"QMP\":{}}\n").await.unwrap();
                answers.push(Value::Null);
                for answer in answers {
                    let mut line = String::new();
                    stream.read_line(&mut line).await.unwrap();
                    let text = if answer.is_null() {
                        format!("{both}\n")
                    } else {
                        format!("{answer}\n")
                    };
                    stream.get_mut().write_all(text.as_bytes()).await.unwrap();
                }
                // Kept open until the other side has seen it.
                let mut rest = String::new();
                let _ = stream.read_line(&mut rest).await;
            });
            (ours, play)
        };
        let mut state = tempfile::tempfile().unwrap();
        state.write_all(b"x").unwrap();
        state.seek(SeekFrom::Start(0)).unwrap();
        let mut monitor = Monitor::greet(stream).await.unwrap();
        let error = monitor.load(&state, Holds::Devices).await.unwrap_err();
        assert!(error.to_string().contains("state"), "{error}");
        let mut text = String::new();
        state.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x", "the descriptor stays ours");
    }
}
