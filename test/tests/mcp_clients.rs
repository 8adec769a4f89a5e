//! The official MCP SDKs can delegate and tear down, over a real socket; the host is one in memory.

use lazaret_api::public::{CreateKey, EnrollHost, Scope};
use lazaret_edge::EdgeSettings;
use lazaret_services::ports::clock::SystemClock;
use lazaret_services::ports::fake_host::{FAKE_KEY, FakeHost, FakeLinks};
use lazaret_services::ports::random::SystemRandom;
use lazaret_services::{Ports, Principal, Services, ServicesSettings};
use lazaret_store::SqliteStore;
use lazaret_test::clients::Sdk;
use serde_json::json;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn the_official_sdks_delegate_ask_and_tear_down() {
    let directory = tempfile::tempdir().unwrap();
    let (host, name) = (FakeHost::new(), "box".parse().unwrap());
    let ports = Ports {
        store: Arc::new(
            SqliteStore::open(&directory.path().join("db"))
                .await
                .unwrap(),
        ),
        links: Arc::new(FakeLinks::default().with(&name, &host)),
        clock: Arc::new(SystemClock),
        random: Arc::new(SystemRandom),
    };
    let services = Services::start(ports, ServicesSettings::default())
        .await
        .unwrap();
    let by = Principal::controller();
    let enroll = EnrollHost {
        name: Some(name),
        address: "lazaret@box".into(),
        host_key: FAKE_KEY.into(),
    };
    services.hosts.enroll(&by, enroll).await.unwrap();
    let wanted = CreateKey {
        scope: Scope::Run,
        name: None,
        expires: None,
    };
    let token = services.keys.create(&by, None, wanted).await.unwrap().token;

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let settings = EdgeSettings::new(&format!("http://{address}"), address, stop.clone()).unwrap();
    let router = lazaret_edge::router(services.clone(), settings.clone());
    let server =
        tokio::spawn(async move { lazaret_edge::serve(listener, router, &settings).await });

    let task = json!({ "repo": "acme/demo", "command": ["make", "test"], "wait_s": 45 });
    for sdk in Sdk::ALL {
        let seen = sdk
            .run(&format!("http://{address}/mcp"), &token, &task)
            .await
            .unwrap();
        let revision = if sdk == Sdk::TypeScriptV1 {
            "2025-11-25"
        } else {
            "2026-07-28"
        };
        assert_eq!(seen["protocol"], revision, "{seen}");
        assert_eq!(seen["status"]["outcome"], "succeeded", "{seen}");
        assert_eq!(seen["delegated"]["run"], seen["torn_down"]["run"]);
        assert_eq!(seen["torn_down"]["removed"], true, "{seen}");
    }
    assert_eq!(host.effects().created.len(), 3);
    assert!(host.ids().is_empty());

    stop.cancel();
    server.await.unwrap().unwrap();
    services.stop().await;
}
