//! The port to the wall clock.

use jiff::Timestamp;

/// Tells the time.
pub trait Clock: Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Timestamp;
}

/// The clock of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A clock that stands still until it is moved.
#[cfg(feature = "fakes")]
#[derive(Debug)]
pub struct FakeClock(std::sync::Mutex<Timestamp>);

#[cfg(feature = "fakes")]
impl FakeClock {
    /// A clock that shows this time.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        Self(std::sync::Mutex::new(now))
    }

    /// Moves it on.
    pub fn advance(&self, by: std::time::Duration) {
        let mut now = self
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        *now += by;
    }
}

#[cfg(feature = "fakes")]
impl Clock for FakeClock {
    fn now(&self) -> Timestamp {
        *self
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
