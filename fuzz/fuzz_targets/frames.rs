//! Whatever comes over a guest's cable, the gateway goes on or ends with a cause.
//! The same as the property test `no_bytes_on_the_cable_stop_the_gateway`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lazaret_host::gateway::take_frames(bytes));
