//! A directory that nothing leads out of.

use super::denial;
use lazaret_domain::{Denial, DenialCode, GuestPath};
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, fchown, mkdirat, open, openat2, statat,
};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

/// How a path may be resolved: beneath, over no link of any kind.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// A directory, held open.
#[derive(Debug)]
pub(super) struct Root {
    dir: OwnedFd,
    owner: Option<u32>,
}

impl Root {
    /// Opens one of ours. Its parents are ours too.
    pub(super) fn open(path: &Path, owner: Option<u32>) -> Result<Self, Denial> {
        let dir = open(path, DIRECTORY.union(OFlags::NOFOLLOW), Mode::empty()).map_err(denial)?;
        Ok(Self { dir, owner })
    }

    /// Opens a directory beneath.
    pub(super) fn directory(&self, path: &GuestPath) -> Result<OwnedFd, Denial> {
        enter(&self.dir, if path.is_root() { "." } else { path.as_str() }).map_err(denial)
    }

    /// The directory a path lies in, and its last segment. Nothing for the root itself.
    pub(super) fn parent<'a>(
        &self,
        path: &'a GuestPath,
    ) -> Result<Option<(OwnedFd, &'a str)>, Denial> {
        if path.is_root() {
            return Ok(None);
        }
        let (parent, name) = path
            .as_str()
            .rsplit_once('/')
            .unwrap_or((".", path.as_str()));
        Ok(Some((enter(&self.dir, parent).map_err(denial)?, name)))
    }

    /// Opens a directory beneath, and makes what is missing on the way.
    pub(super) fn make_directory(&self, path: &GuestPath) -> Result<OwnedFd, Denial> {
        let mut dir = enter(&self.dir, ".").map_err(denial)?;
        for segment in path
            .as_str()
            .split('/')
            .filter(|segment| !segment.is_empty())
        {
            let made = match mkdirat(&dir, segment, Mode::from_raw_mode(0o755)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(error) => return Err(denial(error)),
            };
            let next = enter(&dir, segment).map_err(|error| match error {
                Errno::NOTDIR => Denial::new(
                    DenialCode::AlreadyExists,
                    format!("{segment} is in the way"),
                ),
                error => denial(error),
            })?;
            if made {
                self.give(&next)?;
            }
            dir = next;
        }
        Ok(dir)
    }

    /// Gives something new to the owner of the area.
    pub(super) fn give(&self, file: &OwnedFd) -> Result<(), Denial> {
        match self.owner {
            Some(id) => {
                fchown(file, Some(Uid::from_raw(id)), Some(Gid::from_raw(id))).map_err(denial)
            }
            None => Ok(()),
        }
    }
}

/// Enters a directory beneath another.
pub(super) fn enter<P: rustix::path::Arg>(dir: &OwnedFd, path: P) -> rustix::io::Result<OwnedFd> {
    openat2(dir, path, DIRECTORY, Mode::empty(), BENEATH)
}

/// Opens a regular file for reading; not a FIFO or device, which could hang or have effects.
pub(super) fn open_file<P: rustix::path::Arg>(
    dir: &OwnedFd,
    name: P,
) -> rustix::io::Result<OwnedFd> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    openat2(dir, name, flags, Mode::empty(), BENEATH)
}

/// What a name is, without following it.
pub(super) fn look<P: rustix::path::Arg>(dir: &OwnedFd, name: P) -> rustix::io::Result<Stat> {
    statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}
