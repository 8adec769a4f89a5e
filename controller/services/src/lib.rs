//! The use cases of the controller, and the ports they act through.
#![forbid(unsafe_code)]

pub mod ports;
