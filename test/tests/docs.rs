//! What the documents claim, held against the tree: every control in `docs/security.md` names code
//! and tests that exist, every link leads somewhere, and the layout is the documented one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test is the report"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace")
        .to_owned()
}

/// All files below a directory whose name ends so, without build output.
fn files_below(dir: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a readable directory") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_name()
            .and_then(|n| n.to_str())
            .unwrap_or_default()
            .to_owned();
        if path.is_symlink()
            || matches!(
                name.as_str(),
                "target" | "node_modules" | ".git" | ".lazaret"
            )
        {
            continue;
        }
        if path.is_dir() {
            files_below(&path, endings, found);
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
}

/// The names of all test functions in the tree.
fn test_names() -> BTreeSet<String> {
    let mut sources = Vec::new();
    files_below(&root(), &[".rs"], &mut sources);
    let mut names = BTreeSet::new();
    for source in sources {
        let text = fs::read_to_string(&source).expect("a readable source");
        // A function is a test by the attribute above it; further attributes may stand between.
        let mut marked = false;
        for line in text.lines().map(str::trim_start) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                marked = true;
            } else if !line.starts_with("#[") && !line.starts_with("//") {
                let name = line
                    .trim_start_matches("async ")
                    .strip_prefix("fn ")
                    .and_then(|rest| rest.split(['(', '<']).next());
                names.extend(name.filter(|_| marked).map(str::to_owned));
                marked = false;
            }
        }
    }
    names
}

/// The texts between backticks in a table cell.
fn ticked(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_control_names_code_and_tests_that_exist() {
    let text = fs::read_to_string(root().join("docs/security.md")).expect("docs/security.md");
    let tests = test_names();
    let mut controls = 0;
    let mut faults = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("| **")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [id, _what, code, shown] = cells[..] else {
            faults.push(format!("a control has four cells: {line}"));
            continue;
        };
        controls += 1;
        for path in ticked(code) {
            if !root().join(path).exists() {
                faults.push(format!("{id}: no such code: {path}"));
            }
        }
        if ticked(code).is_empty() {
            faults.push(format!("{id}: names no code"));
        }
        for name in ticked(shown) {
            if !tests.contains(name) {
                faults.push(format!("{id}: no such test: {name}"));
            }
        }
        if ticked(shown).is_empty() {
            faults.push(format!("{id}: names no test"));
        }
    }
    assert!(controls >= 40, "only {controls} controls are listed");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut documents = Vec::new();
    files_below(&root(), &[".md"], &mut documents);
    let mut faults = Vec::new();
    for document in documents {
        let text = fs::read_to_string(&document).expect("a readable document");
        for target in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let base = document.parent().expect("a folder");
            if !base.join(target).exists() {
                faults.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "links that lead nowhere:\n{}",
        faults.join("\n")
    );
}

#[test]
fn the_layout_is_the_documented_one() {
    for path in [
        "Cargo.toml",
        "Makefile",
        "README.md",
        "clippy.toml",
        "deny.toml",
        "rustfmt.toml",
        ".ci/run",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "CHANGELOG.md",
        "controller/domain",
        "controller/api",
        "controller/services",
        "controller/store",
        "controller/github",
        "controller/ssh",
        "controller/host",
        "controller/edge",
        "controller/lazaret",
        "guard-hook",
        "guest-image",
        "console",
        "test",
        "docs/architecture.md",
        "docs/security.md",
        "docs/operations.md",
        "docs/api.md",
        "docs/vocabulary.md",
        "docs/adr",
    ] {
        assert!(root().join(path).exists(), "{path} is missing");
    }
    let lock = fs::read_to_string(root().join("Cargo.lock")).expect("Cargo.lock");
    for name in [
        "axum",
        "tokio",
        "russh",
        "rmcp",
        "subtle",
        "serde",
        "regex",
        "tower_governor",
        "tracing",
        "rand",
        "smoltcp",
    ] {
        assert!(
            lock.contains(&format!("name = \"{name}\"")),
            "{name} is not used"
        );
    }
}

#[test]
fn unsafe_code_is_allowed_in_one_module_only() {
    let mut sources = Vec::new();
    files_below(&root(), &[".rs"], &mut sources);
    let marker = concat!("allow(", "unsafe_code");
    let allowing: Vec<String> = sources
        .iter()
        .filter(|path| {
            fs::read_to_string(path)
                .expect("a readable source")
                .contains(marker)
        })
        .map(|path| {
            path.strip_prefix(root())
                .expect("below the root")
                .display()
                .to_string()
        })
        .collect();
    assert_eq!(allowing.len(), 1, "unsafe code is allowed in: {allowing:?}");
    assert!(
        allowing[0].starts_with("guest-image/agent/src/"),
        "{allowing:?}"
    );
}
