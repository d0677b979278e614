//! The loop: changes → plan of the services they name → one sync for each IP family, not more often than the minimum sync
//! period. Each sync period the kernel is looked at in case somebody else flushed our rules, and each hour all of them are
//! written anew.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use shared::informer::Store;
use shared::run::{Shutdown, TaskGroup};
use tokio::time::{Instant, MissedTickBehavior};

use crate::addresses::NodePortResolver;
use crate::backend::{Backend, Environment, Mode, SyncError, SyncExtent};
use crate::changes::{Changes, Waiting};
use crate::conntrack;
use crate::health::{CheckPorts, Health};
use crate::metrics;
use crate::plan::{Delta, Desired, Family, NodeFacts, service_of};

/// Pause after a failed sync; it doubles up to the sync period.
const RETRY: Duration = Duration::from_secs(1);
/// Period of writing all rules anew, in case somebody changed some of them (upstream's `proxyutil.FullSyncPeriod`).
const FULL_SYNC: Duration = Duration::from_secs(3600);
/// Index of slices by their service.
const BY_SERVICE: &str = "service";

/// One family's back end and what it was last told.
pub(crate) struct FamilyProxy {
    family: Family,
    backend: Box<dyn Backend>,
    desired: Desired,
    /// The last sync was good: the next one is of changes alone.
    is_written: bool,
    /// UDP services changed since connection tracking was told: a sync that fails leaves it to the next one.
    flows_changed: bool,
}

impl FamilyProxy {
    /// A family that has written nothing.
    #[must_use]
    pub(crate) fn new(family: Family, backend: Box<dyn Backend>) -> Self {
        Self { family, backend, desired: Desired::default(), is_written: false, flows_changed: false }
    }

    /// Writes what differs, and says whether connection tracking has to be told.
    async fn write(&mut self, delta: &Delta, all: bool) -> Result<(SyncExtent, bool), SyncError> {
        self.flows_changed |= all || delta.has_udp();
        let written = self.backend.sync(&self.desired, &delta.ports).await?;
        Ok((written, std::mem::take(&mut self.flows_changed)))
    }
}

/// The local copies that rules are made from.
pub(crate) struct Stores {
    /// Services.
    pub services: Store<Service>,
    /// Endpoint slices, with [`index`].
    pub slices: Store<EndpointSlice>,
    /// This node alone.
    pub nodes: Store<Node>,
    /// Networks of cluster IPs.
    pub service_networks: Store<ServiceCIDR>,
}

/// Files slices under their services.
pub(crate) fn index(slices: &shared::informer::Informer<EndpointSlice>) {
    slices.add_index(BY_SERVICE, |slice| {
        service_of(slice).map(|(namespace, name)| format!("{namespace}/{name}")).into_iter().collect()
    });
}

/// Keeps the kernel as the cluster wants it.
pub(crate) struct Proxier {
    /// The mode of all families.
    pub mode: &'static Mode,
    /// By family.
    pub families: Vec<FamilyProxy>,
    /// Desired services and endpoints of the cluster.
    pub stores: Stores,
    /// This node's name.
    pub node_name: String,
    /// Health state to keep.
    pub health: Health,
    /// Told what is served, so that stale UDP flows are ended.
    pub flows: conntrack::Handle,
    /// Ports of services for load balancers.
    pub check_ports: CheckPorts,
    /// Services that have to be planned.
    pub changes: Arc<Changes>,
    /// Addresses that node ports answer on.
    pub node_ports: NodePortResolver,
    /// Period of looking after the kernel.
    pub sync_period: Duration,
    /// Pause between syncs.
    pub min_sync_period: Duration,
}

impl Proxier {
    /// Runs until shutdown. Rules stay: connections must survive a restart of the proxy.
    pub(crate) async fn run(mut self, tasks: TaskGroup, shutdown: Shutdown) {
        let mut period = tokio::time::interval(self.sync_period);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        period.tick().await;
        let mut full = Instant::now();
        let mut failures = 0;
        self.changes.of_node();
        loop {
            let began = Instant::now();
            let complete = self.sync(&tasks).await;
            failures = if complete { 0 } else { failures + 1 };
            let retry = (RETRY * (1_u32 << failures.min(6))).min(self.sync_period);
            tokio::select! {
                () = shutdown.wait() => return,
                () = self.changes.changed() => {}
                () = tokio::time::sleep(retry), if failures > 0 => {}
                _ = period.tick() => {
                    let is_due = full.elapsed() >= FULL_SYNC;
                    if is_due {
                        full = Instant::now();
                    }
                    self.look_after(is_due).await;
                }
            }
            let rest = self.min_sync_period.saturating_sub(began.elapsed());
            tokio::select! {
                () = shutdown.wait() => return,
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    /// Writes what has changed. True when every family has everything.
    async fn sync(&mut self, tasks: &TaskGroup) -> bool {
        let waiting = self.changes.take();
        if waiting.environment {
            self.set_environments();
        }
        let node = self.node();
        let (mut has_checks, mut complete) = (waiting.all, true);
        for proxy in &mut self.families {
            let delta = plan(&self.stores, &waiting, (&node, proxy.family), &mut proxy.desired);
            has_checks |= delta.checks;
            let began = Instant::now();
            match proxy.write(&delta, waiting.all).await {
                Ok((written, flows_changed)) => {
                    if written != SyncExtent::Nothing {
                        proxy.is_written = true;
                        metrics::synced(proxy.family, began.elapsed(), written);
                        metrics::without_local_endpoints(proxy.family, proxy.desired.without_local());
                        programmed(proxy.family, &waiting);
                    }
                    self.health.written(proxy.family);
                    if flows_changed {
                        self.flows.applied(proxy.family, &proxy.desired);
                    }
                }
                Err(error) => {
                    complete = false;
                    metrics::failed(self.mode.name, proxy.family, proxy.is_written);
                    proxy.is_written = false;
                    tracing::error!(family = proxy.family.address_type(), %error, "Failed to sync proxy rules");
                }
            }
        }
        if has_checks || self.check_ports.have_failed() {
            self.check_ports.sync(tasks, self.families.iter().map(|proxy| &proxy.desired)).await;
        }
        complete && !self.check_ports.have_failed()
    }

    /// Finds out whether the kernel still has our rules; a family that has to be written anew is written by the next sync.
    async fn look_after(&mut self, full: bool) {
        self.set_environments();
        for proxy in &mut self.families {
            let is_intact = proxy.backend.tend().await;
            if !is_intact {
                let family = proxy.family.address_type();
                tracing::info!(family, "Rules were flushed by somebody else, writing all of them");
            }
            if full || !is_intact {
                proxy.backend.forget();
            }
        }
    }

    fn set_environments(&mut self) {
        let networks = service_networks(self.stores.service_networks.list().iter().map(Arc::as_ref));
        for proxy in &mut self.families {
            let networks = networks.iter().copied().filter(|network| proxy.family.holds(network.addr()));
            proxy.backend.set_environment(&Environment {
                node_ports: self.node_ports.resolve(proxy.family),
                service_networks: networks.collect(),
            });
        }
    }

    fn node(&self) -> NodeFacts {
        match self.stores.nodes.get("", &self.node_name) {
            Some(node) => NodeFacts::of(&node),
            None => NodeFacts { name: self.node_name.clone(), zone: None },
        }
    }
}

/// The networks of all `ServiceCIDR` objects.
pub(crate) fn service_networks<'a>(all: impl Iterator<Item = &'a ServiceCIDR>) -> BTreeSet<IpNet> {
    let cidrs = all.filter_map(|object| object.spec.as_ref()?.cidrs.as_ref()).flatten();
    cidrs.filter_map(|cidr| shared::address::network(cidr)).map(|network| network.trunc()).collect()
}

/// Plans the services that changed.
fn plan(stores: &Stores, waiting: &Waiting, on: (&NodeFacts, Family), desired: &mut Desired) -> Delta {
    let mut delta = Delta::default();
    let mut replace = |namespace: &str, name: &str| {
        let service = stores.services.get(namespace, name);
        let slices = stores.slices.by_index(BY_SERVICE, &format!("{namespace}/{name}"));
        desired.replace((namespace, name), service.as_deref(), &slices, on, &mut delta);
    };
    if !waiting.all {
        waiting.services.keys().for_each(|(namespace, name)| replace(namespace, name));
        return delta;
    }
    let services = stores.services.list();
    let names = services
        .iter()
        .filter_map(|service| Some((service.metadata.namespace.as_deref()?, service.metadata.name.as_deref()?)));
    let there: BTreeSet<(&str, &str)> = names.collect();
    there.iter().for_each(|(namespace, name)| replace(namespace, name));
    let gone =
        waiting.services.keys().filter(|(namespace, name)| !there.contains(&(namespace.as_str(), name.as_str())));
    gone.for_each(|(namespace, name)| replace(namespace, name));
    delta
}

/// Measures the time from the change of endpoints to their rules.
fn programmed(family: Family, waiting: &Waiting) {
    let now = Timestamp::now();
    for triggered in waiting.services.values().flat_map(|pending| &pending.triggers) {
        metrics::programmed(family, Duration::try_from(now.duration_since(*triggered)).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use serde_json::json;

    use super::*;
    use crate::plan::PortName;

    /// A kernel that refuses the first write.
    struct Busy(bool);

    #[async_trait]
    impl Backend for Busy {
        async fn check_support(&self) -> Result<(), SyncError> {
            Ok(())
        }

        async fn sync(&mut self, _: &Desired, changed: &BTreeSet<PortName>) -> Result<SyncExtent, SyncError> {
            if std::mem::take(&mut self.0) {
                return Err(SyncError::Timeout("iptables-restore".to_owned()));
            }
            Ok(if changed.is_empty() { SyncExtent::Everything } else { SyncExtent::Changes })
        }

        fn forget(&mut self) {}

        fn set_environment(&mut self, _: &Environment) {}

        async fn tend(&mut self) -> bool {
            true
        }

        async fn is_present(&self) -> bool {
            true
        }

        async fn clean_up(&mut self) -> Result<(), SyncError> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn connection_tracking_is_told_by_the_sync_that_makes_good_for_a_failed_one() {
        let service: Service = serde_json::from_value(json!({
            "metadata": {"namespace": "kube-system", "name": "dns"},
            "spec": {"clusterIP": "10.96.0.10", "ports": [{"port": 53, "protocol": "UDP"}]}}))
        .expect("a service");
        let mut proxy = FamilyProxy::new(Family::V4, Box::new(Busy(true)));
        let (node, mut delta) = (NodeFacts::default(), Delta::default());
        proxy.desired.replace(("kube-system", "dns"), Some(&service), &[], (&node, Family::V4), &mut delta);
        assert!(proxy.write(&delta, false).await.is_err());
        let retried = proxy.write(&Delta::default(), false).await.expect("written");
        assert_eq!(retried, (SyncExtent::Everything, true));
        let idle = proxy.write(&Delta::default(), false).await.expect("written");
        assert_eq!(idle, (SyncExtent::Everything, false));
    }
}
