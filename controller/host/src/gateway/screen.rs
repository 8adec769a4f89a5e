//! The first look at a frame, before the TCP/IP stack sees it.
//!
//! What is not plainly one of the few things the gateway answers is named here, so that it can be
//! refused and logged. Nothing is kept between frames.

use super::cable::MAX_FRAME;
use lazaret_api::guest::net;
use smoltcp::wire::{
    ArpPacket, EthernetFrame, EthernetProtocol, Icmpv4Message, Icmpv4Packet, IpProtocol,
    Ipv4Packet, TcpPacket, UdpPacket,
};
use std::fmt::Display;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

/// The port of the DNS server.
pub(super) const DNS_PORT: u16 = 53;

/// What a frame is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Something for the stack: ARP for the gateway, a DNS query, a segment of a connection.
    Pass,
    /// The first segment of a connection from this port of the guest.
    Open {
        /// The guest's port.
        from: u16,
        /// Where to.
        to: SocketAddrV4,
    },
    /// Something to refuse and to log.
    Refuse(Refused),
    /// Harmless noise that needs no answer and no record.
    Ignore,
}

/// Something that is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// The kind of record.
    pub(super) kind: &'static str,
    /// Where it was to go.
    pub(super) destination: String,
    /// To what port.
    pub(super) port: Option<u16>,
    /// Why it is refused.
    pub(super) reason: &'static str,
    /// Whether the stack can tell the guest so (it answers what it has no socket for).
    pub(super) answer: bool,
}

fn refuse(
    kind: &'static str,
    destination: &dyn Display,
    port: Option<u16>,
    reason: &'static str,
) -> Seen {
    Seen::Refuse(Refused {
        kind,
        destination: destination.to_string(),
        port,
        reason,
        answer: false,
    })
}

fn junk(reason: &'static str) -> Seen {
    refuse("frame", &"-", None, reason)
}

/// Looks at a frame.
pub(super) fn look(frame: &[u8]) -> Seen {
    if frame.len() > MAX_FRAME {
        return junk("the frame is longer than the link allows");
    }
    let Ok(ethernet) = EthernetFrame::new_checked(frame) else {
        return junk("the frame is too short");
    };
    match ethernet.ethertype() {
        EthernetProtocol::Arp => look_at_arp(ethernet.payload()),
        EthernetProtocol::Ipv4 => look_at_ipv4(ethernet.payload()),
        EthernetProtocol::Ipv6 => {
            // The destination is all that matters of it, and where it is in the header.
            let octets = ethernet
                .payload()
                .get(24..40)
                .and_then(<[u8]>::first_chunk::<16>);
            let destination = octets.map_or_else(
                || "-".to_owned(),
                |octets| Ipv6Addr::from(*octets).to_string(),
            );
            refuse("ipv6", &destination, None, "there is no IPv6 on this link")
        }
        EthernetProtocol::Unknown(_) => junk("the frame is neither ARP nor IPv4"),
    }
}

fn look_at_arp(payload: &[u8]) -> Seen {
    match ArpPacket::new_checked(payload) {
        Ok(packet) if packet.protocol_len() == 4 && packet.hardware_len() == 6 => {
            // Only the gateway is there to be found; the guest asking for itself is no question.
            if packet.target_protocol_addr() == net::GATEWAY.octets() {
                Seen::Pass
            } else {
                Seen::Ignore
            }
        }
        _ => junk("the ARP packet is malformed"),
    }
}

fn look_at_ipv4(payload: &[u8]) -> Seen {
    let Ok(packet) = Ipv4Packet::new_checked(payload) else {
        return junk("the IPv4 packet is malformed");
    };
    if packet.version() != 4 || usize::from(packet.header_len()) < 20 {
        return junk("the IPv4 packet is malformed");
    }
    let destination = packet.dst_addr();
    if packet.src_addr() != net::GUEST {
        return refuse(
            "frame",
            &destination,
            None,
            "the source address is not the guest's",
        );
    }
    if packet.more_frags() || packet.frag_offset() != 0 {
        return refuse("frame", &destination, None, "fragments are not taken");
    }
    let one_host =
        !destination.is_multicast() && !destination.is_broadcast() && !destination.is_unspecified();
    let seen = match packet.next_header() {
        IpProtocol::Tcp => look_at_tcp(destination, packet.payload()),
        IpProtocol::Udp => look_at_udp(destination, packet.payload()),
        IpProtocol::Icmp => look_at_icmp(destination, packet.payload()),
        _ => Seen::Refuse(Refused {
            kind: "frame",
            destination: destination.to_string(),
            port: None,
            reason: "only TCP is passed on",
            answer: one_host,
        }),
    };
    match seen {
        Seen::Open { to, .. } if !one_host => refuse(
            "tcp",
            &destination,
            Some(to.port()),
            "the address is not that of one host",
        ),
        Seen::Refuse(refused) => Seen::Refuse(Refused {
            answer: refused.answer && one_host,
            ..refused
        }),
        seen => seen,
    }
}

fn look_at_tcp(destination: Ipv4Addr, payload: &[u8]) -> Seen {
    match TcpPacket::new_checked(payload) {
        Ok(segment) if segment.dst_port() == 0 || segment.src_port() == 0 => {
            refuse("frame", &destination, None, "port 0 is no port")
        }
        Ok(segment) if segment.syn() && !segment.ack() && !segment.rst() => Seen::Open {
            from: segment.src_port(),
            to: SocketAddrV4::new(destination, segment.dst_port()),
        },
        Ok(_) => Seen::Pass,
        Err(_) => refuse("frame", &destination, None, "the TCP segment is malformed"),
    }
}

fn look_at_udp(destination: Ipv4Addr, payload: &[u8]) -> Seen {
    match UdpPacket::new_checked(payload) {
        Ok(datagram) if destination == net::GATEWAY && datagram.dst_port() == DNS_PORT => {
            Seen::Pass
        }
        Ok(datagram) => Seen::Refuse(Refused {
            kind: "udp",
            destination: destination.to_string(),
            port: Some(datagram.dst_port()),
            reason: "no UDP but DNS to the gateway",
            answer: true,
        }),
        Err(_) => refuse("frame", &destination, None, "the UDP datagram is malformed"),
    }
}

fn look_at_icmp(destination: Ipv4Addr, payload: &[u8]) -> Seen {
    match Icmpv4Packet::new_checked(payload).map(|packet| packet.msg_type()) {
        // The guest's kernel says that a program no longer wants an answer.
        Ok(Icmpv4Message::DstUnreachable | Icmpv4Message::TimeExceeded) => Seen::Ignore,
        Ok(_) => refuse("icmp", &destination, None, "no ICMP"),
        Err(_) => refuse("frame", &destination, None, "the ICMP message is malformed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn runts_and_giants_and_strangers_are_named() {
        let reason = |frame: &[u8]| match look(frame) {
            Seen::Refuse(refused) => refused.reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(reason(&[]), "the frame is too short");
        assert_eq!(reason(&[0; 13]), "the frame is too short");
        assert_eq!(reason(&[0; 14]), "the frame is neither ARP nor IPv4");
        assert_eq!(
            reason(&vec![0; MAX_FRAME + 1]),
            "the frame is longer than the link allows"
        );
        let ethernet = |ethertype: [u8; 2], rest: &[u8]| [&[0; 12][..], &ethertype, rest].concat();
        assert_eq!(
            reason(&ethernet([0x86, 0xdd], &[])),
            "there is no IPv6 on this link"
        );
        assert_eq!(
            reason(&ethernet([0x08, 0x00], &[0x45])),
            "the IPv4 packet is malformed"
        );
        assert_eq!(
            reason(&ethernet([0x08, 0x06], &[0, 1])),
            "the ARP packet is malformed"
        );
    }

    proptest! {
        #[test]
        fn no_frame_is_too_strange_to_look_at(
            ethertype in prop_oneof![Just(0x0800_u16), Just(0x0806), Just(0x86dd), any::<u16>()],
            mut packet in proptest::collection::vec(any::<u8>(), 0..120),
            protocol in prop_oneof![Just(1_u8), Just(6), Just(17), any::<u8>()],
            plausible in any::<bool>(),
        ) {
            if plausible && packet.len() >= 20 {
                let length = u16::try_from(packet.len()).unwrap_or(0);
                packet[0] = 0x45;
                packet[2..4].copy_from_slice(&length.to_be_bytes());
                packet[6..8].fill(0);
                packet[9] = protocol;
                packet[12..16].copy_from_slice(&net::GUEST.octets());
            }
            let frame = [&[0; 12][..], &ethertype.to_be_bytes(), &packet].concat();
            if let Seen::Open { to, .. } = look(&frame) {
                prop_assert!(to.port() != 0 && !to.ip().is_multicast() && !to.ip().is_broadcast());
            }
        }
    }
}
