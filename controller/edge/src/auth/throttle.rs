//! Failed credentials, counted for each client: twenty in ten minutes, and the client waits.
//!
//! While it waits, a good key is refused too: otherwise a guesser would learn from the answer that
//! its last guess was right. Other clients are untouched. Memory is bounded; when the table is full
//! the client whose window ends first makes room.

use crate::client::Client;
use lazaret_domain::{Denial, DenialCode};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const FAILURES: u32 = 20;
const WINDOW: Duration = Duration::from_secs(600);
const CLIENTS: usize = 10_000;

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    ends: Instant,
}

/// The failures of all clients.
#[derive(Debug, Default)]
pub(crate) struct Throttle(Mutex<HashMap<Client, Failures>>);

impl Throttle {
    /// Whether this client may try.
    ///
    /// # Errors
    /// `rate_limited` once it failed too often, until its window ends.
    pub(crate) fn admit(&self, client: Client, now: Instant) -> Result<(), Denial> {
        let mut clients = self.lock();
        let Some(failures) = clients.get(&client) else {
            return Ok(());
        };
        if failures.ends <= now {
            clients.remove(&client);
            return Ok(());
        }
        if failures.count < FAILURES {
            return Ok(());
        }
        let wait = failures
            .ends
            .duration_since(now)
            .as_secs()
            .saturating_add(1);
        Err(Denial::new(
            DenialCode::RateLimited,
            "too many failed credentials from this client",
        )
        .retry_after(u32::try_from(wait).unwrap_or(u32::MAX)))
    }

    /// Counts a failure.
    pub(crate) fn failed(&self, client: Client, now: Instant) {
        let mut clients = self.lock();
        if clients.len() >= CLIENTS && !clients.contains_key(&client) {
            clients.retain(|_, failures| failures.ends > now);
            if clients.len() >= CLIENTS
                && let Some(first) = clients
                    .iter()
                    .min_by_key(|(_, failures)| failures.ends)
                    .map(|(client, _)| *client)
            {
                clients.remove(&first);
            }
        }
        let failures = clients.entry(client).or_insert(Failures {
            count: 0,
            ends: now + WINDOW,
        });
        if failures.ends <= now {
            *failures = Failures {
                count: 0,
                ends: now + WINDOW,
            };
        }
        failures.count = failures.count.saturating_add(1);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Client, Failures>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn client(number: u32) -> Client {
        Client::of(IpAddr::V4(number.into()))
    }

    #[test]
    fn a_client_waits_until_its_window_ends_and_not_longer() {
        let (throttle, start) = (Throttle::default(), Instant::now());
        for _ in 0..FAILURES {
            assert_eq!(throttle.admit(client(1), start), Ok(()));
            throttle.failed(client(1), start);
        }
        let late = start + WINDOW - Duration::from_secs(1);
        assert_eq!(
            throttle.admit(client(1), late).unwrap_err().retry_after,
            Some(2)
        );
        assert_eq!(throttle.admit(client(2), late), Ok(()));
        assert_eq!(throttle.admit(client(1), start + WINDOW), Ok(()));
    }

    #[test]
    fn failures_of_another_window_do_not_count() {
        let (throttle, start) = (Throttle::default(), Instant::now());
        for turn in 0..3 * FAILURES {
            let now = start + WINDOW * turn;
            assert_eq!(throttle.admit(client(1), now), Ok(()));
            throttle.failed(client(1), now);
        }
    }

    #[test]
    fn the_table_is_bounded_and_keeps_the_latest() {
        let (throttle, start) = (Throttle::default(), Instant::now());
        for number in 0..u32::try_from(CLIENTS).unwrap() + 100 {
            throttle.failed(client(number), start + Duration::from_millis(number.into()));
        }
        assert_eq!(throttle.lock().len(), CLIENTS);
        assert!(
            throttle
                .lock()
                .contains_key(&client(u32::try_from(CLIENTS).unwrap() + 99))
        );
    }
}
