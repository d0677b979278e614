//! The process: flags and configuration, the secure port, leader election, informers, and the scheduling loop.

mod api;
mod core;
mod cycle;
mod explain;
mod extender;
mod failure;
mod resources;
mod stores;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use shared::config::Settings;
use shared::events::Recorder;
use shared::flags::FlagSet;
use shared::informer::Factory;
use shared::leader::{self, Outcome};
use shared::run::{Shutdown, TaskGroup};
use shared::serve::{Configz, DelegatedOptions, Health, Probe, SecureOptions, Server, hostname};

use self::api::KubeApi;
use self::core::Core;
use self::cycle::Cycle;
use self::extender::Objects;
use self::failure::Reporter;
use self::stores::Informers;
use crate::framework::{Cursor, Features};
use crate::metrics;
use crate::model::Snapshot;
use crate::queue::{Profiles, Queue, Timing};

/// How long bindings may take to finish at the end.
const DRAIN: Duration = Duration::from_secs(5);

/// Runs the scheduler until shutdown.
///
/// # Errors
/// Configuration that cannot be used, ports and files that cannot be opened, a lost lease.
pub async fn run(flags: FlagSet, shutdown: Shutdown) -> anyhow::Result<()> {
    let mut settings = shared::config::scheduler(&flags)?;
    settings.0 = crate::settings::complete(&settings.0)?;
    let written = flags.string("write-config-to");
    if !written.is_empty() {
        let text = serde_norway::to_string(&settings.0).context("encoding the configuration")?;
        std::fs::write(&written, text).with_context(|| format!("writing {written}"))?;
        tracing::info!(file = written, "Wrote configuration");
        return Ok(());
    }
    crate::settings::validate(&settings.0)?;
    let features = Features {
        consumable_capacity: flags.enabled("DRAConsumableCapacity"),
        device_taints: flags.enabled("DRADeviceTaints"),
    };
    let (configuration, profiles) = crate::settings::profiles(&settings.0, features)?;
    let timing = Timing {
        initial: Duration::from_secs(configuration.pod_initial_backoff_seconds),
        max: Duration::from_secs(configuration.pod_max_backoff_seconds),
        stale: flags.duration("pod-max-in-unschedulable-pods-duration"),
    };
    metrics::register();
    let host = hostname();
    let tasks = TaskGroup::new();
    let client = connect(&flags, &settings).await?;
    // Watches, leases and events must not wait behind bindings.
    let background = connect(&flags, &settings).await?;

    let synced = Arc::new(AtomicBool::new(false));
    let source = Arc::new(explain::Source::default());
    serve(&flags, &settings, &synced, &source, &tasks, &shutdown).await?;
    flags.warn_unread();

    let factory = Factory::new(background.clone(), tasks.clone(), shutdown.clone());
    let extended = settings.get("extenders").and_then(|e| e.as_array()).is_some_and(|e| !e.is_empty());
    let informers = Informers::new(&factory, extended);
    let stores = informers.stores();
    let pods = informers.pods.store();
    let whole_pods = informers.whole_pods.as_ref().map(|i| i.store()).unwrap_or_default();
    let whole_nodes = informers.whole_nodes.as_ref().map(|i| i.store()).unwrap_or_default();
    let objects = Objects { pods: whole_pods, nodes: whole_nodes };
    let extenders = extender::extenders(&settings.0, &objects)?;
    let profiles: Profiles = profiles
        .into_iter()
        .map(|mut profile| {
            profile.extenders = extenders.clone();
            (Arc::clone(&profile.name), Arc::new(profile))
        })
        .collect();
    let profiles = Arc::new(profiles);
    let api = KubeApi { client, claims: stores.claims.clone(), pods: pods.clone() };
    let queue = Queue::new(Arc::clone(&profiles), timing);
    let core = Arc::new(Core::new(
        Arc::clone(&profiles),
        queue,
        stores,
        Box::new(move |ns, name| pods.get(ns, name)),
        Arc::new(api),
    ));
    core.listen(&informers);
    let recorders: HashMap<_, _> = profiles
        .keys()
        .map(|name| (Arc::clone(name), Recorder::new(background.clone(), &tasks, &shutdown, name, &host)))
        .collect();
    let reporter = Arc::new(Reporter { core: Arc::clone(&core), tasks: tasks.clone(), recorders });
    let cycle = Cycle {
        core,
        reporter,
        tasks: tasks.clone(),
        cursor: Cursor { percentage: configuration.percentage_of_nodes_to_score, ..Cursor::default() },
        snapshot: Snapshot::default(),
    };

    let explainer = background.clone();
    let elect = settings.boolean("leaderElection.leaderElect");
    let late = settings.boolean("delayCacheUntilActive") && elect;
    if !late {
        factory.start();
    }
    let lead = async move |term: Shutdown| {
        factory.start();
        if factory.wait_synced().await {
            // Fails only when it is set already, and then it is the same.
            let _ = (source.core.set(Arc::clone(&cycle.core)), source.client.set(explainer));
            synced.store(true, Ordering::Release);
            shared::run::release_memory();
            tracing::info!("Caches are synced, scheduling");
            cycle.run(term.token().clone()).await;
        }
    };
    let result = if elect {
        let election = leader::Config {
            lease_name: settings.string("leaderElection.resourceName"),
            namespace: settings.string("leaderElection.resourceNamespace"),
            identity: leader::identity(&host),
            lease_duration: settings.duration("leaderElection.leaseDuration"),
            renew_deadline: settings.duration("leaderElection.renewDeadline"),
            retry_period: settings.duration("leaderElection.retryPeriod"),
        };
        match leader::run(background, election, shutdown.clone(), |token| lead(Shutdown::from(token))).await {
            Outcome::Lost => Err(anyhow::anyhow!("leaderelection lost")),
            Outcome::Shutdown | Outcome::Finished => Ok(()),
        }
    } else {
        lead(shutdown.clone()).await;
        Ok(())
    };
    shutdown.trigger();
    tasks.drain(DRAIN).await;
    result
}

async fn connect(flags: &FlagSet, settings: &Settings) -> anyhow::Result<Client> {
    #[allow(clippy::cast_possible_truncation, reason = "a rate of some hundreds")]
    let qps = settings.float("clientConnection.qps") as f32;
    shared::client::new(&shared::client::Options {
        kubeconfig: settings.string("clientConnection.kubeconfig"),
        master: flags.string("master"),
        qps: qps.max(0.0),
        burst: u32::try_from(settings.integer("clientConnection.burst")).unwrap_or(100),
        user_agent: shared::client::user_agent("kube-scheduler"),
    })
    .await
}

/// The secure port.
async fn serve(
    flags: &FlagSet,
    settings: &Settings,
    synced: &Arc<AtomicBool>,
    source: &Arc<explain::Source>,
    tasks: &TaskGroup,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let secure = SecureOptions::from_flags(flags)?;
    let Some(address) = secure.socket_address() else { return Ok(()) };
    let health = Health::new();
    health.add(&[Probe::Livez], "ping", || Ok(()));
    health.add(&[Probe::Healthz, Probe::Readyz], "leaderElection", || Ok(()));
    health.add_shutdown(shutdown);
    let synced = Arc::clone(synced);
    health.add(&[Probe::Readyz], "sched-handler-sync", move || {
        if synced.load(Ordering::Acquire) { Ok(()) } else { Err("waiting for handlers to sync".to_owned()) }
    });
    let tls = secure.tls(&[], &[])?;
    let source = Arc::clone(source);
    let gate = DelegatedOptions::from_flags(flags).await?.build(tasks, shutdown)?;
    let bound = Server::secure("kube-scheduler", address, tls)
        .listening(&secure)
        .access(gate.authenticator, gate.authorizer)
        .health(&health)
        .metrics()
        .configz(&Configz::default())
        .config("componentconfig", settings.0.clone())
        .flags(flags)
        .routes(move |config| {
            resources::routes(config, Arc::clone(&source));
            explain::routes(config, Arc::clone(&source));
        })
        .workers(1)
        .start(tasks, shutdown)?;
    tracing::info!(address = %bound, "Serving securely");
    Ok(())
}

#[cfg(test)]
mod chaos;
#[cfg(test)]
mod tests;
