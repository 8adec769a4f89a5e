//! What a controller refuses to start without.

use super::*;
use base64::Engine;
use lazaret_api::public::Scope;
use lazaret_domain::Span;
use std::path::PathBuf;

fn config(dir: &Path) -> PathBuf {
    let file = dir.join("lazaret.toml");
    std::fs::write(&file, "[server]\nlisten = \"127.0.0.1:0\"\n").unwrap();
    file
}

fn request(expires: Option<Span>) -> CreateKey {
    CreateKey {
        scope: Scope::Admin,
        name: None,
        expires,
    }
}

async fn start(file: &Path) -> Result<Controller, Failure> {
    let settings = Settings::load(file, &std::collections::BTreeMap::new())?;
    let lock = Lock::of_store(&settings.store)?;
    Controller::start(settings, "FILE", lock).await
}

#[tokio::test]
async fn without_a_key_that_works_it_refuses_and_says_how_to_make_one() {
    let dir = tempfile::tempdir().unwrap();
    let failure = start(&config(dir.path())).await.err().unwrap();
    assert_eq!(failure.exit(), Exit::Usage);
    assert!(
        failure
            .to_string()
            .contains("lazaret key create --scope admin --config FILE"),
        "{failure}"
    );
}

#[tokio::test]
async fn a_revoked_key_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let file = config(dir.path());
    let new = create_key(&file, request(None)).await.unwrap();
    let settings = Settings::load(&file, &std::collections::BTreeMap::new()).unwrap();
    let store = open_store(&settings).await.unwrap();
    keys_of(store.clone())
        .revoke(&Principal::controller(), &new.key.id)
        .await
        .unwrap();
    store.close().await;
    let failure = start(&file).await.err().unwrap();
    assert!(
        failure.to_string().contains("no API key that works"),
        "{failure}"
    );
}

#[tokio::test]
async fn the_first_key_is_256_random_bits_and_lets_it_go_on_to_the_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let file = config(dir.path());
    let new = create_key(&file, request(Some(Span::seconds(60))))
        .await
        .unwrap();
    let secret = new.token.rsplit_once('_').unwrap().1;
    let secret = if secret.len() == 43 {
        secret
    } else {
        &new.token[new.token.len() - 43..]
    };
    assert_eq!(
        base64::engine::general_purpose::URL_SAFE_NO_PAD
            .decode(secret)
            .unwrap()
            .len(),
        32
    );
    let failure = start(&file).await.err().unwrap();
    assert!(failure.to_string().starts_with("host.ssh_key"), "{failure}");
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = config(dir.path());
    create_key(&file, request(None)).await.unwrap();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    std::fs::write(&file, format!("[server]\nlisten = \"{address}\"\n")).unwrap();
    let failure = start(&file).await.err().unwrap();
    assert!(
        failure
            .to_string()
            .contains(&format!("server.listen: cannot listen on {address}")),
        "{failure}"
    );
}

/// A directory in which a controller can start: settings, a key, and the key for hosts.
async fn ready() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let file = config(dir.path());
    create_key(&file, request(None)).await.unwrap();
    let key = dir.path().join("host/keys/client_ed25519");
    std::fs::create_dir_all(key.parent().unwrap()).unwrap();
    let made = std::process::Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(&key)
        .status()
        .unwrap();
    assert!(made.success());
    (dir, file)
}

#[tokio::test]
async fn a_public_url_that_the_edge_refuses_is_refused_at_the_start() {
    let (_dir, file) = ready().await;
    let mut settings = Settings::load(&file, &std::collections::BTreeMap::new()).unwrap();
    // The settings refuse it too, and earlier; this is for whatever they let through.
    settings.public_url = Some("https://example.com/lazaret".into());
    let lock = Lock::of_store(&settings.store).unwrap();
    let failure = Controller::start(settings, "FILE", lock)
        .await
        .err()
        .unwrap();
    assert_eq!(failure.exit(), Exit::Usage);
    assert!(
        failure.to_string().contains("server.public_url"),
        "{failure}"
    );
}

#[tokio::test]
async fn one_store_has_one_controller_at_a_time_and_keys_can_be_made_beside_it() {
    let (_dir, file) = ready().await;
    let first = start(&file).await.unwrap();
    assert!(!first.url().ends_with(":0"), "{}", first.url());
    let failure = start(&file).await.err().unwrap();
    assert!(
        failure
            .to_string()
            .contains(&format!("(process {})", std::process::id())),
        "{failure}"
    );
    create_key(&file, request(None)).await.unwrap();
    Running::start(|stop| first.run(stop)).stop().await.unwrap();
    start(&file).await.unwrap();
}
