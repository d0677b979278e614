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

/// The time of day, which passes as fast as the runtime lets it.
#[cfg(test)]
#[must_use]
pub fn now() -> Timestamp {
    use std::cell::OnceCell;
    thread_local!(static START: OnceCell<(Timestamp, tokio::time::Instant)> = const { OnceCell::new() });
    START.with(|start| {
        let (wall, instant) = start.get_or_init(|| (Timestamp::now(), tokio::time::Instant::now()));
        wall.saturating_add(k8s_openapi::jiff::SignedDuration::try_from(instant.elapsed()).unwrap_or_default())
            .unwrap_or(*wall)
    })
}

/// A moment to measure from.
#[must_use]
pub fn instant() -> Instant {
    tokio::time::Instant::now().into_std()
}
