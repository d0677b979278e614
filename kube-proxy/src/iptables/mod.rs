//! The iptables back end: restore batches of the chains that changed, and in chunks where they are many.

mod accounting;
mod batch;
mod names;
mod render;
mod tables;
#[cfg(test)]
mod tests;

pub(crate) use batch::Batch;
use render::{FIREWALL, Part, SHARED, fixed, guards_localnet, part};
pub(crate) use tables::{Jump, Tables};

use crate::backend::{Backend, Counters, Environment, Mode, Options, SyncError, SyncExtent, WrittenChains};
use crate::metrics;
use crate::plan::{Desired, PortName};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Once;

/// The mode.
pub const MODE: Mode = Mode {
    name: "iptables",
    is_historic: false,
    periods: "iptables",
    masquerading: "iptables",
    localhost_node_ports: true,
    primary_node_ports: false,
    backend: |options, _| Box::new(Iptables::new(options)),
};

/// A chain in the table `mangle` that only this proxy makes: when it is gone, somebody has flushed the rules.
pub(crate) const CANARY: &str = "KUBE-PROXY-CANARY";

/// Services whose rules go into one restore when there are many: the tool's cost grows faster than a batch.
const CHUNK: usize = 250;

/// Jumps from the kernel's chains.
const JUMPS: [Jump; 12] = [
    Jump::new("filter", "INPUT", "KUBE-EXTERNAL-SERVICES", "kubernetes externally-visible service portals").if_new(),
    Jump::new("filter", "FORWARD", "KUBE-EXTERNAL-SERVICES", "kubernetes externally-visible service portals").if_new(),
    Jump::new("filter", "INPUT", "KUBE-NODEPORTS", "kubernetes health check service ports"),
    Jump::new("filter", "FORWARD", "KUBE-SERVICES", "kubernetes service portals").if_new(),
    Jump::new("filter", "OUTPUT", "KUBE-SERVICES", "kubernetes service portals").if_new(),
    Jump::new("filter", "FORWARD", "KUBE-FORWARD", "kubernetes forwarding rules"),
    Jump::new("filter", "INPUT", "KUBE-PROXY-FIREWALL", "kubernetes load balancer firewall").if_new(),
    Jump::new("filter", "OUTPUT", "KUBE-PROXY-FIREWALL", "kubernetes load balancer firewall").if_new(),
    Jump::new("filter", "FORWARD", "KUBE-PROXY-FIREWALL", "kubernetes load balancer firewall").if_new(),
    Jump::new("nat", "OUTPUT", "KUBE-SERVICES", "kubernetes service portals"),
    Jump::new("nat", "PREROUTING", "KUBE-SERVICES", "kubernetes service portals"),
    Jump::new("nat", "POSTROUTING", "KUBE-POSTROUTING", "kubernetes postrouting rules"),
];

/// Jumps to the chain that the kubelet makes as well. It is left at clean-up, as upstream leaves it.
const FIREWALL_JUMPS: [Jump; 2] =
    [Jump::new("filter", "INPUT", FIREWALL, ""), Jump::new("filter", "OUTPUT", FIREWALL, "")];

/// Endpoints of all services beyond which their rules have no comments; upstream's `largeClusterEndpointsThreshold`.
const LARGE_CLUSTER: usize = 1000;

/// Reports whether rules of endpoints have comments. Rules that are there stay as they are when the cluster grows beyond
/// the limit: comments have no effect.
fn has_comments(desired: &Desired) -> bool {
    desired.endpoints() <= LARGE_CLUSTER
}

/// Keeps the kernel's chains as wanted.
pub struct Iptables {
    options: Options,
    tables: Tables,
    applied: Option<Applied>,
}

/// Rules that the kernel has, by port.
#[derive(Default)]
struct Applied {
    ports: BTreeMap<PortName, RenderedChains>,
    /// Number of rules of all ports in the `nat` and the `filter` table.
    rules: [usize; 2],
}

/// Memory of a port's rules: chains by fingerprint, and the text of rules that chains of all services are made of.
#[derive(Default)]
struct RenderedChains {
    chains: WrittenChains,
    /// Number of rules in its chains.
    rules: usize,
    shared: [Vec<String>; SHARED.len()],
}

impl RenderedChains {
    fn of(part: Part) -> Self {
        let rules = part.chains.iter().map(|(_, rules)| rules.len()).sum();
        Self { chains: WrittenChains::of(&part.chains), rules, shared: part.shared }
    }

    /// Number of rules in the `nat` and the `filter` table.
    fn rules(&self) -> [usize; 2] {
        let shared = |table: &str| -> usize {
            let ours = SHARED.iter().zip(&self.shared).filter(|((of, _), _)| *of == table);
            ours.map(|(_, rules)| rules.len()).sum()
        };
        [self.rules + shared("nat"), shared("filter")]
    }
}

impl Applied {
    fn put(&mut self, name: PortName, kept: RenderedChains) {
        let added = kept.rules();
        self.rules.iter_mut().zip(added).for_each(|(all, added)| *all += added);
        self.ports.insert(name, kept);
    }

    fn take(&mut self, name: &PortName) -> RenderedChains {
        let kept = self.ports.remove(name).unwrap_or_default();
        self.rules.iter_mut().zip(kept.rules()).for_each(|(all, removed)| *all -= removed);
        kept
    }

    fn shared(&self, index: usize, options: &Options) -> Vec<String> {
        render::shared(index, self.ports.values().map(|kept| &kept.shared), options)
    }
}

impl Iptables {
    /// A back end that has not applied anything yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self { tables: Tables::new(&options), options, applied: None }
    }

    /// Service chains in the kernel that an earlier proxy made.
    async fn existing(&self) -> Result<BTreeSet<String>, SyncError> {
        let chains = self.tables.chains("nat").await?;
        Ok(chains.into_iter().filter(|chain| names::is_service_chain(chain)).collect())
    }

    /// Puts our chains into the kernel's.
    async fn ensure_jumps(&self) -> Result<(), SyncError> {
        let firewall = FIREWALL_JUMPS.iter().filter(|_| guards_localnet(&self.options));
        self.tables.ensure_jumps(JUMPS.iter().chain(firewall)).await
    }

    /// Makes the counters that rules name. Both families have the same ones.
    async fn ensure_counters(&mut self) {
        static METRICS: Once = Once::new();
        let names =
            [(accounting::INVALID, self.options.drop_invalid), (accounting::LOCALHOST, guards_localnet(&self.options))];
        let wanted: Vec<&str> = names.into_iter().filter(|(_, is_wanted)| *is_wanted).map(|(name, _)| name).collect();
        let there: Vec<&str> = match &self.options.dry_run {
            Some(script) => {
                wanted.iter().for_each(|name| script.command("nfacct", &["add", name]));
                wanted
            }
            None => {
                METRICS.call_once(|| shared::metrics::register(accounting::Metrics::new()));
                let made = move || wanted.into_iter().filter(|name| accounting::ensure(name)).collect();
                tokio::task::spawn_blocking(made).await.unwrap_or_default()
            }
        };
        self.options.counters = Counters {
            invalid: there.contains(&accounting::INVALID),
            localhost: there.contains(&accounting::LOCALHOST),
        };
    }

    /// Writes all rules, some services at a time, and the jumps to them last: until then traffic goes by what was there.
    async fn write_all(&mut self, desired: &Desired) -> Result<Applied, SyncError> {
        self.ensure_counters().await;
        let mut stale = self.existing().await?;
        let comments = has_comments(desired);
        let mut applied = Applied::default();
        let fixed = fixed(&self.options);
        let mut batch = Batch::default();
        batch.write("mangle", CANARY, &[]);
        fixed.nat.iter().for_each(|(chain, rules)| batch.write("nat", chain, rules));
        for (written, (name, port)) in desired.ports.iter().enumerate() {
            if written % CHUNK == CHUNK - 1 {
                self.tables.restore(&mut batch).await?;
            }
            let part = part(name, port, &self.options, comments);
            for (chain, rules) in &part.chains {
                batch.write("nat", chain, rules);
                stale.remove(chain);
            }
            applied.put(name.clone(), RenderedChains::of(part));
        }
        if desired.ports.len() >= CHUNK {
            self.tables.restore(&mut batch).await?;
        }
        fixed.filter.iter().for_each(|(chain, rules)| batch.write("filter", chain, rules));
        for (index, (table, chain)) in SHARED.iter().enumerate() {
            batch.write(table, chain, &applied.shared(index, &self.options));
        }
        stale.into_iter().for_each(|chain| batch.remove("nat", chain));
        self.tables.restore(&mut batch).await?;
        self.ensure_jumps().await?;
        self.count(&applied, &batch);
        Ok(applied)
    }

    fn count(&self, applied: &Applied, batch: &Batch) {
        let fixed = fixed(&self.options);
        let jumps = render::node_port_jumps(&self.options).len();
        let count = |chains: &BTreeMap<String, Vec<String>>| chains.values().map(Vec::len).sum::<usize>();
        for (table, fixed, ports) in
            [("nat", count(&fixed.nat) + jumps, applied.rules[0]), ("filter", count(&fixed.filter), applied.rules[1])]
        {
            metrics::iptables_rules(self.options.family, table, fixed + ports, batch.written(table));
        }
    }

    /// Writes the rules of these ports.
    async fn write(
        &self,
        mut applied: Applied,
        desired: &Desired,
        changed: &BTreeSet<PortName>,
    ) -> Result<Applied, SyncError> {
        let comments = has_comments(desired);
        let (mut batch, mut gone, mut touched) = (Batch::default(), Vec::new(), [false; SHARED.len()]);
        for (written, name) in changed.iter().enumerate() {
            if written % CHUNK == CHUNK - 1 {
                self.tables.restore(&mut batch).await?;
            }
            let before = applied.take(name);
            let port = desired.ports.get(name);
            let part = port.map(|port| part(name, port, &self.options, comments)).unwrap_or_default();
            for (chain, rules) in part.chains.iter().filter(|(chain, rules)| !before.chains.has(chain, rules)) {
                batch.write("nat", chain, rules);
            }
            for (index, touched) in touched.iter_mut().enumerate() {
                *touched |= before.shared[index] != part.shared[index];
            }
            gone.extend(before.chains.gone(&part.chains));
            if port.is_some() {
                applied.put(name.clone(), RenderedChains::of(part));
            }
        }
        for (index, (table, chain)) in SHARED.iter().enumerate().filter(|(index, _)| touched[*index]) {
            batch.write(table, chain, &applied.shared(index, &self.options));
        }
        gone.into_iter().for_each(|chain| batch.remove("nat", chain));
        self.tables.restore(&mut batch).await?;
        self.count(&applied, &batch);
        Ok(applied)
    }
}

#[async_trait]
impl Backend for Iptables {
    async fn check_support(&self) -> Result<(), SyncError> {
        self.tables.check_support().await
    }

    async fn sync(&mut self, desired: &Desired, changed: &BTreeSet<PortName>) -> Result<SyncExtent, SyncError> {
        // After a failure what the kernel holds is unknown: the next sync writes everything.
        let (applied, written) = match self.applied.take() {
            Some(applied) if changed.is_empty() => (applied, SyncExtent::Nothing),
            Some(applied) => (self.write(applied, desired, changed).await?, SyncExtent::Changes),
            None => (self.write_all(desired).await?, SyncExtent::Everything),
        };
        self.applied = Some(applied);
        Ok(written)
    }

    fn forget(&mut self) {
        self.applied = None;
    }

    fn set_environment(&mut self, environment: &Environment) {
        if self.options.moves_node_ports(environment) {
            self.forget();
        }
    }

    async fn tend(&mut self) -> bool {
        self.tables.has_chain("mangle", CANARY).await
    }

    async fn is_present(&self) -> bool {
        self.existing().await.is_ok_and(|chains| !chains.is_empty())
    }

    async fn clean_up(&mut self) -> Result<(), SyncError> {
        self.tables.remove_jumps(&JUMPS).await;
        let mut batch = Batch::default();
        let mut old = fixed(&self.options);
        old.filter.remove(FIREWALL);
        old.filter.into_keys().for_each(|chain| batch.remove("filter", chain));
        old.nat.into_keys().for_each(|chain| batch.remove("nat", chain));
        SHARED.iter().for_each(|(table, chain)| batch.remove(table, (*chain).to_owned()));
        self.existing().await?.into_iter().for_each(|chain| batch.remove("nat", chain));
        self.tables.restore(&mut batch).await?;
        // Upstream makes one in each table.
        for table in ["mangle", "nat", "filter"] {
            self.tables.run(&["-t", table, "-X", CANARY]).await.ok();
        }
        self.applied = None;
        Ok(())
    }
}
