//! Doors for the fuzzer and the property tests: what a guest can send, taken without a VM, a cable or
//! the internet. Nothing in the product calls them, and each goes through the very code that the
//! product uses. They give back what an outsider can see, for the caller to judge.

use super::cable::{MAX_FRAME, OUTBOUND_LIMIT, PREFIX};
use super::engine::{Engine, MAX_CONNECTIONS};
use super::forward::{self, Body, pass_on, problem};
use super::hello::{self, Hello};
use super::names::Names;
use super::stream::GuestStream;
use super::{EgressLog, dns, services, web};
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use lazaret_domain::egress::{DomainName, EgressPolicy};
use lazaret_domain::{Denial, DenialCode, SandboxId};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex,
};
use tokio::task::JoinSet;

/// This many connections are kept at once; the oldest is given up for a further one.
const KEPT: usize = 8;
/// How much comes over the cable at once: about a frame, so that the stack answers between them.
const READ: usize = 64;
/// How much is read from a connection at once, and held between two ends of a request's way.
const PIECE: usize = 4096;

fn open() -> EgressPolicy {
    EgressPolicy {
        open: true,
        ..EgressPolicy::default()
    }
}

/// Takes bytes as a cable would bring them and gives back the frames that go over it in answer.
/// Everything is open and nothing is dialled: each connection is answered with what came on it.
///
/// # Panics
/// If the stack holds more than it may, or sends something that is not a stream of frames.
#[must_use]
pub fn frames(bytes: &[u8]) -> Vec<Vec<u8>> {
    // The seed makes the sequence numbers the same each time, so that inputs can know them.
    let mut engine = Engine::new(Arc::new(open()), EgressLog::new(), 1);
    let (mut streams, mut answers) = (VecDeque::new(), Vec::new());
    for piece in bytes.chunks(READ) {
        engine.wire.feed(piece);
        loop {
            let Ok(step) = engine.step() else {
                return answers;
            };
            streams.extend(step.admitted.into_iter().map(|admission| admission.stream));
            streams.retain_mut(|stream| echo(stream).is_some());
            streams.drain(..streams.len().saturating_sub(KEPT));
            let sockets = engine.shared.net().sockets.iter().count();
            // One of them is the DNS server's.
            assert!(sockets <= MAX_CONNECTIONS + 1, "{sockets} sockets");
            let sent = engine.wire.take_outbound();
            assert!(sent.len() < OUTBOUND_LIMIT + 2 * (PREFIX + MAX_FRAME));
            if sent.is_empty() {
                break;
            }
            let mut rest = &sent[..];
            while let Some((prefix, after)) = rest.split_first_chunk::<PREFIX>() {
                let length = u32::from_be_bytes(*prefix) as usize;
                assert!(length <= MAX_FRAME && length <= after.len(), "{length}");
                let (frame, after) = after.split_at(length);
                answers.push(frame.to_vec());
                rest = after;
            }
            assert!(rest.is_empty(), "a piece of a frame");
        }
    }
    answers
}

/// Writes what came on a connection back to it. Nothing once it is over.
fn echo(stream: &mut GuestStream) -> Option<()> {
    let mut context = Context::from_waker(Waker::noop());
    let mut room = [0; PIECE];
    let mut came = ReadBuf::new(&mut room);
    match Pin::new(&mut *stream).poll_read(&mut context, &mut came) {
        Poll::Pending => Some(()),
        Poll::Ready(Ok(())) if !came.filled().is_empty() => {
            let _ = Pin::new(stream).poll_write(&mut context, came.filled());
            Some(())
        }
        Poll::Ready(Ok(())) => {
            let _ = Pin::new(stream).poll_shutdown(&mut context);
            None
        }
        Poll::Ready(Err(_)) => None,
    }
}

/// The name that the first bytes of a TLS connection ask for, or why they are not let through.
/// Nothing while there are too few of them.
#[must_use]
pub fn server_name(said: &[u8]) -> Option<Result<DomainName, &'static str>> {
    match hello::read(said) {
        Hello::Incomplete => None,
        Hello::For(name) => Some(Ok(name)),
        Hello::Refused(reason) => Some(Err(reason)),
    }
}

/// The answers of one gateway to these datagrams on the DNS port, with every name allowed.
#[must_use]
pub fn answers(queries: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
    let (mut names, policy, log) = (Names::default(), open(), EgressLog::new());
    queries
        .iter()
        .map(|query| dns::answer(query, &mut names, &policy, &log))
        .collect()
}

/// Who is asked over plain HTTP.
#[derive(Clone, Debug)]
pub enum Asked {
    /// A host that the policy allows, on port 80.
    Host(DomainName),
    /// The gateway's own service, by this sandbox.
    Service(SandboxId),
}

/// What the one asked gets to read, a connection each, when a guest says this on one connection.
#[must_use]
pub fn requests(said: &[u8], asked: &Asked) -> Vec<Vec<u8>> {
    let heard = Mutex::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    if let Ok(runtime) = runtime {
        runtime.block_on(converse(said, asked, &heard));
    }
    heard.into_inner().unwrap_or_else(PoisonError::into_inner)
}

async fn converse(said: &[u8], asked: &Asked, heard: &Mutex<Vec<Vec<u8>>>) {
    let (mut guest, gateway) = duplex(PIECE);
    let listeners = tokio::sync::Mutex::new(JoinSet::new());
    let serving = forward::serve(gateway, async |request| {
        let Some((request, ours)) = screened(request, asked) else {
            return refusal();
        };
        let (upstream, far) = duplex(PIECE);
        listeners.lock().await.spawn(listen(far));
        match pass_on(upstream, request.map(Body::new), ours).await {
            Ok(response) => response.map(Body::new),
            Err(_) => refusal(),
        }
    });
    let speaking = async {
        let (mut from, mut to) = tokio::io::split(&mut guest);
        let mut sink = tokio::io::sink();
        let say = async {
            let _ = to.write_all(said).await;
            let _ = to.shutdown().await;
        };
        tokio::join!(say, tokio::io::copy(&mut from, &mut sink)).1
    };
    let _ = tokio::join!(serving, speaking);
    let all = listeners.into_inner().join_all().await;
    heard
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .extend(all);
}

/// The request as it goes on, if it does.
fn screened(request: Request<Incoming>, asked: &Asked) -> Option<(Request<Incoming>, HeaderMap)> {
    match asked {
        Asked::Host(host) => web::for_host(request, host).ok(),
        Asked::Service(sandbox)
            if services::is_git(&request) && services::is_plain(request.uri().path()) =>
        {
            services::for_uplink(request, sandbox)
        }
        Asked::Service(_) => None,
    }
}

fn refusal() -> Response<Body> {
    let denial = Denial::new(DenialCode::EgressDenied, "refused");
    problem(StatusCode::FORBIDDEN, &denial)
}

/// Answers as soon as there is the head of a request, and reads on to the end.
async fn listen(mut far: DuplexStream) -> Vec<u8> {
    let (mut heard, mut answered) = (Vec::new(), false);
    while far
        .read_buf(&mut heard)
        .await
        .is_ok_and(|length| length > 0)
    {
        if !answered && heard.windows(4).any(|end| end == b"\r\n\r\n") {
            answered = true;
            let _ = far.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
        }
    }
    heard
}
