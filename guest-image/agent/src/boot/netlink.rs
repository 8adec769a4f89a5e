//! The three requests of rtnetlink(7) that a static network needs, written by hand: a library for
//! all of it would be larger than the rest of this program.

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const NLMSG_ERROR: u16 = 2;
const REQUEST_ACK: u16 = 0x1 | 0x4;
const CREATE: u16 = 0x400;
const AF_INET: u8 = 2;
const IFF_UP: u32 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFLA_MTU: u16 = 4;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RTN_UNICAST: u8 = 1;

/// A conversation with the kernel about its network.
pub(super) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        // Protocol 0 of this family is NETLINK_ROUTE.
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Switches a link on.
    pub(super) fn set_up(&mut self, link: u32) -> io::Result<()> {
        self.ask(RTM_NEWLINK, 0, &link_header(link, IFF_UP))
    }

    /// Sets the size of the largest packet of a link.
    pub(super) fn set_mtu(&mut self, link: u32, mtu: u32) -> io::Result<()> {
        let mut body = link_header(link, 0);
        attribute(&mut body, IFLA_MTU, &mtu.to_ne_bytes());
        self.ask(RTM_NEWLINK, 0, &body)
    }

    /// Gives a link an address.
    pub(super) fn add_address(
        &mut self,
        link: u32,
        address: Ipv4Addr,
        prefix: u8,
    ) -> io::Result<()> {
        let mut body = vec![AF_INET, prefix, 0, 0];
        body.extend(link.to_ne_bytes());
        attribute(&mut body, IFA_LOCAL, &address.octets());
        attribute(&mut body, IFA_ADDRESS, &address.octets());
        self.ask(RTM_NEWADDR, CREATE, &body)
    }

    /// Sends everything else to a gateway.
    pub(super) fn add_default_route(&mut self, link: u32, gateway: Ipv4Addr) -> io::Result<()> {
        let mut body = vec![
            AF_INET,
            0,
            0,
            0,
            RT_TABLE_MAIN,
            RTPROT_STATIC,
            0,
            RTN_UNICAST,
            0,
            0,
            0,
            0,
        ];
        attribute(&mut body, RTA_GATEWAY, &gateway.octets());
        attribute(&mut body, RTA_OIF, &link.to_ne_bytes());
        self.ask(RTM_NEWROUTE, CREATE, &body)
    }

    /// Sends one request and reads the kernel's verdict.
    fn ask(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.sequence += 1;
        let request = message(kind, REQUEST_ACK | flags, self.sequence, body);
        sendto(
            &self.socket,
            &request,
            SendFlags::empty(),
            &SocketAddrNetlink::new(0, 0),
        )?;
        let mut answer = [0_u8; 4096];
        let (length, _) = recv(&self.socket, &mut answer, RecvFlags::empty())?;
        verdict(&answer[..length.min(answer.len())])
    }
}

fn link_header(link: u32, flags: u32) -> Vec<u8> {
    let mut body = vec![0, 0, 0, 0];
    body.extend(link.to_ne_bytes());
    body.extend(flags.to_ne_bytes());
    body.extend(flags.to_ne_bytes());
    body
}

fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    body.extend(length.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
    let mut out = Vec::with_capacity(16 + body.len());
    out.extend(length.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    out.extend(sequence.to_ne_bytes());
    out.extend(0_u32.to_ne_bytes());
    out.extend(body);
    out
}

/// An answer is an error message whose code is 0 when all went well.
fn verdict(answer: &[u8]) -> io::Result<()> {
    let field = |at: usize| {
        answer
            .get(at..at + 4)
            .and_then(|bytes| <[u8; 4]>::try_from(bytes).ok())
    };
    let kind = answer
        .get(4..6)
        .map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    match (kind, field(16).map(i32::from_ne_bytes)) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(code)) => Err(io::Error::from_raw_os_error(-code)),
        _ => Err(io::Error::from(io::ErrorKind::InvalidData)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_laid_out_as_the_kernel_reads_it() {
        let mut body = link_header(7, IFF_UP);
        attribute(&mut body, IFLA_MTU, &65_000_u32.to_ne_bytes());
        let request = message(RTM_NEWLINK, REQUEST_ACK, 3, &body);
        assert_eq!(request.len(), 16 + 16 + 8);
        assert_eq!(request[..4], 40_u32.to_ne_bytes());
        assert_eq!(request[20..24], 7_u32.to_ne_bytes());
    }

    #[test]
    fn a_refusal_carries_the_kernels_reason() {
        let mut body = (-17_i32).to_ne_bytes().to_vec();
        body.extend([0; 16]);
        let error = verdict(&message(NLMSG_ERROR, 0, 1, &body)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert!(verdict(&message(NLMSG_ERROR, 0, 1, &[0; 20])).is_ok());
        assert!(verdict(b"short").is_err());
    }

    #[test]
    fn the_kernel_understands_the_requests() {
        // Switching on the loopback of this machine changes nothing: it is on. Without the privilege
        // for it the kernel says so, and it can only say so to a request that it understood.
        let mut netlink = Netlink::open().unwrap();
        match netlink.set_up(1) {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
        assert!(netlink.set_up(u32::MAX / 2).is_err());
    }
}
