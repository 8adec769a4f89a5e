//! The command line of a QEMU: a pure function of what the machine is to be.

use super::tsc;
use crate::image::Image;
use lazaret_api::guest::{CONTROL_PORT, net};
use lazaret_api::host::{Accel, Confinement};
use lazaret_domain::{ByteSize, Cpus, Denial, DenialCode};
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use tokio::process::Command;

/// The sockets, by their names in the machine's directory.
pub(super) const MONITOR: &str = "monitor.sock";
pub(super) const CONSOLE: &str = "console.sock";
pub(super) const CONTROL: &str = "control.sock";
pub(super) const CABLE: &str = "cable.sock";

/// The most files QEMU may have open.
const OPEN_FILES: u32 = 256;
/// What QEMU may never do, enforced by seccomp.
const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// Where a machine's memory comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nowhere: it boots.
    Boot,
    /// It boots into this file, which will be a template's memory.
    Template(PathBuf),
    /// It is loaded from this memory of a template, and shares what it does not change.
    Fork(PathBuf),
    /// It is loaded from what was saved of a machine that ran, memory and all.
    Saved,
}

impl Origin {
    /// Whether it waits for a state to be loaded rather than boots.
    fn loads(&self) -> bool {
        matches!(self, Self::Fork(_) | Self::Saved)
    }
}

/// The disk. By default QEMU pauses a machine whose write finds the host full; this one's guest gets
/// the error instead, and goes on answering.
const DISK: &str =
    "if=none,id=disk,node-name=layer0,format=qcow2,discard=unmap,cache=unsafe,werror=report,file=";

/// A virtual machine to be.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// QEMU's program.
    pub qemu: PathBuf,
    /// What it boots.
    pub image: Image,
    /// How its instructions are executed.
    pub accel: Accel,
    /// Its memory.
    pub memory: ByteSize,
    /// Its virtual CPUs.
    pub cpus: Cpus,
    /// Its disk, a qcow2 file; a probe has none.
    pub disk: Option<PathBuf>,
    /// Whether it only shows that it boots.
    pub probe: bool,
    /// More kernel parameters.
    pub kernel_args: String,
    /// Where its memory comes from.
    pub origin: Origin,
}

impl Machine {
    /// The command that starts it: limits, then rights, then QEMU, each replacing the one before,
    /// so that the process keeps one pid.
    pub(super) fn command(&self, dir: &Path) -> Result<Command, Denial> {
        let qemu = find(&self.qemu)?;
        let mut command = Command::new(find(Path::new("prlimit"))?);
        command
            .env_clear()
            .current_dir(dir)
            .args(["--core=0:0", &format!("--nofile={OPEN_FILES}:{OPEN_FILES}")])
            .arg(find(Path::new("setpriv"))?)
            .args(["--pdeathsig", "KILL", "--no-new-privs"])
            .arg(qemu)
            .args(self.arguments(dir));
        Ok(command)
    }

    /// What tells machines apart as QEMU is told of them, whatever they are made from and wherever
    /// their files lie. QEMU itself loads a state into many a machine that it does not fit.
    pub(crate) fn fingerprint(&self) -> String {
        let nowhere = Self {
            image: Image {
                kernel: "kernel".into(),
                initrd: "initrd".into(),
                root: "root".into(),
            },
            disk: Some("disk".into()),
            origin: Origin::Boot,
            ..self.clone()
        };
        let mut hasher = Sha256::new();
        for word in nowhere.arguments(Path::new("/")) {
            hasher.update(word.as_bytes());
            hasher.update([0]);
        }
        hasher
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// What confines it, given the cgroup controllers that hold it.
    pub(super) fn confinement(&self, cgroup: Vec<String>) -> Confinement {
        Confinement {
            uid: rustix::process::geteuid().as_raw(),
            own_uid: false,
            seccomp: true,
            no_new_privs: true,
            cgroup,
        }
    }

    fn arguments(&self, dir: &Path) -> Vec<OsString> {
        let mut args = Args(Vec::new());
        args.words([
            "-no-user-config",
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
        ]);
        args.words(["-sandbox", SANDBOX]);
        self.memory(&mut args);
        args.words(["-global", "virtio-mmio.force-legacy=false"]);
        match self.accel {
            Accel::Kvm => args.words(["-accel", "kvm", "-cpu", "host"]),
            Accel::Tcg => args.words(["-accel", "tcg,tb-size=64", "-cpu", "max"]),
        }
        args.words(["-smp", &self.cpus.to_string()]);
        if !self.origin.loads() {
            args.path("-kernel", &self.image.kernel);
            args.path("-initrd", &self.image.initrd);
            args.words(["-append", &self.kernel_line()]);
        }
        args.option(
            "-drive",
            "if=none,id=root,format=raw,readonly=on,file=",
            &self.image.root,
        );
        args.words([
            "-device",
            "virtio-blk-device,drive=root,serial=lazaret-root",
        ]);
        if let Some(disk) = &self.disk {
            // Relative to the directory it runs in, which may move: QEMU opens the file again at times.
            let disk = disk.strip_prefix(dir).unwrap_or(disk);
            args.option("-drive", DISK, disk);
            args.words([
                "-device",
                "virtio-blk-device,drive=disk,serial=lazaret-disk",
            ]);
        }
        args.option(
            "-chardev",
            "socket,id=monitor,server=off,path=",
            &dir.join(MONITOR),
        );
        args.words(["-mon", "chardev=monitor,mode=control"]);
        args.option(
            "-chardev",
            "socket,id=console,server=off,path=",
            &dir.join(CONSOLE),
        );
        args.words(["-serial", "chardev:console"]);
        // A guest that was saved in the middle of a connection has to see it end first, so there QEMU
        // is the one that waits to be connected to.
        let control = match self.origin {
            Origin::Saved => "socket,id=control,server=on,wait=off,path=",
            _ => "socket,id=control,server=off,path=",
        };
        args.option("-chardev", control, &dir.join(CONTROL));
        args.words(["-device", "virtio-serial-device"]);
        args.words([
            "-device",
            &format!("virtserialport,chardev=control,name={CONTROL_PORT}"),
        ]);
        args.option(
            "-netdev",
            "stream,id=cable,server=off,addr.type=unix,addr.path=",
            &dir.join(CABLE),
        );
        let mac = net::GUEST_MAC.map(|byte| format!("{byte:02x}")).join(":");
        args.words([
            "-device",
            &format!(
                "virtio-net-device,netdev=cable,mac={mac},host_mtu={}",
                net::MTU
            ),
        ]);
        if self.origin.loads() {
            args.words(["-incoming", "defer"]);
        }
        args.0
    }

    /// The board and its memory, which has the same name whatever it comes from. A fork maps the
    /// template's file privately: pages that it does not change are shared with all its siblings.
    fn memory(&self, args: &mut Args) {
        let size = format!("{}M", self.memory.as_mebibytes());
        args.words([
            "-M",
            // A timer of its own that no kernel of ours uses would wake an idle QEMU 36 times a second.
            "microvm,acpi=on,rtc=on,pit=off,memory-backend=ram",
            "-m",
            &size,
        ]);
        let (file, shared) = match &self.origin {
            Origin::Boot | Origin::Saved => {
                let ram = format!("memory-backend-ram,id=ram,size={size}");
                args.words(["-object", &ram]);
                return;
            }
            Origin::Template(file) => (file, "on"),
            Origin::Fork(file) => (file, "off"),
        };
        args.option(
            "-object",
            &format!("memory-backend-file,id=ram,size={size},share={shared},mem-path="),
            file,
        );
    }

    /// `tsc_early_khz` and `tsc=reliable` keep an emulated guest from hanging in its early boot and
    /// from ticking when idle. With KVM the guest has a clock of its own and is told nothing.
    fn kernel_line(&self) -> String {
        let mut line = String::from(
            "console=ttyS0 quiet loglevel=4 panic=-1 reboot=t ipv6.disable=1 random.trust_cpu=on",
        );
        if let (Accel::Tcg, Some(khz)) = (self.accel, tsc::host_khz()) {
            line.push_str(&format!(" tsc_early_khz={khz} tsc=reliable"));
        }
        if self.accel == Accel::Tcg {
            // Emulated code is translated per virtual address: without this, anew for every process.
            line.push_str(" norandmaps");
        }
        if self.probe {
            line.push_str(" lazaret.probe");
        }
        if !self.kernel_args.is_empty() {
            line.push(' ');
            line.push_str(&self.kernel_args);
        }
        line
    }
}

struct Args(Vec<OsString>);

impl Args {
    fn words<const N: usize>(&mut self, words: [&str; N]) {
        self.0.extend(words.map(OsString::from));
    }

    fn path(&mut self, name: &str, path: &Path) {
        self.0.push(name.into());
        self.0.push(path.into());
    }

    /// An option that ends in a path. QEMU splits options at commas; a doubled one is a comma.
    fn option(&mut self, name: &str, head: &str, path: &Path) {
        let mut value = head.as_bytes().to_vec();
        for byte in path.as_os_str().as_bytes() {
            value.push(*byte);
            if *byte == b',' {
                value.push(b',');
            }
        }
        self.0.push(name.into());
        self.0.push(OsString::from_vec(value));
    }
}

/// The programs that a host needs besides QEMU.
pub(crate) const TOOLS: [&str; 4] = ["prlimit", "setpriv", "mke2fs", "qemu-img"];

/// The full path of a program. The started process has no `PATH`, so nothing is looked up later.
pub(crate) fn find(program: &Path) -> Result<PathBuf, Denial> {
    crate::process::find_program(program).ok_or_else(|| {
        Denial::new(
            DenialCode::VmmMissing,
            format!("{} is not installed on this host", program.display()),
        )
    })
}

#[cfg(test)]
mod tests;
