//! The iptables back end: restore batches of the chains that changed.

mod batch;
mod names;
mod render;
#[cfg(test)]
mod tests;

pub use batch::batch;
use render::FIREWALL;
pub use render::{Options, Rules, render};

use crate::backend::{Backend, SyncError, feed, output};
use crate::plan::{Desired, Family};
use async_trait::async_trait;
use std::collections::BTreeSet;

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
    applied: Option<Rules>,
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

    async fn restore(&self, text: &str) -> Result<(), SyncError> {
        let program = format!("{}-restore", self.command());
        feed(&program, &[WAIT, WAIT_SECONDS, "--noflush", "--counters"], text).await
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
            let check = [&["-t", table, "-C", from], rule.as_slice()].concat();
            if self.run(&check).await.is_err() {
                self.run(&[&["-t", table, "-I", from], rule.as_slice()].concat()).await?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Backend for Iptables {
    fn name(&self) -> &'static str {
        "iptables"
    }

    fn render(&self, desired: &Desired) -> String {
        batch(&Rules::default(), &render(desired, &self.options), &BTreeSet::new())
    }

    async fn sync(&mut self, desired: &Desired) -> Result<(), SyncError> {
        let rules = render(desired, &self.options);
        let result = match &self.applied {
            Some(applied) => {
                let text = batch(applied, &rules, &BTreeSet::new());
                if text.is_empty() { Ok(()) } else { self.restore(&text).await }
            }
            None => {
                let stale = self.existing().await?;
                let text = batch(&Rules::default(), &rules, &stale);
                let canary = format!("*mangle\n:{CANARY} - [0:0]\nCOMMIT\n{text}");
                match self.restore(&canary).await {
                    Ok(()) => self.ensure_jumps().await,
                    refused => refused,
                }
            }
        };
        // After a failure what the kernel holds is unknown: the next sync writes everything.
        self.applied = result.is_ok().then_some(rules);
        result
    }

    fn forget(&mut self) {
        self.applied = None;
    }

    async fn is_intact(&self) -> bool {
        self.run(&["-t", "mangle", "-S", CANARY]).await.is_ok()
    }

    async fn clean_up(&mut self) -> Result<(), SyncError> {
        for (table, from, to, only_new, comment) in JUMPS {
            let rule = jump(to, only_new, comment);
            // One that is not there is as good as removed.
            self.run(&[&["-t", table, "-D", from], rule.as_slice()].concat()).await.ok();
        }
        let mut old = render(&Desired::default(), &self.options);
        old.filter.remove(FIREWALL);
        for chain in self.existing().await? {
            old.nat.insert(chain, Vec::new());
        }
        self.restore(&batch(&old, &Rules::default(), &BTreeSet::new())).await?;
        self.run(&["-t", "mangle", "-X", CANARY]).await.ok();
        self.applied = None;
        Ok(())
    }
}
