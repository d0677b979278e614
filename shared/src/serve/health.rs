//! `/healthz`, `/livez`, `/readyz`: named checks and upstream's texts for them. Knows no HTTP server.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::run::Shutdown;
use crate::status::go_quote;

/// One of the three questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

type Ask = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

struct Check {
    name: String,
    ask: Ask,
    good: AtomicU64,
    bad: AtomicU64,
    /// 1 good, 0 bad, as last seen.
    last: AtomicU64,
}

impl Check {
    fn run(&self) -> Result<(), String> {
        let answer = (self.ask)();
        let (count, last) = if answer.is_ok() { (&self.good, 1) } else { (&self.bad, 0) };
        count.fetch_add(1, Ordering::Relaxed);
        self.last.store(last, Ordering::Relaxed);
        answer
    }
}

#[derive(Default)]
struct Inner {
    /// `None`: the path is not served.
    checks: [RwLock<Option<Vec<Arc<Check>>>>; 3],
}

/// The checks of a process. Cheap to clone; checks may be added at any time.
#[derive(Clone, Default)]
pub struct Health(Arc<Inner>);

/// A response: code and body, always plain text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP code.
    pub code: u16,
    /// Body.
    pub body: String,
}

impl Health {
    /// Serves nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// All three paths, each with `ping`.
    pub fn with_ping() -> Self {
        let health = Self::new();
        health.add(&Probe::ALL, "ping", || Ok(()));
        health
    }

    /// Adds a check to some of the paths. It must answer at once: whoever needs I/O keeps a result ready.
    pub fn add(&self, probes: &[Probe], name: &str, check: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        let ask: Ask = Arc::new(check);
        for probe in probes {
            let check = Check {
                name: name.to_owned(),
                ask: Arc::clone(&ask),
                good: AtomicU64::new(0),
                bad: AtomicU64::new(0),
                last: AtomicU64::new(0),
            };
            self.0.checks[*probe as usize].write().get_or_insert_default().push(Arc::new(check));
        }
    }

    /// Readiness ends where the shutdown begins.
    pub fn add_shutdown(&self, shutdown: &Shutdown) {
        let shutdown = shutdown.clone();
        self.add(&[Probe::Readyz], "shutdown", move || {
            if shutdown.is_triggered() { Err("process is shutting down".to_owned()) } else { Ok(()) }
        });
    }

    /// Answers a path such as `/readyz` or `/livez/etcd` with its query; `None` when it is not served.
    pub fn answer(&self, path: &str, query: &str) -> Option<Answer> {
        let rest = path.strip_prefix('/')?;
        let (word, name) = rest.split_once('/').map_or((rest, None), |(word, name)| (word, Some(name)));
        let probe = Probe::ALL.into_iter().find(|p| p.word() == word)?;
        let checks = self.0.checks[probe as usize].read().clone()?;
        let Some(name) = name else { return Some(answer_all(probe, &checks, query)) };
        let check = checks.iter().find(|c| c.name == name)?;
        Some(match check.run() {
            Ok(()) => Answer { code: 200, body: "ok".to_owned() },
            Err(why) => Answer { code: 500, body: format!("internal server error: {why}\n") },
        })
    }

    /// Whether every check of a probe passes.
    pub fn passes(&self, probe: Probe) -> bool {
        self.answer(&format!("/{}", probe.word()), "").is_some_and(|a| a.code == 200)
    }

    /// Forgets how checks went.
    pub(super) fn reset(&self) {
        for probe in Probe::ALL {
            for check in self.0.checks[probe as usize].read().iter().flatten() {
                [&check.good, &check.bad, &check.last].into_iter().for_each(|count| count.store(0, Ordering::Relaxed));
            }
        }
    }

    /// The `/metrics/slis` families.
    pub fn metrics(&self) -> String {
        let (mut gauges, mut counters) = (String::new(), String::new());
        for probe in Probe::ALL {
            for check in self.0.checks[probe as usize].read().iter().flatten() {
                let (name, word) = (&check.name, probe.word());
                let (good, bad) = (check.good.load(Ordering::Relaxed), check.bad.load(Ordering::Relaxed));
                if good + bad == 0 {
                    continue;
                }
                let last = check.last.load(Ordering::Relaxed);
                let _ = writeln!(gauges, "kubernetes_healthcheck{{name=\"{name}\",type=\"{word}\"}} {last}");
                for (status, count) in [("error", bad), ("success", good)].into_iter().filter(|(_, n)| *n > 0) {
                    let labels = format!("name=\"{name}\",status=\"{status}\",type=\"{word}\"");
                    let _ = writeln!(counters, "kubernetes_healthchecks_total{{{labels}}} {count}");
                }
            }
        }
        format!(
            "# HELP kubernetes_healthcheck [STABLE] The last result of each health check.\n\
             # TYPE kubernetes_healthcheck gauge\n{gauges}\
             # HELP kubernetes_healthchecks_total [STABLE] The results of all health checks.\n\
             # TYPE kubernetes_healthchecks_total counter\n{counters}{}",
            crate::metrics::start_time_family()
        )
    }
}

fn answer_all(probe: Probe, checks: &[Arc<Check>], query: &str) -> Answer {
    let params: Vec<(String, String)> = parameters(query);
    let verbose = params.iter().any(|(k, _)| k == "verbose");
    let mut excluded: Vec<&str> = params.iter().filter(|(k, _)| k == "exclude").map(|(_, v)| v.as_str()).collect();
    excluded.sort_unstable();
    excluded.dedup();
    let (mut text, mut failed) = (String::new(), Vec::new());
    for check in checks {
        let name = &check.name;
        if let Some(i) = excluded.iter().position(|e| e == name) {
            excluded.remove(i);
            let _ = writeln!(text, "[+]{name} excluded: ok");
            continue;
        }
        match check.run() {
            Ok(()) => {
                let _ = writeln!(text, "[+]{name} ok");
            }
            Err(why) => {
                // The reason stays in the log: anybody may ask for health.
                failed.push(format!("{name}: {why}"));
                let _ = writeln!(text, "[-]{name} failed: reason withheld");
            }
        }
    }
    if !excluded.is_empty() {
        let names: Vec<String> = excluded.iter().map(|e| go_quote(e)).collect();
        let _ = writeln!(text, "warn: some health checks cannot be excluded: no matches for {}", names.join(", "));
    }
    let word = probe.word();
    if !failed.is_empty() {
        tracing::info!(probe = word, failed = failed.join(","), "Health check failed");
        return Answer { code: 500, body: format!("{text}{word} check failed\n") };
    }
    Answer { code: 200, body: if verbose { format!("{text}{word} check passed\n") } else { "ok".to_owned() } }
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
        health.add(&[Probe::Readyz], "informer-sync", || Err("2 informers not started".into()));
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
                "verbose&exclude=b&exclude=a",
                200,
                "[+]ping ok\n[+]etcd ok\nwarn: some health checks cannot be excluded: no matches for \"a\", \"b\"\nlivez check passed\n",
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
        assert!(health.passes(Probe::Readyz));
        shutdown.trigger();
        assert!(!health.passes(Probe::Readyz) && health.passes(Probe::Livez));
    }
}
