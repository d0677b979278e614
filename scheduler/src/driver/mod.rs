//! The process: flags and configuration, the secure port, leader election, informers, and the scheduling loop. Answers
//! for upstream's `cmd/kube-scheduler/app` (`Run`).

mod api;
mod binding;
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
use parking_lot::Mutex;
use shared::client::{Fence, Throttle, Transport};
use shared::config::Settings;
use shared::events::Recorder;
use shared::flags::FlagSet;
use shared::informer::Factory;
use shared::leader::{self, Outcome};
use shared::run::{Shutdown, TaskGroup};
use shared::serve::{Configz, DelegatedOptions, Health, Probe, SecureOptions, Server, Unhealthy, hostname};

use self::api::KubeApi;
use self::core::Core;
use self::cycle::Cycle;
use self::extender::Objects;
use self::failure::Reporter;
use self::stores::Informers;
use crate::framework::{Configuration, Cursor, Features, Listers, Profile};
use crate::metrics;
use crate::model::Snapshot;
use crate::queue::{Profiles, SchedulingQueue, Timing};

/// Time that bindings have to finish at shutdown.
const DRAIN: Duration = Duration::from_secs(5);

/// Runs the scheduler until shutdown.
///
/// # Errors
/// Configuration that cannot be used, ports and files that cannot be opened, a lost lease.
pub async fn run(flags: FlagSet, shutdown: Shutdown) -> anyhow::Result<()> {
    let mut settings = shared::config::scheduler(&flags)?;
    let features = features(&flags);
    settings.0 = crate::settings::complete(&settings.0, features)?;
    let file = flags.string("write-config-to");
    if !file.is_empty() {
        return write_settings(&settings, &file);
    }
    crate::settings::validate(&settings.0, features)?;
    electable(&settings)?;
    let (configuration, profiles) = crate::settings::profiles(&settings.0, features)?;
    metrics::register();
    let tasks = TaskGroup::new();
    let host = hostname();
    let election = settings.boolean("leaderElection.leaderElect").then(|| election(&settings, &host));
    let fence = election.as_ref().map(leader::Config::fence);
    let clients = Clients::connect(&flags, &settings, fence.as_ref()).await?;
    let Clients { bindings: client, background, process, leases, explainer } = clients;

    let synced = Arc::new(AtomicBool::new(false));
    let source = Arc::new(explain::ExplainInputs::default());
    serve(&flags, &settings, &synced, &source, &tasks, &shutdown).await?;
    flags.warn_unread();
    flags.feature_gates().warn_idle();

    let factory = Factory::new(background.clone(), tasks.clone(), shutdown.clone());
    let extended = settings.get("extenders").and_then(|e| e.as_array()).is_some_and(|e| !e.is_empty());
    let informers = Informers::new(&factory, extended, features);
    let profiles = Arc::new(with_extenders(profiles, &settings, &informers, fence.as_ref())?);
    let recorder = |name: &Arc<str>| Recorder::new(background.clone(), &tasks, &shutdown, name, &host);
    let recorders: HashMap<Arc<str>, Recorder> =
        profiles.keys().map(|name| (Arc::clone(name), recorder(name))).collect();
    let timing = timing(&flags, &configuration, features);
    let core = core(profiles, timing, client, &informers, recorders.clone());
    core.listen(&informers);
    let bindings = TaskGroup::new();
    let cycle = Cycle {
        reporter: Arc::new(Reporter { core: Arc::clone(&core), tasks: bindings.clone(), recorders }),
        core,
        tasks: bindings.clone(),
        cursor: Cursor { percentage: configuration.percentage_of_nodes_to_score, ..Cursor::default() },
        snapshot: Snapshot::default(),
    };

    if !(election.is_some() && settings.boolean("delayCacheUntilActive")) {
        factory.start();
        // One that waits for the lease is ready as well: kubeadm and rollouts wait for that.
        synced.store(factory.wait_synced().await, Ordering::Release);
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
            // The lease is given back when this returns.
            bindings.drain(DRAIN).await;
        }
    };
    let outcome = if let Some(election) = election {
        // The first profile speaks for the process.
        let name = settings.get("profiles").and_then(|all| all[0]["schedulerName"].as_str());
        let events = Recorder::new(process, &tasks, &shutdown, name.unwrap_or("default-scheduler"), "");
        let lead = |token| lead(Shutdown::from(token));
        leader::run(leases, election, &events, shutdown.clone(), lead).await
    } else {
        lead(shutdown.clone()).await;
        Outcome::Finished
    };
    end(outcome, &tasks, &shutdown).await
}

/// Ends what still runs. Whoever has lost the lease has to be gone before another one may lead: nothing is waited for.
async fn end(outcome: Outcome, tasks: &TaskGroup, shutdown: &Shutdown) -> anyhow::Result<()> {
    shutdown.trigger();
    if matches!(outcome, Outcome::Lost) {
        return Err(anyhow::anyhow!("leaderelection lost"));
    }
    tasks.drain(DRAIN).await;
    Ok(())
}

fn features(flags: &FlagSet) -> Features {
    Features {
        consumable_capacity: flags.enabled("DRAConsumableCapacity"),
        device_taints: flags.enabled("DRADeviceTaints"),
        gangs: flags.enabled("GenericWorkload") && flags.enabled("GangScheduling"),
        comparisons: flags.enabled(shared::placement::COMPARES),
        taint_rules: flags.enabled("DRADeviceTaints") && flags.enabled("DRADeviceTaintRules"),
        partitions: flags.enabled("DRAPartitionableDevices"),
        bindings: flags.enabled("DRADeviceBindingConditions") && flags.enabled("DRAResourceClaimDeviceStatus"),
        capacity_scores: flags.enabled("StorageCapacityScoring"),
        extended_resources: flags.enabled("DRAExtendedResource"),
        declared_features: flags.enabled(shared::declared_features::GATE),
        volume_limit_scaling: flags.enabled("VolumeLimitScaling"),
        admin_access: flags.enabled("DRAAdminAccess"),
        prioritized_list: flags.enabled("DRAPrioritizedList"),
        filter_timeout: flags.enabled("DRASchedulerFilterTimeout"),
        match_label_keys: flags.enabled("MatchLabelKeysInPodTopologySpread"),
        announces: flags.enabled("NominatedNodeNameForExpectation"),
        pops_from_backoff: flags.enabled("SchedulerPopFromBackoffQ"),
        volume_attributes: flags.enabled("VolumeAttributesClass"),
    }
}

/// `--write-config-to`
fn write_settings(settings: &Settings, file: &str) -> anyhow::Result<()> {
    let text = proto::yaml::encode_any(&settings.0).context("encoding the configuration")?;
    std::fs::write(file, text).with_context(|| format!("writing {file}"))?;
    tracing::info!(file, "Wrote configuration");
    Ok(())
}

fn timing(flags: &FlagSet, configuration: &Configuration, features: Features) -> Timing {
    Timing {
        initial: Duration::from_secs(configuration.pod_initial_backoff_seconds),
        max: Duration::from_secs(configuration.pod_max_backoff_seconds),
        stale: flags.duration("pod-max-in-unschedulable-pods-duration"),
        pops_from_backoff: features.pops_from_backoff,
    }
}

/// The profiles by name, each with all extenders.
fn with_extenders(
    profiles: Vec<Profile>,
    settings: &Settings,
    informers: &Informers,
    fence: Option<&Fence>,
) -> anyhow::Result<Profiles> {
    let objects = Objects {
        pods: informers.whole_pods.as_ref().map(|i| i.store()).unwrap_or_default(),
        nodes: informers.whole_nodes.as_ref().map(|i| i.store()).unwrap_or_default(),
    };
    let extenders = extender::extenders(&settings.0, &objects, fence)?;
    let extended = profiles.into_iter().map(|mut profile| {
        profile.extenders = extenders.clone();
        (Arc::clone(&profile.name), Arc::new(profile))
    });
    Ok(extended.collect())
}

fn core(
    profiles: Arc<Profiles>,
    timing: Timing,
    client: Client,
    informers: &Informers,
    recorders: HashMap<Arc<str>, Recorder>,
) -> Arc<Core> {
    let (stores, pods) = (Arc::new(informers.stores()), informers.pods.store());
    let api = KubeApi {
        client,
        claims: stores.claims.clone(),
        volumes: stores.volumes.clone(),
        nodes: informers.nodes.store(),
        csi_nodes: informers.csi_nodes.store(),
        pods: pods.clone(),
        written: Mutex::default(),
        recorders,
    };
    let listers: Arc<dyn Listers> = stores.clone();
    let queue = SchedulingQueue::new(Arc::clone(&profiles), timing).with_listers(listers);
    Arc::new(Core::new(profiles, queue, stores, Box::new(move |ns, name| pods.get(ns, name)), Arc::new(api)))
}

/// Refuses times with which nobody could lead.
fn electable(settings: &Settings) -> anyhow::Result<()> {
    if !settings.boolean("leaderElection.leaderElect") {
        return Ok(());
    }
    let [lease, renew, retry] =
        ["leaseDuration", "renewDeadline", "retryPeriod"].map(|n| settings.duration(&format!("leaderElection.{n}")));
    match leader::refused(lease, renew, retry) {
        Some(why) => Err(anyhow::anyhow!("couldn't create leader elector: {why}")),
        None => Ok(()),
    }
}

fn election(settings: &Settings, host: &str) -> leader::Config {
    leader::Config {
        lease_name: settings.string("leaderElection.resourceName"),
        namespace: settings.string("leaderElection.resourceNamespace"),
        identity: leader::identity(host),
        lease_duration: settings.duration("leaderElection.leaseDuration"),
        renew_deadline: settings.duration("leaderElection.renewDeadline"),
        retry_period: settings.duration("leaderElection.retryPeriod"),
        renewed: leader::Renewed::default(),
    }
}

/// Clients with limits of their own: watches and events must not wait behind bindings, nor renewals of the lease behind
/// anything. What is written for the cluster passes the fence of the lease.
struct Clients {
    bindings: Client,
    background: Client,
    /// For what a candidate has to say of itself, and who leads no more.
    process: Client,
    leases: Client,
    /// For questions that come over the secure port.
    explainer: Client,
}

impl Clients {
    async fn connect(flags: &FlagSet, settings: &Settings, fence: Option<&Fence>) -> anyhow::Result<Self> {
        let background = connect(flags, settings).await?;
        Ok(Self {
            bindings: connect(flags, settings).await?.behind(fence).client(),
            process: background.client(),
            background: background.behind(fence).client(),
            leases: connect(flags, settings).await?.client(),
            explainer: connect(flags, settings).await?.behind(fence).client(),
        })
    }
}

async fn connect(flags: &FlagSet, settings: &Settings) -> anyhow::Result<Transport> {
    #[allow(clippy::cast_possible_truncation, reason = "a rate of some hundreds")]
    let qps = settings.float("clientConnection.qps") as f32;
    let options = shared::client::Options {
        kubeconfig: settings.string("clientConnection.kubeconfig"),
        master: flags.string("master"),
        qps: qps.max(0.0),
        burst: u32::try_from(settings.integer("clientConnection.burst")).unwrap_or(100),
        user_agent: shared::client::user_agent("kube-scheduler"),
    };
    let config = shared::client::config(&options).await?;
    let throttle = Throttle::new(options.qps, options.burst);
    shared::client::transport(&config, &throttle).context("client configuration")
}

/// The secure port.
async fn serve(
    flags: &FlagSet,
    settings: &Settings,
    synced: &Arc<AtomicBool>,
    source: &Arc<explain::ExplainInputs>,
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
        if synced.load(Ordering::Acquire) { Ok(()) } else { Err(Unhealthy::new("waiting for handlers to sync")) }
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
