//! The `lazaret` program. Everything is in the library, so that tests can call it.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    lazaret::main()
}
