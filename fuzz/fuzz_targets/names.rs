//! Whatever text stands for a name, a path or a quantity, what reads has one spelling: written and
//! read again it is the same, as text and as JSON, and it is nothing that a command, a path or a URL
//! would take for something else.
#![no_main]

use lazaret_domain::{
    BranchName, ByteSize, Cpus, EnvName, ExecId, GitRef, GuestPath, HostName, KeyId, RepoName,
    RunId, SandboxId, Span, UploadName,
};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::{Debug, Display};
use std::path::{Component, Path};
use std::str::FromStr;

libfuzzer_sys::fuzz_target!(|text: &str| {
    for name in [
        stable::<RunId>(text),
        stable::<SandboxId>(text),
        stable::<KeyId>(text),
        stable::<ExecId>(text),
        stable::<HostName>(text),
        stable::<UploadName>(text),
        stable::<RepoName>(text),
        stable::<GitRef>(text),
        stable::<BranchName>(text),
        stable::<GuestPath>(text),
    ]
    .into_iter()
    .flatten()
    {
        let parts: Vec<_> = Path::new(&name).components().collect();
        assert!(
            parts
                .iter()
                .all(|part| matches!(part, Component::Normal(_))),
            "{name:?}"
        );
        assert!(!name.contains(char::is_control), "{name:?}");
    }
    for word in [stable::<RepoName>(text), stable::<GitRef>(text)]
        .into_iter()
        .flatten()
    {
        assert!(
            !word.starts_with('-') && !word.contains([' ', '$', '`', ';']),
            "{word:?}"
        );
    }
    stable::<Cpus>(text);
    if stable::<ByteSize>(text).is_some() {
        let size: ByteSize = text.parse().expect("it did before");
        assert!((1..=1 << 50).contains(&size.bytes()));
    }
    if stable::<Span>(text).is_some() {
        let span: Span = text.parse().expect("it did before");
        assert!(!span.duration().is_zero());
    }
    if let Ok(name) = text.parse::<EnvName>() {
        assert_eq!(name.as_str(), text);
        assert!(!text.contains(['=', '\0']));
    }
});

/// The one spelling of a text, if it is one of these.
fn stable<T>(text: &str) -> Option<String>
where
    T: FromStr<Err: Debug> + Display + Debug + PartialEq + Serialize + DeserializeOwned,
{
    let value: T = text.parse().ok()?;
    let spelling = value.to_string();
    assert_eq!(spelling.parse::<T>().expect("its own spelling"), value);
    let json = serde_json::to_string(&value).expect("JSON");
    assert_eq!(
        serde_json::from_str::<T>(&json).expect("its own JSON"),
        value
    );
    Some(spelling)
}
