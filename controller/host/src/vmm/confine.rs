//! The cgroup of one QEMU: memory, CPU time and process count, where the host lets us set them.
//!
//! An unprivileged account can limit only below a cgroup that was given to it. That one is found by
//! name in every hierarchy: `<root>/<name>` in version 2, `<root>/<controller>/<name>` in version 1.
//! What could be set is reported, and nothing that could not.

use lazaret_domain::{ByteSize, Cpus};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What QEMU itself may use on top of the guest's memory.
const OVERHEAD: u64 = 384 << 20;
/// Threads of one QEMU: vCPUs, I/O workers and its own.
const THREADS: u64 = 128;
/// The period over which CPU time is counted, in microseconds.
const PERIOD: u64 = 100_000;

/// Limits waiting for a process, or holding it.
///
/// Dropped, it removes its cgroups if nothing is in them any more. A try that was given up may leave
/// one whose process is not reaped yet: the next [`Cage::make`] of that sandbox takes it over, and
/// [`Cage::left_by`] finds it.
#[derive(Debug, Default)]
pub(crate) struct Cage {
    dirs: Vec<(&'static str, PathBuf)>,
}

impl Cage {
    /// Makes the cgroups of a sandbox below the one called `name`, as far as possible.
    pub(crate) fn make(name: &str, sandbox: &str, memory: ByteSize, cpus: Cpus) -> Self {
        Self::make_in(Path::new("/sys/fs/cgroup"), name, sandbox, memory, cpus)
    }

    fn make_in(root: &Path, name: &str, sandbox: &str, memory: ByteSize, cpus: Cpus) -> Self {
        let bytes = (memory.bytes() + OVERHEAD).to_string();
        let quota = u64::from(cpus.get()) * PERIOD;
        let mut cage = Self::default();
        if root.join("cgroup.controllers").exists() {
            let dir = root.join(name).join(sandbox);
            if is_ours(&dir) {
                for (controller, file, value) in [
                    ("memory", "memory.max", bytes),
                    ("cpu", "cpu.max", format!("{quota} {PERIOD}")),
                    ("pids", "pids.max", THREADS.to_string()),
                ] {
                    if std::fs::write(dir.join(file), value).is_ok() {
                        cage.dirs.push((controller, dir.clone()));
                    }
                }
                if cage.dirs.is_empty() {
                    let _ = std::fs::remove_dir(&dir);
                }
            }
            return cage;
        }
        let settings: [(&'static str, Vec<(&str, String)>); 3] = [
            ("memory", vec![("memory.limit_in_bytes", bytes)]),
            (
                "cpu",
                vec![
                    ("cpu.cfs_period_us", PERIOD.to_string()),
                    ("cpu.cfs_quota_us", quota.to_string()),
                ],
            ),
            ("pids", vec![("pids.max", THREADS.to_string())]),
        ];
        for (controller, values) in settings {
            let dir = root.join(controller).join(name).join(sandbox);
            if !is_ours(&dir) {
                continue;
            }
            if values
                .iter()
                .all(|(file, value)| std::fs::write(dir.join(file), value).is_ok())
            {
                cage.dirs.push((controller, dir));
            } else {
                let _ = std::fs::remove_dir(&dir);
            }
        }
        cage
    }

    /// Puts a process in, and says which controllers now limit it.
    pub(crate) fn hold(&self, pid: i32) -> Vec<String> {
        let enter = |dir: &Path| std::fs::write(dir.join("cgroup.procs"), pid.to_string()).is_ok();
        self.dirs
            .iter()
            .filter(|(_, dir)| enter(dir))
            .map(|(controller, _)| (*controller).to_owned())
            .collect()
    }

    /// Removes the cgroups once their process is gone. The kernel may take a moment to notice.
    pub(crate) async fn open(mut self) {
        for (_, dir) in std::mem::take(&mut self.dirs) {
            for _ in 0..100 {
                match std::fs::remove_dir(&dir) {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                    _ => break,
                }
            }
        }
    }

    /// The cage that a sandbox may have left behind, to be opened.
    pub(crate) fn left_by(name: &str, sandbox: &str) -> Self {
        let root = Path::new("/sys/fs/cgroup");
        let places = [
            ("unified", root.join(name).join(sandbox)),
            ("memory", root.join("memory").join(name).join(sandbox)),
            ("cpu", root.join("cpu").join(name).join(sandbox)),
            ("pids", root.join("pids").join(name).join(sandbox)),
        ];
        Self {
            dirs: places.into_iter().filter(|(_, dir)| dir.is_dir()).collect(),
        }
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        for (_, dir) in &self.dirs {
            let _ = std::fs::remove_dir(dir);
        }
    }
}

/// Makes the cgroup of a sandbox. One that is there was left by an earlier try of the same sandbox:
/// its limits are set again, since a boot without any would be worse.
fn is_ours(dir: &Path) -> bool {
    match std::fs::create_dir(dir) {
        Err(error) => error.kind() == io::ErrorKind::AlreadyExists,
        Ok(()) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn limits_are_set_where_a_cgroup_was_given_to_us_and_reported_only_there() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("memory/lazaret")).unwrap();
        let cage = Cage::make_in(
            root.path(),
            "lazaret",
            "s1",
            ByteSize::mebibytes(512),
            Cpus::ONE,
        );
        let dir = root.path().join("memory/lazaret/s1");
        let limit = std::fs::read_to_string(dir.join("memory.limit_in_bytes")).unwrap();
        assert_eq!(limit, ((512 + 384) << 20).to_string());
        assert_eq!(cage.hold(42), ["memory"]);
        assert_eq!(
            std::fs::read_to_string(dir.join("cgroup.procs")).unwrap(),
            "42"
        );
    }

    fn read(path: PathBuf) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    /// A plain directory stands for cgroupfs; what is written where is what counts.
    #[tokio::test]
    async fn version_2_limits_memory_cpu_and_processes_in_one_cgroup() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("cgroup.controllers"), "cpu memory pids").unwrap();
        std::fs::create_dir(root.path().join("lazaret")).unwrap();
        let two = Cpus::try_from(2).unwrap();
        let cage = Cage::make_in(root.path(), "lazaret", "s1", ByteSize::mebibytes(512), two);
        let dir = root.path().join("lazaret/s1");
        assert_eq!(
            read(dir.join("memory.max")),
            ((512 + 384) << 20).to_string()
        );
        assert_eq!(read(dir.join("cpu.max")), "200000 100000");
        assert_eq!(read(dir.join("pids.max")), "128");
        assert_eq!(cage.hold(42), ["memory", "cpu", "pids"]);
        assert_eq!(read(dir.join("cgroup.procs")), "42");
    }

    #[test]
    fn what_an_earlier_try_left_is_limited_again_in_both_versions() {
        for (version_2, place, limit) in [
            (true, "lazaret", "memory.max"),
            (false, "memory/lazaret", "memory.limit_in_bytes"),
        ] {
            let root = tempfile::tempdir().unwrap();
            if version_2 {
                std::fs::write(root.path().join("cgroup.controllers"), "").unwrap();
            }
            let left = root.path().join(place).join("s1");
            std::fs::create_dir_all(&left).unwrap();
            std::fs::write(left.join(limit), "max").unwrap();
            let cage = Cage::make_in(
                root.path(),
                "lazaret",
                "s1",
                ByteSize::mebibytes(512),
                Cpus::ONE,
            );
            assert_eq!(read(left.join(limit)), ((512 + 384) << 20).to_string());
            assert!(cage.hold(42).contains(&"memory".to_owned()));
        }
    }

    #[test]
    fn a_dropped_cage_leaves_no_cgroup() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("memory/lazaret/s1");
        std::fs::create_dir_all(&dir).unwrap();
        drop(Cage {
            dirs: vec![("memory", dir.clone())],
        });
        assert!(!dir.exists());
    }

    #[test]
    fn without_a_cgroup_of_ours_nothing_is_claimed() {
        let root = tempfile::tempdir().unwrap();
        let cage = Cage::make_in(
            root.path(),
            "lazaret",
            "s1",
            ByteSize::mebibytes(512),
            Cpus::ONE,
        );
        assert!(cage.hold(42).is_empty());
    }
}
