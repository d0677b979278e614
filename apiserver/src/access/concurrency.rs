//! Concurrency limits of requests: priority and fairness, or max-in-flight without it. Long-running requests are
//! exempt; a watch is not while it starts. Answers for upstream's
//! `pkg/server/filters/{maxinflight`,priority-and-fairness}.go.

use std::sync::Arc;

use shared::authn::UserInfo;
use shared::status::Status;

use super::Head;
use super::inflight::{self, Limits};
use crate::api::RequestInfo;
use crate::flowcontrol::{Classified, FlowControl, Seat, WatchGuard};

/// Text of the response to a rejected request (429).
pub(super) const TRY_AGAIN: &str = "Too many requests, please try again later.";

/// Limit of concurrent requests.
pub enum ConcurrencyLimiter {
    /// API Priority and Fairness.
    Fair(Arc<FlowControl>),
    /// `--enable-priority-and-fairness=false`
    Counted(Limits),
}

/// Concurrency that a request holds until dropped.
#[derive(Debug)]
pub enum Permit {
    /// Of a priority level.
    Seat(Box<Seat>),
    /// Of the server.
    InFlight(inflight::Permit),
}

/// Refusal of a request there is no room for.
#[derive(Debug)]
pub struct TooManyRequests {
    /// `429`, with the seconds to wait.
    pub status: Status,
    /// Flow schema and priority level of the request.
    pub classified: Option<Classified>,
}

impl ConcurrencyLimiter {
    pub(super) async fn enter(&self, head: &Head<'_>, user: &UserInfo) -> Result<Option<Permit>, TooManyRequests> {
        let info = head.info;
        if is_long_running(info) && (info.verb != "watch" || matches!(self, Self::Counted(_))) {
            return Ok(None);
        }
        match self {
            Self::Fair(flow) => match flow.enter(info, user, head.query).await {
                Ok(seat) => Ok(Some(Permit::Seat(Box::new(seat)))),
                Err(refused) => {
                    let seconds = i32::try_from(refused.retry_after).unwrap_or(1);
                    let status = Status::too_many_requests(TRY_AGAIN, seconds);
                    Err(TooManyRequests { status, classified: Some(refused.classified) })
                }
            },
            Self::Counted(limits) => match limits.enter(info, user) {
                Ok(place) => Ok(place.map(Permit::InFlight)),
                Err(status) => Err(TooManyRequests { status, classified: None }),
            },
        }
    }

    /// Counts a watch for the estimates of writes.
    pub fn watching(&self, info: &RequestInfo) -> Option<WatchGuard> {
        match self {
            Self::Fair(flow) if info.verb == "watch" => Some(flow.watching(info)),
            _ => None,
        }
    }

    /// Flow control, when it is on.
    pub fn flow(&self) -> Option<&Arc<FlowControl>> {
        match self {
            Self::Fair(flow) => Some(flow),
            Self::Counted(_) => None,
        }
    }
}

impl Permit {
    /// Flow schema and priority level of the request.
    pub fn classified(&self) -> Option<Classified> {
        match self {
            Self::Seat(seat) => Some(seat.classified()),
            Self::InFlight(_) => None,
        }
    }
}

/// Requests that take as long as the client likes.
pub fn is_long_running(info: &RequestInfo) -> bool {
    if !info.is_resource {
        return info.path.starts_with("/debug/pprof/");
    }
    matches!(info.verb.as_str(), "watch" | "proxy")
        || matches!(info.subresource.as_str(), "attach" | "exec" | "proxy" | "log" | "portforward")
}
