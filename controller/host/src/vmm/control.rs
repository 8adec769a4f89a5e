//! The two ways in which the guest agent's port is connected.

use super::Origin;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};

/// How long QEMU may take to listen: its monitor answers after that.
const LISTENS: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(2);

/// Our end of the guest agent's port.
pub(crate) enum Control {
    /// QEMU has connected to us, once.
    Connected(Mutex<Option<UnixStream>>),
    /// QEMU listens there, for one of us at a time.
    Listening(PathBuf),
}

impl Control {
    /// A connection to the port.
    ///
    /// # Errors
    /// QEMU cannot be reached, or has connected to us and that connection was taken.
    pub(crate) async fn connect(&self) -> io::Result<UnixStream> {
        match self {
            Self::Connected(stream) => stream
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take()
                .ok_or_else(|| io::ErrorKind::NotConnected.into()),
            Self::Listening(path) => UnixStream::connect(path).await,
        }
    }
}

/// How the port will be connected.
pub(super) enum End {
    Ours(UnixListener, PathBuf),
    Qemu(PathBuf),
}

impl End {
    pub(super) fn of(origin: &Origin, path: PathBuf) -> io::Result<Self> {
        Ok(match origin {
            Origin::Saved => {
                vacate(&path)?;
                Self::Qemu(path)
            }
            Origin::Boot | Origin::Template(_) | Origin::Fork(_) => Self::Ours(bind(&path)?, path),
        })
    }

    pub(super) async fn accept(&self) -> io::Result<Control> {
        match self {
            Self::Ours(listener, _) => {
                let stream = listener.accept().await?.0;
                Ok(Control::Connected(Mutex::new(Some(stream))))
            }
            Self::Qemu(path) => {
                let listens = async {
                    while !path.exists() {
                        tokio::time::sleep(LOOK).await;
                    }
                };
                tokio::time::timeout(LISTENS, listens).await?;
                Ok(Control::Listening(path.clone()))
            }
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // The name that QEMU made is QEMU's to use for as long as it lives.
        if let Self::Ours(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Listens at a path, whatever lay there.
pub(super) fn bind(path: &Path) -> io::Result<UnixListener> {
    vacate(path)?;
    UnixListener::bind(path)
}

fn vacate(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
