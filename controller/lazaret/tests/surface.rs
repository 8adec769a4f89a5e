//! What scripts and people hold on to: the help of every command, and the completion scripts.
#![allow(clippy::unwrap_used, reason = "a failing test is the report")]

use clap_complete::Shell;

fn help_of(command: &mut clap::Command, path: &str, all: &mut String) {
    let help = command.clone().term_width(100).render_long_help();
    all.push_str(&format!("$ {path} --help\n{help}\n"));
    let names: Vec<String> = command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
        .map(|sub| sub.get_name().to_owned())
        .collect();
    for name in names {
        if let Some(sub) = command.find_subcommand_mut(&name) {
            help_of(sub, &format!("{path} {name}"), all);
        }
    }
}

#[test]
fn the_help_of_every_command_is_as_it_was_reviewed() {
    let mut command = lazaret::cli::command();
    command.build();
    let mut all = String::new();
    help_of(&mut command, "lazaret", &mut all);
    insta::assert_snapshot!(all);
}

#[test]
fn verbs_that_are_not_served_are_not_offered() {
    for verb in [
        "ask", "answer", "approve", "fork", "sleep", "keep", "audit", "backup", "redact",
    ] {
        let error = lazaret::cli::command()
            .try_get_matches_from(["lazaret", verb])
            .unwrap_err();
        assert_eq!(error.exit_code(), 2, "{verb}");
    }
}

#[test]
fn what_hosts_run_is_understood_and_not_shown() {
    let mut command = lazaret::cli::command();
    let help = command
        .find_subcommand_mut("host")
        .unwrap()
        .render_long_help()
        .to_string();
    for side in ["gate", "session", "uplink", "shim", "probe"] {
        assert!(!help.contains(side), "{help}");
    }
    let words = ["lazaret", "host", "gate", "--state", "/x"];
    assert!(lazaret::cli::command().try_get_matches_from(words).is_ok());
}

#[test]
fn completions_know_the_verbs() {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut lazaret::cli::command(), "lazaret", &mut script);
        let script = String::from_utf8(script).unwrap();
        for word in ["delegate", "teardown", "max-duration"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn the_version_is_that_of_the_package() {
    let version = lazaret::cli::command().render_version();
    assert_eq!(version, format!("lazaret {}\n", env!("CARGO_PKG_VERSION")));
}
