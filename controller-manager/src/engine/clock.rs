//! The time, asked for in one place.
//!
//! Plans take the time as an argument; whoever drives them asks here. In this crate's tests the clock follows the
//! runtime's, so that a paused runtime can let hours pass in no time.

use std::time::Instant;

use k8s_openapi::jiff::Timestamp;

/// The time of day.
#[cfg(not(test))]
#[must_use]
pub fn now() -> Timestamp {
    Timestamp::now()
}

#[cfg(test)]
thread_local!(static START: std::cell::Cell<Option<(Timestamp, tokio::time::Instant)>> = const { std::cell::Cell::new(None) });

/// The time of day, which passes as fast as the runtime lets it.
#[cfg(test)]
#[must_use]
pub fn now() -> Timestamp {
    let (wall, instant) = START.get().unwrap_or_else(|| start_at(Timestamp::now()));
    wall.saturating_add(k8s_openapi::jiff::SignedDuration::try_from(instant.elapsed()).unwrap_or_default())
        .unwrap_or(wall)
}

/// Let it be this time now in the runtime of this thread.
#[cfg(test)]
pub fn start_at(wall: Timestamp) -> (Timestamp, tokio::time::Instant) {
    let start = (wall, tokio::time::Instant::now());
    START.set(Some(start));
    start
}

/// Somebody sets the clock of this thread's runtime ahead, or back.
#[cfg(test)]
pub fn set_ahead(seconds: i64) {
    if let Some((wall, instant)) = START.get() {
        let wall = wall.saturating_add(k8s_openapi::jiff::SignedDuration::from_secs(seconds)).unwrap_or(wall);
        START.set(Some((wall, instant)));
    }
}

/// A moment to measure from.
#[must_use]
pub fn instant() -> Instant {
    tokio::time::Instant::now().into_std()
}
