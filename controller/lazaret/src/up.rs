//! `lazaret up`: from a bare machine to a controller with one host, this machine, over real SSH.
//!
//! ```text
//!   programs there? ─► guest image ─► this machine as a host (own sshd) ─► settings, keys, client file
//!        ─► controller ─► host enrolled and proven by a probe boot ─► demo run ─► serve until Ctrl-C
//! ```
//!
//! Each step looks first whether its work is done, so that running it again costs nothing.

mod access;
mod demo;
mod files;
mod host;

use crate::cli;
use crate::client::file::Environment;
use crate::doctor;
use crate::failure::{Exit, Failure};
use crate::image;
use crate::lock::Lock;
use crate::logging;
use crate::output::progress::Progress;
use crate::output::{Output, Paint};
use crate::paths::Paths;
use crate::serve::{Controller, Running, Signals};
use crate::settings::{Settings, environment};
use access::Access;
use lazaret_host::local::LocalHost;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Sets up, shows a first run, and serves until it is told to stop.
///
/// # Errors
/// Where a step fails, saying what to do.
pub async fn up(args: &cli::Up, out: &mut Output) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let ready = tokio::select! {
        ready = Box::pin(prepare(args, out)) => ready?,
        which = signals.next() => {
            out.note(format!("{which}: stopped before all was set up; run it again to go on"))?;
            return Ok(Exit::Failed);
        }
    };
    let services = ready.controller.services();
    let url = ready.controller.url();
    let controller = ready.controller;
    let mut running = Running::start(|stop| controller.run(stop));
    let first = async {
        first_steps(args, &services, &ready.local, &ready.access, out).await?;
        tell(&url, &ready.access, out)
    };
    let first = tokio::select! {
        first = Box::pin(first) => First::Done(first),
        which = signals.next() => First::Stopped(which),
        failure = running.ended() => First::Done(Err(failure)),
    };
    let over = match first {
        First::Done(Ok(())) => tokio::select! {
            which = signals.next() => Ok(which),
            failure = running.ended() => Err(failure),
        },
        First::Done(Err(failure)) => Err(failure),
        First::Stopped(which) => Ok(which),
    };
    if let Ok(which) = over {
        // The stop is what counts, whether or not somebody reads about it.
        out.note(format!(
            "{which}: stopping; runs go on and are taken up at the next start"
        ))
        .ok();
    }
    let stopped = running.stop().await;
    // With the last use of the services the links to hosts end, in order, before the sshd does.
    drop(services);
    ready.local.stop().await;
    over?;
    stopped.map(|()| Exit::Done)
}

/// How showing that it works ended.
enum First {
    Done(Result<(), Failure>),
    Stopped(&'static str),
}

/// All that the serving part needs.
struct Ready {
    controller: Controller,
    local: LocalHost,
    access: Access,
    /// Held to the end: what is done in the directory would undo what another `up` has running.
    _data: Lock,
}

async fn prepare(args: &cli::Up, out: &mut Output) -> Result<Ready, Failure> {
    require_programs()?;
    let paths = Paths::find(args.data.as_deref())?;
    make_data_dir(paths.root())?;
    let data = Lock::of_data(paths.root())?;
    let file = files::settings(&paths, args)?;
    let mut settings = Settings::load(&file, &environment())?;
    // What was asked for wins over the environment too.
    if let Some(port) = args.port {
        settings.listen.set_port(port);
    }
    if let Some(accel) = args.accel {
        settings.services.accel = accel;
    }
    // A controller that works here already, by 'lazaret serve', may use the sshd that is set up next.
    let lock = Lock::of_store(&settings.store)?;
    settings.log_filter = "warn".into();
    logging::start(&settings);

    is_free(settings.listen)?;

    let image = image::ensure(&paths).await?;
    out.note(format!("image       {image}"))?;

    let local = host::enrol_machine(&paths, &settings).await?;
    settings.ssh_key.clone_from(&local.client_key);
    out.note(format!(
        "host        {}@127.0.0.1:{}, key {}",
        local.account.name,
        local.sshd.port(),
        local.host_key
    ))?;

    let access = access::access(&settings, &Environment::of_process()).await?;
    if let Some(before) = &access.before {
        out.note(format!(
            "client      {} was for {before}, and is for this controller now",
            access.client_file.display()
        ))?;
    }
    let controller = Controller::start(settings, &file.display().to_string(), lock).await?;
    out.note(format!("controller  {}", controller.url()))?;
    Ok(Ready {
        controller,
        local,
        access,
        _data: data,
    })
}

async fn first_steps(
    args: &cli::Up,
    services: &lazaret_services::Services,
    local: &LocalHost,
    access: &Access,
    out: &mut Output,
) -> Result<(), Failure> {
    let accel = host::enrol(services, local).await?;
    if accel == lazaret_api::host::Accel::Tcg {
        let warning = "WARNING: guests run under software emulation (tcg) on this machine, which is slow.\n\
                       QEMU does not regard tcg as a security boundary: run only what you would trust without a sandbox.";
        let warning = out.paint_note(Paint::Warn, warning);
        out.note(warning)?;
    }
    if !args.no_demo
        && let Err(failure) = demo::run(services, &access.principal, out).await
    {
        // What serves is there all the same, and is what looking into it takes.
        let what = format!("the demo did not succeed: {failure}");
        let what = out.paint_note(Paint::Warn, &what);
        out.note(what)?;
        out.note(demo::hint(&failure))?;
    }
    Ok(())
}

/// Refuses a port that is taken before anything is made or changed.
fn is_free(address: SocketAddr) -> Result<(), Failure> {
    match TcpListener::bind(address) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            Err(Failure::Usage(format!(
                "{address} is taken by another program, perhaps by a station that is up already. Choose another port: \
                 lazaret up --port N"
            )))
        }
        // Whatever else is wrong with it is said by who serves.
        _ => Ok(()),
    }
}

/// Says how to go on. No secret is shown, only the command that reads it.
fn tell(url: &str, access: &Access, out: &mut Output) -> Result<(), Failure> {
    let token = access.mcp_token.display();
    let line = out.paint(Paint::Bold, "Lazaret is up.");
    out.line(line)?;
    out.line(format!(
        "  API         {url}/api/v1   (OpenAPI: {url}/api/v1/openapi.json)"
    ))?;
    out.line(format!(
        "  client      {}   (lazaret ls, lazaret delegate --wait -- uname -a)",
        access.client_file.display()
    ))?;
    out.line(format!(
        "  MCP         claude mcp add --transport http lazaret {url}/mcp --header \"Authorization: Bearer $(cat {token})\""
    ))?;
    out.line("  stop        Ctrl-C")
}

fn require_programs() -> Result<(), Failure> {
    let missing = doctor::missing_programs();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|(program, _)| *program).collect();
    let mut packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    Err(Failure::Usage(format!(
        "programs are missing: {}. Install them with: apt-get install {} ('make up' does it for you)",
        names.join(", "),
        packages.join(" ")
    )))
}

/// The directory may be passed through, because the host's account works below it; what is private
/// in it has modes of its own.
fn make_data_dir(root: &Path) -> Result<(), Failure> {
    let doing =
        |error: std::io::Error| Failure::doing(format!("cannot make {}", root.display()), error);
    if !root.exists() {
        std::fs::create_dir_all(root).map_err(doing)?;
        std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o711)).map_err(doing)?;
    }
    Ok(())
}

/// Shows what a step is doing.
fn progress(what: &str) -> Progress {
    Progress::start(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_said_with_what_to_do() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let said = is_free(address).unwrap_err().to_string();
        assert!(
            said.contains("--port") && said.contains(&address.to_string()),
            "{said}"
        );
        drop(taken);
        is_free(address).unwrap();
    }
}
