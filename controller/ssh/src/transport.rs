//! One SSH connection: dialled, its host key checked, authenticated, under one deadline.

use crate::channel::{Remote, RemoteProgram};
use crate::key::{ClientKey, HostKeyPin};
use lazaret_domain::{Denial, DenialCode};
use russh::client::{self, Handle};
use russh::keys::{PrivateKeyWithHashAlg, PublicKeyOrCertificate};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;

/// Where to connect, as checked values.
#[derive(Clone, Debug)]
pub struct Target {
    /// The account there.
    pub user: String,
    /// A host name or an address.
    pub host: String,
    /// The SSH port.
    pub port: u16,
    /// The one key the host may present.
    pub pin: HostKeyPin,
}

/// Why russh's handler stopped the connection.
#[derive(Debug, thiserror::Error)]
enum HandlerError {
    #[error(transparent)]
    Ssh(#[from] russh::Error),
}

/// Decides about the host key, and refuses everything the server may try to open.
struct Verifier {
    pin: HostKeyPin,
    foreign_key: Arc<AtomicBool>,
}

impl client::Handler for Verifier {
    type Error = HandlerError;

    async fn check_server_key(
        &mut self,
        presented: &PublicKeyOrCertificate,
    ) -> Result<bool, Self::Error> {
        let admitted = self.pin.admits(presented);
        if !admitted {
            self.foreign_key.store(true, Ordering::Relaxed);
        }
        Ok(admitted)
    }

    // A host opens nothing towards the controller. Each kind is named here because russh accepts
    // those that a client does not name; dropping the reply rejects.

    async fn server_channel_open_session(
        &mut self,
        _channel: russh::Channel<client::Msg>,
        _reply: client::ChannelOpenHandle,
        _session: &mut client::Session,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    async fn server_channel_open_direct_tcpip(
        &mut self,
        _channel: russh::Channel<client::Msg>,
        _host_to_connect: &str,
        _port_to_connect: u32,
        _originator_address: &str,
        _originator_port: u32,
        _reply: client::ChannelOpenHandle,
        _session: &mut client::Session,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    async fn server_channel_open_direct_streamlocal(
        &mut self,
        _channel: russh::Channel<client::Msg>,
        _socket_path: &str,
        _reply: client::ChannelOpenHandle,
        _session: &mut client::Session,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    async fn server_channel_open_forwarded_tcpip(
        &mut self,
        _channel: russh::Channel<client::Msg>,
        _connected_address: &str,
        _connected_port: u32,
        _originator_address: &str,
        _originator_port: u32,
        _reply: client::ChannelOpenHandle,
        _session: &mut client::Session,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    async fn server_channel_open_forwarded_streamlocal(
        &mut self,
        _channel: russh::Channel<client::Msg>,
        _socket_path: &str,
        _reply: client::ChannelOpenHandle,
        _session: &mut client::Session,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    async fn server_channel_open_agent_forward(
        &mut self,
        _channel: russh::Channel<client::Msg>,
        _reply: client::ChannelOpenHandle,
        _session: &mut client::Session,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    async fn server_channel_open_x11(
        &mut self,
        _channel: russh::Channel<client::Msg>,
        _originator_address: &str,
        _originator_port: u32,
        _reply: client::ChannelOpenHandle,
        _session: &mut client::Session,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    async fn should_accept_unknown_server_channel(
        &mut self,
        _id: russh::ChannelId,
        _channel_type: &str,
    ) -> bool {
        false
    }
}

/// An authenticated connection to the host that was meant.
pub struct Transport {
    handle: Handle<Verifier>,
}

impl Transport {
    /// Connects, checks the host key and authenticates.
    ///
    /// # Errors
    /// `host_key_mismatch`, `host_refused` or `host_unreachable`. The caller bounds it in time.
    pub async fn dial(
        target: &Target,
        key: &ClientKey,
        keepalive: Duration,
    ) -> Result<Self, Denial> {
        let unreachable = |why: &dyn std::fmt::Display| {
            Denial::new(
                DenialCode::HostUnreachable,
                format!("{}:{} cannot be reached: {why}", target.host, target.port),
            )
        };
        let socket = TcpStream::connect((target.host.as_str(), target.port))
            .await
            .map_err(|error| unreachable(&error))?;
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set");
        }
        let config = client::Config {
            client_id: russh::SshId::Standard(
                concat!("SSH-2.0-lazaret_", env!("CARGO_PKG_VERSION")).into(),
            ),
            keepalive_interval: Some(keepalive),
            keepalive_max: 3,
            nodelay: true,
            ..client::Config::default()
        };
        let foreign_key = Arc::new(AtomicBool::new(false));
        let verifier = Verifier {
            pin: target.pin,
            foreign_key: Arc::clone(&foreign_key),
        };
        let mut handle = match client::connect_stream(Arc::new(config), socket, verifier).await {
            Ok(handle) => handle,
            Err(_) if foreign_key.load(Ordering::Relaxed) => {
                return Err(Denial::new(
                    DenialCode::HostKeyMismatch,
                    format!(
                        "{}:{} presented another host key than the pinned {}; nothing was sent to it. If the host was \
                         reinstalled, enrol it again with its new key",
                        target.host, target.port, target.pin
                    ),
                ));
            }
            Err(error) => return Err(unreachable(&error)),
        };
        let key = PrivateKeyWithHashAlg::new(key.private(), None);
        let accepted = handle
            .authenticate_publickey(target.user.clone(), key)
            .await
            .map_err(|error| unreachable(&error))?;
        if !accepted.success() {
            return Err(Denial::new(
                DenialCode::HostRefused,
                format!(
                    "{}:{} does not accept the controller's key for {}: check the account and its authorized_keys",
                    target.host, target.port, target.user
                ),
            ));
        }
        Ok(Self { handle })
    }

    /// Runs one of the two programs of the host side over a channel of its own.
    ///
    /// # Errors
    /// `host_unreachable` if the connection broke, `host_refused` if the host would not run it.
    pub async fn start(&self, remote: Remote) -> Result<RemoteProgram, Denial> {
        let broke = |error: russh::Error| {
            Denial::new(
                DenialCode::HostUnreachable,
                format!("the connection broke: {error}"),
            )
        };
        let channel = self
            .handle
            .channel_open_session()
            .await
            .map_err(|error| match error {
                russh::Error::ChannelOpenFailure(_) => Denial::new(
                    DenialCode::HostRefused,
                    "the host opened no channel: check MaxSessions of its sshd",
                ),
                other => broke(other),
            })?;
        channel.exec(false, remote.command()).await.map_err(broke)?;
        Ok(RemoteProgram::over(channel))
    }

    /// Whether the connection is over.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.handle.is_closed()
    }

    /// Says goodbye; the connection ends also without it.
    pub async fn close(&self) {
        if let Err(error) = self
            .handle
            .disconnect(russh::Disconnect::ByApplication, "", "en")
            .await
        {
            tracing::debug!(%error, "the connection was gone before it was closed");
        }
    }
}

#[cfg(test)]
mod tests;
