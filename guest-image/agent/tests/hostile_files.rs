//! A workspace whose agent wants to be read or written elsewhere: no path, link or archive entry
//! reaches anything outside the area.
#![allow(clippy::unwrap_used, reason = "a failing test is the report")]

#[path = "support/client.rs"]
mod client;
#[path = "support/guest.rs"]
mod guest;

use bytes::Bytes;
use client::{file_entry, link_entry, raw_entry, tar_of};
use guest::TestGuest;
use http::{Method, StatusCode};
use lazaret_api::guest::{FileKind, Listing};
use lazaret_domain::DenialCode;
use std::fs;
use std::os::unix::fs::symlink;

/// A file outside both areas, whose bytes must never appear and never change.
fn secret(guest: &TestGuest) -> std::path::PathBuf {
    let path = guest.outside().join("shadow");
    fs::write(&path, "root:secret").unwrap();
    path
}

#[tokio::test]
async fn paths_that_climb_are_refused_in_every_spelling() {
    let guest = TestGuest::adopted().await;
    for path in [
        "..",
        "../x",
        "a/..",
        "a/../../x",
        "%2e%2e",
        "%2E%2E%2Fx",
        "/etc/passwd",
        "%2Fetc%2Fpasswd",
        "a%00b",
        "a//b",
        "./a",
    ] {
        for route in ["list", "files"] {
            let answer = guest.get(&format!("/v1/{route}?path={path}")).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{route} {path}");
            assert_eq!(
                answer.denial().code,
                DenialCode::InvalidPath,
                "{route} {path}"
            );
        }
    }
    // Encoded twice, it is only a strange name.
    assert_eq!(
        guest.get("/v1/files?path=%252e%252e").await.denial().code,
        DenialCode::FileNotFound
    );
}

#[tokio::test]
async fn a_symbolic_link_is_never_followed() {
    let guest = TestGuest::adopted().await;
    let secret = secret(&guest);
    symlink(&secret, guest.workspace().join("out")).unwrap();
    symlink(guest.outside(), guest.workspace().join("dir")).unwrap();
    symlink("/proc/self/root", guest.workspace().join("magic")).unwrap();
    assert_eq!(
        guest.get("/v1/files?path=out").await.denial().code,
        DenialCode::NotAFile
    );
    for path in ["dir/shadow", "magic/etc/passwd"] {
        assert_eq!(
            guest
                .get(&format!("/v1/files?path={path}"))
                .await
                .denial()
                .code,
            DenialCode::InvalidPath,
            "{path}"
        );
    }
    for path in ["dir", "magic"] {
        assert!(
            guest
                .get(&format!("/v1/list?path={path}"))
                .await
                .status
                .is_client_error(),
            "{path}"
        );
    }
    // In a tree it is sent as the link it is, without what it points to.
    let tree = guest.get("/v1/files?path=").await;
    assert!(!String::from_utf8_lossy(&tree.body).contains("root:secret"));
    let listing: Listing = guest.get("/v1/list").await.json();
    assert!(
        listing
            .entries
            .iter()
            .all(|entry| entry.kind == FileKind::Symlink)
    );
}

#[tokio::test]
async fn a_file_with_a_second_name_does_not_leave() {
    let guest = TestGuest::adopted().await;
    fs::hard_link(secret(&guest), guest.workspace().join("twin")).unwrap();
    assert_eq!(
        guest.get("/v1/files?path=twin").await.denial().code,
        DenialCode::NotAFile
    );
    let tree = guest.get("/v1/files?path=").await.untar();
    assert_eq!(tree, [(".".to_owned(), Vec::new())]);
}

#[tokio::test]
async fn devices_fifos_and_directories_are_no_files() {
    let guest = TestGuest::adopted().await;
    let fifo = guest.workspace().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(guest.workspace().join("socket")).unwrap();
    for path in ["fifo", "socket"] {
        assert_eq!(
            guest
                .get(&format!("/v1/files?path={path}"))
                .await
                .denial()
                .code,
            DenialCode::NotAFile,
            "{path}"
        );
    }
    assert_eq!(
        guest.get("/v1/files?path=").await.untar(),
        [(".".to_owned(), Vec::new())],
        "a tree leaves them out, and does not hang on them"
    );
    assert_eq!(
        guest.get("/v1/files?path=none").await.denial().code,
        DenialCode::FileNotFound
    );
}

#[tokio::test]
async fn an_archive_cannot_write_outside_by_name() {
    let guest = TestGuest::adopted().await;
    for name in ["../evil", "a/../../evil", "/etc/evil", "a/./../../evil"] {
        let answer = guest
            .call(
                Method::PUT,
                "/v1/files?path=in",
                tar_of(&[raw_entry(name, b"x")]),
            )
            .await;
        assert_eq!(answer.denial().code, DenialCode::InvalidPath, "{name}");
    }
    assert!(!guest.workspace().join("evil").exists() && !guest.outside().join("evil").exists());
}

#[tokio::test]
async fn an_archive_cannot_bring_links_and_devices() {
    let guest = TestGuest::adopted().await;
    for kind in [
        tar::EntryType::Symlink,
        tar::EntryType::Link,
        tar::EntryType::Char,
        tar::EntryType::Block,
        tar::EntryType::Fifo,
    ] {
        let answer = guest
            .call(
                Method::PUT,
                "/v1/files?path=in",
                tar_of(&[link_entry("x", "/etc/passwd", kind)]),
            )
            .await;
        assert_eq!(answer.denial().code, DenialCode::InvalidPath, "{kind:?}");
        assert!(guest.workspace().join("in/x").symlink_metadata().is_err());
    }
}

#[tokio::test]
async fn an_archive_cannot_write_through_what_lies_in_the_workspace() {
    let guest = TestGuest::adopted().await;
    let secret = secret(&guest);
    symlink(guest.outside(), guest.workspace().join("dir")).unwrap();
    symlink(&secret, guest.workspace().join("link")).unwrap();
    fs::hard_link(&secret, guest.workspace().join("twin")).unwrap();

    let answer = guest
        .call(
            Method::PUT,
            "/v1/files",
            tar_of(&[file_entry("dir/evil", b"x", 0o644)]),
        )
        .await;
    assert!(answer.status.is_client_error(), "{}", answer.status);
    assert!(!guest.outside().join("evil").exists());

    // A link in the way of a file is replaced.
    let archive = tar_of(&[
        file_entry("link", b"new", 0o644),
        file_entry("twin", b"new", 0o644),
    ]);
    assert_eq!(
        guest.call(Method::PUT, "/v1/files", archive).await.status,
        StatusCode::OK
    );
    assert_eq!(fs::read_to_string(&secret).unwrap(), "root:secret");
    for name in ["link", "twin"] {
        assert!(
            fs::symlink_metadata(guest.workspace().join(name))
                .unwrap()
                .is_file()
        );
        assert_eq!(fs::read(guest.workspace().join(name)).unwrap(), b"new");
    }
}

#[tokio::test]
async fn a_broken_archive_is_refused_and_leaves_no_half_file() {
    let guest = TestGuest::adopted().await;
    let archive = tar_of(&[file_entry("big", &[7; 100_000], 0o644)]);
    let answer = guest
        .call(Method::PUT, "/v1/files", archive.slice(..50_000))
        .await;
    assert_eq!(answer.denial().code, DenialCode::InvalidRequest);
    assert_eq!(fs::read_dir(guest.workspace()).unwrap().count(), 0);
    let answer = guest
        .call(Method::PUT, "/v1/files", Bytes::from_static(&[0xff; 1024]))
        .await;
    assert_eq!(answer.denial().code, DenialCode::InvalidRequest);
}
