//! A guest in a real machine: QEMU with software emulation, started as a host starts it.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "each program uses a part, and a failing test is the report"
)]

use crate::client::Client;
use http::StatusCode;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long a boot, an answer or an end may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// The newest image in `LAZARET_TEST_IMAGES`, or where `make image` puts it.
pub fn image() -> PathBuf {
    let images = std::env::var_os("LAZARET_TEST_IMAGES").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/images"),
        PathBuf::from,
    );
    let newest = lazaret_image::list(&images).unwrap().into_iter().next();
    images.join(newest.expect("there is an image: make image").digest)
}

/// A machine that was started.
pub struct Machine {
    dir: tempfile::TempDir,
    qemu: Child,
    console: Arc<Mutex<Vec<String>>>,
    reader: JoinHandle<()>,
    cable: watch::Receiver<bool>,
}

/// A machine whose guest answers and was adopted.
pub struct Vm {
    machine: Machine,
    client: Client,
}

impl Machine {
    /// Starts a machine; `word` is added to its kernel's command line.
    pub async fn start(image: &Path, word: &str) -> (Self, UnixListener) {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::File::create(at("disk"))
            .unwrap()
            .set_len(2 << 30)
            .unwrap();
        let made = Command::new("mke2fs")
            .args(["-q", "-t", "ext4"])
            .arg(at("disk"))
            .status()
            .await
            .unwrap();
        assert!(made.success());
        let control = UnixListener::bind(at("control")).unwrap();
        // The other end of the network cable: it is there, and answers nothing.
        let far_end = UnixListener::bind(at("cable")).unwrap();
        let (plugged, cable) = watch::channel(false);
        tokio::spawn(async move {
            let _held: (UnixStream, _) = far_end.accept().await.unwrap();
            plugged.send_replace(true);
            plugged.closed().await;
        });
        let mut qemu = command(image, dir.path(), word).spawn().unwrap();
        let console = Arc::<Mutex<Vec<String>>>::default();
        let (lines, output) = (Arc::clone(&console), qemu.stdout.take().unwrap());
        let reader = tokio::spawn(async move {
            let mut output = BufReader::new(output).lines();
            while let Ok(Some(line)) = output.next_line().await {
                eprintln!("console: {line}");
                lines.lock().unwrap().push(line);
            }
        });
        (
            Self {
                dir,
                qemu,
                console,
                reader,
                cable,
            },
            control,
        )
    }

    /// Waits for its end.
    pub async fn ended(mut self) -> (ExitStatus, Vec<String>) {
        let status = timeout(PATIENCE, self.qemu.wait())
            .await
            .expect("the machine ends")
            .unwrap();
        self.reader.await.unwrap();
        let console = self.console.lock().unwrap().clone();
        (status, console)
    }
}

impl Vm {
    /// Boots an image and adopts the guest.
    pub async fn boot(image: &Path) -> Self {
        let (machine, control) = Machine::start(image, "").await;
        let (stream, _) = timeout(PATIENCE, control.accept())
            .await
            .expect("QEMU connects")
            .unwrap();
        let client = Client::connect(stream).await;
        let adopted = timeout(PATIENCE, client.adopt()).await;
        let console = || machine.console.lock().unwrap().join("\n");
        let adopted =
            adopted.unwrap_or_else(|_| panic!("the guest did not come up:\n{}", console()));
        assert_eq!(adopted.status, StatusCode::OK, "{}", console());
        Self { machine, client }
    }

    /// Shuts the guest down and waits for the end of its machine.
    pub async fn shut_down(self) -> (ExitStatus, Vec<String>) {
        let answer = self
            .client
            .call(http::Method::POST, "/v1/shutdown", bytes::Bytes::new())
            .await;
        assert_eq!(answer.status, StatusCode::ACCEPTED);
        self.machine.ended().await
    }
}

impl Deref for Vm {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

fn command(image: &Path, dir: &Path, word: &str) -> Command {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let mhz = cpus
        .lines()
        .find_map(|line| line.strip_prefix("cpu MHz")?.split(": ").nth(1))
        .unwrap();
    let khz = mhz.parse::<f64>().unwrap() * 1000.0;
    let cmdline = format!(
        "console=ttyS0 quiet loglevel=4 panic=-1 reboot=t tsc_early_khz={khz:.0} tsc=reliable ipv6.disable=1 \
         random.trust_cpu=on {word}"
    );
    let disk = |name: &str, file: &Path, more: &str| {
        [
            "-drive".to_owned(),
            format!("id={name},if=none,format=raw,file={}{more}", file.display()),
            "-device".to_owned(),
            format!("virtio-blk-device,drive={name},serial=lazaret-{name}"),
        ]
    };
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args([
            "-M",
            "microvm,acpi=on,rtc=on,pit=off",
            "-cpu",
            "max",
            "-accel",
            "tcg,tb-size=64",
            "-m",
            "512",
            "-smp",
            "1",
        ])
        .args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ])
        .args(["-global", "virtio-mmio.force-legacy=false"])
        .arg("-kernel")
        .arg(image.join("vmlinuz"))
        .arg("-initrd")
        .arg(image.join("initrd"))
        .args(["-append", &cmdline])
        .args(disk("root", &image.join("rootfs.erofs"), ",readonly=on"))
        .args(disk("disk", &dir.join("disk"), ""))
        .args([
            "-device",
            "virtio-serial-device",
            "-device",
            "virtserialport,chardev=control,name=control",
        ])
        .arg("-chardev")
        .arg(format!(
            "socket,id=control,path={}",
            dir.join("control").display()
        ))
        .arg("-netdev")
        .arg(format!(
            "stream,id=cable,server=off,addr.type=unix,addr.path={}",
            dir.join("cable").display()
        ))
        .args([
            "-device",
            "virtio-net-device,netdev=cable,mac=02:4c:5a:00:00:02,host_mtu=65000",
        ])
        .args([
            "-chardev",
            "stdio,id=console,signal=off",
            "-device",
            "isa-serial,chardev=console",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    command
}
