//! etcd: the way to it, what is sealed in it, what follows it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use proto::resources::{self, Resource};
use shared::flags::FlagSet;
use shared::run::Shutdown;

use super::Process;
use crate::backoff::Backoff;
use crate::cache::CacheRegistry;
use crate::egress::{Egress, NetworkContext};
use crate::rows::compiled;
use crate::storage::{self, Caching, Store, transform};

/// Longest wait for etcd at start.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Labels of a resource in storage metrics, by its prefix.
fn named(row: &Resource) -> (String, String, String) {
    (row.etcd_prefix.to_string(), row.group.to_string(), row.plural.to_string())
}

fn options(flags: &FlagSet, egress: &Egress) -> anyhow::Result<storage::Options> {
    storage::check_backend(flags)?;
    let overrides = storage::overrides(&flags.list("etcd-servers-overrides")).map_err(anyhow::Error::msg)?;
    // As upstream, what is not compiled in is not looked for.
    let overrides = overrides
        .into_iter()
        .filter_map(|o| Some((compiled(&o.group, &o.resource)?.etcd_prefix.to_string(), o.servers)))
        .collect();
    let options = storage::Options {
        servers: flags.list("etcd-servers"),
        prefix: flags.string("etcd-prefix"),
        ca_file: flags.string("etcd-cafile"),
        cert_file: flags.string("etcd-certfile"),
        key_file: flags.string("etcd-keyfile"),
        overrides,
        dialer: egress.proxied(NetworkContext::Etcd),
        named: resources::all().iter().chain(resources::optional()).map(named).collect(),
        traced: !flags.string("tracing-config-file").is_empty(),
        lease_reuse: flags.integer("lease-reuse-duration-seconds").max(0),
    };
    anyhow::ensure!(!options.servers.is_empty(), "--etcd-servers must be specified");
    Ok(options)
}

/// Connects to every etcd there is and waits until each answers.
pub(super) async fn connect(process: &Process, egress: &Egress) -> anyhow::Result<Store> {
    let options = options(&process.flags, egress)?;
    let store = Store::connect(&options).await.context("connecting to etcd")?;
    for store in store.each() {
        wait_for(&store, &process.shutdown).await?;
    }
    Ok(store)
}

/// Waits for etcd as upstream does: for a while, then gives up.
async fn wait_for(store: &Store, shutdown: &Shutdown) -> anyhow::Result<()> {
    let give_up = tokio::time::Instant::now() + PATIENCE;
    let mut backoff = Backoff::doubling(PAUSE, LONGEST_PAUSE);
    loop {
        let error = match store.revision().await {
            Ok(_) => return Ok(()),
            Err(e) => e,
        };
        if tokio::time::Instant::now() > give_up || shutdown.is_triggered() {
            return Err(anyhow::Error::new(error).context("error waiting for etcd connection"));
        }
        tracing::warn!(%error, "Failed to connect to etcd, will retry");
        backoff.wait().await;
    }
}

/// Reads `--encryption-provider-config` and looks after what it names.
pub(super) async fn encryption(process: &Process, store: &Store) -> anyhow::Result<Option<transform::Loaded>> {
    let path = process.flags.string("encryption-provider-config");
    let reload = process.flags.boolean("encryption-provider-config-automatic-reload");
    if path.is_empty() {
        anyhow::ensure!(
            !reload,
            "--encryption-provider-config-automatic-reload must be set with --encryption-provider-config"
        );
        return Ok(None);
    }
    let loaded = transform::load(&path, store.transformers(), reload).await?;
    process.until_answered("encryption-config", transform::watch(loaded.clone()));
    Ok(Some(loaded))
}

/// The caches that follow etcd and are compared with it now and then.
pub(super) fn cache(process: &Process, store: &Store, encodings: usize, caching: Caching) -> Arc<CacheRegistry> {
    let (caches, asks) = CacheRegistry::new(store.clone(), encodings, caching);
    for (etcd, asks) in asks.into_iter().enumerate() {
        process.until_answered("watch-cache", caches.clone().run(etcd, asks));
    }
    let counting = process.flags.duration("etcd-count-metric-poll-period");
    if !counting.is_zero() {
        process.until_answered("uncached-counts", caches.clone().count_uncached(counting));
    }
    if process.flags.enabled("DetectCacheInconsistency") {
        process.until_answered("cache-consistency", caches.clone().check_forever());
    }
    caches
}

/// Old revisions are let go, and it is looked how large etcd is.
pub(super) fn look_after(process: &Process, store: &Store) {
    let compaction = process.flags.duration("etcd-compaction-interval");
    let sizes = process.flags.duration("etcd-db-metric-poll-interval");
    for store in store.each() {
        if !compaction.is_zero() {
            process.until_shutdown("compactor", storage::compact_forever(store.clone(), compaction));
        }
        if !sizes.is_zero() {
            process.until_answered("storage-size", storage::poll_size(store, sizes));
        }
    }
}
