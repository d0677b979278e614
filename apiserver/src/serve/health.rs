//! `/healthz`, `/livez`, `/readyz` and the checks below them. Answers for upstream's `pkg/server/healthz`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shared::flags::FlagSet;
use shared::serve::{HealthResponse, Probe, Report, Tally, Unhealthy, slis};

use crate::bootstrap::{HookProgress, StorageVersions, storage_versions};
use crate::election;
use crate::machinery::query::Query;
use crate::storage::Store;
use crate::storage::transform::Loaded;

/// Post-start steps that precede readiness.
#[derive(Debug, Default)]
pub struct Milestones {
    /// Caches the policies read are filled.
    pub synced: AtomicBool,
    /// System namespaces exist.
    pub namespaces: AtomicBool,
    /// The `kubernetes` service exists.
    pub service: AtomicBool,
    /// The default ServiceCIDR exists.
    pub cidr: AtomicBool,
    /// Cluster addresses are taken by the services that have them.
    pub addresses: AtomicBool,
    /// So are node ports.
    pub ports: AtomicBool,
    /// Flow control has its first configuration.
    pub flow: AtomicBool,
    /// The API services of what is answered here exist.
    pub registered: AtomicBool,
    /// The server is going down.
    pub stopping: AtomicBool,
}

const ROLES: &str = "rbac/bootstrap-roles";

/// Hooks that are done once the server listens: upstream's names, in its order. Those with a milestone or a bootstrap
/// task behind them are asked.
const HOOKS: [&str; 30] = [
    "start-apiserver-admission-initializer",
    "generic-apiserver-start-informers",
    "priority-and-fairness-config-consumer",
    "priority-and-fairness-filter",
    "storage-object-count-tracker-hook",
    "start-apiextensions-informers",
    "start-apiextensions-controllers",
    "crd-informer-synced",
    "start-system-namespaces-controller",
    election::HOOK,
    "start-cluster-authentication-info-controller",
    "start-kube-apiserver-identity-lease-controller",
    "start-kube-apiserver-identity-lease-garbage-collector",
    "start-legacy-token-tracking-controller",
    "start-service-ip-repair-controllers",
    ROLES,
    "scheduling/bootstrap-system-priority-classes",
    "priority-and-fairness-config-producer",
    "bootstrap-controller",
    "start-kubernetes-service-cidr-controller",
    "aggregator-reload-proxy-client-cert",
    "start-kube-aggregator-informers",
    "apiservice-status-local-available-controller",
    "apiservice-status-remote-available-controller",
    "apiservice-registration-controller",
    "apiservice-discovery-controller",
    "kube-apiserver-autoregistration",
    "autoregister-completion",
    "apiservice-openapi-controller",
    "apiservice-openapiv3-controller",
];

/// The check of the caches, behind its feature gate.
const STORAGE_READINESS: &str = "poststarthook/storage-readiness";

/// The checks.
pub struct HealthChecks {
    /// etcd.
    pub store: Store,
    /// Steps done so far.
    pub milestones: Arc<Milestones>,
    /// Objects made at start.
    pub bootstrap: Arc<HookProgress>,
    /// Storage versions this server has yet to publish, with the feature gate.
    pub versions: Option<Arc<StorageVersions>>,
    /// Results of the checks.
    pub results: Results,
    /// The server takes part in coordinated leader election.
    pub elections: bool,
    /// Encryption at rest, with the services it asks.
    pub encryption: Option<Loaded>,
    /// Timeouts of the checks `etcd` and `etcd-readiness`.
    pub etcd_timeouts: (Duration, Duration),
    /// Grace period of checks after start.
    pub grace: StartGracePeriods,
}

/// Time limits of the start.
#[derive(Debug)]
pub struct StartGracePeriods {
    started: Instant,
    /// `--livez-grace-period`: until then, what has yet to be done at start does not count against being alive.
    alive: Duration,
    /// `--storage-initialization-timeout`: until then caches are waited for, where the feature gate says so.
    caches: Option<Duration>,
}

impl StartGracePeriods {
    /// From the flags; time runs from now on.
    pub fn from_flags(flags: &FlagSet) -> Self {
        let timeout = flags.duration("storage-initialization-timeout");
        Self {
            started: Instant::now(),
            alive: flags.duration("livez-grace-period"),
            caches: flags.enabled("WatchCacheInitializationPostStartHook").then_some(timeout),
        }
    }

    /// Reports whether a check of a post-start step is ignored while the server starts.
    fn ignores(&self, check: &str, probe: Probe) -> bool {
        let at_start = check.starts_with("poststarthook/") || check == "autoregister-completion";
        probe == Probe::Livez && at_start && self.started.elapsed() <= self.alive
    }
}

/// Results of the checks of each probe.
#[derive(Debug, Default)]
pub struct Results(Mutex<BTreeMap<(String, Probe), Tally>>);

impl Results {
    fn record(&self, check: &str, probe: Probe, passed: bool) {
        self.0.lock().entry((check.to_owned(), probe)).or_default().note(passed);
    }

    fn reset(&self) {
        self.0.lock().clear();
    }

    fn text(&self) -> String {
        slis(self.0.lock().iter().map(|((check, probe), tally)| (check.as_str(), *probe, *tally)))
    }
}

fn hook_name(hook: &str) -> String {
    if hook == "autoregister-completion" { hook.to_owned() } else { format!("poststarthook/{hook}") }
}

fn check_done(flag: &AtomicBool) -> Result<(), Unhealthy> {
    if flag.load(Ordering::Acquire) { Ok(()) } else { Err(Unhealthy::new("not finished")) }
}

impl HealthChecks {
    /// The paths of all checks.
    pub fn paths(&self) -> Vec<String> {
        Probe::ALL.iter().flat_map(|p| self.names(*p).into_iter().map(|n| format!("/{}/{n}", p.word()))).collect()
    }

    fn has(&self, hook: &str) -> bool {
        match hook {
            election::HOOK => self.elections,
            ROLES => self.bootstrap.hooks().contains(&hook_name(ROLES).as_str()),
            _ => true,
        }
    }

    fn names(&self, probe: Probe) -> Vec<String> {
        let mut names: Vec<String> = ["ping", "log", "etcd"].map(str::to_owned).into();
        if probe == Probe::Readyz {
            names.extend(["etcd-readiness", "informer-sync"].map(str::to_owned));
        }
        names.extend(self.encryption.iter().flat_map(Loaded::checks));
        names.extend(HOOKS.iter().filter(|hook| self.has(hook)).map(|hook| hook_name(hook)));
        names.extend(self.versions.as_ref().map(|_| storage_versions::HOOK.to_owned()));
        names.extend(self.grace.caches.map(|_| STORAGE_READINESS.to_owned()));
        if probe == Probe::Readyz {
            names.push("shutdown".to_owned());
        }
        names
    }

    /// `/metrics/slis`
    pub fn slis(&self) -> String {
        self.results.text()
    }

    /// Forgets how checks went.
    pub fn reset(&self) {
        self.results.reset();
    }

    async fn check(&self, name: &str, probe: Probe) -> Result<(), Unhealthy> {
        let spared = self.grace.ignores(name, probe);
        let outcome = if spared { Ok(()) } else { self.run_check(name).await };
        self.results.record(name, probe, outcome.is_ok());
        outcome
    }

    async fn run_check(&self, name: &str) -> Result<(), Unhealthy> {
        let m = &self.milestones;
        match name {
            "etcd" | "etcd-readiness" => {
                let patience = if name == "etcd" { self.etcd_timeouts.0 } else { self.etcd_timeouts.1 };
                match tokio::time::timeout(patience, self.store.revision()).await {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(e)) => Err(Unhealthy::new(e)),
                    Err(_) => Err(Unhealthy::new("error getting data from etcd: context deadline exceeded")),
                }
            }
            "informer-sync" => check_done(&m.synced),
            STORAGE_READINESS if self.grace.caches.is_some_and(|limit| self.grace.started.elapsed() > limit) => Ok(()),
            STORAGE_READINESS => check_done(&m.synced),
            kms if kms.starts_with("kms-provider") => {
                self.encryption.as_ref().map_or(Ok(()), |e| e.check(kms)).map_err(Unhealthy::new)
            }
            "shutdown" if m.stopping.load(Ordering::Acquire) => Err(Unhealthy::new("process is shutting down")),
            "poststarthook/start-system-namespaces-controller" => check_done(&m.namespaces),
            "poststarthook/bootstrap-controller" => check_done(&m.service),
            "poststarthook/start-service-ip-repair-controllers" => {
                check_done(&m.addresses).and_then(|()| check_done(&m.ports))
            }
            "poststarthook/start-kubernetes-service-cidr-controller" => check_done(&m.cidr),
            "poststarthook/priority-and-fairness-config-consumer" => check_done(&m.flow),
            "autoregister-completion" => check_done(&m.registered),
            storage_versions::HOOK if self.versions.as_ref().is_some_and(|versions| !versions.is_complete()) => {
                Err(Unhealthy::new("not finished"))
            }
            n if self.bootstrap.hooks().contains(&n) => self.bootstrap.check(n).map_err(Unhealthy::new),
            _ => Ok(()),
        }
    }

    /// An answer; `None` for a check that does not exist.
    pub async fn answer(&self, probe: Probe, only: Option<&str>, query: &Query) -> Option<HealthResponse> {
        let names = self.names(probe);
        if let Some(only) = only {
            let name = names.iter().find(|n| *n == only)?;
            return Some(HealthResponse::of_one(self.check(name, probe).await));
        }
        let mut report = Report::new(query.all("exclude"));
        for name in &names {
            if !report.leaves_out(name) {
                report.note(name, self.check(name, probe).await);
            }
        }
        Some(report.answer(probe, query.get("verbose").is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_post_start_hooks_fail_their_checks() {
        let hook = "poststarthook/start-system-namespaces-controller";
        for (flags, check, probe, want) in [
            (&[][..], hook, Probe::Livez, false),
            (&["--livez-grace-period=1h"], hook, Probe::Livez, true),
            (&["--livez-grace-period=1h"], "autoregister-completion", Probe::Livez, true),
            (&["--livez-grace-period=1h"], hook, Probe::Readyz, false),
            (&["--livez-grace-period=1h"], "etcd", Probe::Livez, false),
        ] {
            let patience = StartGracePeriods::from_flags(&FlagSet::of("kube-apiserver", flags).expect("flags"));
            assert_eq!(patience.ignores(check, probe), want, "{flags:?} {check}");
        }
    }
}
