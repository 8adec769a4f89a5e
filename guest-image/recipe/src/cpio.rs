//! Writes an initramfs: the "newc" layout of cpio, in which equal content is equal bytes. Owner and
//! time of every entry are zero, and the inode numbers count up.

use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// An archive that is being written.
pub(crate) struct Cpio<W> {
    out: W,
    written: u64,
    inode: u32,
}

impl<W: Write> Cpio<W> {
    pub(crate) fn new(out: W) -> Self {
        Self {
            out,
            written: 0,
            inode: 0,
        }
    }

    pub(crate) fn directory(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, DIRECTORY, (0, 0), &[])
    }

    pub(crate) fn file(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.entry(name, FILE, (0, 0), content)
    }

    pub(crate) fn program(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.entry(name, PROGRAM, (0, 0), content)
    }

    pub(crate) fn device(&mut self, name: &str, major: u32, minor: u32) -> io::Result<()> {
        self.entry(name, CHARACTER_DEVICE, (major, minor), &[])
    }

    /// Writes the end and hands the writer back.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.inode = 0;
        self.header("TRAILER!!!", 0, (0, 0), 0)?;
        self.pad(512)?;
        Ok(self.out)
    }

    fn entry(
        &mut self,
        name: &str,
        mode: u32,
        device: (u32, u32),
        content: &[u8],
    ) -> io::Result<()> {
        let size = u32::try_from(content.len())
            .map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        self.inode += 1;
        self.header(name, mode, device, size)?;
        self.put(content)?;
        self.pad(4)
    }

    fn header(
        &mut self,
        name: &str,
        mode: u32,
        (major, minor): (u32, u32),
        size: u32,
    ) -> io::Result<()> {
        let name_size = u32::try_from(name.len() + 1)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // inode, mode, uid, gid, links, mtime, size, device of the file system (2), device (2),
        // length of the name, checksum
        let fields = [
            self.inode, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name_size, 0,
        ];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        self.put(header.as_bytes())?;
        self.put(name.as_bytes())?;
        self.put(&[0])?;
        self.pad(4)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn pad(&mut self, to: u64) -> io::Result<()> {
        while !self.written.is_multiple_of(to) {
            self.put(&[0])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn sample() -> Vec<u8> {
        let mut cpio = Cpio::new(Vec::new());
        cpio.directory("dev").unwrap();
        cpio.device("dev/console", 5, 1).unwrap();
        cpio.program("init", b"#!/bin/true\n").unwrap();
        cpio.file("note", b"12345").unwrap();
        cpio.finish().unwrap()
    }

    #[test]
    fn the_same_content_is_the_same_bytes() {
        assert_eq!(sample(), sample());
        assert_eq!(sample().len() % 512, 0);
    }

    #[test]
    fn cpio_reads_what_was_written() {
        let mut child = Command::new("cpio")
            .args(["-itv", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&sample()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(
            lines[1].starts_with("crw-------") && lines[1].contains("5,   1"),
            "{text}"
        );
        assert!(
            lines[2].starts_with("-rwxr-xr-x") && lines[2].ends_with("init"),
            "{text}"
        );
    }
}
