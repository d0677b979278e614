//! Leases shared by many short-lived keys, so that ten thousand events cost a few leases. Answers for upstream's
//! `leaseManager`.
//!
//! A lease lives for the asked time to live plus the time it may be handed out again
//! (`--lease-reuse-duration-seconds`, or 5 % of a short one), so
//! that no key dies early.

use std::time::{Duration, Instant};

use etcd_client::LeaseClient;
use tokio::sync::Mutex;

use super::Error;
use super::call::timed;
use super::grpc::EtcdCall;
use super::meters::LEASED;

/// Most keys on one lease.
const MAX_KEYS: usize = 1000;

struct CurrentLease {
    id: i64,
    ttl: i64,
    until: Instant,
    keys: usize,
}

/// Hands out leases.
pub(super) struct LeasePool {
    client: LeaseClient,
    /// Seconds a lease is handed out for.
    reuse: i64,
    current: Mutex<Option<CurrentLease>>,
}

impl LeasePool {
    pub(super) fn new(client: LeaseClient, reuse: i64) -> Self {
        Self { client, reuse, current: Mutex::new(None) }
    }

    /// A lease under which a key lives at least `ttl` seconds.
    pub(super) async fn lease(&self, ttl: i64) -> Result<i64, Error> {
        let reuse = reuse_seconds(ttl, self.reuse);
        if reuse == 0 {
            return Ok(timed(EtcdCall::LeaseGrant, self.client.clone().grant(ttl, None)).await?.id());
        }
        let mut current = self.current.lock().await;
        if let Some(c) = current.as_mut()
            && c.ttl == ttl
            && c.keys < MAX_KEYS
            && Instant::now() < c.until
        {
            c.keys += 1;
            return Ok(c.id);
        }
        let id = timed(EtcdCall::LeaseGrant, self.client.clone().grant(ttl + reuse, None)).await?.id();
        if let Some(full) = current.take() {
            #[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
            LEASED.observe(full.keys as f64);
        }
        let until = Instant::now() + Duration::from_secs(reuse.unsigned_abs());
        *current = Some(CurrentLease { id, ttl, until, keys: 1 });
        Ok(id)
    }
}

/// Keys that live shorter than leases are handed out get a lease of their own.
fn reuse_seconds(ttl: i64, reuse: i64) -> i64 {
    if ttl < reuse { 0 } else { reuse.min((ttl / 20).max(1)) }
}

#[cfg(test)]
mod tests {
    use super::reuse_seconds;

    #[test]
    fn events_get_sixty_seconds_on_top() {
        for (ttl, reuse, want) in [(3600, 60, 60), (15, 60, 0), (100, 60, 5), (3600, 10, 10), (3600, 0, 0)] {
            assert_eq!(reuse_seconds(ttl, reuse), want, "{ttl} {reuse}");
        }
    }
}
