//! The DNS server: answers from the policy alone and asks nobody.
//!
//! The gateway's own name gets its address; a name that some rule allows gets the synthetic address
//! that stands for it; everything else does not exist. What a name really resolves to is looked up
//! by the gateway, for itself, only when a connection that the policy allows is made.

use super::log::EgressLog;
use super::names::Names;
use hickory_resolver::proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_resolver::proto::rr::rdata::A;
use hickory_resolver::proto::rr::{DNSClass, Name, RData, Record, RecordType};
use lazaret_api::guest::net;
use lazaret_domain::egress::{DomainName, EgressPolicy};
use std::net::Ipv4Addr;

/// The longest query that is read.
const MAX_QUERY: usize = 1232;
/// For how many seconds the guest may keep an answer.
const TTL: u32 = 60;

/// Answers a query. None: it is not one, and gets no answer.
pub(super) fn answer(
    query: &[u8],
    names: &mut Names,
    policy: &EgressPolicy,
    log: &EgressLog,
) -> Option<Vec<u8>> {
    if query.len() > MAX_QUERY {
        return None;
    }
    let Ok(query) = Message::from_vec(query) else {
        return not_understood(query, log);
    };
    if query.metadata.message_type != MessageType::Query {
        return None;
    }
    let mut response = Message::response(query.metadata.id, query.metadata.op_code);
    response.metadata.recursion_desired = query.metadata.recursion_desired;
    response.metadata.recursion_available = true;
    if query.edns.is_some() {
        response.set_edns(Edns::new());
    }
    let [question] = query.queries.as_slice() else {
        response.metadata.response_code = ResponseCode::FormErr;
        return response.to_vec().ok();
    };
    response.add_query(question.clone());
    if query.metadata.op_code != OpCode::Query {
        response.metadata.response_code = ResponseCode::NotImp;
        return response.to_vec().ok();
    }
    match judge(question, names, policy, log) {
        None => response.metadata.response_code = ResponseCode::NXDomain,
        // An address is all there is to know about a name: any other question has an empty answer.
        Some(address) if question.query_type == RecordType::A => {
            response.add_answer(Record::from_rdata(
                question.name.clone(),
                TTL,
                RData::A(A(address)),
            ));
        }
        Some(_) => {}
    }
    response.to_vec().ok()
}

/// The address that stands for the name asked for, if it may be known.
fn judge(
    question: &Query,
    names: &mut Names,
    policy: &EgressPolicy,
    log: &EgressLog,
) -> Option<Ipv4Addr> {
    let asked = without_root(&question.name);
    if question.query_class != DNSClass::IN {
        log.refuse("dns", &asked, None, &"not a question about the internet");
        return None;
    }
    let name = match asked.parse::<DomainName>() {
        Ok(name) if name.as_str() == net::GATEWAY_NAME => return Some(net::GATEWAY),
        Ok(name) => name,
        Err(_) => {
            log.refuse("dns", &asked, None, &"not a host name");
            return None;
        }
    };
    match policy.permit_name(&name) {
        Ok(rule) => {
            let address = names.address_of(&name);
            match address {
                Some(_) => log.allow("dns", &name, None, &rule),
                None => log.refuse(
                    "dns",
                    &name,
                    None,
                    &"the sandbox has asked for too many names",
                ),
            }
            address
        }
        Err(refusal) => {
            log.refuse("dns", &name, None, &refusal);
            None
        }
    }
}

/// A name as text, with anything unusual escaped, without the dot of the root.
fn without_root(name: &Name) -> String {
    let text = name.to_ascii();
    text.strip_suffix('.')
        .map_or_else(|| text.clone(), str::to_owned)
}

/// The answer to what can't be read: that much, if there is at least an id to answer to.
fn not_understood(query: &[u8], log: &EgressLog) -> Option<Vec<u8>> {
    log.refuse("dns", &"-", None, &"the query is malformed");
    let id = query.first_chunk::<2>()?;
    let is_query = query.get(2)? & 0x80 == 0;
    let response = Message::error_msg(
        u16::from_be_bytes(*id),
        OpCode::Query,
        ResponseCode::FormErr,
    );
    is_query.then(|| response.to_vec().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn policy(rules: &[&str]) -> EgressPolicy {
        EgressPolicy {
            rules: rules.iter().map(|rule| rule.parse().unwrap()).collect(),
            ..EgressPolicy::default()
        }
    }

    fn query(name: &str, kind: RecordType) -> Vec<u8> {
        let mut message = Message::new(7, MessageType::Query, OpCode::Query);
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        message.to_vec().unwrap()
    }

    fn ask(
        name: &str,
        kind: RecordType,
        names: &mut Names,
        log: &EgressLog,
    ) -> (ResponseCode, Vec<RData>) {
        let answer = answer(
            &query(name, kind),
            names,
            &policy(&["*.example.com", "pypi.org:8443"]),
            log,
        )
        .unwrap();
        let message = Message::from_vec(&answer).unwrap();
        assert_eq!(
            (message.metadata.id, message.metadata.message_type),
            (7, MessageType::Response)
        );
        (
            message.metadata.response_code,
            message
                .answers
                .iter()
                .map(|record| record.data.clone())
                .collect(),
        )
    }

    #[test]
    fn t35_names_that_no_rule_allows_do_not_exist_and_are_logged() {
        let (mut names, log) = (Names::default(), EgressLog::new());
        for name in [
            "c2VjcmV0.attacker.tld.",
            "example.com.",
            "com.",
            ".",
            "a_b.example.com.",
            "1.2.3.4.",
            "localhost.",
        ] {
            for kind in [
                RecordType::A,
                RecordType::AAAA,
                RecordType::TXT,
                RecordType::NULL,
                RecordType::ANY,
            ] {
                assert_eq!(
                    ask(name, kind, &mut names, &log),
                    (ResponseCode::NXDomain, vec![]),
                    "{name}"
                );
            }
        }
        let records = log.after(0).records;
        assert_eq!(records[0].destination, "c2vjcmv0.attacker.tld");
        assert_eq!(records.iter().map(|record| record.count).sum::<u64>(), 35);
        assert!(
            records
                .iter()
                .all(|record| !record.allowed && record.kind == "dns")
        );
    }

    #[test]
    fn allowed_names_get_one_synthetic_address_each_and_no_other_data() {
        let (mut names, log) = (Names::default(), EgressLog::new());
        let first = ask("a.example.com.", RecordType::A, &mut names, &log);
        assert_eq!(
            first,
            (
                ResponseCode::NoError,
                vec![RData::A(A(net::SYNTHETIC_FIRST))]
            )
        );
        assert_eq!(
            ask("A.EXAMPLE.com.", RecordType::A, &mut names, &log),
            first
        );
        assert_ne!(ask("pypi.org.", RecordType::A, &mut names, &log), first);
        for kind in [RecordType::AAAA, RecordType::HTTPS, RecordType::MX] {
            assert_eq!(
                ask("a.example.com.", kind, &mut names, &log),
                (ResponseCode::NoError, vec![])
            );
        }
        let gateway = ask("gateway.lazaret.", RecordType::A, &mut names, &log);
        assert_eq!(
            gateway,
            (ResponseCode::NoError, vec![RData::A(A(net::GATEWAY))])
        );
        assert_eq!(
            names.name_of(net::SYNTHETIC_FIRST).unwrap().as_str(),
            "a.example.com"
        );
    }

    proptest! {
        #[test]
        fn no_query_is_too_strange_to_answer(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..40) {
            let (mut names, log) = (Names::default(), EgressLog::new());
            let open = EgressPolicy { open: true, ..EgressPolicy::default() };
            answer(&bytes, &mut names, &open, &log);
            let mut plausible = query("a.example.com.", RecordType::A);
            plausible.truncate(plausible.len().saturating_sub(cut));
            plausible.append(&mut bytes);
            answer(&plausible, &mut names, &open, &log);
        }
    }
}
