//! The fuzz targets without libFuzzer: they compile, and hold on their first inputs, on each of these
//! cut short, and with each byte of it changed. `make fuzz` goes on from there.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a failing test is the report"
)]

// The targets name the crate whose macro they call: here it is this one.
extern crate self as libfuzzer_sys;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// In place of libFuzzer's: a function that takes one input, which is text or is let go.
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: &[u8]| $body:expr) => {
        pub(crate) fn take($input: &[u8]) {
            $body
        }
    };
    (|$input:ident: &str| $body:expr) => {
        pub(crate) fn take(input: &[u8]) {
            if let Ok($input) = std::str::from_utf8(input) {
                $body
            }
        }
    };
}

macro_rules! targets {
    ($($name:ident = $path:literal),* $(,)?) => {
        $(
            #[path = $path]
            #[allow(unused_attributes, reason = "no_main is for the fuzzer's program")]
            mod $name;

            #[test]
            fn $name() {
                try_on_first_inputs(stringify!($name), $name::take);
            }
        )*

        const TARGETS: &[&str] = &[$(stringify!($name)),*];
    };
}

targets! {
    dns = "../../fuzz/fuzz_targets/dns.rs",
    egress = "../../fuzz/fuzz_targets/egress.rs",
    frames = "../../fuzz/fuzz_targets/frames.rs",
    git = "../../fuzz/fuzz_targets/git.rs",
    hello = "../../fuzz/fuzz_targets/hello.rs",
    http = "../../fuzz/fuzz_targets/http.rs",
    names = "../../fuzz/fuzz_targets/names.rs",
    output = "../../fuzz/fuzz_targets/output.rs",
}

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

/// The names in a directory, in order.
fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn try_on_first_inputs(target: &str, take: fn(&[u8])) {
    let directory = tempfile::tempdir().unwrap();
    let made = Command::new("python3")
        .arg(fuzz().join("seeds.py"))
        .arg(directory.path())
        .status();
    assert!(made.expect("python3").success());
    let inputs = directory.path().join(target);
    let names = names_in(&inputs);
    assert!(!names.is_empty());
    for name in names {
        let input = fs::read(inputs.join(&name)).unwrap();
        let try_on = |tried: &[u8]| {
            let held = std::panic::catch_unwind(|| take(tried));
            assert!(held.is_ok(), "{target} fails on {name} as {tried:?}");
        };
        try_on(&input);
        for at in 0..input.len() {
            try_on(&input[..at]);
            let mut changed = input.clone();
            changed[at] = changed[at].wrapping_add(1 + at as u8 % 254);
            try_on(&changed);
        }
    }
}

#[test]
fn every_target_is_compiled_here_and_known_to_the_fuzzer() {
    let files: Vec<String> = TARGETS.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(names_in(&fuzz().join("fuzz_targets")), files);
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    for file in files {
        let line = format!("path = \"fuzz_targets/{file}\"");
        assert!(manifest.contains(&line), "{line}");
    }
}

/// Name and version of each package in a lock file.
fn packages(lock: &Path) -> Vec<(String, String)> {
    let lock: toml::Table = fs::read_to_string(lock).unwrap().parse().unwrap();
    let text = |value: &toml::Value| value.as_str().expect("text").to_owned();
    let packages = lock["package"].as_array().expect("packages").iter();
    packages
        .map(|package| (text(&package["name"]), text(&package["version"])))
        .collect()
}

#[test]
fn what_is_fuzzed_is_what_is_built() {
    let built = packages(&fuzz().join("../Cargo.lock"));
    let names: Vec<&String> = built.iter().map(|(name, _)| name).collect();
    let other: Vec<(String, String)> = packages(&fuzz().join("Cargo.lock"))
        .into_iter()
        .filter(|package| names.contains(&&package.0) && !built.contains(package))
        .collect();
    assert!(
        other.is_empty(),
        "other versions than in Cargo.lock: {other:?}; to make them the same: \
         cp Cargo.lock fuzz/ && cargo metadata --manifest-path fuzz/Cargo.toml >/dev/null"
    );
}
