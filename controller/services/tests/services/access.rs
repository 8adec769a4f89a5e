//! Keys and scopes.

use crate::support::{House, command, host_name};
use lazaret_api::public::{CreateKey, ExecRun, HostAdmission, Scope};
use lazaret_domain::{Argv, DenialCode};
use lazaret_services::Principal;

fn key(scope: Scope) -> CreateKey {
    CreateKey {
        scope,
        name: Some("ci".to_owned()),
        expires: None,
    }
}

#[tokio::test]
async fn a_key_works_until_it_is_revoked_and_not_one_request_longer() {
    let house = House::new().await;
    let keys = &house.services.keys;
    assert!(!keys.any_active().await.unwrap());
    let made = keys.create(&house.by, None, key(Scope::Run)).await.unwrap();
    assert!(keys.any_active().await.unwrap());
    let principal = keys.authenticate(&made.token).await.unwrap();
    assert_eq!(
        principal,
        Principal {
            key: made.key.id.clone(),
            scope: Scope::Run
        }
    );
    let revoked = keys.revoke(&house.by, &made.key.id).await.unwrap();
    assert!(revoked.revoked_at.is_some());
    assert_eq!(
        keys.authenticate(&made.token).await.unwrap_err().code,
        DenialCode::Unauthenticated
    );
    assert_eq!(
        keys.revoke(&house.by, &made.key.id).await.unwrap(),
        revoked,
        "the first revocation counts"
    );
    assert!(!keys.any_active().await.unwrap());
}

#[tokio::test]
async fn every_token_but_the_exact_one_is_refused_alike() {
    let house = House::new().await;
    let token = house
        .services
        .keys
        .create(&house.by, None, key(Scope::Admin))
        .await
        .unwrap()
        .token;
    let mut wrong = vec![
        String::new(),
        "lzr_".to_owned(),
        format!("{token} "),
        token.to_uppercase(),
    ];
    for at in 0..token.len() {
        let mut bytes = token.clone().into_bytes();
        bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
        wrong.push(String::from_utf8(bytes).unwrap());
        wrong.push(token[..at].to_owned());
    }
    let mut texts = Vec::new();
    for token in wrong {
        let denial = house.services.keys.authenticate(&token).await.unwrap_err();
        assert_eq!(denial.code, DenialCode::Unauthenticated, "{token:?}");
        texts.push(denial.message);
    }
    texts.dedup();
    assert_eq!(
        texts.len(),
        1,
        "the answer says nothing about what is wrong"
    );
}

#[tokio::test]
async fn a_key_expires() {
    let house = House::new().await;
    let request = CreateKey {
        expires: Some("1ms".parse().unwrap()),
        ..key(Scope::Run)
    };
    let made = house
        .services
        .keys
        .create(&house.by, None, request)
        .await
        .unwrap();
    let expires = made.key.expires_at.unwrap();
    while jiff::Timestamp::now() <= expires {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        house
            .services
            .keys
            .authenticate(&made.token)
            .await
            .unwrap_err()
            .code,
        DenialCode::Unauthenticated
    );
}

#[tokio::test]
async fn neither_the_store_nor_any_listing_holds_a_token() {
    let house = House::new().await;
    let token = house
        .services
        .keys
        .create(&house.by, None, key(Scope::Run))
        .await
        .unwrap()
        .token;
    let secret = &token[token.len() - 43..];
    let listed = format!("{:?}", house.services.keys.list(&house.by).await.unwrap());
    assert!(!listed.contains(secret));
    for entry in std::fs::read_dir(house.directory.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(
            !bytes
                .windows(secret.len())
                .any(|window| window == secret.as_bytes())
        );
    }
}

#[tokio::test]
async fn a_key_does_only_what_its_scope_covers() {
    let house = House::new().await;
    let run = house.delegate(command(&["true"])).await.run;
    let with = |scope| Principal {
        scope,
        ..Principal::controller()
    };
    let (read, operate) = (with(Scope::Read), with(Scope::Operate));
    let services = &house.services;
    let exec = ExecRun {
        command: Argv::of(["true"]).unwrap(),
        stdin: None,
        max_duration: None,
    };
    assert!(services.runs.get(&read, &run).await.is_ok());
    let denials = [
        services
            .runs
            .delegate(&read, None, command(&["true"]))
            .await
            .unwrap_err(),
        services.runs.cancel(&read, &run).await.unwrap_err(),
        services.runs.teardown(&read, &run).await.unwrap_err(),
        services
            .runs
            .put_file(&read, &run, &"a".parse().unwrap(), bytes::Bytes::new())
            .await
            .unwrap_err(),
        services
            .runs
            .exec(&with(Scope::Run), &run, None, exec)
            .await
            .unwrap_err(),
        services.hosts.list(&with(Scope::Run)).await.unwrap_err(),
        services.system(&with(Scope::Run)).await.unwrap_err(),
        services
            .hosts
            .set_admission(&operate, &host_name(), HostAdmission::Drained)
            .await
            .unwrap_err(),
        services
            .keys
            .create(&operate, None, key(Scope::Admin))
            .await
            .unwrap_err(),
        services.keys.list(&operate).await.unwrap_err(),
    ];
    for denial in denials {
        assert_eq!(denial.code, DenialCode::ScopeTooNarrow);
    }
}

#[tokio::test]
async fn a_live_sandbox_may_ask_for_its_own_repository_and_a_stranger_for_none() {
    let house = House::new().await;
    let run = house.delegate(crate::support::on_repo()).await.run;
    let sandbox = house.done(&run).await.sandbox.unwrap().id;
    let repo = house.services.runs.repo_of(&sandbox).await.unwrap();
    assert_eq!(repo.unwrap().as_str(), "acme/demo");
    house.services.runs.teardown(&house.by, &run).await.unwrap();
    assert_eq!(
        house
            .services
            .runs
            .repo_of(&sandbox)
            .await
            .unwrap_err()
            .code,
        DenialCode::SandboxNotFound
    );
}
