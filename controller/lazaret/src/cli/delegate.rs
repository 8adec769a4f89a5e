//! `lazaret delegate`: from arguments to the request.

use super::Json;
use crate::failure::Failure;
use clap::{ArgGroup, Args, ValueHint};
use lazaret_api::public::{AgentKind, CreateRun, EgressChoice, EgressMode};
use lazaret_domain::{Argv, ByteSize, Cpus, GitRef, RepoName, Span};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The longest task that is read from a file.
const MAX_TASK: u64 = 512 * 1024;

/// The arguments of `lazaret delegate`.
#[derive(Debug, Args)]
#[command(
    override_usage = "lazaret delegate [OPTIONS] [--task <TEXT> | --task-file <FILE>] [-- <COMMAND>...]"
)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["task", "task_file", "command"]))]
pub struct Delegate {
    /// The repository to work on; without it the workspace is empty
    #[arg(long, value_name = "OWNER/NAME")]
    pub repo: Option<RepoName>,
    /// The branch, tag or commit to start from [default: the repository's default branch]
    #[arg(long = "ref", value_name = "REF", requires = "repo")]
    pub git_ref: Option<GitRef>,
    /// The agent
    #[arg(long, value_name = "command", default_value = "command", value_parser = agent)]
    pub agent: AgentKind,
    /// What it may reach: sealed, open, or rules separated by commas [default: the operator's setting]
    #[arg(long, value_name = "sealed|open|HOST,…", value_parser = egress)]
    pub egress: Option<EgressChoice>,
    /// Memory, such as 1G
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,
    /// Virtual CPUs
    #[arg(long, value_name = "N")]
    pub cpus: Option<Cpus>,
    /// The sandbox is ended after this long, such as 30m
    #[arg(long, value_name = "D")]
    pub max_duration: Option<Span>,
    /// The same key with the same request gives the same run, however often it is sent
    #[arg(long, value_name = "K")]
    pub idempotency_key: Option<String>,
    /// Show the log as it is written, and wait for the end; 0 only where the run succeeded
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub json: Json,
    /// The task in words
    #[arg(long, value_name = "TEXT", conflicts_with = "task_file")]
    pub task: Option<String>,
    /// A file that holds the task; '-' is standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub task_file: Option<PathBuf>,
    /// Program and arguments for the command agent, given to no shell; after '--'
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

impl Delegate {
    /// The request that these arguments mean.
    ///
    /// # Errors
    /// Where the command is out of form or the task's file cannot be read.
    pub fn request(&self) -> Result<CreateRun, Failure> {
        let command = match self.command.as_slice() {
            [] => None,
            words => Some(
                Argv::new(words.to_vec()).map_err(|denial| Failure::Usage(denial.to_string()))?,
            ),
        };
        let task = match &self.task_file {
            Some(file) => Some(read_task(file)?),
            None => self.task.clone(),
        };
        Ok(CreateRun {
            repo: self.repo.clone(),
            git_ref: self.git_ref.clone(),
            agent: self.agent,
            command,
            task,
            egress: self.egress.clone().unwrap_or_default(),
            memory: self.memory,
            cpus: self.cpus,
            max_duration: self.max_duration,
        })
    }
}

fn read_task(file: &Path) -> Result<String, Failure> {
    let name = file.display();
    let source: Box<dyn Read> = if file == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        let file = std::fs::File::open(file).map_err(|error| {
            Failure::Usage(format!("cannot read the task from {name}: {error}"))
        })?;
        Box::new(file)
    };
    let mut text = String::new();
    let read = source
        .take(MAX_TASK + 1)
        .read_to_string(&mut text)
        .map_err(|error| Failure::Usage(format!("cannot read the task from {name}: {error}")))?;
    if u64::try_from(read).unwrap_or(u64::MAX) > MAX_TASK {
        return Err(Failure::Usage(format!(
            "the task in {name} is longer than 512 KiB"
        )));
    }
    Ok(text)
}

/// Reads `--agent`.
fn agent(text: &str) -> Result<AgentKind, String> {
    match text {
        "command" => Ok(AgentKind::Command),
        _ => Err("this version has the agent 'command' (unknown_agent)".into()),
    }
}

/// Reads `--egress`.
fn egress(text: &str) -> Result<EgressChoice, String> {
    match text {
        "sealed" => Ok(EgressChoice::Mode(EgressMode::Sealed)),
        "open" => Ok(EgressChoice::Mode(EgressMode::Open)),
        rules => rules
            .split(',')
            .map(|rule| {
                rule.trim()
                    .parse()
                    .map_err(|denial: lazaret_domain::Denial| format!("'{rule}': {denial}"))
            })
            .collect::<Result<Vec<_>, _>>()
            .map(EgressChoice::Rules),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn parse(words: &[&str]) -> Delegate {
        let words = ["lazaret", "delegate"].iter().chain(words);
        match Cli::try_parse_from(words).unwrap().command {
            Command::Delegate(delegate) => *delegate,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn words_after_two_dashes_are_the_command_as_they_are() {
        let request = parse(&["--repo", "acme/demo", "--", "sh", "-c", "echo 'a b' --wait"])
            .request()
            .unwrap();
        assert_eq!(
            request.command.unwrap().words(),
            ["sh", "-c", "echo 'a b' --wait"]
        );
        assert_eq!(request.repo.unwrap().as_str(), "acme/demo");
    }

    #[test]
    fn egress_is_a_mode_or_a_list() {
        let request = parse(&["--egress", "sealed", "--", "true"])
            .request()
            .unwrap();
        assert_eq!(request.egress, EgressChoice::Mode(EgressMode::Sealed));
        let request = parse(&["--egress", "example.com,*.example.org:8443", "--", "true"])
            .request()
            .unwrap();
        match request.egress {
            EgressChoice::Rules(rules) => assert_eq!(rules.len(), 2),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_task_is_read_from_its_file_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("task.md");
        std::fs::write(&file, "Make the tests pass.").unwrap();
        let request = parse(&["--task-file", file.to_str().unwrap()])
            .request()
            .unwrap();
        assert_eq!(request.task.as_deref(), Some("Make the tests pass."));
        std::fs::write(&file, vec![b'x'; 600 * 1024]).unwrap();
        let failure = parse(&["--task-file", file.to_str().unwrap()])
            .request()
            .unwrap_err();
        assert!(failure.to_string().contains("512 KiB"), "{failure}");
    }

    #[test]
    fn what_is_out_of_form_is_refused_before_anything_is_sent() {
        for words in [
            &["--repo", "../..", "--", "x"][..],
            &["--repo", "a/b", "--ref", "-x", "--", "x"],
            &["--ref", "main", "--", "x"],
            &["--memory", "lots", "--", "x"],
            &["--cpus", "0", "--", "x"],
            &["--max-duration", "0s", "--", "x"],
            &["--agent", "nobody", "--", "x"],
            &["--egress", "", "--", "x"],
            &["--task", "a", "--task-file", "b"],
            &[],
        ] {
            let error =
                Cli::try_parse_from(["lazaret", "delegate"].iter().chain(words)).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{words:?}: {error}");
        }
    }
}
