//! How many requests are worked on at once.
//!
//! With priority and fairness (the default) reading and changing requests share the sum of both limits and wait
//! their turn in a bounded line; without it each sort has its own limit and what does not fit is sent away at once.
//! Long-running requests, probes and `system:masters` never wait.

use std::sync::Arc;
use std::time::Duration;

use shared::authn::{SYSTEM_MASTERS, UserInfo};
use shared::status::Status;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Head;
use crate::api::RequestInfo;

const TRY_AGAIN: &str = "Too many requests, please try again later.";
/// How many requests may wait per seat.
const LINE_PER_SEAT: usize = 8;
/// The longest wait for a seat.
const PATIENCE: Duration = Duration::from_secs(15);

/// A seat. Dropping it makes room for the next.
#[derive(Debug)]
pub struct Permit {
    _seats: Vec<OwnedSemaphorePermit>,
}

#[derive(Clone)]
struct Pool {
    seats: Option<Arc<Semaphore>>,
    line: Option<Arc<Semaphore>>,
}

impl Pool {
    /// No seats means no limit.
    fn new(seats: usize, queued: bool) -> Self {
        let limited = seats > 0;
        Self {
            seats: limited.then(|| Arc::new(Semaphore::new(seats))),
            line: (limited && queued).then(|| Arc::new(Semaphore::new(seats.saturating_mul(LINE_PER_SEAT)))),
        }
    }

    async fn enter(&self) -> Result<Option<Permit>, Status> {
        let Some(seats) = &self.seats else { return Ok(None) };
        if let Ok(seat) = seats.clone().try_acquire_owned() {
            return Ok(Some(Permit { _seats: vec![seat] }));
        }
        let refuse = || Status::too_many_requests(TRY_AGAIN, 1);
        let Some(line) = &self.line else { return Err(refuse()) };
        let _place = line.clone().try_acquire_owned().map_err(|_| refuse())?;
        match tokio::time::timeout(PATIENCE, seats.clone().acquire_owned()).await {
            Ok(Ok(seat)) => Ok(Some(Permit { _seats: vec![seat] })),
            _ => Err(refuse()),
        }
    }
}

/// The limits.
pub struct Limits {
    reading: Pool,
    changing: Pool,
}

impl Limits {
    /// From `--max-requests-inflight`, `--max-mutating-requests-inflight` and `--enable-priority-and-fairness`; a limit
    /// of 0 is none.
    pub fn new(reading: usize, changing: usize, fair: bool) -> Self {
        if fair {
            let shared = Pool::new(reading.saturating_add(changing), true);
            return Self { reading: shared.clone(), changing: shared };
        }
        Self { reading: Pool::new(reading, false), changing: Pool::new(changing, false) }
    }

    pub(super) async fn enter(&self, head: &Head<'_>, user: &UserInfo) -> Result<Option<Permit>, Status> {
        if is_long_running(head.info) || is_probe(head.info) || user.in_group(SYSTEM_MASTERS) {
            return Ok(None);
        }
        let reads = matches!(head.info.verb.as_str(), "get" | "list" | "head" | "options");
        if reads { self.reading.enter().await } else { self.changing.enter().await }
    }
}

fn is_probe(info: &RequestInfo) -> bool {
    !info.is_resource
        && ["/healthz", "/livez", "/readyz"].iter().any(|p| info.path == *p || info.path.starts_with(&format!("{p}/")))
}

/// Requests that take as long as the client likes.
pub fn is_long_running(info: &RequestInfo) -> bool {
    if !info.is_resource {
        return info.path.starts_with("/debug/pprof/");
    }
    matches!(info.verb.as_str(), "watch" | "proxy")
        || matches!(info.subresource.as_str(), "attach" | "exec" | "proxy" | "log" | "portforward")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(verb: &str, resource: bool, path: &str, subresource: &str) -> RequestInfo {
        RequestInfo {
            verb: verb.into(),
            is_resource: resource,
            path: path.into(),
            subresource: subresource.into(),
            ..RequestInfo::default()
        }
    }

    async fn enter(limits: &Limits, info: &RequestInfo, user: &UserInfo) -> Result<Option<Permit>, u16> {
        let headers = http::HeaderMap::new();
        let head = Head { method: "", query: "", headers: &headers, certificates: &[], info };
        limits.enter(&head, user).await.map_err(|s| s.code)
    }

    #[tokio::test]
    async fn full_means_come_back_later() {
        let limits = Limits::new(1, 1, false);
        let user = UserInfo::default();
        let get = info("get", true, "", "");
        let first = enter(&limits, &get, &user).await.expect("room").expect("a seat");
        assert_eq!(enter(&limits, &get, &user).await.expect_err("full"), 429);
        assert!(enter(&limits, &info("create", true, "", ""), &user).await.is_ok(), "changes have their own seats");
        drop(first);
        assert!(enter(&limits, &get, &user).await.is_ok());
    }

    #[tokio::test]
    async fn some_never_wait() {
        let limits = Limits::new(1, 1, false);
        let user = UserInfo::default();
        let _held = enter(&limits, &info("get", true, "", ""), &user).await.expect("room").expect("a seat");
        let masters = UserInfo { groups: vec![SYSTEM_MASTERS.into()], ..UserInfo::default() };
        for (info, user) in [
            (info("watch", true, "", ""), &user),
            (info("get", true, "", "log"), &user),
            (info("get", false, "/readyz/etcd", ""), &user),
            (info("get", true, "", ""), &masters),
        ] {
            assert!(matches!(enter(&limits, &info, user).await, Ok(None)), "{info:?}");
        }
    }

    #[tokio::test]
    async fn in_the_fair_mode_requests_wait_their_turn() {
        let limits = Arc::new(Limits::new(1, 0, true));
        let user = UserInfo::default();
        let get = info("get", true, "", "");
        let held = enter(&limits, &get, &user).await.expect("room").expect("a seat");
        let (second, ()) = tokio::join!(enter(&limits, &get, &user), async { drop(held) });
        assert!(second.expect("its turn").is_some());
    }
}
