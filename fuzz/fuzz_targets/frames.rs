//! Whatever comes over a guest's cable, the gateway goes on or ends with a cause, holds no more than
//! it may, and says only frames that are for the guest.
//!
//! Input: frames, each with its length in two bytes, which never reaches beyond the end; or, after
//! two 0xff, the cable's own stream as it is.
#![no_main]

use lazaret_api::guest::net;
use lazaret_host::gateway::hostile;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let stream = match input {
        [0xff, 0xff, stream @ ..] => stream.to_vec(),
        frames => on_the_cable(frames),
    };
    for answer in hostile::frames(&stream) {
        assert_eq!(answer[6..12], net::GATEWAY_MAC);
        match answer[12..14] {
            [8, 0] => assert_eq!(answer[30..34], net::GUEST.octets()),
            [8, 6] => assert_eq!(answer[28..32], net::GATEWAY.octets()),
            _ => panic!("neither ARP nor IPv4: {answer:?}"),
        }
    }
});

fn on_the_cable(mut input: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    while let Some((length, rest)) = input.split_first_chunk::<2>() {
        let length = rest.len().min(u16::from_be_bytes(*length).into());
        let (frame, rest) = rest.split_at(length);
        stream.extend_from_slice(&(length as u32).to_be_bytes());
        stream.extend_from_slice(frame);
        input = rest;
    }
    stream
}
