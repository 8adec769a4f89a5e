//! Open streams whose key stops being good.

use crate::support::{House, LONG, command, request};
use axum::body::{Body, BodyDataStream};
use futures::StreamExt;
use lazaret_api::frame::Frame;
use lazaret_api::public::{CreateKey, NewKey, Scope};
use lazaret_domain::RunId;
use lazaret_edge::settings::RECHECK_EVERY;
use lazaret_services::Principal;
use std::time::Duration;
use tokio::time::timeout;
use tower::ServiceExt;

/// A controller whose streams look at their keys all the time, and a run that goes on.
async fn house() -> (House, RunId) {
    let every = Duration::from_millis(20);
    let house = House::with(|settings| settings.recheck_every = every).await;
    house.hold_commands();
    let run = house.run(command()).await.run;
    (house, run)
}

async fn key(house: &House, expires: Option<&str>) -> NewKey {
    let wanted = CreateKey {
        scope: Scope::Read,
        name: None,
        expires: expires.map(|span| span.parse().unwrap()),
    };
    let keys = &house.services.keys;
    let made = keys.create(&Principal::controller(), None, wanted).await;
    made.unwrap()
}

/// A stream, and what was read of it.
struct Watched(BodyDataStream, String);

impl Watched {
    async fn with(house: &House, run: &RunId, token: &str) -> Self {
        let request = request("GET", &format!("/api/v1/runs/{run}/events"))
            .header("authorization", format!("Bearer {token}"));
        let request = request.body(Body::empty()).unwrap();
        let answer = house.router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        let mut stream = Self(answer.into_body().into_data_stream(), String::new());
        stream.until("begun").await;
        stream
    }

    /// Reads until this was said.
    async fn until(&mut self, wanted: &str) {
        while !self.1.contains(wanted) {
            let piece = timeout(LONG, self.0.next()).await.unwrap();
            let piece = piece.expect("a stream that goes on").unwrap();
            self.1.push_str(std::str::from_utf8(&piece).unwrap());
        }
    }

    /// Reads to the end, which is not that of the run.
    async fn ends(mut self) {
        let rest = async {
            while let Some(piece) = self.0.next().await {
                self.1
                    .push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
            }
        };
        timeout(LONG, rest).await.expect("the stream ends");
        assert!(!self.1.contains("event: end"), "{}", self.1);
    }
}

#[test]
fn an_open_stream_looks_at_its_key_every_minute_at_least() {
    assert!(RECHECK_EVERY <= Duration::from_secs(60));
}

#[tokio::test]
async fn a_stream_ends_soon_after_its_key_was_revoked_and_that_of_a_good_key_goes_on() {
    let (house, run) = house().await;
    let (good, bad) = (key(&house, None).await, key(&house, None).await);
    let mut stays = Watched::with(&house, &run, &good.token).await;
    let ends = Watched::with(&house, &run, &bad.token).await;
    let keys = &house.services.keys;
    let revoked = keys.revoke(&Principal::controller(), &bad.key.id).await;
    assert!(revoked.unwrap().revoked_at.is_some());
    ends.ends().await;
    // The other has been looked at as often meanwhile, and a few times more.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let sandbox = house.host.until_started("turn-1").await;
    let turn = "turn-1".parse().unwrap();
    let more = [Frame::Stdout("and on\n".into())];
    house.host.says(&sandbox, &turn, &more, None);
    stays.until("and on").await;
}

#[tokio::test]
async fn a_stream_ends_when_its_key_expires() {
    let (house, run) = house().await;
    let brief = key(&house, Some("2s")).await;
    let stream = Watched::with(&house, &run, &brief.token).await;
    stream.ends().await;
    assert!(jiff::Timestamp::now() >= brief.key.expires_at.unwrap());
}

#[tokio::test]
async fn a_stream_whose_key_cannot_be_looked_at_ends() {
    let (house, run) = house().await;
    let stream = Watched::with(&house, &run, &house.admin).await;
    house.store.close().await;
    stream.ends().await;
}

#[tokio::test]
async fn streams_that_nobody_reads_hold_up_nobody_else() {
    let (house, run) = house().await;
    // More than the store has readers, each looking at its key all the time, and none read again.
    let mut unread = Vec::new();
    for _ in 0..16 {
        unread.push(Watched::with(&house, &run, &house.admin).await);
    }
    for _ in 0..200 {
        let answer = timeout(LONG, house.get(&format!("/api/v1/runs/{run}"))).await;
        assert_eq!(answer.unwrap().status, 200);
    }
    timeout(LONG, house.store.close())
        .await
        .expect("no read is left unfinished");
    for stream in unread {
        stream.ends().await;
    }
}
