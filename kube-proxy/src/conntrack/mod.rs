//! Connection-tracking entries of UDP flows that rules no longer lead to. UDP knows no end of a connection: without this
//! a client that keeps sending would reach an endpoint that is gone for as long as it sends.
//!
//! In: what is served after each sync of rules. Out: entries deleted from the kernel's table. Answers for upstream's
//! `pkg/proxy/conntrack`. Never: in the way of a sync of rules, which does not wait for it.

mod netlink;
mod serving;

use std::collections::HashMap;
use std::time::Instant;

use shared::run::Shutdown;
use tokio::sync::watch;

pub use serving::Serving;

use crate::metrics;
use crate::plan::{Desired, Family};

/// Entries deleted in one pass over the table. What is left is found by the next pass, which follows at once.
const PASS: usize = 65_536;

type State = HashMap<Family, Serving>;

/// Hands what is served to [`Reconciler`].
#[derive(Clone, Debug)]
pub struct Handle(watch::Sender<State>);

impl Handle {
    /// Tells what rules of a family serve now. Nothing happens when no UDP flow is concerned.
    pub fn applied(&self, family: Family, desired: &Desired) {
        let serving = Serving::of(desired);
        self.0.send_if_modified(|state| {
            let changed = state.get(&family) != Some(&serving);
            if changed {
                state.insert(family, serving);
            }
            changed
        });
    }
}

/// Deletes stale entries after each change, one family after the other.
#[derive(Debug)]
pub struct Reconciler {
    changes: watch::Receiver<State>,
    seen: State,
}

/// A reconciler and what feeds it.
#[must_use]
pub fn reconciler() -> (Handle, Reconciler) {
    let (sender, changes) = watch::channel(State::new());
    (Handle(sender), Reconciler { changes, seen: State::new() })
}

impl Reconciler {
    /// Works until shutdown. Changes that come while it works are looked at together.
    pub async fn run(mut self, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = shutdown.wait() => return,
                changed = self.changes.changed() => if changed.is_err() { return },
            }
            let state = self.changes.borrow_and_update().clone();
            for (family, serving) in state {
                let before = self.seen.get(&family);
                if before == Some(&serving) {
                    continue;
                }
                let judged = serving.with_removed_of(before);
                tokio::task::spawn_blocking(move || reconcile(family, &judged)).await.ok();
                self.seen.insert(family, serving);
            }
        }
    }
}

fn reconcile(family: Family, serving: &Serving) {
    let began = Instant::now();
    let mut deleted = 0;
    let outcome = loop {
        match netlink::delete(family, |flow| serving.is_stale(flow), PASS) {
            Ok(pass) => {
                deleted += pass.deleted;
                // Entries that cannot be deleted are not found for ever.
                if pass.found < PASS || pass.deleted == 0 {
                    break Ok(());
                }
            }
            Err(error) => break Err(error),
        }
    };
    metrics::conntrack_reconciled(family, deleted, began.elapsed());
    match outcome {
        Ok(()) if deleted == 0 => {}
        Ok(()) => tracing::debug!(family = family.address_type(), deleted, "Deleted stale conntrack entries"),
        // Rules are right already; flows to endpoints that are gone end by their time-out.
        Err(error) => {
            tracing::warn!(family = family.address_type(), deleted, %error, "Failed to delete stale conntrack entries");
        }
    }
}
