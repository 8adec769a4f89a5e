//! The SQLite store.
//!
//! One connection writes, so a transaction never meets another writer; a few read beside it (WAL).
//! Every commit is on disk before it is answered (`synchronous = FULL`): an intent that was
//! journaled is known after a power loss too. A database that is damaged is not opened, and a write
//! that fails (a full disk) leaves nothing behind and is answered as a failure: whoever asked stops.
//!
//! | module | holds |
//! | --- | --- |
//! | [`runs`] | accepting and reading runs |
//! | [`journal`] | taking a run and committing facts under a fence |
//! | [`events`] | reading and evicting events |
//! | [`people`] | hosts and API keys |
//! | [`names`] | what was asked for under an idempotency key, but for runs |
//! | [`codec`] | between rows and records |
#![forbid(unsafe_code)]

mod codec;
mod events;
mod journal;
mod names;
mod people;
mod runs;

use async_trait::async_trait;
use codec::failed;
use jiff::Timestamp;
use lazaret_api::public::{Diff, Event};
use lazaret_domain::{ExecId, Fence, KeyId, RunId, SandboxId};
use lazaret_services::IdempotencyKey;
use lazaret_services::ports::store::{
    AllAccepted, Asked, Cap, Counts, Fact, HostRecord, KeyRecord, Named, NamedExec, NewRun,
    RunRecord, Store, StoreError, Taken,
};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Sqlite, Transaction};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// How much the store may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of output of each run; beyond them the oldest are evicted.
    pub log: u64,
    /// Pages of the file; beyond them writes are refused, as on a full disk. None: what the disk
    /// holds.
    pub pages: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            log: 16 << 20,
            pages: None,
        }
    }
}

/// The store in one SQLite file.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    writer: SqlitePool,
    readers: SqlitePool,
    limits: Limits,
}

impl SqliteStore {
    /// Opens the file, making it (mode 0600) if it is not there, and brings it to the newest form.
    ///
    /// # Errors
    /// If the file cannot be made or opened, is damaged, or is of a newer version.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_with(path, Limits::default()).await
    }

    /// The same, with limits.
    ///
    /// # Errors
    /// As [`SqliteStore::open`].
    pub async fn open_with(path: &Path, limits: Limits) -> Result<Self, StoreError> {
        // SQLite gives its journal files the mode of the database, so this covers those too.
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| StoreError::Failed(format!("{}: {error}", path.display())))?;
        let mut options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(10));
        if let Some(pages) = limits.pages {
            options = options.pragma("max_page_count", pages.to_string());
        }
        // A file does not go away as a server does: connections are used without asking first.
        let writer = SqlitePoolOptions::new()
            .max_connections(1)
            .test_before_acquire(false)
            .connect_with(options.clone())
            .await
            .map_err(failed)?;
        let verdict: String = sqlx::query_scalar("PRAGMA quick_check(1)")
            .fetch_one(&writer)
            .await
            .map_err(failed)?;
        if verdict != "ok" {
            return Err(StoreError::Corrupt(verdict));
        }
        sqlx::migrate!()
            .run(&writer)
            .await
            .map_err(|error| StoreError::Failed(error.to_string()))?;
        let readers = SqlitePoolOptions::new()
            .max_connections(4)
            .test_before_acquire(false)
            .connect_with(options)
            .await
            .map_err(failed)?;
        Ok(Self {
            writer,
            readers,
            limits,
        })
    }

    /// Closes all connections; the write-ahead log is folded into the file.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }

    /// Begins a transaction that will write.
    ///
    /// SQLite ends a transaction by itself where the disk is full, and a connection whose end of a
    /// transaction went another way than it thinks begins none any more. There is but one that
    /// writes, so it is replaced then.
    async fn begin(&self) -> Result<Transaction<'static, Sqlite>, StoreError> {
        let error = match self.writer.begin_with("BEGIN IMMEDIATE").await {
            Ok(begun) => return Ok(begun),
            Err(error @ (sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed)) => {
                return Err(failed(error));
            }
            Err(error) => error,
        };
        tracing::warn!(%error, "the connection that writes is replaced");
        if let Ok(connection) = self.writer.acquire().await {
            // What it says as it closes is of no interest: it was of no use before.
            connection.close().await.ok();
        }
        self.writer
            .begin_with("BEGIN IMMEDIATE")
            .await
            .map_err(failed)
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn accept(&self, new: Vec<NewRun>, cap: Cap) -> Result<AllAccepted, StoreError> {
        runs::accept(self.begin().await?, new, cap).await
    }

    async fn accepted_before(
        &self,
        by: &KeyId,
        name: &IdempotencyKey,
    ) -> Result<Option<(String, RunRecord)>, StoreError> {
        runs::before(&self.readers, by, name).await
    }

    async fn run(&self, id: &RunId) -> Result<Option<RunRecord>, StoreError> {
        runs::by_id(&self.readers, id).await
    }

    async fn run_of(&self, sandbox: &SandboxId) -> Result<Option<RunRecord>, StoreError> {
        runs::by_sandbox(&self.readers, sandbox).await
    }

    async fn runs(
        &self,
        before: Option<&RunId>,
        limit: u32,
        active: bool,
    ) -> Result<Vec<RunRecord>, StoreError> {
        runs::page(&self.readers, before, limit, active).await
    }

    async fn open_runs(&self) -> Result<Vec<RunRecord>, StoreError> {
        runs::open(&self.readers).await
    }

    async fn counts(&self, waking: &[RunId]) -> Result<Counts, StoreError> {
        runs::counts(&self.readers, waking).await
    }

    async fn take(&self, id: &RunId) -> Result<Option<Taken>, StoreError> {
        journal::take(self.begin().await?, id).await
    }

    async fn fence(&self) -> Result<Fence, StoreError> {
        let mut transaction = self.begin().await?;
        let fence = journal::next_fence(&mut transaction).await?;
        transaction.commit().await.map_err(failed)?;
        Ok(fence)
    }

    async fn commit(
        &self,
        id: &RunId,
        fence: Fence,
        at: Timestamp,
        facts: Vec<Fact>,
    ) -> Result<u64, StoreError> {
        journal::commit(self.begin().await?, id, fence, at, facts, self.limits.log).await
    }

    async fn events(&self, id: &RunId, after: u64, limit: u32) -> Result<Vec<Event>, StoreError> {
        events::after(&self.readers, id, after, limit).await
    }

    async fn log_before(
        &self,
        id: &RunId,
        before: u64,
        limit: u32,
    ) -> Result<Vec<Event>, StoreError> {
        events::log_before(&self.readers, id, before, limit).await
    }

    async fn diff(&self, id: &RunId) -> Result<Option<Diff>, StoreError> {
        runs::diff(&self.readers, id).await
    }

    async fn name_exec(
        &self,
        run: &RunId,
        asked: &Asked,
        exec: &ExecId,
    ) -> Result<Named<NamedExec>, StoreError> {
        names::exec(self.begin().await?, run, asked, exec).await
    }

    async fn exec_started(&self, run: &RunId, asked: &Asked) -> Result<(), StoreError> {
        names::exec_started(&self.writer, run, asked).await
    }

    async fn hosts(&self) -> Result<Vec<HostRecord>, StoreError> {
        people::hosts(&self.readers).await
    }

    async fn put_host(&self, host: &HostRecord) -> Result<(), StoreError> {
        people::put_host(&self.writer, host).await
    }

    async fn add_key(
        &self,
        key: &KeyRecord,
        asked: Option<&Asked>,
    ) -> Result<Named<KeyId>, StoreError> {
        people::add_key(self.begin().await?, key, asked).await
    }

    async fn key(&self, id: &KeyId) -> Result<Option<KeyRecord>, StoreError> {
        people::key(&self.readers, id).await
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        people::keys(&self.readers).await
    }

    async fn revoke_key(&self, id: &KeyId, at: Timestamp) -> Result<Option<KeyRecord>, StoreError> {
        people::revoke_key(&self.writer, id, at).await?;
        people::key(&self.writer, id).await
    }
}
