//! The iptables back end: restore batches of the chains that changed, and in chunks where they are many.

mod batch;
mod names;
mod render;
#[cfg(test)]
mod tests;

use batch::Batch;
use render::{FIREWALL, Part, SHARED, fixed, guards_localnet, part};

use crate::backend::{Backend, CHUNK, Environment, Options, SyncError, Written, WrittenChains, feed, output};
use crate::metrics;
use crate::mode::Mode;
use crate::plan::{Desired, Family, PortName};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};

/// The mode.
pub const MODE: Mode = Mode {
    name: "iptables",
    periods: "iptables",
    masquerading: "iptables",
    localhost_node_ports: true,
    primary_node_ports: false,
    backend: |options, _| Box::new(Iptables::new(options)),
};

/// A chain that only this proxy makes: when it is gone, somebody has flushed the rules.
const CANARY: &str = "KUBE-PROXY-CANARY";
const WAIT: &str = "-w";
const WAIT_SECONDS: &str = "5";

/// Jumps from the kernel's chains: table, kernel chain, our chain, only for new connections, comment.
const JUMPS: [(&str, &str, &str, bool, &str); 12] = [
    ("filter", "INPUT", "KUBE-EXTERNAL-SERVICES", true, "kubernetes externally-visible service portals"),
    ("filter", "FORWARD", "KUBE-EXTERNAL-SERVICES", true, "kubernetes externally-visible service portals"),
    ("filter", "INPUT", "KUBE-NODEPORTS", false, "kubernetes health check service ports"),
    ("filter", "FORWARD", "KUBE-SERVICES", true, "kubernetes service portals"),
    ("filter", "OUTPUT", "KUBE-SERVICES", true, "kubernetes service portals"),
    ("filter", "FORWARD", "KUBE-FORWARD", false, "kubernetes forwarding rules"),
    ("filter", "INPUT", "KUBE-PROXY-FIREWALL", true, "kubernetes load balancer firewall"),
    ("filter", "OUTPUT", "KUBE-PROXY-FIREWALL", true, "kubernetes load balancer firewall"),
    ("filter", "FORWARD", "KUBE-PROXY-FIREWALL", true, "kubernetes load balancer firewall"),
    ("nat", "OUTPUT", "KUBE-SERVICES", false, "kubernetes service portals"),
    ("nat", "PREROUTING", "KUBE-SERVICES", false, "kubernetes service portals"),
    ("nat", "POSTROUTING", "KUBE-POSTROUTING", false, "kubernetes postrouting rules"),
];

/// Jumps to the chain that the kubelet makes as well. It is left at clean-up, as upstream leaves it.
const FIREWALL_JUMPS: [(&str, &str, &str, bool, &str); 2] =
    [("filter", "INPUT", FIREWALL, false, ""), ("filter", "OUTPUT", FIREWALL, false, "")];

/// The rule of a jump, without table and kernel chain.
fn jump(to: &'static str, only_new: bool, comment: &'static str) -> Vec<&'static str> {
    let new: &[&str] = if only_new { &["-m", "conntrack", "--ctstate", "NEW"] } else { &[] };
    let comment: &[&str] = if comment.is_empty() { &[] } else { &["-m", "comment", "--comment", comment] };
    [new, comment, &["-j", to]].concat()
}

/// Endpoints of all services beyond which their rules have no comments; upstream's `largeClusterEndpointsThreshold`.
const LARGE_CLUSTER: usize = 1000;

/// Reports whether rules of endpoints have comments. Rules that are there stay as they are when the cluster grows beyond
/// the limit: comments have no effect.
fn has_comments(desired: &Desired) -> bool {
    let endpoints = desired.ports.values().map(|port| port.cluster_endpoints.len().max(port.local_endpoints.len()));
    endpoints.sum::<usize>() <= LARGE_CLUSTER
}

/// Keeps the kernel's chains as wanted.
pub struct Iptables {
    options: Options,
    applied: Option<Applied>,
}

/// Rules that the kernel has, by port.
#[derive(Default)]
struct Applied {
    ports: BTreeMap<PortName, Kept>,
    /// Number of rules of all ports in the `nat` and the `filter` table.
    rules: [usize; 2],
}

/// Memory of a port's rules: chains by fingerprint, and the text of rules that chains of all services are made of.
#[derive(Default)]
struct Kept {
    chains: WrittenChains,
    /// Number of rules in its chains.
    rules: usize,
    shared: [Vec<String>; SHARED.len()],
}

impl Kept {
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
    fn put(&mut self, name: PortName, kept: Kept) {
        let added = kept.rules();
        self.rules.iter_mut().zip(added).for_each(|(all, added)| *all += added);
        self.ports.insert(name, kept);
    }

    fn take(&mut self, name: &PortName) -> Kept {
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
        Self { options, applied: None }
    }

    fn command(&self) -> &'static str {
        if self.options.family == Family::V4 { "iptables" } else { "ip6tables" }
    }

    async fn restore(&self, batch: &mut Batch) -> Result<(), SyncError> {
        let text = batch.take();
        if text.is_empty() {
            return Ok(());
        }
        let program = format!("{}-restore", self.command());
        feed(&program, &[WAIT, WAIT_SECONDS, "--noflush", "--counters"], &text).await
    }

    async fn run(&self, arguments: &[&str]) -> Result<(), SyncError> {
        feed(self.command(), &[&[WAIT, WAIT_SECONDS], arguments].concat(), "").await
    }

    /// Service chains in the kernel that an earlier proxy made.
    async fn existing(&self) -> Result<BTreeSet<String>, SyncError> {
        let saved = output(&format!("{}-save", self.command()), &["-t", "nat"], "").await?;
        let chains = saved.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
        Ok(chains.filter(|chain| names::is_service_chain(chain)).map(str::to_owned).collect())
    }

    /// Puts our chains into the kernel's, first in line, unless they are there.
    async fn ensure_jumps(&self) -> Result<(), SyncError> {
        let firewall = FIREWALL_JUMPS.iter().filter(|_| guards_localnet(&self.options));
        for (table, from, to, only_new, comment) in JUMPS.iter().chain(firewall).copied() {
            let rule = jump(to, only_new, comment);
            match self.run(&[&["-t", table, "-C", from], rule.as_slice()].concat()).await {
                Ok(()) => {}
                Err(error) if error.is_absence() => {
                    self.run(&[&["-t", table, "-I", from], rule.as_slice()].concat()).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all rules, some services at a time, and the jumps to them last: until then traffic goes by what was there.
    async fn write_all(&self, desired: &Desired) -> Result<Applied, SyncError> {
        let mut stale = self.existing().await?;
        let comments = has_comments(desired);
        let mut applied = Applied::default();
        let fixed = fixed(&self.options);
        let mut batch = Batch::default();
        batch.write("mangle", CANARY, &[]);
        fixed.nat.iter().for_each(|(chain, rules)| batch.write("nat", chain, rules));
        for (written, (name, port)) in desired.ports.iter().enumerate() {
            if written % CHUNK == CHUNK - 1 {
                self.restore(&mut batch).await?;
            }
            let part = part(name, port, &self.options, comments);
            for (chain, rules) in &part.chains {
                batch.write("nat", chain, rules);
                stale.remove(chain);
            }
            applied.put(name.clone(), Kept::of(part));
        }
        if desired.ports.len() >= CHUNK {
            self.restore(&mut batch).await?;
        }
        fixed.filter.iter().for_each(|(chain, rules)| batch.write("filter", chain, rules));
        for (index, (table, chain)) in SHARED.iter().enumerate() {
            batch.write(table, chain, &applied.shared(index, &self.options));
        }
        stale.into_iter().for_each(|chain| batch.remove("nat", chain));
        self.restore(&mut batch).await?;
        self.ensure_jumps().await?;
        self.count(&applied, &batch);
        Ok(applied)
    }

    fn count(&self, applied: &Applied, batch: &Batch) {
        let fixed = fixed(&self.options);
        let count = |chains: &BTreeMap<String, Vec<String>>| chains.values().map(Vec::len).sum::<usize>();
        for (table, fixed, ports) in
            [("nat", count(&fixed.nat), applied.rules[0]), ("filter", count(&fixed.filter), applied.rules[1])]
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
                self.restore(&mut batch).await?;
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
                applied.put(name.clone(), Kept::of(part));
            }
        }
        for (index, (table, chain)) in SHARED.iter().enumerate().filter(|(index, _)| touched[*index]) {
            batch.write(table, chain, &applied.shared(index, &self.options));
        }
        gone.into_iter().for_each(|chain| batch.remove("nat", chain));
        self.restore(&mut batch).await?;
        self.count(&applied, &batch);
        Ok(applied)
    }
}

#[async_trait]
impl Backend for Iptables {
    fn name(&self) -> &'static str {
        "iptables"
    }

    async fn check_support(&self) -> Result<(), SyncError> {
        self.run(&["-t", "nat", "-S", "POSTROUTING"]).await
    }

    async fn sync(&mut self, desired: &Desired, changed: &BTreeSet<PortName>) -> Result<Written, SyncError> {
        // After a failure what the kernel holds is unknown: the next sync writes everything.
        let (applied, written) = match self.applied.take() {
            Some(applied) if changed.is_empty() => (applied, Written::Nothing),
            Some(applied) => (self.write(applied, desired, changed).await?, Written::Changes),
            None => (self.write_all(desired).await?, Written::Everything),
        };
        self.applied = Some(applied);
        Ok(written)
    }

    fn forget(&mut self) {
        self.applied = None;
    }

    fn set_environment(&mut self, environment: &Environment) {
        if self.options.environment.node_ports != environment.node_ports {
            self.forget();
        }
        self.options.environment.clone_from(environment);
    }

    async fn tend(&mut self) -> bool {
        !self.run(&["-t", "mangle", "-S", CANARY]).await.is_err_and(|error| error.is_absence())
    }

    async fn is_present(&self) -> bool {
        self.existing().await.is_ok_and(|chains| !chains.is_empty())
    }

    async fn clean_up(&mut self) -> Result<(), SyncError> {
        for (table, from, to, only_new, comment) in JUMPS {
            let rule = jump(to, only_new, comment);
            // Until there is none: a jump may have been made twice.
            while self.run(&[&["-t", table, "-D", from], rule.as_slice()].concat()).await.is_ok() {}
        }
        let mut batch = Batch::default();
        let mut old = fixed(&self.options);
        old.filter.remove(FIREWALL);
        old.filter.into_keys().for_each(|chain| batch.remove("filter", chain));
        old.nat.into_keys().for_each(|chain| batch.remove("nat", chain));
        SHARED.iter().for_each(|(table, chain)| batch.remove(table, (*chain).to_owned()));
        self.existing().await?.into_iter().for_each(|chain| batch.remove("nat", chain));
        self.restore(&mut batch).await?;
        // Upstream makes one in each table.
        for table in ["mangle", "nat", "filter"] {
            self.run(&["-t", table, "-X", CANARY]).await.ok();
        }
        self.applied = None;
        Ok(())
    }
}
