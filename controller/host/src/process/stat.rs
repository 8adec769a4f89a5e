//! What the kernel says of a process in `/proc/PID/stat`.

use std::io;

/// The fields that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// One letter: `Z` and `X` are dead.
    pub(super) state: char,
    /// The pid of its parent.
    pub(super) parent: i32,
    /// The terminal it belongs to; 0 for none.
    pub(super) terminal: i32,
    /// When it started, in clock ticks since the boot.
    pub(super) start_time: u64,
}

impl Stat {
    /// Of that pid, now.
    ///
    /// # Errors
    /// If there is no such process.
    pub(super) fn of(pid: i32) -> io::Result<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Self::parse(&text)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unreadable process status"))
    }

    /// The program's name stands in parentheses and may hold anything, parentheses too: the fields
    /// are counted from the last one.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        Some(Self {
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            terminal: fields.nth(2)?.parse().ok()?,
            start_time: fields.nth(14)?.parse().ok()?,
        })
    }
}

/// The pids of the processes that a process started and that have not been reaped.
pub(super) fn children(parent: i32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| Stat::of(*pid).is_ok_and(|stat| stat.parent == parent))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let text = "42 (a) S 1 (b)) R 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1000 100 18446744073709551615";
        let stat = Stat {
            state: 'R',
            parent: 7,
            terminal: 0,
            start_time: 987_654,
        };
        assert_eq!(Stat::parse(text), Some(stat));
        assert_eq!(Stat::parse("42 (a"), None);
    }

    #[test]
    fn a_child_is_found_by_its_parent() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let own = rustix::process::getpid().as_raw_nonzero().get();
        assert!(children(own).contains(&pid));
        assert!(!children(pid).contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
