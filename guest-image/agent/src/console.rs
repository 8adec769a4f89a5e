//! Lines on the serial console, which the shim reads: `lazaret-guest: …`.

use std::fs::OpenOptions;
use std::io::Write;

/// Writes one line to the console. A console that cannot be written is nothing to stop for.
pub fn say(line: &str) {
    let Ok(mut console) = OpenOptions::new().write(true).open("/dev/console") else {
        return stderr(line);
    };
    let _ = console.write_all(format!("lazaret-guest: {line}\n").as_bytes());
}

/// Writes one line to standard error, for people who start the program by hand.
pub fn stderr(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
