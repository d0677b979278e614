//! Max-in-flight limits without priority and fairness: read-only and mutating requests have one each, and what exceeds
//! it is rejected. `system:masters` is exempt. Answers for upstream's `WithMaxInFlightLimit`.

use std::sync::Arc;

use shared::authn::{SYSTEM_MASTERS, UserInfo};
use shared::status::Status;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::concurrency::TRY_AGAIN;
use crate::api::RequestInfo;

/// Seconds to stay away.
const RETRY_AFTER: i32 = 1;

/// A place. Dropping it makes room for the next.
#[derive(Debug)]
pub struct Permit {
    _place: OwnedSemaphorePermit,
}

/// The limits; none for a limit of 0.
pub struct Limits {
    reading: Option<Arc<Semaphore>>,
    changing: Option<Arc<Semaphore>>,
}

impl Limits {
    /// From `--max-requests-inflight` and `--max-mutating-requests-inflight`.
    pub fn new(reading: usize, changing: usize) -> Self {
        let pool = |places: usize| (places > 0).then(|| Arc::new(Semaphore::new(places)));
        Self { reading: pool(reading), changing: pool(changing) }
    }

    pub(super) fn enter(&self, info: &RequestInfo, user: &UserInfo) -> Result<Option<Permit>, Status> {
        let reads = matches!(info.verb.as_str(), "get" | "list" | "watch");
        let Some(pool) = (if reads { &self.reading } else { &self.changing }) else { return Ok(None) };
        match pool.clone().try_acquire_owned() {
            Ok(place) => Ok(Some(Permit { _place: place })),
            Err(_) if user.in_group(SYSTEM_MASTERS) => Ok(None),
            Err(_) => Err(Status::too_many_requests(TRY_AGAIN, RETRY_AFTER)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_above_the_limit_are_rejected_with_retry_after() {
        let request = |verb: &str| RequestInfo { is_resource: true, verb: verb.into(), ..RequestInfo::default() };
        let limits = Limits::new(1, 1);
        let user = UserInfo::default();
        let enter = |verb: &str, user: &UserInfo| limits.enter(&request(verb), user).map_err(|s| s.code);
        let first = enter("get", &user).expect("room").expect("a place");
        assert_eq!(enter("list", &user).expect_err("full"), 429);
        assert!(enter("create", &user).is_ok(), "changes have their own places");
        let masters = UserInfo { groups: vec![SYSTEM_MASTERS.into()], ..UserInfo::default() };
        assert!(matches!(enter("get", &masters), Ok(None)));
        drop(first);
        assert!(enter("get", &user).is_ok());
        assert!(matches!(Limits::new(0, 0).enter(&request("get"), &user), Ok(None)));
    }
}
