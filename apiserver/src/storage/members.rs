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
/// Probes in a row that succeed before a lost member is used again: one that was frozen takes itself for the leader
/// until it hears of the election that it missed, and what is written to it then is lost.
const SUCCESSES: usize = 2;

/// Health of all members of one etcd cluster, shared by every connection to it.
pub(super) struct Members {
    members: Vec<Member>,
    /// Health by member.
    healthy: watch::Sender<Vec<bool>>,
    next: AtomicUsize,
}

struct Member {
    server: String,
    failures: AtomicUsize,
    successes: AtomicUsize,
}

impl Members {
    /// All members, which count as healthy until they are known not to be.
    pub(super) fn new(servers: &[String]) -> Self {
        let member = |server: &String| Member {
            server: server.clone(),
            failures: AtomicUsize::new(0),
            successes: AtomicUsize::new(0),
        };
        let healthy = watch::Sender::new(vec![true; servers.len()]);
        Self { members: servers.iter().map(member).collect(), healthy, next: AtomicUsize::new(0) }
    }

    /// Reports whether requests are sent to a member.
    pub(super) fn is_healthy(&self, at: usize) -> bool {
        self.healthy.borrow()[at]
    }

    fn set_healthy(&self, at: usize, healthy: bool) -> bool {
        self.healthy.send_if_modified(|all| std::mem::replace(&mut all[at], healthy) != healthy)
    }

    /// Index of the member for the next request: healthy members in turn, or all of them in turn when none is.
    pub(super) fn pick(&self) -> usize {
        self.pick_but(None)
    }

    /// Picks like [`Self::pick`] another member than `asked`, if there is one.
    pub(super) fn pick_but(&self, asked: Option<usize>) -> usize {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.members.len();
        let in_turn = || (0..count).map(|step| first.wrapping_add(step) % count).filter(|at| Some(*at) != asked);
        let healthy = in_turn().find(|at| self.is_healthy(*at));
        healthy.or_else(|| in_turn().next()).unwrap_or(first % count)
    }

    /// Completes when a member that is healthy now is lost; for one that is lost already, and was asked for want of
    /// another, when another one is healthy.
    pub(super) fn lost(&self, at: usize) -> impl Future<Output = ()> + Send + 'static {
        let mut healthy = self.healthy.subscribe();
        let was_healthy = healthy.borrow_and_update()[at];
        async move {
            let is_over = |all: &Vec<bool>| match was_healthy {
                true => !all[at],
                false => all.iter().enumerate().any(|(other, healthy)| other != at && *healthy),
            };
            if healthy.wait_for(is_over).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Records that a request could not be sent to a member, or that its connection broke: it is avoided until
    /// probes succeed.
    pub(super) fn mark_lost(&self, at: usize, why: &str) {
        let member = &self.members[at];
        member.successes.store(0, Ordering::Relaxed);
        if self.set_healthy(at, false) {
            tracing::warn!(endpoint = member.server, err = why, "Lost connection to etcd member");
        }
    }

    /// Records the outcome of a probe.
    pub(super) fn probed(&self, at: usize, outcome: Result<(), impl std::fmt::Display>) {
        let member = &self.members[at];
        match outcome {
            Ok(()) => {
                member.failures.store(0, Ordering::Relaxed);
                let successes = member.successes.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                if successes >= SUCCESSES && self.set_healthy(at, true) {
                    tracing::info!(endpoint = member.server, "Reconnected to etcd member");
                }
            }
            Err(why) => {
                member.successes.store(0, Ordering::Relaxed);
                let failures = member.failures.fetch_add(1, Ordering::Relaxed) + 1;
                if failures >= FAILURES {
                    self.mark_lost(at, &why.to_string());
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
    fn unhealthy_members_are_tried_round_robin() {
        let members = members();
        (0..3).for_each(|at| members.mark_lost(at, "connection refused"));
        assert_eq!(picks(&members), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn two_failed_probes_make_a_member_unhealthy() {
        let members = members();
        let failed = || Err("deadline exceeded");
        for outcome in [failed(), Ok(()), failed()] {
            members.probed(0, outcome);
            assert_eq!(members.pick() % 3, 0);
            members.next.store(0, Ordering::Relaxed);
        }
        members.probed(0, failed());
        assert_eq!(members.pick(), 1);
    }

    #[test]
    fn lost_member_is_used_again_after_two_successful_probes_in_a_row() {
        let members = members();
        members.mark_lost(0, "connection reset");
        for outcome in [Ok(()), Err("deadline exceeded"), Ok(())] {
            members.probed(0, outcome);
            assert!(!members.is_healthy(0));
        }
        members.probed(0, Ok::<(), &str>(()));
        assert!(members.is_healthy(0));
    }

    #[test]
    fn requests_learn_of_a_lost_member() {
        let members = members();
        let mut before = Box::pin(members.lost(0));
        assert!((&mut before).now_or_never().is_none());
        members.mark_lost(0, "connection reset");
        assert!((&mut before).now_or_never().is_some());
    }

    #[test]
    fn requests_of_a_lost_member_fail_over() {
        let members = members();
        (0..3).for_each(|at| members.mark_lost(at, "connection reset"));
        let mut asked = Box::pin(members.lost(0));
        let recover = |at| (0..SUCCESSES).for_each(|_| members.probed(at, Ok::<(), &str>(())));
        recover(0);
        assert!((&mut asked).now_or_never().is_none(), "it may answer yet");
        recover(2);
        assert!((&mut asked).now_or_never().is_some());
    }

    #[test]
    fn slow_member_is_not_picked_again() {
        let members = members();
        for _ in 0..6 {
            assert_ne!(members.pick_but(Some(1)), 1);
        }
        members.mark_lost(0, "connection reset");
        assert_eq!([members.pick_but(Some(1)), members.pick_but(Some(1))], [2, 2]);
        (1..3).for_each(|at| members.mark_lost(at, "connection reset"));
        assert_ne!(members.pick_but(Some(1)), 1);
        assert_eq!(Members::new(&["a".to_owned()]).pick_but(Some(0)), 0);
    }

    #[test]
    fn turns_never_overflow() {
        let members = members();
        members.next.store(usize::MAX, Ordering::Relaxed);
        assert!(picks(&members).iter().all(|at| *at < 3));
    }
}
