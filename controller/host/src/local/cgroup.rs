//! Cgroups that belong to the host's account, so that shims can limit their VMs without any more
//! rights. What cannot be had is left out: the host then says which limits are in force.
//!
//! With version 1 one directory in each hierarchy is handed over. With version 2 a subtree is, and
//! the sshd runs in a leaf of it: the kernel lets an account move a process only within a subtree
//! that it owns.

use super::account::Account;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

const ROOT: &str = "/sys/fs/cgroup";
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// What was handed over.
#[derive(Clone, Debug, Default)]
pub(super) struct Cgroup {
    name: String,
    /// Where the sshd goes, with version 2.
    leaf: Option<PathBuf>,
}

impl Cgroup {
    /// The directory's name in each hierarchy.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Moves a process into the subtree, where that is needed.
    pub(super) fn take_in(&self, pid: u32) {
        if let Some(leaf) = &self.leaf
            && let Err(error) = std::fs::write(leaf.join("cgroup.procs"), pid.to_string())
        {
            tracing::warn!(%error, "the sshd could not be put into its cgroup; sandboxes get no cgroup limits");
        }
    }
}

/// Hands over what can be handed over. Only root can.
pub(super) fn delegate(account: &Account) -> Cgroup {
    let mut cgroup = Cgroup {
        name: account.name.clone(),
        leaf: None,
    };
    if !rustix::process::geteuid().is_root() {
        return cgroup;
    }
    let root = Path::new(ROOT);
    let handed = if root.join("cgroup.controllers").exists() {
        version_2(root, account).map(|leaf| cgroup.leaf = Some(leaf))
    } else {
        CONTROLLERS.iter().try_for_each(|controller| {
            let hierarchy = root.join(controller);
            if hierarchy.is_dir() {
                hand_over(&hierarchy.join(&account.name), account)
            } else {
                Ok(())
            }
        })
    };
    if let Err(error) = handed {
        tracing::warn!(%error, "cgroups could not be handed to the host's account; sandboxes get no cgroup limits");
    }
    cgroup
}

fn version_2(root: &Path, account: &Account) -> io::Result<PathBuf> {
    let subtree = root.join(&account.name);
    let controllers = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
    std::fs::write(root.join("cgroup.subtree_control"), &controllers)?;
    hand_over(&subtree, account)?;
    let leaf = subtree.join("sshd");
    hand_over(&leaf, account)?;
    std::fs::write(subtree.join("cgroup.subtree_control"), &controllers)?;
    Ok(leaf)
}

/// The directory and the files by which processes are moved and children are given controllers;
/// the limits of the directory itself stay root's.
fn hand_over(directory: &Path, account: &Account) -> io::Result<()> {
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755))?;
    chown(directory, Some(account.uid), Some(account.gid))?;
    for file in [
        "cgroup.procs",
        "cgroup.threads",
        "tasks",
        "cgroup.subtree_control",
    ] {
        let path = directory.join(file);
        if path.exists() {
            chown(path, Some(account.uid), Some(account.gid))?;
        }
    }
    Ok(())
}
