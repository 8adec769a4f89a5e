//! Whatever a guest says in plain HTTP, the one that is asked reads one request on each connection,
//! whole and with nothing behind it, for that host (or from that sandbox) and no other.
//!
//! Input: a byte that says who is asked, then what the guest says.
#![no_main]

use httparse::{EMPTY_HEADER, Request, Status};
use lazaret_api::guest::net::GATEWAY_NAME;
use lazaret_api::uplink::SANDBOX_HEADER;
use lazaret_host::gateway::hostile::{Asked, requests};

const HOST: &str = "a.example";
const SANDBOX: &str = "s0000000000000000";
/// What concerns the guest's connection only, or would lead to another protocol.
const NEVER: [&str; 7] = [
    "connection",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
];
/// What the gateway's own service does not take from a guest.
const NOT_TO_SERVICE: [&str; 2] = ["authorization", "cookie"];

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((kind, said)) = input.split_first() else {
        return;
    };
    let service = kind % 2 == 1;
    let asked = if service {
        Asked::Service(SANDBOX.parse().expect("an id"))
    } else {
        Asked::Host(HOST.parse().expect("a name"))
    };
    for heard in requests(said, &asked) {
        let mut headers = [EMPTY_HEADER; 128];
        let mut request = Request::new(&mut headers);
        let head = match request.parse(&heard) {
            Ok(Status::Complete(head)) => head,
            // The guest broke off, or the one asked was never spoken to.
            Ok(Status::Partial) => continue,
            Err(error) => panic!("{error}: {heard:?}"),
        };
        let all = |name: &str| -> Vec<&[u8]> {
            let with = request.headers.iter();
            with.filter(|header| header.name.eq_ignore_ascii_case(name))
                .map(|header| header.value)
                .collect()
        };
        assert!(
            request
                .path
                .is_some_and(|path| path.starts_with('/') || path == "*")
        );
        assert_ne!(request.method, Some("CONNECT"));
        let host = if service { GATEWAY_NAME } else { HOST };
        assert_eq!(all("host"), [host.as_bytes()]);
        for name in NEVER {
            assert!(all(name).is_empty(), "{name}");
        }
        if service {
            assert_eq!(all(SANDBOX_HEADER), [SANDBOX.as_bytes()]);
            for name in NOT_TO_SERVICE {
                assert!(all(name).is_empty(), "{name}");
            }
        }
        check_body(
            &heard[head..],
            &all("content-length"),
            &all("transfer-encoding"),
        );
    }
});

/// Both ends must agree where the body ends, and nothing may come behind it.
fn check_body(mut body: &[u8], lengths: &[&[u8]], encodings: &[&[u8]]) {
    match (lengths, encodings) {
        ([], []) => assert!(body.is_empty(), "{body:?}"),
        ([length], []) => {
            let length = std::str::from_utf8(length)
                .ok()
                .and_then(|text| text.parse().ok());
            assert!(
                length.is_some_and(|length: usize| body.len() <= length),
                "{length:?}"
            );
        }
        ([], [b"chunked"]) => {
            while let Ok(Status::Complete((head, size))) = httparse::parse_chunk_size(body) {
                let end = head + usize::try_from(size).expect("a size") + 2;
                let Some(rest) = body.get(end..) else { return };
                assert_eq!(&body[end - 2..end], b"\r\n");
                body = rest;
                if size == 0 {
                    assert!(body.is_empty(), "{body:?}");
                }
            }
        }
        other => panic!("where the body ends can be read in two ways: {other:?}"),
    }
}
