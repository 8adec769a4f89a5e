//! The server name in a TLS client's first message, read strictly and without ending the TLS.
//!
//! A connection to port 443 stands for one name. Its ClientHello must say the same name in the
//! clear, or the connection is closed before anything is dialled: no TLS at all, no name, another
//! name, and an encrypted ClientHello, which could carry another name inside, are all refused.
//! (Clients that only pretend to encrypt it, as some browsers do, can't be told apart and are
//! refused too.) What is asked for inside the encrypted connection can't be seen from here.

use lazaret_domain::egress::DomainName;

/// The longest ClientHello that is read, in bytes on the wire. Post-quantum keys take about 2 KiB.
pub(super) const MAX_HELLO: usize = 32 * 1024;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;

/// What the first bytes of a connection say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hello {
    /// Not enough to know.
    Incomplete,
    /// A ClientHello for this name.
    For(DomainName),
    /// Something that is not let through.
    Refused(&'static str),
}

/// Reads the first bytes of a connection.
pub(super) fn read(bytes: &[u8]) -> Hello {
    match handshake(bytes).and_then(|message| message.as_deref().map(server_name).transpose()) {
        Ok(Some(name)) => Hello::For(name),
        Ok(None) if bytes.len() >= MAX_HELLO => Hello::Refused("the TLS ClientHello is too long"),
        Ok(None) => Hello::Incomplete,
        Err(reason) => Hello::Refused(reason),
    }
}

/// The alert that tells a TLS client that the name it asked for is not served here.
pub(super) const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 1, 0, 2, 2, 112];

const MALFORMED: &str = "the TLS ClientHello is malformed";

/// Puts the first handshake message together from its records. None: more bytes are needed.
fn handshake(mut bytes: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
    let mut message = Vec::new();
    loop {
        if let Some(&first) = bytes.first()
            && first != HANDSHAKE
        {
            return Err("port 443 is for TLS only");
        }
        let Some(header) = bytes.first_chunk::<5>() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if header[1] != 3 || length == 0 || length > 1 << 14 {
            return Err(MALFORMED);
        }
        let available = bytes.get(5..).unwrap_or_default();
        message.extend_from_slice(&available[..available.len().min(length)]);
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Err(MALFORMED);
        }
        if let Some(head) = message.first_chunk::<4>() {
            let wanted = usize::try_from(u32::from_be_bytes([0, head[1], head[2], head[3]]))
                .unwrap_or(usize::MAX);
            if wanted > MAX_HELLO {
                return Err("the TLS ClientHello is too long");
            }
            if let Some(body) = message.get(4..4 + wanted) {
                return Ok(Some(body.to_vec()));
            }
        }
        let Some(rest) = available.get(length..) else {
            return Ok(None);
        };
        bytes = rest;
    }
}

/// The one server name in the body of a ClientHello.
fn server_name(body: &[u8]) -> Result<DomainName, &'static str> {
    let mut reader = Reader(body);
    reader.take(2 + 32)?;
    reader.vector8()?;
    reader.vector16()?;
    reader.vector8()?;
    if reader.0.is_empty() {
        return Err("the TLS ClientHello names no server");
    }
    let mut extensions = Reader(reader.vector16()?);
    reader.finish()?;
    let mut name = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number16()?;
        let data = extensions.vector16()?;
        match kind {
            ENCRYPTED_CLIENT_HELLO => return Err("the TLS ClientHello is encrypted"),
            SERVER_NAME if name.is_some() => return Err(MALFORMED),
            SERVER_NAME => name = Some(host_name(data)?),
            _ => {}
        }
    }
    name.ok_or("the TLS ClientHello names no server")
}

/// The one host name in a server name extension.
fn host_name(data: &[u8]) -> Result<DomainName, &'static str> {
    let mut reader = Reader(data);
    let mut list = Reader(reader.vector16()?);
    reader.finish()?;
    if list.take(1)? != [0] {
        return Err(MALFORMED);
    }
    let name = list.vector16()?;
    list.finish()?;
    let text = std::str::from_utf8(name).map_err(|_| MALFORMED)?;
    text.parse()
        .map_err(|_| "the TLS ClientHello names no host")
}

/// What is left of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(MALFORMED)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number16(&mut self) -> Result<u16, &'static str> {
        let (taken, rest) = self.0.split_first_chunk::<2>().ok_or(MALFORMED)?;
        self.0 = rest;
        Ok(u16::from_be_bytes(*taken))
    }

    fn vector8(&mut self) -> Result<&'a [u8], &'static str> {
        let length = *self.take(1)?.first().ok_or(MALFORMED)?;
        self.take(usize::from(length))
    }

    fn vector16(&mut self) -> Result<&'a [u8], &'static str> {
        let length = self.number16()?;
        self.take(usize::from(length))
    }

    fn finish(self) -> Result<(), &'static str> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(MALFORMED)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vector16(data: &[u8]) -> Vec<u8> {
        [&u16::try_from(data.len()).unwrap().to_be_bytes()[..], data].concat()
    }

    fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &vector16(data)].concat()
    }

    fn sni(name: &str) -> Vec<u8> {
        extension(
            SERVER_NAME,
            &vector16(&[&[0][..], &vector16(name.as_bytes())].concat()),
        )
    }

    fn hello(extensions: &[u8]) -> Vec<u8> {
        let body = [
            &[3, 3][..],
            &[9; 32],
            &[0],
            &vector16(&[0x13, 1]),
            &[1, 0],
            &vector16(extensions),
        ]
        .concat();
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[CLIENT_HELLO][..], &length[1..], &body].concat()
    }

    fn record(handshake: &[u8]) -> Vec<u8> {
        [&[HANDSHAKE, 3, 1][..], &vector16(handshake)].concat()
    }

    #[test]
    fn the_name_is_found_however_the_stream_is_cut_into_records() {
        let hello = hello(
            &[
                extension(10, &[0, 2, 0, 29]),
                sni("Example.com"),
                extension(16, &[]),
            ]
            .concat(),
        );
        let whole = record(&hello);
        let cut: Vec<u8> = hello.chunks(7).flat_map(record).collect();
        for stream in [whole, cut] {
            assert_eq!(read(&stream), Hello::For("example.com".parse().unwrap()));
            for end in 0..stream.len() {
                assert_eq!(read(&stream[..end]), Hello::Incomplete, "{end}");
            }
        }
    }

    #[test]
    fn t41_no_name_two_names_an_encrypted_name_and_no_tls_are_refused() {
        let refused = |stream: &[u8]| match read(stream) {
            Hello::Refused(reason) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(b"GET / HTTP/1.1\r\n"), "port 443 is for TLS only");
        assert_eq!(refused(b"PRI * HTTP/2.0"), "port 443 is for TLS only");
        assert_eq!(refused(&[0x80, 46, 1, 3, 1]), "port 443 is for TLS only");
        assert_eq!(
            refused(&record(&hello(&[]))),
            "the TLS ClientHello names no server"
        );
        assert_eq!(
            refused(&record(&hello(&extension(16, &[])))),
            "the TLS ClientHello names no server"
        );
        assert_eq!(
            refused(&record(&hello(&[sni("a.com"), sni("b.com")].concat()))),
            MALFORMED
        );
        let encrypted = [sni("a.com"), extension(ENCRYPTED_CLIENT_HELLO, &[0; 40])].concat();
        assert_eq!(
            refused(&record(&hello(&encrypted))),
            "the TLS ClientHello is encrypted"
        );
        for name in [
            "",
            "1.2.3.4",
            "a.com\0.b.com",
            "a.com.",
            "a_b.com",
            "[::1]",
            "169.254.43518",
        ] {
            assert_eq!(
                refused(&record(&hello(&sni(name)))),
                "the TLS ClientHello names no host",
                "{name}"
            );
        }
        let trailing = extension(
            SERVER_NAME,
            &[
                &vector16(&[&[0][..], &vector16(b"a.com")].concat())[..],
                &[0],
            ]
            .concat(),
        );
        assert_eq!(refused(&record(&hello(&trailing))), MALFORMED);
        assert_eq!(refused(&record(&[2, 0, 0, 0])), MALFORMED);
        assert_eq!(
            refused(&record(&[1, 0xff, 0xff, 0xff])),
            "the TLS ClientHello is too long"
        );
    }

    proptest! {
        #[test]
        fn no_first_bytes_are_too_strange_to_read(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..150, value in any::<u8>()) {
            read(&bytes);
            read(&record(&[&[CLIENT_HELLO, 0, 0, 190][..], &bytes].concat()));
            let mut stream = record(&hello(&sni("example.com")));
            let at = at % stream.len();
            stream[at] = value;
            read(&stream);
        }
    }
}
