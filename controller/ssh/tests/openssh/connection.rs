//! One connection per host that lasts, is shared, and comes back: against a real OpenSSH server.

use crate::common::{PATIENCE, address, ground, lines, link, links, name, quick, until};
use bytes::Bytes;
use futures::StreamExt;
use lazaret_domain::{DenialCode, ExecId, Fence, GuestPath, SandboxId};
use lazaret_services::ports::host_link::{Area, HostAddress, HostLinks, LinkState};
use lazaret_ssh::SshSettings;
use std::time::Duration;
use tokio::net::TcpListener;

fn sandbox() -> SandboxId {
    "s0123456789abcdef".parse().unwrap()
}

fn exec() -> ExecId {
    "turn-1".parse().unwrap()
}

/// SSH-14: however many ask, there is one connection with two channels.
#[tokio::test(flavor = "multi_thread")]
async fn thirty_calls_at_once_share_one_connection() {
    let ground = ground().await;
    let link = link(&ground);
    let calls = (0..30).map(|_| async { link.sandboxes().await });
    for answer in futures::future::join_all(calls).await {
        assert_eq!(answer.unwrap(), []);
    }
    let commands = lines(&ground, "commands", |lines| lines.len() >= 2).await;
    let mut sorted = commands.clone();
    sorted.sort();
    assert!(
        sorted.len() == 2
            && sorted[0].starts_with("\"session\"")
            && sorted[1].starts_with("\"uplink\""),
        "{sorted:?}"
    );
    let connection = |line: &str| line.split_once(" connection ").unwrap().1.to_owned();
    assert_eq!(connection(&commands[0]), connection(&commands[1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_cut_connection_the_next_call_connects_again() {
    let ground = ground().await;
    let link = link(&ground);
    for _ in 0..3 {
        assert_eq!(link.sandboxes().await.unwrap(), []);
        ground.host().unwrap().sshd.cut_connections();
        assert_eq!(link.sandboxes().await.unwrap(), []);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_says_since_when_its_host_is_gone_and_recovers_by_itself() {
    let mut ground = ground().await;
    let link = link(&ground);
    until(&link, |state| *state == LinkState::Up).await;
    ground.stop_sshd().await;
    let down = until(&link, |state| {
        matches!(state, LinkState::Down { reason, .. } if reason.code == DenialCode::HostUnreachable)
    })
    .await;
    let LinkState::Down { since, .. } = down else {
        panic!("{down:?}")
    };
    let denial = link.sandboxes().await.unwrap_err();
    assert_eq!(denial.code, DenialCode::HostUnreachable);
    assert!(
        matches!(&*link.state().borrow(), LinkState::Down { since: still, .. } if *still == since)
    );
    ground.start_sshd().await.unwrap();
    // Nobody calls: the link comes back by itself.
    until(&link, |state| *state == LinkState::Up).await;
    assert_eq!(link.sandboxes().await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_port_is_a_host_that_cannot_be_reached() {
    let ground = ground().await;
    let port = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let address = HostAddress {
        port,
        ..address(&ground)
    };
    let link = links(&ground.host().unwrap().client_key, SshSettings::default())
        .connect(&name(), &address);
    let denial = link.info().await.unwrap_err();
    assert_eq!(denial.code, DenialCode::HostUnreachable, "{denial}");
    until(&link, |state| matches!(state, LinkState::Down { .. })).await;
}

/// A host that takes connections and says nothing. The default deadlines promise ten seconds;
/// here they are shorter so that nobody waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_says_nothing_is_given_up_at_the_deadline() {
    let defaults = SshSettings::default();
    assert!(
        defaults.connect_deadline < defaults.call_deadline
            && defaults.call_deadline < Duration::from_secs(10)
    );
    let ground = ground().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = HostAddress {
        port: silent.local_addr().unwrap().port(),
        ..address(&ground)
    };
    let settings = SshSettings {
        connect_deadline: Duration::from_millis(300),
        ..quick()
    };
    let link = links(&ground.host().unwrap().client_key, settings).connect(&name(), &address);
    let denial = tokio::time::timeout(PATIENCE, link.info())
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(denial.code, DenialCode::HostUnreachable);
    assert!(denial.message.contains("0.3 s"), "{denial}");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_calls_than_may_be_in_flight_are_refused_at_once() {
    let ground = ground().await;
    let settings = SshSettings {
        in_flight: 2,
        ..quick()
    };
    let link =
        links(&ground.host().unwrap().client_key, settings).connect(&name(), &address(&ground));
    let mut first = link.output(&sandbox(), &exec(), 0, true).await.unwrap();
    let second = link.output(&sandbox(), &exec(), 0, true).await.unwrap();
    assert_eq!(first.next().await.unwrap().unwrap(), "start");
    assert_eq!(
        link.sandboxes().await.unwrap_err().code,
        DenialCode::HostBusy
    );
    drop(second);
    assert_eq!(link.sandboxes().await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_cut_off_ends_with_a_reason() {
    let ground = ground().await;
    let link = link(&ground);
    let mut output = link.output(&sandbox(), &exec(), 0, true).await.unwrap();
    assert_eq!(output.next().await.unwrap().unwrap(), "start");
    ground.host().unwrap().sshd.cut_connections();
    let end = tokio::time::timeout(PATIENCE, output.next())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(end.unwrap_err().code, DenialCode::HostUnreachable);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hosts_refusals_arrive_unchanged_and_what_is_no_answer_is_named() {
    let ground = ground().await;
    let link = link(&ground);
    let refusal = link.inspect(&sandbox()).await.unwrap_err();
    assert_eq!(
        (refusal.code, refusal.message.as_str()),
        (DenialCode::SandboxNotFound, "there is no such sandbox here")
    );
    link.destroy(Fence(1), &sandbox())
        .await
        .expect("what is not there is destroyed");
    let broken = link.info().await.unwrap_err();
    assert_eq!(broken.code, DenialCode::HostRefused);
    assert!(!broken.message.contains("planted"), "{broken}");
    assert_eq!(
        link.egress(&sandbox(), 0).await.unwrap_err().code,
        DenialCode::Internal
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_upload_passes_and_its_own_failure_is_its_own() {
    let ground = ground().await;
    let link = link(&ground);
    let chunk = Bytes::from(vec![7; 64 << 10]);
    let tar = futures::stream::iter((0..512).map(move |_| Ok(chunk.clone()))).boxed();
    link.write_tar(
        Fence(1),
        &sandbox(),
        Area::Uploads,
        &GuestPath::default(),
        tar,
    )
    .await
    .unwrap();
    let received = lines(&ground, "received", |lines| !lines.is_empty()).await;
    assert_eq!(received, [(512 * (64 << 10)).to_string()]);

    let own =
        lazaret_domain::Denial::new(DenialCode::TooLarge, "the upload is larger than allowed");
    let failing = futures::stream::iter([Ok(Bytes::from_static(b"x")), Err(own.clone())]).boxed();
    let path = GuestPath::default();
    let denial = link
        .write_tar(Fence(1), &sandbox(), Area::Uploads, &path, failing)
        .await
        .unwrap_err();
    assert_eq!(denial, own);
    assert_eq!(
        link.sandboxes().await.unwrap(),
        [],
        "the connection is still good"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_uplink_answers_for_a_sandbox_that_is_named_and_for_no_other() {
    let ground = ground().await;
    let link = link(&ground);
    until(&link, |state| *state == LinkState::Up).await;
    let answers = lines(&ground, "uplink", |lines| {
        lines.last().is_some_and(|line| line == "end")
    })
    .await;
    assert_eq!(answers[0], "/v1/ping 204 ");
    assert_eq!(
        answers[1],
        "/git/acme/demo 200 sandbox=s0123456789abcdef header=false"
    );
    for answer in &answers[2..4] {
        assert!(
            answer.starts_with("/git/acme/demo 400 {") && answer.contains("invalid_id"),
            "{answer}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_link_ends_the_programs_on_the_host() {
    let ground = ground().await;
    let link = link(&ground);
    assert_eq!(link.sandboxes().await.unwrap(), []);
    lines(&ground, "commands", |lines| lines.len() == 2).await;
    drop(link);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while ground
        .processes()
        .iter()
        .any(|(_, command)| command.contains("host gate"))
    {
        assert!(
            tokio::time::Instant::now() < deadline,
            "{:?}",
            ground.processes()
        );
        tokio::task::yield_now().await;
    }
}
