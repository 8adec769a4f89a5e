//! Places of which there are few, shared so that nobody takes those of the others: whoever holds a
//! part of them already gets no more, however many are free.
//!
//! A part is counted by whom it belongs to, and only while something of it is held: the table is as
//! small as the number of those who hold something.

use crate::client::Client;
use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use http_body::{Frame, SizeHint};
use lazaret_domain::{Denial, DenialCode, KeyId};
use std::collections::HashMap;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What each of many may hold of something. Clones count together.
#[derive(Clone, Debug)]
pub(crate) struct Shares<K>(Arc<Held<K>>);

#[derive(Debug)]
struct Held<K> {
    most: usize,
    held: Mutex<HashMap<K, usize>>,
}

impl<K: Clone + Eq + Hash> Shares<K> {
    /// Of which each may hold so many.
    pub(crate) fn of(most: usize) -> Self {
        let held = Mutex::default();
        Self(Arc::new(Held { most, held }))
    }

    /// One more for this one, if it does not hold as many as it may.
    pub(crate) fn take(&self, whose: &K) -> Option<Share<K>> {
        let mut held = self.0.held.lock().unwrap_or_else(PoisonError::into_inner);
        match held.get_mut(whose) {
            Some(count) if *count >= self.0.most => return None,
            Some(count) => *count += 1,
            None if self.0.most == 0 => return None,
            None => {
                held.insert(whose.clone(), 1);
            }
        }
        Some(Share {
            whose: whose.clone(),
            shares: self.clone(),
        })
    }
}

/// One of those that somebody holds, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share<K: Clone + Eq + Hash> {
    whose: K,
    shares: Shares<K>,
}

impl<K: Clone + Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        let held = &self.shares.0.held;
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        match held.get_mut(&self.whose) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                held.remove(&self.whose);
            }
        }
    }
}

/// Places of one kind for all, of which each client and each API key may hold some.
#[derive(Debug)]
pub(crate) struct Places {
    /// What they are called, in a refusal.
    what: &'static str,
    all: Arc<Semaphore>,
    clients: Shares<Client>,
    keys: Shares<KeyId>,
}

/// One such place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _of_all: OwnedSemaphorePermit,
    _of_client: Share<Client>,
    _of_key: Share<KeyId>,
}

impl Places {
    /// So many in all, and so many for each client and for each key.
    pub(crate) fn new(what: &'static str, all: usize, each: usize) -> Self {
        Self {
            what,
            all: Arc::new(Semaphore::new(all)),
            clients: Shares::of(each),
            keys: Shares::of(each),
        }
    }

    /// A place for this client, which asks with this key.
    ///
    /// # Errors
    /// `rate_limited` if one of the two holds as many as it may, or if none is free.
    pub(crate) fn take(&self, client: Client, key: &KeyId) -> Result<Place, Denial> {
        let _of_client = self
            .clients
            .take(&client)
            .ok_or_else(|| too_many(self.what, "of this client"))?;
        let _of_key = self
            .keys
            .take(key)
            .ok_or_else(|| too_many(self.what, "of this API key"))?;
        let all = Arc::clone(&self.all).try_acquire_owned();
        Ok(Place {
            _of_all: all.map_err(|_| too_many(self.what, "of all callers"))?,
            _of_client,
            _of_key,
        })
    }
}

/// There would be more at the same time than there may be.
pub(crate) fn too_many(what: &str, whose: &str) -> Denial {
    let why = format!("too many {what} {whose} are open at the same time; end some, or wait");
    Denial::new(DenialCode::RateLimited, why).retry_after(5)
}

/// The answer, which holds something until its last byte was taken or it was given up.
pub(crate) fn held_by<T: Send + Unpin + 'static>(answer: Response, held: T) -> Response {
    answer.map(|body| Body::new(Holding { body, _held: held }))
}

struct Holding<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> HttpBody for Holding<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    fn client(number: u8) -> Client {
        Client::of(IpAddr::V4(Ipv4Addr::new(192, 0, 2, number)))
    }

    fn key(number: u64) -> KeyId {
        KeyId::make(jiff::Timestamp::UNIX_EPOCH, number)
    }

    #[test]
    fn each_holds_its_part_and_nobody_is_remembered_who_holds_nothing() {
        let shares = Shares::of(2);
        let first = shares.take(&1);
        let rest = [shares.take(&1), shares.take(&2)];
        assert!(first.is_some() && rest.iter().all(Option::is_some));
        assert!(shares.take(&1).is_none());
        drop(first);
        let again = shares.take(&1);
        assert!(again.is_some() && shares.take(&1).is_none());
        drop((again, rest));
        assert!(shares.0.held.lock().unwrap().is_empty());
        assert!(Shares::of(0).take(&1).is_none());
    }

    #[test]
    fn one_client_or_one_key_cannot_take_all_places() {
        let places = Places::new("streams", 5, 2);
        let refused = |client, key| places.take(client, &key).unwrap_err().message;
        let mut held = vec![
            places.take(client(1), &key(1)).unwrap(),
            places.take(client(1), &key(2)).unwrap(),
        ];
        assert!(refused(client(1), key(3)).contains("of this client"));
        held.push(places.take(client(2), &key(1)).unwrap());
        assert!(refused(client(3), key(1)).contains("of this API key"));
        // What was refused holds nothing.
        held.push(places.take(client(3), &key(3)).unwrap());
        held.push(places.take(client(3), &key(3)).unwrap());
        assert!(refused(client(4), key(4)).contains("of all callers"));
        let denial = places.take(client(4), &key(4)).unwrap_err();
        assert_eq!(denial.code, DenialCode::RateLimited);
        assert!(denial.retry_after.is_some());
        held.clear();
        assert!(places.take(client(1), &key(1)).is_ok());
    }
}
