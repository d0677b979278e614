//! Gives every node its pod address ranges.

pub mod plan;

use std::sync::Arc;

use futures::future::BoxFuture;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use self::plan::CidrSet;
use crate::engine::action::Action;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object::Key;
use crate::engine::owned;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

const WORKERS: usize = 5;

struct Ranges {
    sets: Vec<CidrSet>,
    /// Whether the ranges of the nodes there were at start have been marked.
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
        let parse = |list: &[String]| -> Result<Vec<IpNet>, RestError> {
            list.iter().map(|s| s.parse().map_err(|e| RestError::other(format!("invalid CIDR {s}: {e}")))).collect()
        };
        let ranges = parse(&settings.cluster_cidrs)?;
        if ranges.is_empty() {
            return Err(RestError::other("--cluster-cidr is required with --allocate-node-cidrs"));
        }
        let mut sets = Vec::new();
        for range in ranges {
            sets.push(CidrSet::new(range, settings.mask_for(range.addr())).map_err(RestError::other)?);
        }
        for service in parse(&settings.service_cidrs)? {
            sets.iter_mut().for_each(|s| s.occupy(&service));
        }
        let nodes = cx.informer::<Node>();
        let queue: Queue<Key> = Queue::new("cidrallocator_node");
        let this = Arc::new(Allocator {
            executor: cx.executor("node-controller", "cidrAllocator"),
            nodes: nodes.store(),
            ranges: Mutex::new(Ranges { sets, primed: false }),
        });
        owned::watch(&nodes, &queue);
        let releaser = Arc::clone(&this);
        nodes.add_handler(move |event: &Event<Node>| {
            if let Event::Deleted(node) = event {
                releaser.release(&plan::cidrs_of(node));
            }
        });
        worker::run(cx, "node-ipam", WORKERS, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

impl Allocator {
    fn release(&self, cidrs: &[IpNet]) {
        let mut ranges = self.ranges.lock();
        for (cidr, set) in cidrs.iter().zip(ranges.sets.iter_mut()) {
            let before = set.in_use();
            set.release(cidr);
            count(set, "node_ipam_controller_cidrset_cidrs_releases_total", before.saturating_sub(set.in_use()));
        }
    }

    async fn sync(&self, key: &Key) -> Synced {
        let Some(node) = self.nodes.get("", &key.name) else { return Ok(None) };
        let actions = {
            let mut ranges = self.ranges.lock();
            if !ranges.primed {
                // Nothing may be given out before it is known what others have.
                for other in self.nodes.list() {
                    for (cidr, set) in plan::cidrs_of(&other).iter().zip(ranges.sets.iter_mut()) {
                        set.occupy(cidr);
                    }
                }
                ranges.primed = true;
            }
            let before: Vec<usize> = ranges.sets.iter().map(CidrSet::in_use).collect();
            let actions = plan::plan(&node, &mut ranges.sets);
            if matches!(actions.first(), Some(Action::Patch { .. })) {
                ranges
                    .sets
                    .iter()
                    .for_each(|set| count(set, "node_ipam_controller_cidrset_cidrs_allocations_total", 1));
            } else if before != ranges.sets.iter().map(CidrSet::in_use).collect::<Vec<_>>() {
                ranges.sets.iter().for_each(show);
            }
            actions
        };
        for action in actions {
            let taken: Vec<IpNet> = match &action {
                Action::Patch { body, .. } => body["spec"]["podCIDRs"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|c| c.as_str()?.parse().ok())
                    .collect(),
                _ => Vec::new(),
            };
            if let Err(e) = self.executor.one(action).await {
                self.release(&taken);
                return Err(e);
            }
        }
        Ok(None)
    }
}

/// Blocks of a range were given out or came back.
fn count(set: &CidrSet, metric: &str, blocks: usize) {
    let range = set.range().to_string();
    metrics::add(metric, &[&range], blocks);
    if metric.ends_with("allocations_total") {
        metrics::observe("node_ipam_controller_cidrset_allocation_tries_per_request", &[&range], set.tries());
    }
    show(set);
}

/// How much of a range is in use.
#[allow(clippy::cast_precision_loss, reason = "at most 65,536 blocks")]
fn show(set: &CidrSet) {
    let range = set.range().to_string();
    metrics::set("node_ipam_controller_cidrset_usage_cidrs", &[&range], set.in_use() as f64 / set.capacity() as f64);
    metrics::set("node_ipam_controller_cirdset_max_cidrs", &[&range], set.capacity() as f64);
}
