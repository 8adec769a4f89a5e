//! Whatever is asked of the DNS server, it answers that question or nothing, in one datagram, with no
//! other data than an address that stands for the name, and the same each time.
#![no_main]

use hickory_resolver::proto::op::{Message, MessageType, ResponseCode};
use hickory_resolver::proto::rr::RData;
use lazaret_api::guest::net;
use lazaret_host::gateway::hostile;

/// The most that a datagram holds on any link.
const LONGEST: usize = 1232;

libfuzzer_sys::fuzz_target!(|query: &[u8]| {
    let answers = hostile::answers(&[query, query]);
    assert_eq!(answers[0], answers[1]);
    let Some(answer) = &answers[0] else { return };
    assert!(query.len() <= LONGEST && answer.len() <= LONGEST);
    assert_eq!(answer[..2], query[..2], "another id");
    let answer = Message::from_vec(answer).expect("an answer that can be read");
    assert_eq!(answer.metadata.message_type, MessageType::Response);
    assert!(answer.answers.len() <= 1 && answer.authorities.is_empty());
    assert!(answer.additionals.is_empty());
    for record in &answer.answers {
        assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
        assert_eq!(record.name, answer.queries[0].name);
        let RData::A(address) = &record.data else {
            panic!("{record}")
        };
        assert!([net::GATEWAY, net::SYNTHETIC_FIRST].contains(&address.0));
    }
});
