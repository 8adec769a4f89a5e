//! Log lines: to standard error, as text for people or one JSON object a line.
//!
//! A service manager adds time and unit itself, so where it says that it listens (`JOURNAL_STREAM`)
//! lines are written without a time stamp.

use crate::settings::{LogFormat, Settings};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging. A second call keeps the first one's settings.
pub fn start(settings: &Settings) {
    let filter = std::env::var("LAZARET_LOG")
        .ok()
        .and_then(|text| EnvFilter::try_new(text).ok())
        .or_else(|| EnvFilter::try_new(&settings.log_filter).ok())
        .unwrap_or_default();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(true)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && crate::output::colours_wanted());
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let started = match (settings.log_format, journal) {
        (LogFormat::Json, _) => builder.json().try_init(),
        (LogFormat::Text, true) => builder.without_time().try_init(),
        (LogFormat::Text, false) => builder.try_init(),
    };
    if started.is_err() {
        tracing::debug!("logging was started before");
    }
}
