//! `/healthz`, `/livez`, `/readyz` and the checks below them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shared::flags::FlagSet;

use crate::bootstrap::{Progress, StorageVersions, storage_versions};
use crate::election;
use crate::storage::Store;
use crate::storage::transform::Loaded;
use crate::verbs::query::Query;

/// Which of the three was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/healthz`
    Healthz,
    /// `/livez`
    Livez,
    /// `/readyz`
    Readyz,
}

impl Endpoint {
    fn name(self) -> &'static str {
        match self {
            Self::Healthz => "healthz",
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }
}

/// What must have happened before the server is ready.
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
pub struct Health {
    /// etcd.
    pub store: Store,
    /// What happened so far.
    pub milestones: Arc<Milestones>,
    /// Objects made at start.
    pub bootstrap: Arc<Progress>,
    /// What this server stores resources as is written down, where that is asked for.
    pub versions: Option<Arc<StorageVersions>>,
    /// How the checks went.
    pub results: Results,
    /// Whether this server takes part in elections.
    pub elections: bool,
    /// Encryption at rest, with the services it asks.
    pub encryption: Option<Loaded>,
    /// How long etcd may take to answer the checks `etcd` and `etcd-readiness`.
    pub etcd_timeouts: (Duration, Duration),
    /// What is not yet held against a server that starts.
    pub patience: Patience,
}

/// How long a server may take to start.
#[derive(Debug)]
pub struct Patience {
    started: Instant,
    /// `--livez-grace-period`: until then, what has yet to be done at start does not count against being alive.
    alive: Duration,
    /// `--storage-initialization-timeout`: until then caches are waited for, where the feature gate says so.
    caches: Option<Duration>,
}

impl Patience {
    /// From the flags; time runs from now on.
    pub fn from_flags(flags: &FlagSet) -> Self {
        let timeout = flags.duration("storage-initialization-timeout");
        Self {
            started: Instant::now(),
            alive: flags.duration("livez-grace-period"),
            caches: flags.enabled("WatchCacheInitializationPostStartHook").then_some(timeout),
        }
    }

    /// Whether a check of what is done at start does not count yet.
    fn spares(&self, check: &str, endpoint: Endpoint) -> bool {
        let at_start = check.starts_with("poststarthook/") || check == "autoregister-completion";
        endpoint == Endpoint::Livez && at_start && self.started.elapsed() <= self.alive
    }
}

/// How often each check of each endpoint passed and failed, and how it went last.
#[derive(Debug, Default)]
pub struct Results(Mutex<BTreeMap<(String, &'static str), Tally>>);

/// Passed, failed, and whether it passed last.
type Tally = (u64, u64, bool);

impl Results {
    fn note(&self, check: &str, endpoint: Endpoint, passed: bool) {
        let mut all = self.0.lock();
        let (good, bad, last) = all.entry((check.to_owned(), endpoint.name())).or_default();
        *(if passed { good } else { bad }) += 1;
        *last = passed;
    }

    fn reset(&self) {
        self.0.lock().clear();
    }

    fn text(&self) -> String {
        let (mut gauges, mut counters) = (String::new(), String::new());
        for ((name, kind), (good, bad, last)) in self.0.lock().iter() {
            let _ = writeln!(gauges, "kubernetes_healthcheck{{name=\"{name}\",type=\"{kind}\"}} {}", u8::from(*last));
            for (status, count) in [("error", bad), ("success", good)].into_iter().filter(|(_, n)| **n > 0) {
                let labels = format!("name=\"{name}\",status=\"{status}\",type=\"{kind}\"");
                let _ = writeln!(counters, "kubernetes_healthchecks_total{{{labels}}} {count}");
            }
        }
        let process = shared::metrics::start_time_family();
        format!(
            "# HELP kubernetes_healthcheck [STABLE] This metric records the result of a single healthcheck.\n\
             # TYPE kubernetes_healthcheck gauge\n{gauges}\
             # HELP kubernetes_healthchecks_total [STABLE] This metric records the results of all healthcheck.\n\
             # TYPE kubernetes_healthchecks_total counter\n{counters}{process}"
        )
    }
}

fn hook_name(hook: &str) -> String {
    if hook == "autoregister-completion" { hook.to_owned() } else { format!("poststarthook/{hook}") }
}

fn done(flag: &AtomicBool) -> Result<(), String> {
    if flag.load(Ordering::Acquire) { Ok(()) } else { Err("not finished".to_owned()) }
}

impl Health {
    /// The paths of all checks.
    pub fn paths(&self) -> Vec<String> {
        let all = [Endpoint::Healthz, Endpoint::Livez, Endpoint::Readyz];
        all.iter().flat_map(|e| self.names(*e).into_iter().map(|n| format!("/{}/{n}", e.name()))).collect()
    }

    fn has(&self, hook: &str) -> bool {
        match hook {
            election::HOOK => self.elections,
            ROLES => self.bootstrap.hooks().contains(&hook_name(ROLES).as_str()),
            _ => true,
        }
    }

    fn names(&self, endpoint: Endpoint) -> Vec<String> {
        let mut names: Vec<String> = ["ping", "log", "etcd"].map(str::to_owned).into();
        if endpoint == Endpoint::Readyz {
            names.extend(["etcd-readiness", "informer-sync"].map(str::to_owned));
        }
        names.extend(self.encryption.iter().flat_map(Loaded::checks));
        names.extend(HOOKS.iter().filter(|hook| self.has(hook)).map(|hook| hook_name(hook)));
        names.extend(self.versions.as_ref().map(|_| storage_versions::HOOK.to_owned()));
        names.extend(self.patience.caches.map(|_| STORAGE_READINESS.to_owned()));
        if endpoint == Endpoint::Readyz {
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

    async fn check(&self, name: &str, endpoint: Endpoint) -> Result<(), String> {
        let spared = self.patience.spares(name, endpoint);
        let outcome = if spared { Ok(()) } else { self.ask(name).await };
        self.results.note(name, endpoint, outcome.is_ok());
        outcome
    }

    async fn ask(&self, name: &str) -> Result<(), String> {
        let m = &self.milestones;
        match name {
            "etcd" | "etcd-readiness" => {
                let patience = if name == "etcd" { self.etcd_timeouts.0 } else { self.etcd_timeouts.1 };
                match tokio::time::timeout(patience, self.store.revision()).await {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(e)) => Err(e.to_string()),
                    Err(_) => Err("error getting data from etcd: context deadline exceeded".to_owned()),
                }
            }
            "informer-sync" => done(&m.synced),
            STORAGE_READINESS if self.patience.caches.is_some_and(|limit| self.patience.started.elapsed() > limit) => {
                Ok(())
            }
            STORAGE_READINESS => done(&m.synced),
            kms if kms.starts_with("kms-provider") => self.encryption.as_ref().map_or(Ok(()), |e| e.check(kms)),
            "shutdown" if m.stopping.load(Ordering::Acquire) => Err("process is shutting down".to_owned()),
            "poststarthook/start-system-namespaces-controller" => done(&m.namespaces),
            "poststarthook/bootstrap-controller" => done(&m.service),
            "poststarthook/start-service-ip-repair-controllers" => done(&m.addresses).and_then(|()| done(&m.ports)),
            "poststarthook/start-kubernetes-service-cidr-controller" => done(&m.cidr),
            "poststarthook/priority-and-fairness-config-consumer" => done(&m.flow),
            "autoregister-completion" => done(&m.registered),
            storage_versions::HOOK if self.versions.as_ref().is_some_and(|versions| !versions.is_complete()) => {
                Err("not finished".to_owned())
            }
            n if self.bootstrap.hooks().contains(&n) => self.bootstrap.check(n),
            _ => Ok(()),
        }
    }

    /// Code and text of an answer; `None` for a check that does not exist.
    pub async fn answer(&self, endpoint: Endpoint, only: Option<&str>, query: &Query) -> Option<(u16, String)> {
        let names = self.names(endpoint);
        if let Some(only) = only {
            let name = names.iter().find(|n| *n == only)?;
            return Some(match self.check(name, endpoint).await {
                Ok(()) => (200, "ok".to_owned()),
                Err(e) => (500, format!("internal server error: {e}\n")),
            });
        }
        let excluded = query.all("exclude");
        let (mut text, mut failed) = (String::new(), Vec::new());
        for name in &names {
            if excluded.contains(name) {
                text.push_str(&format!("[+]{name} excluded: ok\n"));
                continue;
            }
            match self.check(name, endpoint).await {
                Ok(()) => text.push_str(&format!("[+]{name} ok\n")),
                Err(e) => {
                    tracing::debug!(check = name, error = e, "health check failed");
                    text.push_str(&format!("[-]{name} failed: reason withheld\n"));
                    failed.push(name.clone());
                }
            }
        }
        text.push_str(&not_excluded(&excluded, &names));
        let path = endpoint.name();
        if !failed.is_empty() {
            return Some((500, format!("{text}{path} check failed\n")));
        }
        Some((
            200,
            if query.get("verbose").is_some() { format!("{text}{path} check passed\n") } else { "ok".to_owned() },
        ))
    }
}

/// What is said of checks that nobody makes and that were to be left out.
fn not_excluded(excluded: &[String], names: &[String]) -> String {
    let unknown: BTreeSet<&String> = excluded.iter().filter(|e| !names.contains(e)).collect();
    if unknown.is_empty() {
        return String::new();
    }
    let list: Vec<String> = unknown.into_iter().map(|e| shared::status::go_quote(e)).collect();
    format!("warn: some health checks cannot be excluded: no matches for {}\n", list.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_yet_to_be_done_at_start() {
        let hook = "poststarthook/start-system-namespaces-controller";
        for (flags, check, endpoint, want) in [
            (&[][..], hook, Endpoint::Livez, false),
            (&["--livez-grace-period=1h"], hook, Endpoint::Livez, true),
            (&["--livez-grace-period=1h"], "autoregister-completion", Endpoint::Livez, true),
            (&["--livez-grace-period=1h"], hook, Endpoint::Readyz, false),
            (&["--livez-grace-period=1h"], "etcd", Endpoint::Livez, false),
        ] {
            let patience = Patience::from_flags(&FlagSet::of("kube-apiserver", flags).expect("flags"));
            assert_eq!(patience.spares(check, endpoint), want, "{flags:?} {check}");
        }
    }

    #[test]
    fn what_cannot_be_left_out() {
        let names = ["ping".to_owned(), "etcd".to_owned()];
        let of =
            |excluded: &[&str]| not_excluded(&excluded.iter().map(|e| (*e).to_owned()).collect::<Vec<_>>(), &names);
        assert_eq!(of(&["ping"]), "");
        let warning = "warn: some health checks cannot be excluded: no matches for";
        assert_eq!(of(&["nope", "ping", "a\"b", "nope"]), format!("{warning} \"a\\\"b\", \"nope\"\n"));
    }
}
