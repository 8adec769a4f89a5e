//! What the use cases act through. Each port has a fake beside it.

pub mod host_link;
