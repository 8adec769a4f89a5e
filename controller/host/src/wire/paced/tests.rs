use super::*;
use futures::StreamExt;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio_stream::wrappers::ReceiverStream;

const SOON: Duration = Duration::from_millis(50);
const NEVER: Duration = Duration::from_secs(3600);

type Feed = mpsc::Sender<Result<&'static str, std::io::Error>>;

fn fed() -> (Feed, Body) {
    let (feed, pieces) = mpsc::channel(8);
    (feed, Body::from_stream(ReceiverStream::new(pieces)))
}

#[tokio::test]
async fn a_body_arrives_whole_with_its_length_and_lets_go_at_its_end() {
    let places = Arc::new(Semaphore::new(1));
    let place = Arc::clone(&places).try_acquire_owned().unwrap();
    let pace = Pace {
        origin: NEVER,
        taker: NEVER,
    };
    let (body, ended) = paced(Body::from("all of it"), pace, place);
    assert_eq!(body.size_hint().exact(), Some(9));
    assert_eq!(body.collect().await.unwrap().to_bytes(), "all of it");
    assert_eq!(ended.await.unwrap(), Moved::Whole);
    assert_eq!(places.available_permits(), 1);
}

#[tokio::test]
async fn an_origin_that_falls_silent_is_a_cut_and_no_end() {
    let (feed, body) = fed();
    feed.send(Ok("a")).await.unwrap();
    let pace = Pace {
        origin: SOON,
        taker: NEVER,
    };
    let (body, ended) = paced(body, pace, ());
    let mut pieces = body.into_data_stream();
    assert_eq!(pieces.next().await.unwrap().unwrap(), "a");
    assert!(pieces.next().await.unwrap().is_err());
    assert_eq!(ended.await.unwrap(), Moved::OriginSilent);
    assert!(feed.is_closed(), "the origin was let go of");
}

#[tokio::test]
async fn a_taker_that_stops_costs_neither_the_origin_nor_the_place() {
    let places = Arc::new(Semaphore::new(1));
    let place = Arc::clone(&places).try_acquire_owned().unwrap();
    let (feed, body) = fed();
    for _ in 0..4 {
        feed.send(Ok("piece")).await.unwrap();
    }
    let pace = Pace {
        origin: NEVER,
        taker: SOON,
    };
    let (body, ended) = paced(body, pace, place);
    // Nobody polls the body, as when a guest reads no more.
    assert_eq!(ended.await.unwrap(), Moved::TakerSilent);
    assert_eq!(places.available_permits(), 1);
    assert!(feed.is_closed(), "the origin was let go of");
    assert!(
        body.collect().await.is_err(),
        "who comes back finds it cut, not ended"
    );
}

#[tokio::test]
async fn a_dropped_body_is_let_go_of_at_once() {
    let (feed, body) = fed();
    let pace = Pace {
        origin: NEVER,
        taker: NEVER,
    };
    let (body, ended) = paced(body, pace, ());
    drop(body);
    assert_eq!(ended.await.unwrap(), Moved::Dropped);
    feed.closed().await;
}
