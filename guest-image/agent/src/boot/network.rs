//! The network: loopback, and one card with static settings that are the same in every sandbox.

use super::netlink::Netlink;
use super::{BootError, Step};
use crate::console;
use lazaret_api::guest::net;
use std::fs;

const LOOPBACK: u32 = 1;

/// Switches the network on. A sandbox without a card has no network, which is as sealed as can be.
pub(super) fn up() -> Result<(), BootError> {
    let mut netlink = Netlink::open().step("talking to the kernel's network")?;
    netlink.set_up(LOOPBACK).step("switching the loopback on")?;
    let resolver = format!(
        "nameserver {}\noptions timeout:3 attempts:2\n",
        net::GATEWAY
    );
    fs::write("/etc/resolv.conf", resolver).step("writing resolv.conf")?;
    let Some(card) = card() else {
        console::say("no network card");
        return Ok(());
    };
    if netlink.set_mtu(card, u32::from(net::MTU)).is_err() {
        console::say("the network card does not take the large packets of the cable");
    }
    netlink
        .add_address(card, net::GUEST, net::PREFIX)
        .step("setting the address")?;
    netlink.set_up(card).step("switching the network card on")?;
    netlink
        .add_default_route(card, net::GATEWAY)
        .step("setting the default route")
}

/// The index of the card with the sandbox's hardware address.
fn card() -> Option<u32> {
    let wanted = net::GUEST_MAC.map(|byte| format!("{byte:02x}")).join(":");
    fs::read_dir("/sys/class/net")
        .ok()?
        .flatten()
        .find_map(|entry| {
            let read = |name: &str| fs::read_to_string(entry.path().join(name)).ok();
            (read("address")?.trim() == wanted).then(|| read("ifindex")?.trim().parse().ok())?
        })
}
