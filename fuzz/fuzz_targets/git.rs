//! Whatever path a guest's git asks for, what is forwarded goes to that repository on the git host,
//! in one of the two forms of a clone, and asking for that very repository is the same request.
//!
//! Input: a method, a space, and a path with or without a query.
#![no_main]

use http::Method;
use lazaret_github::GitBase;
use lazaret_github::path::{GitRequest, GitRequestKind};
use url::Url;

const BASE: &str = "https://git.example/scm/";

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Some((method, target)) = text.split_once(' ') else {
        return;
    };
    let Ok(method) = method.parse::<Method>() else {
        return;
    };
    let parse = |target: &str| match target.split_once('?') {
        Some((path, query)) => GitRequest::parse(&method, path, Some(query)),
        None => GitRequest::parse(&method, target, None),
    };
    let Ok(git) = parse(target) else { return };
    let base: GitBase = BASE.parse().expect("a base");
    let url: Url = base.url_of(&git).parse().expect("a URL");
    let rest = url.as_str().strip_prefix(BASE).expect("below the base");
    assert_eq!(parse(&format!("/git/{rest}")).as_ref(), Ok(&git), "{rest}");
    let segments: Vec<&str> = url.path_segments().expect("segments").collect();
    let name = format!("{}.git", git.repo.name());
    let (tail, method_sent): (&[&str], _) = match git.kind {
        GitRequestKind::Advertisement => (&["info", "refs"], Method::GET),
        GitRequestKind::UploadPack => (&["git-upload-pack"], Method::POST),
    };
    assert_eq!(segments, [&["scm", git.repo.owner(), &name], tail].concat());
    assert_eq!(method, method_sent);
    assert!(matches!(
        url.query(),
        None | Some("service=git-upload-pack")
    ));
    assert_eq!(url.fragment(), None);
});
