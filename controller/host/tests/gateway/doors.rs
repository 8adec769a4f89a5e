//! That the fuzzer's doors lead where the product is: an input that is in order gets through, and one
//! that is not does not. What holds for every input is in `fuzz/fuzz_targets`.

use crate::frames::{ipv4, on_the_cable, who_has};
use lazaret_api::guest::net;
use lazaret_host::gateway::hostile::{self, Asked};

/// The gateway's first sequence number, which the fuzzer's first inputs (`fuzz/seeds.py`) know too.
/// Should these tests fail because the stack draws another one now, change it in both places.
const FIRST_SEQUENCE: u32 = 0xdc90_72b2;
const SYN: u8 = 2;
const ACK: u8 = 16;
const FIN: u8 = 1;

/// A segment to the gateway's own service, on the cable.
fn segment(sequence: u32, flags: u8, data: &[u8]) -> Vec<u8> {
    // Scaling windows is offered with the first one.
    let options: &[u8] = if flags == SYN { &[3, 3, 7, 0] } else { &[] };
    let words = u8::try_from(5 + options.len() / 4).unwrap();
    let tcp = [
        &[0xa0, 0, 0, 80][..],
        &sequence.to_be_bytes(),
        &FIRST_SEQUENCE.wrapping_add(1).to_be_bytes(),
        &[words << 4, flags, 0xff, 0xff, 0, 0, 0, 0],
        options,
        data,
    ]
    .concat();
    on_the_cable(&ipv4(6, net::GATEWAY, &tcp))
}

/// A connection to it that was made in order.
fn connected() -> Vec<u8> {
    [
        on_the_cable(&who_has(net::GATEWAY)),
        segment(0, SYN, b""),
        segment(1, ACK, b""),
    ]
    .concat()
}

#[test]
fn frames_lead_into_an_open_connection() {
    let request = b"GET / HTTP/1.1";
    let stream = [
        connected(),
        segment(1, ACK, request),
        segment(15, FIN | ACK, b""),
    ]
    .concat();
    let answers = hostile::frames(&stream);
    let sequence = u32::from_be_bytes(*answers[1][38..].first_chunk().unwrap());
    assert_eq!(sequence, FIRST_SEQUENCE);
    assert!(
        answers.iter().any(|frame| frame.ends_with(request)),
        "{answers:?}"
    );
}

/// Found by the fuzzer: it was taken where there was no buffer for it.
#[test]
fn data_beyond_the_window_is_not_taken() {
    let buffer = 256 * 1024;
    for from in [buffer - 100, buffer, buffer + 50_000, 2 * buffer - 200] {
        let mut stream = connected();
        stream.extend(segment(1 + from, ACK, &[7; 60_000]));
        for at in (0..from).step_by(60_000) {
            let length = 60_000.min(from - at) as usize;
            stream.extend(segment(1 + at, ACK, &[7; 60_000][..length]));
        }
        let answers = hostile::frames(&stream);
        assert!(
            answers.len() > 6,
            "the gateway went on after {from}: {}",
            answers.len()
        );
    }
}

#[test]
fn a_query_is_answered_and_one_that_is_too_long_is_not() {
    let query = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01a\x07example\0\0\x01\0\x01";
    let answers = hostile::answers(&[query, &[0; 1300]]);
    let answer = answers[0].as_ref().unwrap();
    assert!(
        answer.ends_with(&net::SYNTHETIC_FIRST.octets()),
        "{answer:?}"
    );
    assert_eq!(answers[1], None);
}

#[test]
fn a_tls_client_that_says_no_name_is_not_let_through() {
    assert_eq!(hostile::server_name(&[22, 3]), None);
    assert!(hostile::server_name(b"GET / HTTP/1.1").unwrap().is_err());
}

#[test]
fn a_request_is_heard_by_whom_it_is_for_and_by_nobody_else() {
    let host = Asked::Host("a.example".parse().unwrap());
    let said = "GET /1 HTTP/1.1\r\nHost: A.example\r\n\r\n\
                POST /2 HTTP/1.1\r\nHost: a.example\r\nContent-Length: 2\r\n\r\nok\
                GET /3 HTTP/1.1\r\nHost: b.example\r\n\r\n";
    let heard: Vec<String> = hostile::requests(said.as_bytes(), &host)
        .into_iter()
        .map(|bytes| String::from_utf8(bytes).unwrap())
        .collect();
    assert_eq!(
        heard,
        [
            "GET /1 HTTP/1.1\r\nhost: a.example\r\n\r\n",
            "POST /2 HTTP/1.1\r\nhost: a.example\r\ncontent-length: 2\r\n\r\nok",
        ]
    );
    let service = Asked::Service("s0000000000000000".parse().unwrap());
    let said = "GET /git/a/b HTTP/1.1\r\nHost: x\r\nLazaret-Sandbox: s1\r\n\r\n";
    let heard = hostile::requests(said.as_bytes(), &service);
    let heard = String::from_utf8(heard.concat()).unwrap();
    assert!(
        heard.contains("lazaret-sandbox: s0000000000000000\r\n"),
        "{heard}"
    );
    assert!(!heard.contains("s1"), "{heard}");
}
