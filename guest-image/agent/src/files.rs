//! Files in and out, as tar streams, beneath a root that no link leads out of.
//!
//! The agent of the run may change the tree while it is read, and would like to be read or written
//! elsewhere. So no path is ever resolved as a whole by name: every directory is entered by
//! `openat2` with `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS`, and everything
//! after that happens through the descriptor, which stays what it was when it was checked.
//!
//! What leaves: regular files with one name only (a second name may lie outside the workspace),
//! directories, and the text of symbolic links. Devices, FIFOs and sockets never do.
//! What enters: regular files and directories, by a new file and a rename, so that a link in the way
//! is replaced and not followed.

mod list;
mod read;
mod root;
mod write;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use lazaret_api::guest::{AGENT_UID, Listing, UPLOADS, WORKSPACE};
use lazaret_domain::{Denial, DenialCode, GuestPath};
use root::Root;
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

/// How many pieces of a stream wait for a slow peer.
const QUEUE: usize = 4;

/// One of the two places files are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// The run's work, the agent's own.
    Workspace,
    /// What the operator gives to the run: the agent reads it and cannot change it.
    Uploads,
}

/// Where the areas lie, and who owns what is written there.
#[derive(Clone, Debug)]
pub struct Areas {
    /// The directory of the workspace.
    pub workspace: PathBuf,
    /// The directory of the uploads.
    pub uploads: PathBuf,
    /// The owner of what is written into the workspace; `None` leaves it to whoever writes.
    pub owner: Option<u32>,
}

impl Areas {
    /// As they are in a guest.
    #[must_use]
    pub fn of_a_guest() -> Self {
        Self {
            workspace: WORKSPACE.into(),
            uploads: UPLOADS.into(),
            owner: Some(AGENT_UID),
        }
    }

    fn open(&self, area: Area) -> Result<Root, Denial> {
        match area {
            Area::Workspace => Root::open(&self.workspace, self.owner),
            Area::Uploads => Root::open(&self.uploads, None),
        }
    }
}

/// The entries of a directory of the workspace.
///
/// # Errors
/// The directory does not exist beneath the workspace.
pub async fn list(areas: &Areas, path: GuestPath) -> Result<Listing, Denial> {
    let root = areas.open(Area::Workspace)?;
    blocking(move || list::list(&root, &path)).await
}

/// A file or tree of the workspace as a tar stream. A file is one entry with its own name; the
/// entries of a directory are named relative to it.
///
/// # Errors
/// There is no such file beneath the workspace, or it is not one that leaves.
pub async fn read(
    areas: &Areas,
    path: GuestPath,
) -> Result<mpsc::Receiver<io::Result<Bytes>>, Denial> {
    let root = areas.open(Area::Workspace)?;
    let source = blocking(move || read::open(&root, &path)).await?;
    let (sender, pieces) = mpsc::channel(QUEUE);
    spawn_blocking(move || read::send(source, &sender));
    Ok(pieces)
}

/// Takes a tar stream into a directory, which is made if it does not exist.
///
/// # Errors
/// An entry is not one that enters, or the disk is full. Entries before it stay.
pub async fn write<S>(areas: &Areas, area: Area, path: GuestPath, pieces: S) -> Result<(), Denial>
where
    S: Stream<Item = io::Result<Bytes>> + Send + 'static,
{
    let root = areas.open(area)?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    let feeder = tokio::spawn(async move {
        let mut pieces = std::pin::pin!(pieces);
        while let Some(piece) = pieces.next().await {
            if sender.send(piece).await.is_err() {
                return;
            }
        }
    });
    let result = blocking(move || write::receive(&root, &path, receiver)).await;
    feeder.abort();
    result
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Denial> + Send + 'static,
) -> Result<T, Denial> {
    spawn_blocking(work).await.unwrap_or_else(|_| {
        Err(Denial::new(
            DenialCode::Internal,
            "the work on files failed",
        ))
    })
}

/// What a failed call on a path means to whoever asked.
fn denial(error: Errno) -> Denial {
    let (code, message) = match error {
        Errno::NOENT | Errno::NOTDIR => (DenialCode::FileNotFound, "there is no such file"),
        Errno::LOOP | Errno::XDEV => (
            DenialCode::InvalidPath,
            "the path leads over a link or out of its area",
        ),
        Errno::ISDIR | Errno::NXIO => (DenialCode::NotAFile, "this is not a regular file"),
        Errno::NAMETOOLONG => (DenialCode::InvalidPath, "the path is too long"),
        Errno::EXIST | Errno::NOTEMPTY => (
            DenialCode::AlreadyExists,
            "a directory or file of that name is in the way",
        ),
        Errno::NOSPC | Errno::DQUOT => (DenialCode::DiskFull, "the sandbox's disk is full"),
        _ => {
            return Denial::new(
                DenialCode::Internal,
                format!("the file could not be handled: {error}"),
            );
        }
    };
    Denial::new(code, message)
}
