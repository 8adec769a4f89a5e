//! The port of the host's sshd. The controller knows the host by it, so once it was used it is kept:
//! another port would be another host over the same sandboxes, and theirs would count as lost.

use super::LocalError;
use super::place::write_file;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// How long a port that was used before may be taken by what is just ending.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is tried meanwhile.
const TRY_EVERY: Duration = Duration::from_millis(50);

/// The wanted port, else the one used before, else any free one.
///
/// # Errors
/// [`LocalError::PortTaken`] if the one used before is not to be had.
pub(super) async fn choose(wanted: Option<u16>, remembered: &Path) -> Result<u16, LocalError> {
    if let Some(port) = wanted {
        return Ok(port);
    }
    let before = std::fs::read_to_string(remembered)
        .ok()
        .and_then(|text| text.trim().parse::<u16>().ok());
    match before {
        Some(port) => again(port, remembered, PATIENCE).await,
        None => bind(0).map_err(LocalError::io("find a free port")),
    }
}

/// Notes the port that is in use.
pub(super) fn remember(remembered: &Path, port: u16) -> Result<(), LocalError> {
    write_file(remembered, port.to_string().as_bytes(), 0o600)
}

async fn again(port: u16, remembered: &Path, patience: Duration) -> Result<u16, LocalError> {
    let started = Instant::now();
    loop {
        match bind(port) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if started.elapsed() >= patience {
                    return Err(LocalError::PortTaken {
                        port,
                        remembered: remembered.to_owned(),
                    });
                }
                tokio::time::sleep(TRY_EVERY).await;
            }
            bound => return bound.map_err(LocalError::io(format!("take port {port}"))),
        }
    }
}

/// The port that could be had, free again when this returns.
fn bind(port: u16) -> io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(dir: &Path) -> (TcpListener, u16, std::path::PathBuf) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let file = dir.join("port");
        remember(&file, port).unwrap();
        (listener, port, file)
    }

    /// The clock is the test's: it moves on only while both sides wait, and no time passes.
    #[tokio::test(start_paused = true)]
    async fn the_port_used_before_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, port, file) = taken(dir.path());
        let free = async {
            tokio::time::sleep(PATIENCE - TRY_EVERY).await;
            drop(listener);
        };
        let (chosen, ()) = tokio::join!(choose(None, &file), free);
        assert_eq!(chosen.unwrap(), port);
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_that_stays_taken_is_named_and_not_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (_listener, port, file) = taken(dir.path());
        let error = again(port, &file, PATIENCE).await.unwrap_err().to_string();
        assert!(
            error.contains(&port.to_string()) && error.contains(file.to_str().unwrap()),
            "{error}"
        );
        assert_eq!(choose(Some(7), &file).await.unwrap(), 7);
        assert_ne!(choose(None, &dir.path().join("none")).await.unwrap(), 0);
    }
}
