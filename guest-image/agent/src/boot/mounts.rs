//! The file systems: the bare ones of the initramfs, the overlay root, and the move into it.

use super::disks::Disks;
use super::{BootError, Step};
use lazaret_api::guest::{AGENT_UID, UPLOADS, WORKSPACE};
use rustix::fs::{Gid, Mode, Uid};
use rustix::mount::{MountFlags, mount, mount_move};
use std::ffi::CStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Where control groups are mounted.
pub(super) const CGROUPS: &str = "/sys/fs/cgroup";
/// The agent's home.
const HOME: &str = "/home/agent";
/// Where the root is put together before it becomes `/`.
const NEW_ROOT: &str = "/new-root";

const SAFE: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
const NO_EXEC: MountFlags = SAFE.union(MountFlags::NOEXEC);

fn put(
    source: &str,
    target: &str,
    kind: &str,
    flags: MountFlags,
    data: &CStr,
) -> Result<(), BootError> {
    fs::create_dir_all(target).step(format!("making {target}"))?;
    mount(source, target, kind, flags, data).step(format!("mounting {target}"))
}

/// What the kernel needs to talk to us at all.
pub(super) fn bare() -> Result<(), BootError> {
    put(
        "devtmpfs",
        "/dev",
        "devtmpfs",
        MountFlags::NOSUID,
        c"mode=0755",
    )?;
    put("proc", "/proc", "proc", NO_EXEC, c"")?;
    put("sysfs", "/sys", "sysfs", NO_EXEC, c"")
}

/// Puts the root together: the image below, the sandbox's disk above. Nothing on it may be a
/// device or change its user.
pub(super) fn root(disks: &Disks) -> Result<(), BootError> {
    let image = disks.root.display().to_string();
    let disk = disks.disk.display().to_string();
    put(
        &image,
        "/image",
        "erofs",
        SAFE.union(MountFlags::RDONLY).union(MountFlags::NOATIME),
        c"",
    )?;
    put(&disk, "/disk", "ext4", SAFE.union(MountFlags::NOATIME), c"")?;
    for dir in ["/disk/upper", "/disk/work"] {
        fs::create_dir_all(dir).step(format!("making {dir}"))?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))
            .step(format!("opening {dir}"))?;
    }
    let layers = c"lowerdir=/image,upperdir=/disk/upper,workdir=/disk/work";
    put(
        "overlay",
        NEW_ROOT,
        "overlay",
        SAFE.union(MountFlags::NOATIME),
        layers,
    )
}

/// Makes the new root `/`, and mounts what a running system has.
pub(super) fn switch() -> Result<(), BootError> {
    for (from, to) in [("/dev", "dev"), ("/proc", "proc"), ("/sys", "sys")] {
        let target = format!("{NEW_ROOT}/{to}");
        fs::create_dir_all(&target).step(format!("making {target}"))?;
        mount_move(from, &target).step(format!("moving {from}"))?;
    }
    rustix::process::chdir(NEW_ROOT).step("entering the new root")?;
    mount_move(".", "/").step("moving the new root")?;
    rustix::process::chroot(".").step("changing root")?;
    rustix::process::chdir("/").step("entering the root")?;

    put(
        "devpts",
        "/dev/pts",
        "devpts",
        MountFlags::NOSUID.union(MountFlags::NOEXEC),
        c"mode=0620,gid=5,ptmxmode=0666",
    )?;
    put("tmpfs", "/dev/shm", "tmpfs", SAFE, c"mode=1777")?;
    put("tmpfs", "/run", "tmpfs", NO_EXEC, c"mode=0755,size=16m")?;
    put("cgroup2", CGROUPS, "cgroup2", NO_EXEC, c"nsdelegate")?;
    for (link, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        rustix::fs::symlink(target, format!("/dev/{link}")).step(format!("linking /dev/{link}"))?;
    }
    // /tmp lies on the disk and not in memory: builds fill it.
    directory("/tmp".as_ref(), 0o1777, 0)?;
    directory(UPLOADS.as_ref(), 0o755, 0)?;
    directory(WORKSPACE.as_ref(), 0o755, AGENT_UID)?;
    directory(HOME.as_ref(), 0o750, AGENT_UID)
}

fn directory(path: &Path, mode: u32, owner: u32) -> Result<(), BootError> {
    let name = path.display();
    fs::create_dir_all(path).step(format!("making {name}"))?;
    rustix::fs::chown(path, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))
        .step(format!("giving away {name}"))?;
    rustix::fs::chmod(path, Mode::from_raw_mode(mode)).step(format!("setting the mode of {name}"))
}
