//! Gives every node its pod address ranges. Answers for upstream's `pkg/controller/nodeipam/ipam` (`rangeAllocator`).
//!
//! In: nodes, and the ranges of the flags ([`ranges`]). Out: `podCIDRs` of nodes. [`plan`] keeps the books over
//! [`cidr_set`]: no block is ever given out twice.

pub mod cidr_set;
pub mod plan;
pub mod ranges;

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use self::cidr_set::CidrSet;
use self::plan::{Ledger, NodeAction};
use crate::engine::action::Action;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object::Key;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

/// Name of the allocator that cuts the ranges of nodes from those of the cluster.
const ALLOCATOR: &str = "RangeAllocator";
const WORKERS: usize = 5;
/// Attempts of a write.
const TRIES: usize = 3;

struct Ranges {
    ledger: Ledger,
    /// The ranges of the nodes there were at start have been marked.
    primed: bool,
}

struct Allocator {
    executor: Executor,
    nodes: Store<Node>,
    ranges: Mutex<Ranges>,
}

/// Wire the node IPAM controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let settings = cx.settings();
        if !settings.allocate_node_cidrs {
            return Ok(Started::Skipped);
        }
        if settings.cidr_allocator != ALLOCATOR {
            // The others ask a cloud, and none is built in.
            return Err(RestError::other(format!("invalid CIDR allocator type: {}", settings.cidr_allocator)));
        }
        let ranges = ranges::cluster(&settings.cluster_cidrs).map_err(RestError::other)?;
        let masks = ranges::masks(settings.mask_size, &ranges).map_err(RestError::other)?;
        let services = ranges::services(&settings.service_cidrs).map_err(RestError::other)?;
        let mut sets = Vec::new();
        for (range, mask) in ranges.into_iter().zip(masks) {
            sets.push(CidrSet::new(range, mask).map_err(RestError::other)?);
        }
        for service in services {
            sets.iter_mut().for_each(|s| s.occupy(&service));
        }
        let nodes = cx.informer::<Node>();
        let queue: Queue<Key> = Queue::new("cidrallocator_node");
        let this = Arc::new(Allocator {
            executor: cx.executor("node-controller", "cidrAllocator"),
            nodes: nodes.store(),
            ranges: Mutex::new(Ranges { ledger: Ledger::new(sets), primed: false }),
        });
        let wake = queue.clone();
        nodes.add_handler(move |event: &Event<Node>| {
            // Heartbeats of nodes that have their ranges are nothing to look at.
            let settled = |n: &Node| !plan::cidrs_of(n).is_empty();
            match event {
                Event::Updated { old, new } if settled(new) && plan::cidrs_of(old) == plan::cidrs_of(new) => {}
                Event::Deleted(_) => {}
                Event::Added(node) | Event::Updated { new: node, .. } => wake.add(Key::of(&node.metadata)),
            }
        });
        let releaser = Arc::clone(&this);
        nodes.add_handler(move |event: &Event<Node>| {
            if let Event::Deleted(node) = event {
                releaser.change(|ledger| ledger.gone(node));
            }
        });
        worker::run(cx, "node-ipam", WORKERS, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

impl Allocator {
    async fn sync(&self, key: &Key) -> Synced {
        let (node, step) = {
            let mut ranges = self.ranges.lock();
            self.prime(&mut ranges);
            // Read under the lock: what is seen here has not been given back yet.
            let Some(node) = self.nodes.get("", &key.name) else { return Ok(None) };
            let before = in_use(&ranges.ledger);
            let step = ranges.ledger.plan(&node);
            if tell(&ranges.ledger, &before) && matches!(step, NodeAction::Write(_)) {
                ranges.ledger.sets().iter().for_each(tried);
            }
            (node, step)
        };
        match step {
            NodeAction::Rest => Ok(None),
            NodeAction::Exhausted(event) => self.executor.one(event).await.map(|()| None),
            NodeAction::Write(patch) => {
                let written = self.try_write(patch).await;
                match &written {
                    Ok(()) => self.change(|ledger| ledger.stored(&node)),
                    Err(e) => {
                        // What got no answer may have arrived.
                        if e.refused() {
                            self.change(|ledger| ledger.refused(&node));
                        }
                        self.executor.one(plan::complaint(&node, "CIDRAssignmentFailed")).await?;
                    }
                }
                written.map(|()| None)
            }
        }
    }

    /// A server that is busy for a moment is no reason to complain of.
    async fn try_write(&self, patch: Action) -> Result<(), RestError> {
        for _ in 1..TRIES {
            match self.executor.one(patch.clone()).await {
                Err(e) if !e.not_found() => tracing::debug!(error = %e, "Failed to update node/pod CIDR"),
                other => return other,
            }
        }
        self.executor.one(patch).await
    }

    /// Nothing may be given out before it is known what others have.
    fn prime(&self, ranges: &mut Ranges) {
        if std::mem::replace(&mut ranges.primed, true) {
            return;
        }
        for node in self.nodes.list() {
            ranges.ledger.occupy(&plan::cidrs_of(&node));
        }
        ranges.ledger.sets().iter().for_each(show);
    }

    fn change(&self, with: impl FnOnce(&mut Ledger)) {
        let mut ranges = self.ranges.lock();
        let before = in_use(&ranges.ledger);
        with(&mut ranges.ledger);
        tell(&ranges.ledger, &before);
    }
}

fn in_use(ledger: &Ledger) -> Vec<usize> {
    ledger.sets().iter().map(CidrSet::in_use).collect()
}

/// Says how many blocks were given out or came back; true if any were.
fn tell(ledger: &Ledger, before: &[usize]) -> bool {
    let mut changed = false;
    for (set, before) in ledger.sets().iter().zip(before) {
        let (now, range) = (set.in_use(), set.range().to_string());
        if now == *before {
            continue;
        }
        let (given, returned) = (now.saturating_sub(*before), before.saturating_sub(now));
        metrics::add("node_ipam_controller_cidrset_cidrs_allocations_total", &[&range], given);
        metrics::add("node_ipam_controller_cidrset_cidrs_releases_total", &[&range], returned);
        show(set);
        changed = true;
    }
    changed
}

/// Records how many blocks in use the last allocation came across.
fn tried(set: &CidrSet) {
    let range = set.range().to_string();
    metrics::observe("node_ipam_controller_cidrset_allocation_tries_per_request", &[&range], set.tries());
}

/// Records how much of a range is in use.
#[allow(clippy::cast_precision_loss, reason = "far fewer blocks than that")]
fn show(set: &CidrSet) {
    let range = set.range().to_string();
    metrics::set("node_ipam_controller_cidrset_usage_cidrs", &[&range], set.in_use() as f64 / set.capacity() as f64);
    metrics::set("node_ipam_controller_cirdset_max_cidrs", &[&range], set.capacity() as f64);
}
