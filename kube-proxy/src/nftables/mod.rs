//! The nftables back end: one table, verdict maps for look-ups that do not grow with the number of services, and
//! transactions of what changed.
//!
//! A table that is there is taken over: elements that the kernel added (client affinity) stay. What is not needed any more
//! is emptied at once and deleted later, in a transaction of its own, since kernels before 6.2 may take a chain for busy in
//! the transaction that removes the last jump to it.

mod claims;
mod expression;
mod message;
mod render;
mod requirements;
mod rule;
mod table;
#[cfg(test)]
mod tests;
mod transaction;

use crate::backend::{Backend, DryRun, Environment, Mode, Options, SyncError, SyncExtent, WrittenChains, blocking};
use crate::metrics;
use crate::netlink::{Batches, Refusal};
use crate::plan::{Desired, PortName};
use async_trait::async_trait;
use claims::{ElementClaims, Wanted};
use render::{MASQUERADE_CHAIN, Part, fixed_chains, node_port_ips, part};
use rule::FamilyText;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::time::{Duration, Instant};
use table::Existing;
use transaction::{BASE, CLUSTER_IPS, MAPS, NODE_PORT_IPS, TABLE, Transaction};

/// The mode.
pub const MODE: Mode = Mode {
    name: "nftables",
    is_historic: false,
    periods: "nftables",
    masquerading: "nftables",
    localhost_node_ports: false,
    primary_node_ports: true,
    backend: |options, _| Box::new(Nftables::new(options)),
};

/// Steps of one transaction when there are many: the kernel looks at the whole table for each one, and holds up traffic that
/// changes it meanwhile.
const STEPS: usize = 10_000;
/// The least time between emptying something and deleting it.
const REST: Duration = Duration::from_secs(1);

/// Keeps the kernel's table as wanted.
pub struct Nftables {
    options: Options,
    commits: Commits,
    applied: Option<AppliedTable>,
    /// Chains (true) and sets that are empty and to be deleted, by name, and since when.
    stale: BTreeMap<(bool, String), Instant>,
    /// A table that was there could not be taken over: the next sync makes it anew.
    starts_over: bool,
}

/// Rules that the kernel has.
#[derive(Default)]
struct AppliedTable {
    ports: BTreeMap<PortName, RenderedChains>,
    claims: ElementClaims,
}

/// Memory of a port's rules: chains by fingerprint.
#[derive(Default)]
struct RenderedChains {
    chains: WrittenChains,
    wanted: Wanted,
    affinity: Vec<(String, u32)>,
}

impl RenderedChains {
    fn of(part: Part) -> Self {
        Self { chains: WrittenChains::of(&part.chains), wanted: Wanted::of(&part), affinity: part.affinity }
    }
}

impl Nftables {
    /// A back end that has not applied anything yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let commits = Commits { connection: None, dry_run: options.dry_run.clone() };
        Self { options, commits, applied: None, stale: BTreeMap::new(), starts_over: false }
    }

    /// Writes all rules, some services at a time, and what leads to them last: until then traffic goes by what was there.
    async fn write_all(&mut self, desired: &Desired) -> Result<AppliedTable, SyncError> {
        let family = self.options.family;
        if std::mem::take(&mut self.starts_over) {
            self.commits.commit(Transaction::removal(family)).await?;
        }
        let existing = match self.options.dry_run {
            Some(_) => Existing::default(),
            None => blocking(move || Existing::read(family).map_err(refused)).await?,
        };
        let fixed = fixed_chains(&self.options);
        let mut applied = AppliedTable::default();
        let mut transaction = Transaction::new(family);
        transaction.table();
        // Some are there without rules already, for chains of services to jump to.
        fixed
            .iter()
            .filter(|(name, _)| !existing.chains.contains(**name))
            .for_each(|(name, _)| transaction.chain(name, &[]));
        for name in ["reject-chain", MASQUERADE_CHAIN] {
            transaction.chain(name, fixed.get(name).map_or(&[], Vec::as_slice));
        }
        let mut lookups = Transaction::new(self.options.family);
        let (mut chains, mut sets) = (existing.chains.clone(), existing.sets.clone());
        for (name, port) in &desired.ports {
            if transaction.len() >= STEPS {
                self.commits.commit(transaction.take()).await?;
            }
            let part = part(name, port, &self.options);
            for (set, seconds) in &part.affinity {
                transaction.affinity_set(set, *seconds);
                sets.remove(set);
            }
            for (chain, rules) in &part.chains {
                transaction.chain(chain, rules);
                chains.remove(chain);
            }
            applied.claims.change(name, &Wanted::default(), &Wanted::of(&part), &mut lookups);
            applied.ports.insert(name.clone(), RenderedChains::of(part));
        }
        if transaction.len() >= STEPS / 2 {
            self.commits.commit(transaction.take()).await?;
        }
        for (name, rules) in &fixed {
            transaction.chain(name, rules);
            chains.remove(*name);
        }
        transaction.base_chains(|name| existing.chains.contains(name));
        chains.retain(|chain| BASE.iter().all(|base| base.name != chain));
        for name in MAPS.iter().map(|(name, _)| *name) {
            transaction.flush_set(name);
        }
        for name in [CLUSTER_IPS, NODE_PORT_IPS] {
            transaction.flush_set(name);
            sets.remove(name);
        }
        node_port_ips(&self.options).into_iter().for_each(|address| transaction.add_address(NODE_PORT_IPS, address));
        let now = Instant::now();
        chains.iter().for_each(|name| transaction.flush_chain(name));
        transaction.append(lookups);
        self.commits.commit(transaction).await?;
        self.stale = chains.into_iter().map(|name| ((true, name), now)).collect();
        self.stale.extend(sets.into_iter().map(|name| ((false, name), now)));
        Ok(applied)
    }

    /// Writes the rules of these ports.
    async fn write(
        &mut self,
        mut applied: AppliedTable,
        desired: &Desired,
        changed: &BTreeSet<PortName>,
    ) -> Result<AppliedTable, SyncError> {
        let mut transaction = Transaction::new(self.options.family);
        let mut gone = BTreeSet::new();
        for name in changed {
            if transaction.len() >= STEPS {
                self.commits.commit(transaction.take()).await?;
            }
            let before = applied.ports.remove(name).unwrap_or_default();
            let port = desired.ports.get(name);
            let part = port.map(|port| part(name, port, &self.options)).unwrap_or_default();
            let known: HashSet<&(String, u32)> = before.affinity.iter().collect();
            for (set, seconds) in part.affinity.iter().filter(|set| !known.contains(set)) {
                transaction.affinity_set(set, *seconds);
                self.stale.remove(&(false, set.clone()));
            }
            for (chain, rules) in part.chains.iter().filter(|(chain, rules)| !before.chains.has(chain, rules)) {
                transaction.chain(chain, rules);
                self.stale.remove(&(true, chain.clone()));
            }
            gone.extend(before.chains.gone(&part.chains).map(|chain| (true, chain)));
            let after = RenderedChains::of(part);
            applied.claims.change(name, &before.wanted, &after.wanted, &mut transaction);
            let kept: HashSet<&str> = after.affinity.iter().map(|(set, _)| set.as_str()).collect();
            let sets = before.affinity.into_iter().map(|(set, _)| set).filter(|set| !kept.contains(set.as_str()));
            gone.extend(sets.map(|set| (false, set)));
            if port.is_some() {
                applied.ports.insert(name.clone(), after);
            }
        }
        gone.iter().filter(|(is_chain, _)| *is_chain).for_each(|(_, chain)| transaction.flush_chain(chain));
        self.commits.commit(transaction.take()).await?;
        let now = Instant::now();
        self.stale.extend(gone.into_iter().map(|what| (what, now)));
        Ok(applied)
    }

    /// Deletes what has been empty for a while. What cannot be deleted is left for the next time.
    async fn delete_stale(&mut self) {
        let mut transaction = Transaction::new(self.options.family);
        let due: Vec<_> =
            self.stale.iter().filter(|(_, since)| since.elapsed() >= REST).map(|(what, _)| what.clone()).collect();
        // Chains first: their rules were the ones that named the sets.
        due.iter().rev().for_each(|(is_chain, name)| match is_chain {
            true => transaction.delete_chain(name),
            false => transaction.delete_set(name),
        });
        match self.commits.commit(transaction.take()).await {
            Ok(()) => self.stale.retain(|what, _| !due.contains(what)),
            Err(error) => {
                metrics::cleanup_failed(self.options.family);
                tracing::warn!(%error, "Failed to delete stale chains and sets");
            }
        }
    }
}

/// The way into the kernel.
struct Commits {
    connection: Option<Batches>,
    dry_run: Option<DryRun>,
}

impl Commits {
    /// Brings all of a transaction into the kernel, or nothing of it.
    async fn commit(&mut self, transaction: Transaction) -> Result<(), SyncError> {
        if transaction.is_empty() {
            return Ok(());
        }
        if let Some(script) = &self.dry_run {
            script.input("nft -f -", &transaction.to_string());
            return Ok(());
        }
        let kept = self.connection.take();
        let connection = blocking(move || {
            let connection = kept.map_or_else(Batches::open, Ok).map_err(refused)?;
            let batch = message::batch(&transaction);
            match connection.transact(&batch.bytes, batch.last) {
                Ok(()) => Ok(connection),
                Err(refusal) => Err(refused(explain(refusal, &transaction))),
            }
        });
        self.connection = Some(connection.await?);
        Ok(())
    }
}

/// Names the step that was refused, if it was one.
fn explain(refusal: Refusal, transaction: &Transaction) -> io::Error {
    let index = (refusal.sequence as usize).checked_sub(1);
    match index.and_then(|index| transaction.operations().nth(index)) {
        Some(step) => {
            let told = format!("{}: {}", FamilyText(transaction.family(), step), refusal.error);
            io::Error::new(refusal.error.kind(), told)
        }
        None => refusal.error,
    }
}

/// Reports whether the kernel has chains or sets of our names that are of other types, as another proxy may have left. A lack
/// of memory or time says nothing about the table: its rules stay until all can be written.
fn is_mismatch(error: &SyncError) -> bool {
    use io::ErrorKind::{AlreadyExists, InvalidInput, Unsupported};
    matches!(error, SyncError::Kernel { error, .. } if matches!(error.kind(), AlreadyExists | InvalidInput | Unsupported))
}

fn refused(error: io::Error) -> SyncError {
    SyncError::Kernel { what: "nftables", error }
}

#[async_trait]
impl Backend for Nftables {
    async fn check_support(&self) -> Result<(), SyncError> {
        requirements::check()?;
        let family = self.options.family;
        blocking(move || table::is_there(family, TABLE).map(drop).map_err(refused)).await
    }

    async fn sync(&mut self, desired: &Desired, changed: &BTreeSet<PortName>) -> Result<SyncExtent, SyncError> {
        // After a failure what the kernel holds is unknown: the next sync writes everything.
        let (applied, written) = match self.applied.take() {
            Some(applied) if changed.is_empty() => (applied, SyncExtent::Nothing),
            Some(applied) => (self.write(applied, desired, changed).await?, SyncExtent::Changes),
            None => {
                let applied = self.write_all(desired).await;
                self.starts_over = applied.as_ref().is_err_and(is_mismatch);
                (applied?, SyncExtent::Everything)
            }
        };
        self.applied = Some(applied);
        Ok(written)
    }

    fn forget(&mut self) {
        self.applied = None;
    }

    fn set_environment(&mut self, environment: &Environment) {
        if self.options.environment != *environment {
            self.options.environment.clone_from(environment);
            self.forget();
        }
    }

    async fn tend(&mut self) -> bool {
        self.delete_stale().await;
        self.is_present().await
    }

    /// A look that fails tells nothing.
    async fn is_present(&self) -> bool {
        let family = self.options.family;
        !matches!(blocking(move || table::is_there(family, TABLE).map_err(refused)).await, Ok(false))
    }

    async fn clean_up(&mut self) -> Result<(), SyncError> {
        self.applied = None;
        self.commits.commit(Transaction::removal(self.options.family)).await
    }
}
