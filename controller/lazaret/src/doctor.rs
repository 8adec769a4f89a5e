//! `lazaret doctor`: every prerequisite, each with what was found and how to mend it.
//!
//! A check is a function of [`Surroundings`], so a test can break each of them in turn. Nothing is
//! concluded from a device or a version: an accelerator counts when a guest booted with it.

mod accelerator;
mod files;
mod machine;
mod tools;

use crate::cli;
use crate::client::file::Environment;
use crate::failure::{Exit, Failure};
use crate::output::inert::inert_line;
use crate::output::progress::Progress;
use crate::output::{Output, Paint};
use crate::paths::Paths;
use crate::settings::{Settings, environment};
use lazaret_api::host::AccelChoice;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// All is well.
    Ok,
    /// It works, but a person should know.
    Warn,
    /// Something is missing or wrong.
    Fail,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Its name, which does not change.
    pub name: String,
    /// How it came out.
    pub status: Status,
    /// What was found.
    pub detail: String,
    /// How to mend it, where it is not well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Check {
    fn ok(name: &str, detail: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            status: Status::Ok,
            detail: detail.into(),
            fix: None,
        }
    }

    fn warn(name: &str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            status: Status::Warn,
            detail: detail.into(),
            fix: Some(fix.into()),
        }
    }

    fn fail(name: &str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            status: Status::Fail,
            detail: detail.into(),
            fix: Some(fix.into()),
        }
    }
}

/// All checks: the document of `lazaret doctor --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Whether none failed.
    pub ok: bool,
    /// The checks, in the order in which a set-up needs them.
    pub checks: Vec<Check>,
}

/// What the checks look at.
pub struct Surroundings {
    /// Where programs are looked for.
    pub programs: Vec<PathBuf>,
    /// The data directory.
    pub paths: Paths,
    /// The settings, or what is wrong with them; none where there is no file yet.
    pub settings: Option<Result<Settings, String>>,
    /// Where the client's files are.
    pub client: Environment,
    /// Whether to boot a probe guest.
    pub boot: bool,
}

impl Surroundings {
    fn find(args: &cli::Doctor) -> Result<Self, Failure> {
        // The settings of 'lazaret up' lie in its data directory.
        let beside = args
            .config
            .as_deref()
            .and_then(Path::parent)
            .filter(|dir| dir.join("host").is_dir());
        let paths = Paths::find(args.data.as_deref().or(beside))?;
        let file = args.config.clone().unwrap_or_else(|| paths.settings());
        let settings = (args.config.is_some() || file.exists())
            .then(|| Settings::load(&file, &environment()).map_err(|failure| failure.to_string()));
        Ok(Self {
            programs: tools::search_path(),
            paths,
            settings,
            client: Environment::of_process(),
            boot: !args.no_boot,
        })
    }

    /// The settings in force: those that were read, else those that 'lazaret up' would write.
    fn settings(&self) -> Settings {
        match &self.settings {
            Some(Ok(settings)) => settings.clone(),
            _ => {
                let mut settings = Settings::defaults(self.paths.root());
                settings.services.accel = AccelChoice::Auto;
                settings
            }
        }
    }
}

/// The programs that are missing on this machine, each with the package that brings it.
#[must_use]
pub fn missing_programs() -> Vec<(&'static str, &'static str)> {
    tools::missing(&tools::search_path())
}

/// Carries out all checks and reports.
///
/// # Errors
/// Where the report cannot be written.
pub async fn doctor(args: &cli::Doctor, out: &mut Output) -> Result<Exit, Failure> {
    // The exit status is that of the checks, however much of the report is read.
    out.outlive_readers();
    let around = Surroundings::find(args)?;
    let progress = around
        .boot
        .then(|| Progress::start("Checking; booting a probe guest can take a minute"));
    let report = examine(&around).await;
    drop(progress);
    if out.json {
        out.document(&report)?;
    } else {
        print(&report, out)?;
    }
    Ok(if report.ok { Exit::Done } else { Exit::Failed })
}

/// Carries out all checks.
pub async fn examine(around: &Surroundings) -> Report {
    let mut checks = vec![files::settings(around)];
    checks.extend(tools::tools(&around.programs));
    checks.push(files::image(around));
    checks.push(accelerator::accelerator(around).await);
    checks.push(files::client_key(around));
    checks.push(machine::disk(around));
    checks.push(machine::clock());
    checks.push(machine::port(around).await);
    checks.push(machine::hosts(around).await);
    Report {
        ok: checks.iter().all(|check| check.status != Status::Fail),
        checks,
    }
}

fn print(report: &Report, out: &mut Output) -> Result<(), Failure> {
    let width = report
        .checks
        .iter()
        .map(|check| check.name.len())
        .max()
        .unwrap_or(0);
    for check in &report.checks {
        let word = match check.status {
            Status::Ok => out.paint(Paint::Good, "ok  "),
            Status::Warn => out.paint(Paint::Warn, "warn"),
            Status::Fail => out.paint(Paint::Bad, "FAIL"),
        };
        out.line(format!(
            "{word}  {:width$}  {}",
            check.name,
            inert_line(&check.detail)
        ))?;
        if let Some(fix) = &check.fix {
            out.line(format!("      {:width$}  → {}", "", inert_line(fix)))?;
        }
    }
    out.note(summary(report))
}

/// The report in one line. What only warns is not ready without further ado.
fn summary(report: &Report) -> String {
    let count = |status| {
        let with = report.checks.iter().filter(|check| check.status == status);
        with.count()
    };
    let all = report.checks.len();
    match (count(Status::Fail), count(Status::Warn)) {
        (0, 0) => "All is ready.".to_owned(),
        (0, 1) => format!("None of {all} checks failed; see the warning."),
        (0, warned) => format!("None of {all} checks failed; see the {warned} warnings."),
        (1, _) => format!("1 of {all} checks failed."),
        (failed, _) => format!("{failed} of {all} checks failed."),
    }
}

#[cfg(test)]
mod tests;
