//! Boots an image under software emulation and runs one command in it: the shortest way to try a
//! change of the guest agent or the recipe on a real kernel.
//!
//! `cargo run -p lazaret-guest --example boot -- IMAGE_DIR [--probe] [COMMAND…]`

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool for people at a terminal"
)]

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use bytes::{Bytes, BytesMut};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lazaret_api::frame::Frame;
use lazaret_api::guest::{Adopt, ExecExit, ExecSpec, Health};
use lazaret_domain::{Argv, EnvName};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixListener;
use tokio::process::{Child, Command};

#[tokio::main]
async fn main() -> Result<()> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if words.is_empty() {
        bail!("usage: boot IMAGE_DIR [--probe] [COMMAND…]");
    }
    let image = PathBuf::from(words.remove(0));
    let probe = words.first().is_some_and(|word| word == "--probe");
    if words.is_empty() {
        words = [
            "sh",
            "-c",
            "id; uname -a; df -h /; cat /proc/self/mounts; git --version; ip addr",
        ]
        .map(Into::into)
        .to_vec();
    }
    let dir = tempfile::tempdir()?;
    let started = Instant::now();
    let control = UnixListener::bind(dir.path().join("control"))?;
    let mut machine = start(&image, dir.path(), probe).await?;
    if probe {
        println!(
            "ended: {}, after {:?}",
            machine.wait().await?,
            started.elapsed()
        );
        return Ok(());
    }
    let (stream, _) = control.accept().await?;
    let (client, connection) = http2::Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(stream))
        .await?;
    tokio::spawn(connection);
    let health: Health =
        serde_json::from_slice(&call(&client, Method::GET, "/v1/health", Bytes::new()).await?)?;
    println!("healthy after {:?}: {health:?}", started.elapsed());
    let adopted = call(
        &client,
        Method::POST,
        "/v1/adopt",
        serde_json::to_vec(&identity()?)?.into(),
    )
    .await?;
    println!(
        "adopted after {:?}: {}",
        started.elapsed(),
        String::from_utf8_lossy(&adopted)
    );
    let exit = exec(&client, words).await?;
    println!("command ended after {:?}: {exit:?}", started.elapsed());
    call(&client, Method::POST, "/v1/shutdown", Bytes::new()).await?;
    println!(
        "ended: {}, after {:?}",
        tokio::time::timeout(Duration::from_secs(20), machine.wait()).await??,
        started.elapsed()
    );
    Ok(())
}

fn identity() -> Result<Adopt> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(Adopt {
        sandbox: "s0123456789abcdef".parse()?,
        wall_clock_ns: i64::try_from(now.as_nanos())?,
        entropy: base64::engine::general_purpose::STANDARD.encode([9_u8; 64]),
        machine_id: "0123456789abcdef0123456789abcdef".into(),
        git_base_url: "https://github.com/".into(),
    })
}

async fn start(image: &Path, dir: &Path, probe: bool) -> Result<Child> {
    let disk = dir.join("disk");
    std::fs::File::create(&disk)?.set_len(2 << 30)?;
    let made = Command::new("mke2fs")
        .args(["-q", "-t", "ext4"])
        .arg(&disk)
        .status()
        .await
        .context("mke2fs")?;
    anyhow::ensure!(made.success(), "mke2fs failed");
    // The card's other end: somebody has to listen, nobody has to answer.
    let cable = UnixListener::bind(dir.join("cable"))?;
    tokio::spawn(async move {
        std::future::pending::<()>().await;
        drop(cable)
    });
    let tsc = std::fs::read_to_string("/proc/cpuinfo")?;
    let mhz: f64 = tsc
        .lines()
        .find(|line| line.starts_with("cpu MHz"))
        .and_then(|line| line.split(": ").nth(1))
        .context("cpu MHz")?
        .parse()?;
    let mut cmdline = format!(
        "console=ttyS0 quiet loglevel=4 panic=-1 reboot=t tsc_early_khz={:.0} tsc=reliable ipv6.disable=1 random.trust_cpu=on",
        mhz * 1000.0
    );
    if probe {
        cmdline.push_str(" lazaret.probe");
    }
    let mut machine = Command::new("qemu-system-x86_64")
        .args([
            "-M",
            "microvm,acpi=on,rtc=on",
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
            "-global",
            "virtio-mmio.force-legacy=false",
        ])
        .arg("-kernel")
        .arg(image.join("vmlinuz"))
        .arg("-initrd")
        .arg(image.join("initrd"))
        .args(["-append", &cmdline])
        .arg("-drive")
        .arg(format!(
            "id=root,if=none,format=raw,readonly=on,file={}",
            image.join("rootfs.erofs").display()
        ))
        .args([
            "-device",
            "virtio-blk-device,drive=root,serial=lazaret-root",
        ])
        .arg("-drive")
        .arg(format!(
            "id=disk,if=none,format=raw,file={}",
            disk.display()
        ))
        .args([
            "-device",
            "virtio-blk-device,drive=disk,serial=lazaret-disk",
        ])
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
        .kill_on_drop(true)
        .spawn()
        .context("qemu-system-x86_64")?;
    let console = machine.stdout.take().context("console")?;
    let started = Instant::now();
    tokio::spawn(async move {
        let mut lines = BufReader::new(console).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            println!("[{:>6.2}] {line}", started.elapsed().as_secs_f32());
        }
    });
    Ok(machine)
}

async fn call(
    client: &SendRequest<Full<Bytes>>,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Bytes> {
    let request = Request::builder()
        .method(method)
        .uri(format!("http://guest{path}"))
        .body(Full::new(body))?;
    let response = client.clone().send_request(request).await?;
    let status = response.status();
    let bytes = response.into_body().collect().await?.to_bytes();
    anyhow::ensure!(
        status.is_success(),
        "{path}: {status}: {}",
        String::from_utf8_lossy(&bytes)
    );
    Ok(bytes)
}

async fn exec(client: &SendRequest<Full<Bytes>>, words: Vec<String>) -> Result<ExecExit> {
    let env = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("HOME", "/home/agent"),
    ];
    let spec = ExecSpec {
        argv: Argv::new(words)?,
        env: env
            .into_iter()
            .map(|(name, value)| Ok((name.parse::<EnvName>()?, value.to_owned())))
            .collect::<Result<_>>()?,
        cwd: "/workspace".into(),
        limits: lazaret_api::guest::ExecLimits::default(),
    };
    let spec = serde_json::to_vec(&spec)?;
    let mut body = u32::try_from(spec.len())?.to_be_bytes().to_vec();
    body.extend(spec);
    let request = Request::builder()
        .method(Method::POST)
        .uri("http://guest/v1/exec")
        .body(Full::new(body.into()))?;
    let mut answer = client.clone().send_request(request).await?.into_body();
    let mut buffer = BytesMut::new();
    while let Some(piece) = answer.frame().await {
        if let Ok(data) = piece?.into_data() {
            buffer.extend_from_slice(&data);
        }
        while let Some(frame) = Frame::decode(&mut buffer)? {
            match frame {
                Frame::Stdout(bytes) => print!("{}", String::from_utf8_lossy(&bytes)),
                Frame::Stderr(bytes) => eprint!("{}", String::from_utf8_lossy(&bytes)),
                Frame::Exit(bytes) => return Ok(serde_json::from_slice(&bytes)?),
                Frame::Gap(_) => {}
            }
        }
    }
    bail!("the output was cut off")
}
