//! How this machine's user gets at the controller: the first keys, the client file, the token for MCP.

use crate::client::file::{Endpoint, Environment, read_private, write_private};
use crate::failure::Failure;
use crate::serve::{keys_of, open_store};
use crate::settings::Settings;
use lazaret_api::public::{CreateKey, Scope};
use lazaret_services::{Keys, Principal};
use std::path::{Path, PathBuf};

/// How this machine's user gets at the controller.
pub(super) struct Access {
    /// Who `lazaret up` acts as.
    pub principal: Principal,
    /// The client file of the command line, which holds a key of scope admin.
    pub client_file: PathBuf,
    /// The controller that the client file was for until now, if that was another one.
    pub before: Option<String>,
    /// The file that holds the token for MCP clients, of scope run.
    pub mcp_token: PathBuf,
}

/// Makes the keys that are missing and writes them where clients look. Keys that still work are kept.
pub(super) async fn access(settings: &Settings, client: &Environment) -> Result<Access, Failure> {
    let no_place = || {
        Failure::Usage(
            "neither XDG_CONFIG_HOME nor HOME is set; there is no place for the client file".into(),
        )
    };
    let dir = client.config_dir().ok_or_else(no_place)?;
    let client_file = dir.join("client.toml");
    let mcp_token = dir.join("mcp-token");
    let store = open_store(settings).await?;
    let keys = keys_of(store.clone());
    let before = Endpoint::read(&client_file)
        .ok()
        .map(|endpoint| endpoint.url)
        .filter(|url| *url != settings.url());
    let made = make(settings, &keys, &client_file, &mcp_token).await;
    store.close().await;
    let principal = made?;
    Ok(Access {
        principal,
        client_file,
        before,
        mcp_token,
    })
}

async fn make(
    settings: &Settings,
    keys: &Keys,
    client_file: &Path,
    mcp_token: &Path,
) -> Result<Principal, Failure> {
    let url = settings.url();
    let known = if client_file.exists() {
        Some(Endpoint::read(client_file)?)
    } else {
        None
    };
    let ours = match &known {
        Some(endpoint) => keys
            .authenticate(&endpoint.token)
            .await
            .ok()
            .filter(|by| by.scope == Scope::Admin),
        None => None,
    };
    let principal = match (ours, known) {
        (Some(principal), Some(endpoint)) => {
            if endpoint.url != url {
                Endpoint {
                    url,
                    token: endpoint.token,
                }
                .write(client_file)?;
            }
            principal
        }
        (_, Some(endpoint)) if !is_loopback(&endpoint.url) => {
            return Err(Failure::Usage(format!(
                "{} is for another controller ({}). Move it away, or set XDG_CONFIG_HOME, and run this again.",
                client_file.display(),
                endpoint.url
            )));
        }
        _ => {
            let token = new_key(keys, Scope::Admin, "command line of this machine").await?;
            Endpoint {
                url,
                token: token.clone(),
            }
            .write(client_file)?;
            keys.authenticate(&token).await?
        }
    };
    let works = match mcp_token.exists() {
        true => keys
            .authenticate(read_private(mcp_token)?.trim())
            .await
            .is_ok(),
        false => false,
    };
    if !works {
        let token = new_key(keys, Scope::Run, "MCP clients of this machine").await?;
        write_private(mcp_token, &format!("{token}\n"))?;
    }
    Ok(principal)
}

async fn new_key(keys: &Keys, scope: Scope, name: &str) -> Result<String, Failure> {
    let request = CreateKey {
        scope,
        name: Some(name.into()),
        expires: None,
    };
    Ok(keys
        .create(&Principal::controller(), None, request)
        .await?
        .token)
}

fn is_loopback(url: &str) -> bool {
    reqwest::Url::parse(url)
        .ok()
        .and_then(|url| {
            url.host_str()
                .map(|host| matches!(host, "127.0.0.1" | "localhost" | "[::1]"))
        })
        .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct Home {
        dir: tempfile::TempDir,
    }

    impl Home {
        fn settings(&self) -> Settings {
            Settings::defaults(self.dir.path())
        }

        fn client(&self) -> Environment {
            Environment {
                config_home: Some(self.dir.path().join("config")),
                ..Environment::default()
            }
        }
    }

    fn home() -> Home {
        Home {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    #[tokio::test]
    async fn the_first_time_makes_two_private_keys_and_the_second_time_none() {
        let home = home();
        let first = access(&home.settings(), &home.client()).await.unwrap();
        assert_eq!(first.principal.scope, Scope::Admin);
        for file in [&first.client_file, &first.mcp_token] {
            assert_eq!(
                std::fs::metadata(file).unwrap().permissions().mode() & 0o777,
                0o600
            );
        }
        let (client, token) = (
            std::fs::read(&first.client_file).unwrap(),
            std::fs::read(&first.mcp_token).unwrap(),
        );
        let second = access(&home.settings(), &home.client()).await.unwrap();
        assert_eq!(second.principal, first.principal);
        assert_eq!(std::fs::read(&second.client_file).unwrap(), client);
        assert_eq!(std::fs::read(&second.mcp_token).unwrap(), token);
    }

    #[tokio::test]
    async fn a_client_file_of_another_controller_is_left_alone() {
        let home = home();
        let file = home.client().client_file().unwrap();
        Endpoint {
            url: "https://far.example".into(),
            token: "t".into(),
        }
        .write(&file)
        .unwrap();
        let failure = access(&home.settings(), &home.client())
            .await
            .err()
            .unwrap();
        assert!(failure.to_string().contains("far.example"), "{failure}");
        assert_eq!(
            Endpoint::read(&file).ok().unwrap().url,
            "https://far.example"
        );
    }

    #[tokio::test]
    async fn a_new_port_changes_the_address_and_not_the_key() {
        let home = home();
        let first = access(&home.settings(), &home.client()).await.unwrap();
        let mut settings = home.settings();
        settings.listen.set_port(7718);
        let second = access(&settings, &home.client()).await.unwrap();
        assert_eq!(second.principal, first.principal);
        assert_eq!(first.before, None);
        assert_eq!(second.before, Some(home.settings().url()));
        assert_eq!(
            Endpoint::read(&second.client_file).ok().unwrap().url,
            "http://127.0.0.1:7718"
        );
    }
}
