//! The loop: something changed → plan → one sync for each IP family, not more often than the minimum sync period,
//! and a look at the kernel every sync period in case somebody else flushed our rules.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use shared::informer::Store;
use shared::run::{Shutdown, TaskGroup};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};

use crate::backend::Backend;
use crate::conntrack;
use crate::health::{CheckPorts, Health};
use crate::metrics;
use crate::plan::{Desired, Family, NodeFacts, plan};

/// A failed sync is tried again after this, doubling up to the sync period.
const RETRY: Duration = Duration::from_secs(1);

/// One family's back end and what it was last told.
pub struct FamilyProxy {
    /// Which addresses it looks after.
    pub family: Family,
    /// Puts rules into the kernel.
    pub backend: Box<dyn Backend>,
    /// What is in the kernel now.
    pub applied: Arc<Desired>,
}

/// The local copies that rules are made from.
pub struct Stores {
    /// Services.
    pub services: Store<Service>,
    /// Endpoint slices.
    pub slices: Store<EndpointSlice>,
    /// This node alone.
    pub nodes: Store<Node>,
}

/// Keeps the kernel as the cluster wants it.
pub struct Proxier {
    /// By family.
    pub families: Vec<FamilyProxy>,
    /// What the cluster wants.
    pub stores: Stores,
    /// This node's name.
    pub node_name: String,
    /// Health state to keep.
    pub health: Health,
    /// Told what is served, so that stale UDP flows are ended.
    pub flows: conntrack::Handle,
    /// Ports of services for load balancers.
    pub check_ports: CheckPorts,
    /// Said when something changed.
    pub changed: Arc<Notify>,
    /// How often to look after the kernel.
    pub sync_period: Duration,
    /// Pause between syncs.
    pub min_sync_period: Duration,
}

impl Proxier {
    /// Runs until shutdown. Rules stay: connections must survive a restart of the proxy.
    pub async fn run(mut self, tasks: TaskGroup, shutdown: Shutdown) {
        let mut period = tokio::time::interval(self.sync_period);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        period.tick().await;
        let mut failures = 0;
        loop {
            let complete = self.sync(&tasks).await;
            failures = if complete { 0 } else { failures + 1 };
            let started = Instant::now();
            let retry = (RETRY * (1_u32 << failures.min(6))).min(self.sync_period);
            tokio::select! {
                () = shutdown.wait() => return,
                () = self.changed.notified() => {}
                () = tokio::time::sleep(retry), if failures > 0 => {}
                _ = period.tick() => self.look_after().await,
            }
            let rest = self.min_sync_period.saturating_sub(started.elapsed());
            tokio::select! {
                () = shutdown.wait() => return,
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    /// True when every family was written.
    async fn sync(&mut self, tasks: &TaskGroup) -> bool {
        let services = self.stores.services.list();
        let slices = self.stores.slices.list();
        let node = self.node();
        let mut complete = true;
        for proxy in &mut self.families {
            let desired = Arc::new(plan(&services, &slices, &node, proxy.family));
            let began = Instant::now();
            match proxy.backend.sync(&desired).await {
                Ok(()) => {
                    metrics::synced(proxy.family, began.elapsed());
                    self.health.written(proxy.family);
                    self.flows.applied(proxy.family, &desired);
                    proxy.applied = desired;
                }
                Err(error) => {
                    complete = false;
                    metrics::failed(proxy.backend.name(), proxy.family);
                    tracing::error!(family = proxy.family.address_type(), %error, "Failed to sync proxy rules");
                }
            }
        }
        let desired: Vec<Arc<Desired>> = self.families.iter().map(|proxy| Arc::clone(&proxy.applied)).collect();
        self.check_ports.sync(tasks, &desired).await;
        complete
    }

    async fn look_after(&mut self) {
        for proxy in &mut self.families {
            if !proxy.backend.is_intact().await {
                tracing::info!(
                    family = proxy.family.address_type(),
                    "Rules were flushed by somebody else, writing all of them"
                );
                proxy.backend.forget();
            }
        }
    }

    fn node(&self) -> NodeFacts {
        let node = self.stores.nodes.get("", &self.node_name);
        let labels = node.and_then(|node| node.metadata.labels.clone());
        let zone = labels.and_then(|labels| labels.get("topology.kubernetes.io/zone").cloned());
        NodeFacts { name: self.node_name.clone(), zone }
    }
}
