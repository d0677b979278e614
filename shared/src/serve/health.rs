//! `/healthz`, `/livez`, `/readyz`: named checks and upstream's texts for them. Knows no HTTP server.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::run::Shutdown;
use crate::status::go_quote;

/// One of the three questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Probe {
    /// `/healthz`
    Healthz,
    /// `/livez`
    Livez,
    /// `/readyz`
    Readyz,
}

impl Probe {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Healthz, Self::Livez, Self::Readyz];

    /// The word in paths and texts.
    pub fn word(self) -> &'static str {
        match self {
            Self::Healthz => "healthz",
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }
}

/// Failed check, with the reason that goes into the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Unhealthy {
    reason: String,
}

impl Unhealthy {
    /// Fails a check for a reason.
    pub fn new(reason: impl std::fmt::Display) -> Self {
        Self { reason: reason.to_string() }
    }
}

type Ask = Arc<dyn Fn() -> Result<(), Unhealthy> + Send + Sync>;

/// Counts of a check's results, and the last one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    good: u64,
    bad: u64,
    passed: bool,
}

impl Tally {
    /// Counts one more time.
    pub fn note(&mut self, passed: bool) {
        *(if passed { &mut self.good } else { &mut self.bad }) += 1;
        self.passed = passed;
    }
}

/// The families of `/metrics/slis`, of checks by name and probe; what was never made is left out.
pub fn slis<'a>(all: impl IntoIterator<Item = (&'a str, Probe, Tally)>) -> String {
    let (mut gauges, mut counters) = (String::new(), String::new());
    for (name, probe, Tally { good, bad, passed }) in all.into_iter().filter(|(.., t)| t.good + t.bad > 0) {
        let (word, last) = (probe.word(), u8::from(passed));
        let _ = writeln!(gauges, "kubernetes_healthcheck{{name=\"{name}\",type=\"{word}\"}} {last}");
        for (status, count) in [("error", bad), ("success", good)].into_iter().filter(|(_, n)| *n > 0) {
            let labels = format!("name=\"{name}\",status=\"{status}\",type=\"{word}\"");
            let _ = writeln!(counters, "kubernetes_healthchecks_total{{{labels}}} {count}");
        }
    }
    format!(
        "# HELP kubernetes_healthcheck [STABLE] This metric records the result of a single healthcheck.\n\
         # TYPE kubernetes_healthcheck gauge\n{gauges}\
         # HELP kubernetes_healthchecks_total [STABLE] This metric records the results of all healthcheck.\n\
         # TYPE kubernetes_healthchecks_total counter\n{counters}{}",
        crate::metrics::start_time_family()
    )
}

struct Check {
    name: String,
    ask: Ask,
    tally: Mutex<Tally>,
}

impl Check {
    fn run(&self) -> Result<(), Unhealthy> {
        let answer = (self.ask)();
        self.tally.lock().note(answer.is_ok());
        answer
    }
}

#[derive(Default)]
struct CheckLists {
    /// `None`: the path is not served.
    checks: [RwLock<Option<Vec<Arc<Check>>>>; 3],
}

/// The checks of a process. Cheap to clone; checks may be added at any time.
#[derive(Clone, Default)]
pub struct Health(Arc<CheckLists>);

/// A response: code and body, always plain text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthResponse {
    /// HTTP code.
    pub code: u16,
    /// Body.
    pub body: String,
}

impl HealthResponse {
    /// Of one check that was asked for by name.
    pub fn of_one(outcome: Result<(), Unhealthy>) -> Self {
        match outcome {
            Ok(()) => Self { code: 200, body: "ok".to_owned() },
            Err(why) => Self { code: 500, body: format!("internal server error: {why}\n") },
        }
    }
}

impl Health {
    /// Serves nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// All three paths, each with `ping`.
    #[cfg(test)]
    pub(crate) fn with_ping() -> Self {
        let health = Self::new();
        health.add(&Probe::ALL, "ping", || Ok(()));
        health
    }

    /// Adds a check to some of the paths. It must answer at once: whoever needs I/O keeps a result ready.
    pub fn add(&self, probes: &[Probe], name: &str, check: impl Fn() -> Result<(), Unhealthy> + Send + Sync + 'static) {
        let ask: Ask = Arc::new(check);
        for probe in probes {
            let check = Check { name: name.to_owned(), ask: Arc::clone(&ask), tally: Mutex::default() };
            self.0.checks[*probe as usize].write().get_or_insert_default().push(Arc::new(check));
        }
    }

    /// Readiness ends where the shutdown begins.
    pub fn add_shutdown(&self, shutdown: &Shutdown) {
        let shutdown = shutdown.clone();
        self.add(&[Probe::Readyz], "shutdown", move || {
            if shutdown.is_triggered() { Err(Unhealthy::new("process is shutting down")) } else { Ok(()) }
        });
    }

    /// Answers a path such as `/readyz` or `/livez/etcd` with its query; `None` when it is not served.
    pub fn answer(&self, path: &str, query: &str) -> Option<HealthResponse> {
        let rest = path.strip_prefix('/')?;
        let (word, name) = rest.split_once('/').map_or((rest, None), |(word, name)| (word, Some(name)));
        let probe = Probe::ALL.into_iter().find(|p| p.word() == word)?;
        let checks = self.0.checks[probe as usize].read().clone()?;
        let Some(name) = name else { return Some(answer_all(probe, &checks, query)) };
        let check = checks.iter().find(|c| c.name == name)?;
        Some(HealthResponse::of_one(check.run()))
    }

    /// Forgets how checks went.
    pub(super) fn reset(&self) {
        for probe in Probe::ALL {
            for check in self.0.checks[probe as usize].read().iter().flatten() {
                *check.tally.lock() = Tally::default();
            }
        }
    }

    /// The `/metrics/slis` families.
    pub fn metrics(&self) -> String {
        let all = Probe::ALL.map(|probe| (probe, self.0.checks[probe as usize].read().clone().unwrap_or_default()));
        slis(all.iter().flat_map(|(probe, checks)| checks.iter().map(|c| (c.name.as_str(), *probe, *c.tally.lock()))))
    }
}

fn answer_all(probe: Probe, checks: &[Arc<Check>], query: &str) -> HealthResponse {
    let params: Vec<(String, String)> = parameters(query);
    let verbose = params.iter().any(|(k, _)| k == "verbose");
    let mut report = Report::new(params.into_iter().filter(|(k, _)| k == "exclude").map(|(_, v)| v));
    for check in checks {
        if !report.leaves_out(&check.name) {
            report.note(&check.name, check.run());
        }
    }
    report.answer(probe, verbose)
}

/// Report of a probe's checks, made one after the other.
#[derive(Debug)]
pub struct Report {
    /// Excluded checks, each with whether it exists.
    excluded: BTreeMap<String, bool>,
    text: String,
    failed: Vec<String>,
}

impl Report {
    /// Of all checks but those excluded.
    pub fn new(excluded: impl IntoIterator<Item = String>) -> Self {
        let excluded = excluded.into_iter().map(|name| (name, false)).collect();
        Self { excluded, text: String::new(), failed: Vec::new() }
    }

    /// Reports whether a check is excluded.
    pub fn leaves_out(&mut self, name: &str) -> bool {
        let Some(found) = self.excluded.get_mut(name) else { return false };
        *found = true;
        let _ = writeln!(self.text, "[+]{name} excluded: ok");
        true
    }

    /// Adds the result of a check. The reason of a failure stays in the log: anybody may ask for health.
    pub fn note(&mut self, name: &str, outcome: Result<(), Unhealthy>) {
        let said = if outcome.is_ok() { format!("[+]{name} ok") } else { format!("[-]{name} failed: reason withheld") };
        let _ = writeln!(self.text, "{said}");
        self.failed.extend(outcome.err().map(|why| format!("{name}: {why}")));
    }

    /// Builds the response.
    pub fn answer(self, probe: Probe, verbose: bool) -> HealthResponse {
        let (mut text, word) = (self.text, probe.word());
        let unknown: Vec<String> =
            self.excluded.iter().filter(|(_, found)| !**found).map(|(n, _)| go_quote(n)).collect();
        if !unknown.is_empty() {
            let unknown = unknown.join(", ");
            let _ = writeln!(text, "warn: some health checks cannot be excluded: no matches for {unknown}");
        }
        if !self.failed.is_empty() {
            tracing::info!(probe = word, failed = self.failed.join(","), "Health check failed");
            return HealthResponse { code: 500, body: format!("{text}{word} check failed\n") };
        }
        HealthResponse {
            code: 200,
            body: if verbose { format!("{text}{word} check passed\n") } else { "ok".to_owned() },
        }
    }
}

/// The pairs of a query.
pub(super) fn parameters(query: &str) -> Vec<(String, String)> {
    actix_web::web::Query::<Vec<(String, String)>>::from_query(query).map(|q| q.into_inner()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(health: &Health, path: &str, query: &str) -> (u16, String) {
        let answer = health.answer(path, query).expect("served");
        (answer.code, answer.body)
    }

    #[test]
    fn upstreams_texts() {
        let health = Health::with_ping();
        health.add(&[Probe::Livez, Probe::Readyz], "etcd", || Ok(()));
        health.add(&[Probe::Readyz], "informer-sync", || Err(Unhealthy::new("2 informers not started")));
        let table = [
            ("/healthz", "", 200, "ok"),
            ("/healthz", "verbose", 200, "[+]ping ok\nhealthz check passed\n"),
            ("/livez", "verbose=1&exclude=etcd", 200, "[+]ping ok\n[+]etcd excluded: ok\nlivez check passed\n"),
            (
                "/readyz",
                "",
                500,
                "[+]ping ok\n[+]etcd ok\n[-]informer-sync failed: reason withheld\nreadyz check failed\n",
            ),
            ("/readyz", "exclude=informer-sync", 200, "ok"),
            (
                "/livez",
                "verbose&exclude=b&exclude=a%22&exclude=b",
                200,
                "[+]ping ok\n[+]etcd ok\nwarn: some health checks cannot be excluded: no matches for \"a\\\"\", \"b\"\nlivez check passed\n",
            ),
            ("/livez/ping", "", 200, "ok"),
            ("/readyz/informer-sync", "", 500, "internal server error: 2 informers not started\n"),
        ];
        for (path, query, code, want) in table {
            assert_eq!(body(&health, path, query), (code, want.to_owned()), "{path}?{query}");
        }
        assert_eq!(health.answer("/healthz/etcd", ""), None);
        assert_eq!(Health::new().answer("/healthz", ""), None);
        assert!(health.metrics().contains("kubernetes_healthcheck{name=\"informer-sync\",type=\"readyz\"} 0\n"));
    }

    #[test]
    fn readiness_ends_with_the_shutdown() {
        let (health, shutdown) = (Health::with_ping(), Shutdown::new());
        health.add_shutdown(&shutdown);
        let codes = || ["/readyz", "/livez"].map(|path| body(&health, path, "").0);
        assert_eq!(codes(), [200, 200]);
        shutdown.trigger();
        assert_eq!(codes(), [500, 200]);
    }
}
