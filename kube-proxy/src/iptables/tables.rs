//! The kernel's tables through the iptables tools, of one family. Shared by the modes that have rules there.

use std::collections::BTreeSet;

use super::batch::Batch;
use crate::backend::{DryRun, Options, SyncError, feed, output};
use crate::plan::Family;

const WAIT: &str = "-w";
const WAIT_SECONDS: &str = "5";

/// A rule of a kernel's chain that jumps to one of ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Jump {
    pub(crate) table: &'static str,
    from: &'static str,
    pub(crate) to: &'static str,
    /// For new connections alone.
    only_new: bool,
    /// For packets to this machine alone.
    only_local: bool,
    comment: &'static str,
}

impl Jump {
    /// A jump for all packets, without a comment where that is empty.
    pub(crate) const fn new(table: &'static str, from: &'static str, to: &'static str, comment: &'static str) -> Self {
        Self { table, from, to, only_new: false, only_local: false, comment }
    }

    /// Restricts the jump to new connections.
    pub(crate) const fn if_new(self) -> Self {
        Self { only_new: true, ..self }
    }

    /// Restricts the jump to packets for addresses of this machine.
    pub(crate) const fn if_local(self) -> Self {
        Self { only_local: true, ..self }
    }

    /// The tool's arguments that do something (`-C`, `-I`, `-D`) with the rule.
    pub(crate) fn arguments(&self, action: &'static str) -> Vec<&'static str> {
        let new: &[&str] = if self.only_new { &["-m", "conntrack", "--ctstate", "NEW"] } else { &[] };
        let local: &[&str] = if self.only_local { &["-m", "addrtype", "--dst-type", "LOCAL"] } else { &[] };
        let comment: &[&str] =
            if self.comment.is_empty() { &[] } else { &["-m", "comment", "--comment", self.comment] };
        [&["-t", self.table, action, self.from], local, new, comment, &["-j", self.to]].concat()
    }
}

/// The tables of one family.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    family: Family,
    dry_run: Option<DryRun>,
}

impl Tables {
    pub(crate) fn new(options: &Options) -> Self {
        Self { family: options.family, dry_run: options.dry_run.clone() }
    }

    fn command(&self) -> &'static str {
        if self.family == Family::V4 { "iptables" } else { "ip6tables" }
    }

    /// Runs the tool.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Result<(), SyncError> {
        let arguments = [&[WAIT, WAIT_SECONDS], arguments].concat();
        match &self.dry_run {
            Some(script) => script.command(self.command(), &arguments),
            None => feed(self.command(), &arguments, "").await?,
        }
        Ok(())
    }

    /// Commits a batch, if there is anything in it.
    pub(crate) async fn restore(&self, batch: &mut Batch) -> Result<(), SyncError> {
        let text = batch.take();
        if text.is_empty() {
            return Ok(());
        }
        let program = format!("{}-restore", self.command());
        if let Some(script) = &self.dry_run {
            script.input(&format!("{program} --noflush --counters"), &text);
            return Ok(());
        }
        feed(&program, &[WAIT, WAIT_SECONDS, "--noflush", "--counters"], &text).await
    }

    /// Fails where the kernel or the machine has no such tables.
    pub(crate) async fn check_support(&self) -> Result<(), SyncError> {
        self.run(&["-t", "nat", "-S", "POSTROUTING"]).await
    }

    /// Names of the chains of a table.
    pub(crate) async fn chains(&self, table: &str) -> Result<BTreeSet<String>, SyncError> {
        if self.dry_run.is_some() {
            return Ok(BTreeSet::new());
        }
        let saved = output(&format!("{}-save", self.command()), &["-t", table], "").await?;
        let chains = saved.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
        Ok(chains.map(str::to_owned).collect())
    }

    /// False where there is no such chain; a look that fails tells nothing.
    pub(crate) async fn has_chain(&self, table: &str, chain: &str) -> bool {
        !self.run(&["-t", table, "-S", chain]).await.is_err_and(|error| error.is_absence())
    }

    /// Puts jumps into the kernel's chains, first in line, unless they are there.
    pub(crate) async fn ensure_jumps(&self, jumps: impl Iterator<Item = &'static Jump>) -> Result<(), SyncError> {
        for jump in jumps {
            if self.dry_run.is_some() {
                self.run(&jump.arguments("-I")).await?;
                continue;
            }
            match self.run(&jump.arguments("-C")).await {
                Ok(()) => {}
                Err(error) if error.is_absence() => self.run(&jump.arguments("-I")).await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Removes jumps until there is none: one may have been made twice.
    pub(crate) async fn remove_jumps(&self, jumps: &[Jump]) {
        for jump in jumps {
            while self.run(&jump.arguments("-D")).await.is_ok() {}
        }
    }

    /// Removes those of these chains that are there; no other chain may jump to them.
    pub(crate) async fn remove_chains(
        &self,
        wanted: impl Iterator<Item = (&'static str, &'static str)>,
    ) -> Result<(), SyncError> {
        let there = [("nat", self.chains("nat").await?), ("filter", self.chains("filter").await?)];
        let mut batch = Batch::default();
        for (table, chain) in wanted {
            if there.iter().any(|(of, chains)| *of == table && chains.contains(chain)) {
                batch.remove(table, chain.to_owned());
            }
        }
        self.restore(&mut batch).await
    }
}
