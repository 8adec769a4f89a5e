//! Starts one process: environment from scratch, a session of its own, another user, limits.

use super::cgroup::Containment;
use crate::children::{Children, Waiting};
use crate::sys;
use lazaret_api::guest::{AGENT_UID, ExecLimits, ExecSpec};
use rustix::process::{Gid, Pid, Resource, Rlimit, Uid, WaitStatus, getrlimit, setrlimit};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use tokio::net::unix::pipe::{Receiver, Sender};

/// Whom a command runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunAs {
    /// The agent user, without supplementary groups.
    Agent,
    /// Whoever this process is.
    Oneself,
}

/// A process that was started.
pub(super) struct Child {
    pub(super) pid: Pid,
    pub(super) containment: Containment,
    pub(super) stdin: Option<Sender>,
    pub(super) stdout: Option<Receiver>,
    pub(super) stderr: Option<Receiver>,
    waiting: Waiting,
    status: Option<WaitStatus>,
}

impl Child {
    /// Starts it, or says in a sentence why not.
    pub(super) fn spawn(
        spec: &ExecSpec,
        run_as: RunAs,
        children: &Children,
        containment: Containment,
    ) -> Result<Self, String> {
        let words = spec.argv.words();
        check_cwd(&spec.cwd)?;
        let entrance = match &containment {
            Containment::Cgroup(group) => Some(
                group
                    .entrance()
                    .map_err(|e| format!("no control group: {e}"))?,
            ),
            Containment::ProcessGroup => None,
        };
        let cwd = CString::new(spec.cwd.as_str())
            .map_err(|_| "the working directory holds NUL".to_owned())?;
        let limits = spec.limits;

        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .env_clear()
            .envs(spec.env.iter().map(|(name, value)| (name.as_str(), value)));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        sys::before_exec(&mut command, move || {
            prepare(entrance.as_ref(), run_as, &cwd, limits)
        });

        let mut child = command
            .spawn()
            .map_err(|error| not_started(&words[0], &error))?;
        let pid = Pid::from_child(&child);
        // From here on the process exists: whatever fails below ends it with its containment.
        let waiting = children
            .expect(pid)
            .map_err(|error| format!("the process got lost: {error}"))?;
        let ends = (|| -> io::Result<_> {
            Ok((
                child
                    .stdin
                    .take()
                    .map(|end| Sender::from_owned_fd(OwnedFd::from(end)))
                    .transpose()?,
                child
                    .stdout
                    .take()
                    .map(|end| Receiver::from_owned_fd(OwnedFd::from(end)))
                    .transpose()?,
                child
                    .stderr
                    .take()
                    .map(|end| Receiver::from_owned_fd(OwnedFd::from(end)))
                    .transpose()?,
            ))
        })();
        let (stdin, stdout, stderr) = ends.map_err(|error| {
            containment.terminate(pid);
            format!("no pipes to the process: {error}")
        })?;
        Ok(Self {
            pid,
            waiting,
            containment,
            stdin,
            stdout,
            stderr,
            status: None,
        })
    }

    /// Waits for its end. Safe to cancel, and to call again.
    pub(super) async fn status(&mut self) -> Option<WaitStatus> {
        if self.status.is_none() {
            self.status = self.waiting.status().await.ok();
        }
        self.status
    }
}

/// Runs in the child: system calls only, nothing that allocates or locks.
fn prepare(
    entrance: Option<&File>,
    run_as: RunAs,
    cwd: &CString,
    limits: ExecLimits,
) -> io::Result<()> {
    if let Some(entrance) = entrance {
        rustix::io::write(entrance, b"0")?;
    }
    rustix::process::setsid()?;
    let files = Some(open_files(limits.open_files, run_as));
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: files,
            maximum: files,
        },
    )?;
    setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    )?;
    if run_as == RunAs::Agent {
        let (uid, gid) = (Uid::from_raw(AGENT_UID), Gid::from_raw(AGENT_UID));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        rustix::thread::set_no_new_privs(true)?;
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    // As the user it will be, so that it begins nowhere it could not have gone.
    rustix::process::chdir(cwd.as_c_str())?;
    Ok(())
}

/// The limit on open files. Only the agent of a guest, which is root, may raise its own.
fn open_files(wanted: u32, run_as: RunAs) -> u64 {
    let ours = match run_as {
        RunAs::Agent => None,
        RunAs::Oneself => getrlimit(Resource::Nofile).maximum,
    };
    u64::from(wanted).min(ours.unwrap_or(u64::MAX))
}

/// Says early and clearly what `exec` would report as the program's fault.
fn check_cwd(cwd: &str) -> Result<(), String> {
    let path = Path::new(cwd);
    if !path.is_absolute() {
        return Err(format!("the working directory {cwd} is not absolute"));
    }
    if !path.is_dir() {
        return Err(format!("the working directory {cwd} does not exist"));
    }
    Ok(())
}

fn not_started(program: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("{program}: no such program in the command's PATH"),
        io::ErrorKind::PermissionDenied => {
            format!("{program}: not executable, or no access to the working directory")
        }
        io::ErrorKind::ArgumentListTooLong => {
            format!("{program}: arguments and environment are too long")
        }
        _ => format!("{program}: {error}"),
    }
}
