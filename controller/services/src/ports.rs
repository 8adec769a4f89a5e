//! What the use cases act through. Each port has a fake beside it (feature `fakes`).

pub mod clock;
pub mod host_link;
pub mod random;
pub mod store;

#[cfg(feature = "fakes")]
pub mod fake_host;
