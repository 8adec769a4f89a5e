//! PID 1 of a sandbox.
//!
//! The story of a guest: take control of the bare kernel ([`lazaret_guest::boot`]), say so on the
//! console, serve the guest API on the virtio-serial port until told to stop, power off. Whatever
//! goes wrong on the way is one line on the console and a power-off: the shim reads the line and
//! sees the machine end, which is better than a guest that hangs.

use lazaret_guest::{boot, console, serve};
use std::process::ExitCode;

fn main() -> ExitCode {
    if rustix::process::getpid() != rustix::process::Pid::INIT {
        console::stderr(
            "lazaret-guest is the first process of a sandbox; there is nothing for it to do elsewhere",
        );
        return ExitCode::from(64);
    }
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            console::say(&format!("no runtime: {error}"));
            boot::power_off();
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(async {
        match boot::boot().await {
            Ok(boot::Boot::Guest(system)) => match serve::serve(system).await {
                Ok(()) => {}
                Err(error) => console::say(&format!("failed: {error}")),
            },
            Ok(boot::Boot::Probe) => console::say("probe ok"),
            Err(error) => console::say(&format!("boot failed: {error}")),
        }
    });
    boot::power_off();
    ExitCode::SUCCESS
}
