//! Boots an image under software emulation and runs one command in it: the shortest way to try a
//! change of the guest agent or the recipe on a real kernel.
//!
//! `cargo run -p lazaret-guest --example boot -- IMAGE_DIR [COMMAND…]`
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool for people at a terminal"
)]

#[path = "../tests/support/client.rs"]
mod client;
#[path = "../tests/support/vm.rs"]
mod vm;

use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::Instant;

#[tokio::main]
async fn main() -> Result<()> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let image = PathBuf::from(
        words
            .drain(..words.len().min(1))
            .next()
            .context("usage: boot IMAGE_DIR [COMMAND…]")?,
    );
    if words.is_empty() {
        words = ["sh", "-c", "id; uname -a; df -h /; ip addr"]
            .map(str::to_owned)
            .to_vec();
    }
    let started = Instant::now();
    let vm = vm::Vm::boot(&image).await;
    println!("adopted after {:?}", started.elapsed());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut spec = vm.spec(&words);
    spec.env.insert("HOME".parse()?, "/home/agent".to_owned());
    spec.cwd = "/workspace".to_owned();
    let done = vm.run_spec(&spec, b"").await;
    print!("{}", done.stdout);
    eprint!("{}", done.stderr);
    println!("{:?}", done.exit);
    let (status, console) = vm.shut_down().await;
    println!(
        "{}\nended: {status}, after {:?}",
        console.join("\n"),
        started.elapsed()
    );
    Ok(())
}
