//! Warming a guest before it is anybody's.
//!
//! One that will be frozen into a template starts what most tasks start, so that every fork finds it in
//! its page cache. A fork that waits as a spare goes through what every run goes through: under software
//! emulation the code of that is then translated. It starts nothing large: what was translated first is
//! thrown away when the emulator's cache is full, and node or python alone fill it.
//!
//! Nothing that was started may live on: a process in a template would be the same process in every
//! fork, with the same random state.

use crate::console;
use crate::exec::Engine;
use lazaret_api::frame::Frame;
use lazaret_api::guest::{ExecExit, ExecLimits, ExecSpec, WORKSPACE};
use lazaret_domain::{Argv, Span};
use std::time::Duration;

/// What a template starts, once each and one after another; a program that the image lacks is passed
/// over.
const TEMPLATE: &[&[&str]] = &[
    &["sh", "-c", "true"],
    &["git", "--version"],
    // It only says how it is used: a connection would fix secrets of the kernel's network stack.
    &["git", "remote-http"],
    &[
        "python3",
        "-c",
        "import asyncio, json, ssl, subprocess, uuid",
    ],
    &["node", "-e", "require('https')"],
    &["make", "--version"],
];
/// What a spare starts.
const SPARE: &[&[&str]] = &[
    &["git", "--version"],
    &["git", "remote-http"],
    &["sh", "-c", "true"],
    &["true"],
    &["true"],
];
/// The longest one of them, and all of them, may take.
const LIMIT: Span = Span::seconds(20);
const WHOLE: Duration = Duration::from_secs(40);

/// Warms a guest that will be frozen into a template.
pub(crate) async fn template(engine: &Engine) {
    start_each(engine, TEMPLATE).await;
}

/// Warms a fork that will wait to be adopted.
pub(crate) async fn spare(engine: &Engine) {
    start_each(engine, SPARE).await;
}

/// A failure is said and does no harm: a cooler guest is slower.
async fn start_each(engine: &Engine, programs: &[&[&str]]) {
    let all = async {
        for words in programs {
            if let Err(why) = start(engine, words).await {
                console::say(&format!("warming with {}: {why}", words[0]));
            }
        }
    };
    if tokio::time::timeout(WHOLE, all).await.is_err() {
        console::say("warming took too long and was given up");
    }
}

async fn start(engine: &Engine, words: &[&str]) -> Result<(), String> {
    let env = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("HOME", "/nonexistent"),
        ("GIT_TERMINAL_PROMPT", "0"),
    ];
    let env = env
        .into_iter()
        .map(|(name, value)| Ok((name.parse()?, value.to_owned())))
        .collect::<Result<_, lazaret_domain::Denial>>();
    let spec = ExecSpec {
        argv: Argv::new(
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>(),
        )
        .map_err(|denial| denial.message)?,
        env: env.map_err(|denial| denial.message)?,
        cwd: WORKSPACE.to_owned(),
        limits: ExecLimits {
            max_duration: LIMIT,
            ..ExecLimits::default()
        },
    };
    let mut frames = engine.start(spec, futures::stream::pending());
    while let Some(frame) = frames.recv().await {
        if let Frame::Exit(payload) = frame {
            let exit: ExecExit = serde_json::from_slice(&payload).map_err(|e| e.to_string())?;
            return exit.message.map_or(Ok(()), Err);
        }
    }
    Err("it did not end".to_owned())
}
