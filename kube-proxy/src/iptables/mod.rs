//! The iptables back end: restore batches of the chains that changed, and in chunks where they are many.

mod batch;
mod names;
mod render;
#[cfg(test)]
mod tests;

use batch::Batch;
pub use render::Options;
use render::{FIREWALL, Part, SHARED, fixed, part};

use crate::backend::{Backend, CHUNK, NodePorts, SyncError, Written, WrittenChains, feed, output};
use crate::plan::{Desired, Family, PortName};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};

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

/// Keeps the kernel's chains as wanted.
pub struct Iptables {
    options: Options,
    applied: Option<Applied>,
}

/// Rules that the kernel has, by port.
#[derive(Default)]
struct Applied(BTreeMap<PortName, Kept>);

/// Memory of a port's rules: chains by fingerprint, and the text of rules that chains of all services are made of.
#[derive(Default)]
struct Kept {
    chains: WrittenChains,
    shared: [Vec<String>; SHARED.len()],
}

impl Kept {
    fn of(part: Part) -> Self {
        Self { chains: WrittenChains::of(&part.chains), shared: part.shared }
    }
}

impl Applied {
    fn shared(&self, index: usize, options: &Options) -> Vec<String> {
        render::shared(index, self.0.values().map(|kept| &kept.shared), options)
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
        let text = std::mem::take(batch).text();
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
        let firewall = FIREWALL_JUMPS.iter().filter(|_| self.options.guards_localnet());
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
        let mut applied = Applied::default();
        let fixed = fixed(&self.options);
        let mut batch = Batch::default();
        batch.write("mangle", CANARY, &[]);
        fixed.nat.iter().for_each(|(chain, rules)| batch.write("nat", chain, rules));
        for (written, (name, port)) in desired.ports.iter().enumerate() {
            if written % CHUNK == CHUNK - 1 {
                self.restore(&mut batch).await?;
            }
            let part = part(name, port, &self.options);
            for (chain, rules) in &part.chains {
                batch.write("nat", chain, rules);
                stale.remove(chain);
            }
            applied.0.insert(name.clone(), Kept::of(part));
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
        Ok(applied)
    }

    /// Writes the rules of these ports.
    async fn write(
        &self,
        mut applied: Applied,
        desired: &Desired,
        changed: &BTreeSet<PortName>,
    ) -> Result<Applied, SyncError> {
        let (mut batch, mut gone, mut touched) = (Batch::default(), Vec::new(), [false; SHARED.len()]);
        for (written, name) in changed.iter().enumerate() {
            if written % CHUNK == CHUNK - 1 {
                self.restore(&mut batch).await?;
            }
            let before = applied.0.remove(name).unwrap_or_default();
            let port = desired.ports.get(name);
            let part = port.map(|port| part(name, port, &self.options)).unwrap_or_default();
            for (chain, rules) in part.chains.iter().filter(|(chain, rules)| !before.chains.has(chain, rules)) {
                batch.write("nat", chain, rules);
            }
            for (index, touched) in touched.iter_mut().enumerate() {
                *touched |= before.shared[index] != part.shared[index];
            }
            gone.extend(before.chains.gone(&part.chains));
            if port.is_some() {
                applied.0.insert(name.clone(), Kept::of(part));
            }
        }
        for (index, (table, chain)) in SHARED.iter().enumerate().filter(|(index, _)| touched[*index]) {
            batch.write(table, chain, &applied.shared(index, &self.options));
        }
        gone.into_iter().for_each(|chain| batch.remove("nat", chain));
        self.restore(&mut batch).await?;
        Ok(applied)
    }
}

#[async_trait]
impl Backend for Iptables {
    fn name(&self) -> &'static str {
        "iptables"
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

    fn set_node_ports(&mut self, addresses: NodePorts) {
        if self.options.node_ports != addresses {
            self.options.node_ports = addresses;
            self.forget();
        }
    }

    async fn tend(&mut self) -> bool {
        !self.run(&["-t", "mangle", "-S", CANARY]).await.is_err_and(|error| error.is_absence())
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
