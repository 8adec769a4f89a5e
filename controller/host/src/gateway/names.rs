//! The synthetic addresses that stand for names in one sandbox.
//!
//! A name that may be reached gets an address the first time the guest asks for it, and keeps it for
//! as long as the sandbox lives, so that a connection to the address says which name is meant. The
//! table is bounded and nothing is ever moved: once it is full, new names get no address.

use lazaret_api::guest::net;
use lazaret_domain::egress::DomainName;
use std::collections::HashMap;
use std::net::Ipv4Addr;

/// The most names one sandbox can ask for.
pub(super) const MAX_NAMES: usize = 16_384;

/// Which name each synthetic address stands for.
#[derive(Debug, Default)]
pub(super) struct Names {
    by_name: HashMap<DomainName, Ipv4Addr>,
    by_index: Vec<DomainName>,
}

impl Names {
    /// The address that stands for a name, or none if the table is full.
    pub(super) fn address_of(&mut self, name: &DomainName) -> Option<Ipv4Addr> {
        if let Some(address) = self.by_name.get(name) {
            return Some(*address);
        }
        if self.by_index.len() >= MAX_NAMES {
            return None;
        }
        let index = u32::try_from(self.by_index.len()).ok()?;
        let address = Ipv4Addr::from(u32::from(net::SYNTHETIC_FIRST).checked_add(index)?);
        self.by_index.push(name.clone());
        self.by_name.insert(name.clone(), address);
        Some(address)
    }

    /// The name that an address stands for.
    pub(super) fn name_of(&self, address: Ipv4Addr) -> Option<&DomainName> {
        let index = u32::from(address).checked_sub(u32::from(net::SYNTHETIC_FIRST))?;
        self.by_index.get(usize::try_from(index).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_stands_for_one_name_for_good_and_the_table_ends() {
        let mut names = Names::default();
        let first: DomainName = "a.example".parse().unwrap();
        let address = names.address_of(&first).unwrap();
        for index in 1..MAX_NAMES {
            let name: DomainName = format!("n{index}.example").parse().unwrap();
            let other = names.address_of(&name).unwrap();
            assert!(other != address && other < Ipv4Addr::new(198, 19, 255, 0));
            assert_eq!(names.name_of(other), Some(&name));
        }
        assert_eq!(names.address_of(&"late.example".parse().unwrap()), None);
        assert_eq!(names.address_of(&first), Some(address));
        assert_eq!(names.name_of(Ipv4Addr::new(198, 18, 200, 1)), None);
        assert_eq!(names.name_of(Ipv4Addr::new(8, 8, 8, 8)), None);
    }
}
