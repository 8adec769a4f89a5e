//! Whatever a TLS connection begins with, the name that the gateway lets through is the one that a
//! TLS server reads, and more bytes do not change the gateway's mind.
#![no_main]

use lazaret_domain::egress::DomainName;
use lazaret_host::gateway::hostile::server_name;
use rustls::server::Acceptor;

libfuzzer_sys::fuzz_target!(|said: &[u8]| {
    let seen = server_name(said);
    for end in (0..said.len()).rev().take(300) {
        match server_name(&said[..end]) {
            None => {}
            // A connection that has said so much is closed, whatever it goes on to say.
            Some(Err("the TLS ClientHello is too long")) => {}
            settled => assert_eq!(settled, seen, "after {end} bytes"),
        }
    }
    if let Some(Ok(name)) = seen
        && let Some(read) = read_by_rustls(said)
    {
        assert_eq!(read.as_deref(), Some(name.as_str()));
    }
});

/// The name that a TLS server reads in its canonical form. Nothing if it would not go on.
fn read_by_rustls(mut said: &[u8]) -> Option<Option<String>> {
    let mut acceptor = Acceptor::default();
    while !said.is_empty() {
        acceptor.read_tls(&mut said).ok()?;
        if let Some(accepted) = acceptor.accept().ok()? {
            let hello = accepted.client_hello();
            let name = hello.server_name().map(str::parse::<DomainName>);
            return Some(name.map(|name| name.expect("a host name").to_string()));
        }
    }
    None
}
