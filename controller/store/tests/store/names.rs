//! What was asked for under an idempotency key.

use crate::{accepted, now, store};
use lazaret_api::public::Scope;
use lazaret_domain::{ExecId, KeyId, RunId};
use lazaret_services::ports::store::{Asked, KeyRecord, Named, NamedExec, Store};

fn asked(by: u64, name: &str, digest: &str) -> Asked {
    Asked {
        by: KeyId::make(now(), by),
        name: name.parse().unwrap(),
        digest: digest.to_owned(),
    }
}

fn exec(text: &str) -> ExecId {
    text.parse().unwrap()
}

#[tokio::test]
async fn a_name_finds_its_command_after_the_file_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let first = store(&directory).await;
    let run = accepted(&first).await.id;
    let asks = asked(0, "k", "one");
    assert_eq!(
        first.name_exec(&run, &asks, &exec("x-1")).await,
        Ok(Named::New)
    );
    first.close().await;
    let second = store(&directory).await;
    let known = |started| {
        Ok(Named::Before(NamedExec {
            exec: exec("x-1"),
            started,
        }))
    };
    assert_eq!(
        second.name_exec(&run, &asks, &exec("x-2")).await,
        known(false)
    );
    second.exec_started(&run, &asks).await.unwrap();
    assert_eq!(
        second.name_exec(&run, &asks, &exec("x-3")).await,
        known(true)
    );
    let other = asked(0, "k", "two");
    let other = second.name_exec(&run, &other, &exec("x-4")).await;
    assert_eq!(other, Ok(Named::OtherRequest));
    for new in [asked(0, "k2", "one"), asked(1, "k", "one")] {
        assert_eq!(
            second.name_exec(&run, &new, &exec("x-5")).await,
            Ok(Named::New)
        );
    }
    let no_run = RunId::make(now(), 9);
    assert!(
        second
            .name_exec(&no_run, &asks, &exec("x-6"))
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_key_and_its_name_are_stored_together_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory).await;
    let key = |number| KeyRecord {
        id: KeyId::make(now(), number),
        name: String::new(),
        scope: Scope::Read,
        hash: vec![7; 32],
        created_at: now(),
        expires_at: None,
        revoked_at: None,
    };
    let asks = asked(0, "k", "one");
    assert_eq!(store.add_key(&key(1), Some(&asks)).await, Ok(Named::New));
    let again = store.add_key(&key(2), Some(&asks)).await;
    assert_eq!(again, Ok(Named::Before(key(1).id)));
    let other = store.add_key(&key(2), Some(&asked(0, "k", "two"))).await;
    assert_eq!(other, Ok(Named::OtherRequest));
    // A key that cannot be stored, because its id is taken, takes its name along.
    let fresh = asked(0, "k2", "one");
    assert!(store.add_key(&key(1), Some(&fresh)).await.is_err());
    assert_eq!(store.add_key(&key(3), Some(&fresh)).await, Ok(Named::New));
    assert_eq!(store.keys().await.unwrap(), [key(1), key(3)]);
}

#[tokio::test]
async fn a_file_of_the_first_form_is_brought_to_the_newest() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let first = store(&directory).await;
    let run = accepted(&first).await.id;
    first.close().await;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
    let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
    for undo in [
        "DROP TABLE named_execs",
        "DROP TABLE named_keys",
        "DELETE FROM _sqlx_migrations WHERE version > 1",
    ] {
        sqlx::query(undo).execute(&pool).await.unwrap();
    }
    pool.close().await;
    let second = store(&directory).await;
    assert!(second.run(&run).await.unwrap().is_some());
    let asks = asked(0, "k", "one");
    let named = second.name_exec(&run, &asks, &exec("x-1")).await;
    assert_eq!(named, Ok(Named::New));
}
