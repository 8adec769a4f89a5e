//! Address groups: what an address is, in every spelling.
//!
//! The groups are disjoint and cover everything: each address is in exactly one. An IPv6 address
//! that carries an IPv4 address is judged by what it carries, for that is where a connection to it
//! can end up.

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What kind of address it is. Only `Public` may be dialled without a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AddressGroup {
    /// A public unicast address.
    Public,
    /// A cloud provider's metadata or platform service, which hands out credentials.
    Metadata,
    /// This machine itself.
    Loopback,
    /// A private network (RFC 1918, and the old IPv6 site-local range).
    Private,
    /// A unique local IPv6 address (RFC 4193).
    UniqueLocal,
    /// The link at hand.
    LinkLocal,
    /// The shared range behind carrier-grade NAT.
    SharedNat,
    /// A group of receivers.
    Multicast,
    /// No address, "this network".
    Unspecified,
    /// The benchmarking range, from which the gateway takes the addresses that stand for names.
    Synthetic,
    /// A range for examples in documents.
    Documentation,
    /// Any other range that is not for general use.
    Reserved,
}

impl AddressGroup {
    /// Every group.
    pub const ALL: [Self; 12] = [
        Self::Public,
        Self::Metadata,
        Self::Loopback,
        Self::Private,
        Self::UniqueLocal,
        Self::LinkLocal,
        Self::SharedNat,
        Self::Multicast,
        Self::Unspecified,
        Self::Synthetic,
        Self::Documentation,
        Self::Reserved,
    ];

    /// The group of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::of_v4(address),
            IpAddr::V6(address) => Self::of_v6(address),
        }
    }

    /// Whether an operator may pin a host to an address of this group. Metadata services stay out
    /// of reach even then: no tool in a sandbox has any business there.
    #[must_use]
    pub fn may_be_pinned(self) -> bool {
        matches!(
            self,
            Self::Public | Self::Private | Self::UniqueLocal | Self::SharedNat | Self::Loopback
        )
    }

    /// The group in words, to go after "a" or "an".
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Metadata => "cloud metadata",
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::UniqueLocal => "unique local",
            Self::LinkLocal => "link-local",
            Self::SharedNat => "shared (carrier-grade NAT)",
            Self::Multicast => "multicast",
            Self::Unspecified => "unspecified",
            Self::Synthetic => "synthetic or benchmarking",
            Self::Documentation => "documentation",
            Self::Reserved => "reserved",
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        match address.octets() {
            // AWS (instance, ECS task, EKS pod), Alibaba, Oracle, Azure.
            [169, 254, 169, 253 | 254]
            | [169, 254, 170, 2 | 23]
            | [100, 100, 100, 200]
            | [192, 0, 0, 192]
            | [168, 63, 129, 16] => Self::Metadata,
            [0, ..] => Self::Unspecified,
            [127, ..] => Self::Loopback,
            [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Self::Private,
            [169, 254, ..] => Self::LinkLocal,
            [100, 64..=127, ..] => Self::SharedNat,
            [198, 18 | 19, ..] => Self::Synthetic,
            [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Self::Documentation,
            [224..=239, ..] => Self::Multicast,
            // Protocol assignments, the 6to4 relay, the old class E with the broadcast address.
            [192, 0, 0, _] | [192, 88, 99, _] | [240..=255, ..] => Self::Reserved,
            _ => Self::Public,
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        let segments = address.segments();
        let tail = Self::of_v4(v4(segments[6], segments[7]));
        match segments {
            [0, 0, 0, 0, 0, 0, 0, 0] => Self::Unspecified,
            [0, 0, 0, 0, 0, 0, 0, 1] => Self::Loopback,
            // IPv4-mapped, IPv4-translated, IPv4-compatible, NAT64.
            [0, 0, 0, 0, 0, 0xffff, ..]
            | [0, 0, 0, 0, 0xffff, 0, ..]
            | [0, 0, 0, 0, 0, 0, ..]
            | [0x64, 0xff9b, 0, 0, 0, 0, ..] => tail,
            // NAT64 for local use (RFC 8215): the IPv4 address is at the end or, in the /48 form of
            // RFC 6052, around the ninth octet.
            [0x64, 0xff9b, 1, high, third, fourth, ..] => {
                let [_, third] = third.to_be_bytes();
                let [fourth, _] = fourth.to_be_bytes();
                let around = Self::of_v4(v4(high, u16::from_be_bytes([third, fourth])));
                // The form that is not used reads as zeros, which says nothing.
                let carried = match tail {
                    Self::Unspecified | Self::Public if around != Self::Unspecified => around,
                    Self::Unspecified => Self::Reserved,
                    tail => tail,
                };
                carried.never_public()
            }
            // 6to4; Teredo, which names a server and, inverted, a client.
            [0x2002, high, low, ..] => Self::of_v4(v4(high, low)).never_public(),
            [0x2001, 0, high, low, ..] => Self::of_v4(v4(!segments[6], !segments[7]))
                .unless_public(Self::of_v4(v4(high, low)))
                .never_public(),
            // ISATAP.
            [_, _, _, _, 0 | 0x200, 0x5efe, ..] if tail != Self::Public => tail,
            // AWS, Google, Oracle.
            [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23 | 0x253 | 0x254]
            | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]
            | [0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe] => Self::Metadata,
            [0xfc00..=0xfdff, ..] => Self::UniqueLocal,
            [0xfe80..=0xfebf, ..] => Self::LinkLocal,
            [0xfec0..=0xfeff, ..] => Self::Private,
            [0xff00..=0xffff, ..] => Self::Multicast,
            [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Self::Documentation,
            [0x2001, 2, 0, ..] => Self::Synthetic,
            [0x2001, 0..=0x1ff, ..] => Self::Reserved,
            [0x2000..=0x3fff, ..] => Self::Public,
            _ => Self::Reserved,
        }
    }

    /// This group, or the other one if this one is public.
    fn unless_public(self, other: Self) -> Self {
        if self == Self::Public { other } else { self }
    }

    /// This group, but a transition mechanism never counts as public: what it tunnels through is
    /// not ours to judge.
    fn never_public(self) -> Self {
        self.unless_public(Self::Reserved)
    }
}

/// The IPv4 address made of two 16-bit halves.
fn v4(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from((u32::from(high) << 16) | u32::from(low))
}
