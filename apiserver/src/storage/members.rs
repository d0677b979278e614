//! Health of the members of an etcd cluster: which of them requests are sent to.
//!
//! In: outcomes of probes and of requests. Out: the member for the next request, and a signal when a member is lost.
//! Answers for the balancer and the health checks of etcd's `clientv3`. Never: a decision about retries
//! (`failover.rs`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;

/// Time between two probes of a member.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// Time that a member has for the answer to a probe.
pub(super) const PROBE_DEADLINE: Duration = Duration::from_millis(750);
/// Probes in a row that fail before a member counts as lost.
const FAILURES: usize = 2;

/// Health of all members of one etcd cluster, shared by every connection to it.
pub(super) struct Members {
    members: Vec<Member>,
    next: AtomicUsize,
}

struct Member {
    server: String,
    healthy: watch::Sender<bool>,
    failures: AtomicUsize,
}

impl Members {
    /// All members, which count as healthy until they are known not to be.
    pub(super) fn new(servers: &[String]) -> Self {
        let member = |server: &String| Member {
            server: server.clone(),
            healthy: watch::Sender::new(true),
            failures: AtomicUsize::new(0),
        };
        Self { members: servers.iter().map(member).collect(), next: AtomicUsize::new(0) }
    }

    /// Reports whether requests are sent to a member.
    pub(super) fn is_healthy(&self, at: usize) -> bool {
        *self.members[at].healthy.borrow()
    }

    /// Index of the member for the next request: healthy members in turn, or all of them in turn when none is.
    pub(super) fn pick(&self) -> usize {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.members.len();
        let mut in_turn = (0..count).map(|step| first.wrapping_add(step) % count);
        in_turn.find(|at| self.is_healthy(*at)).unwrap_or(first % count)
    }

    /// Completes when a member that is healthy now is lost; never for one that is not.
    pub(super) fn lost(&self, at: usize) -> impl Future<Output = ()> + Send + 'static {
        let mut healthy = self.members[at].healthy.subscribe();
        async move {
            let is_healthy = *healthy.borrow_and_update();
            if !is_healthy || healthy.wait_for(|healthy| !healthy).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Records that a request could not be sent to a member, or that its connection broke: it is avoided until a probe
    /// succeeds.
    pub(super) fn mark_lost(&self, at: usize, why: &str) {
        let member = &self.members[at];
        if member.healthy.send_replace(false) {
            tracing::warn!(endpoint = member.server, err = why, "Lost connection to etcd member");
        }
    }

    /// Records the outcome of a probe.
    pub(super) fn probed(&self, at: usize, outcome: Result<(), String>) {
        let member = &self.members[at];
        match outcome {
            Ok(()) => {
                member.failures.store(0, Ordering::Relaxed);
                if !member.healthy.send_replace(true) {
                    tracing::info!(endpoint = member.server, "Reconnected to etcd member");
                }
            }
            Err(why) => {
                let failures = member.failures.fetch_add(1, Ordering::Relaxed) + 1;
                if failures >= FAILURES {
                    self.mark_lost(at, &why);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn members() -> Members {
        Members::new(&["a", "b", "c"].map(str::to_owned))
    }

    fn picks(members: &Members) -> [usize; 6] {
        std::array::from_fn(|_| members.pick())
    }

    #[test]
    fn healthy_members_take_turns() {
        let members = members();
        assert_eq!(picks(&members), [0, 1, 2, 0, 1, 2]);
        members.mark_lost(1, "connection refused");
        assert_eq!(picks(&members), [0, 2, 2, 0, 2, 2]);
    }

    #[test]
    fn all_members_take_turns_when_none_is_healthy() {
        let members = members();
        (0..3).for_each(|at| members.mark_lost(at, "connection refused"));
        assert_eq!(picks(&members), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn one_failed_probe_is_forgiven_and_two_in_a_row_are_not() {
        let members = members();
        let failed = || Err("deadline exceeded".to_owned());
        for outcome in [failed(), Ok(()), failed()] {
            members.probed(0, outcome);
            assert_eq!(members.pick() % 3, 0);
            members.next.store(0, Ordering::Relaxed);
        }
        members.probed(0, failed());
        assert_eq!(members.pick(), 1);
        members.probed(0, Ok(()));
        members.next.store(0, Ordering::Relaxed);
        assert_eq!(members.pick(), 0);
    }

    #[test]
    fn requests_of_a_member_are_told_when_it_is_lost() {
        let members = members();
        let mut before = Box::pin(members.lost(0));
        assert!((&mut before).now_or_never().is_none());
        members.mark_lost(0, "connection reset");
        assert!((&mut before).now_or_never().is_some());
        // Somebody who asks a lost member, for want of another, waits for its answer.
        assert!(members.lost(0).now_or_never().is_none());
    }

    #[test]
    fn turns_never_overflow() {
        let members = members();
        members.next.store(usize::MAX, Ordering::Relaxed);
        assert!(picks(&members).iter().all(|at| *at < 3));
    }
}
