//! Metrics by upstream's names: one registry per process, rendered as Prometheus text.
//!
//! Vectors are made where they are first used and shared from then on. The `process_*`, build and feature-gate
//! families are rendered at scrape time and cost nothing in between.

mod allow;
mod process;
mod reset;
mod summary;
mod workqueue;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::OnceLock;

use parking_lot::{Mutex, RwLock};
use prometheus::core::Collector;
use prometheus::proto::{MetricFamily, MetricType};
use prometheus::{HistogramOpts, Opts, Registry};

use crate::flags::{FeatureGates, FlagSet};
use allow::AllowList;
pub use prometheus::{Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramVec, IntCounter};
use reset::Baseline;
pub use summary::{Summary, SummaryVec};
pub(crate) use workqueue::{InProgress, watch};
pub use workqueue::{Passage, Passing, WorkqueueMetrics, workqueue};

enum MadeFamily {
    Counter(CounterVec),
    Gauge(GaugeVec),
    Histogram(HistogramVec),
    Summary(SummaryVec),
}

#[derive(Default)]
struct Global {
    registry: Registry,
    made: Mutex<HashMap<String, MadeFamily>>,
    gates: RwLock<FeatureGates>,
    /// `--disabled-metrics`: families that are not shown.
    disabled: RwLock<Vec<String>>,
    /// `--allow-metric-labels`.
    allowed: RwLock<AllowList>,
    /// Values that are subtracted since the last reset.
    baseline: RwLock<Baseline>,
}

fn global() -> &'static Global {
    static GLOBAL: OnceLock<Global> = OnceLock::new();
    GLOBAL.get_or_init(Global::default)
}

/// Errors of the flags about metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FlagError {
    /// A key of `--allow-metric-labels` is no family and label.
    #[error(
        "--allow-metric-labels must have a list of kv pair with format `metricName,labelName=labelValue, labelValue,...`"
    )]
    AllowedLabels,
    /// `--show-hidden-metrics-for-version` names another minor release than this one, which is the previous.
    #[error(
        "--show-hidden-metrics-for-version must be omitted or have the value '1.{0}'. Only the previous minor version is allowed"
    )]
    HiddenMetrics(u32),
}

/// Notes the start time, the gates in force and what the flags say of metrics.
///
/// # Errors
/// A flag that makes no sense.
pub(crate) fn start(flags: &FlagSet) -> Result<(), FlagError> {
    process::start_time();
    set_feature_gates(flags.feature_gates());
    if flags.knows("disabled-metrics") {
        disable(flags.list("disabled-metrics"));
        *global().allowed.write() = AllowList::read(flags)?;
        check_hidden(flags)?;
    }
    Ok(())
}

/// Checks `--show-hidden-metrics-for-version`. None of the metrics here is hidden, so there is nothing more to do.
fn check_hidden(flags: &FlagSet) -> Result<(), FlagError> {
    let before = crate::version::Emulation::default().least();
    match flags.string("show-hidden-metrics-for-version").as_str() {
        "" => Ok(()),
        text if text == format!("1.{before}") => Ok(()),
        _ => Err(FlagError::HiddenMetrics(before)),
    }
}

/// The gates `kubernetes_feature_enabled` reports; a component whose configuration file changes them says so here.
pub fn set_feature_gates(gates: FeatureGates) {
    *global().gates.write() = gates;
}

/// Families that are not shown from now on.
fn disable(names: Vec<String>) {
    *global().disabled.write() = names;
}

/// Family `process_start_time_seconds`.
#[must_use]
pub fn start_time_family() -> String {
    process::start_time_family()
}

/// The second in which the process began.
#[must_use]
pub fn started() -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "seconds since 1970 are far below 2^53")]
    let seconds = process::start_time() as i64;
    seconds
}

/// Uptime of this process.
pub fn uptime() -> std::time::Duration {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(std::time::Duration::from_secs_f64(process::start_time().max(0.0)))
}

/// Adds a collector of one's own, such as one that counts on demand. A second one of the same name is dropped.
pub fn register(collector: impl Collector + 'static) {
    if let Err(e) = global().registry.register(Box::new(collector)) {
        tracing::error!(err = %e, "Failed to register metric");
    }
}

/// The counters of a name, made on first use.
pub fn counter(name: &str, help: &str, labels: &[&str]) -> CounterVec {
    let mut made = global().made.lock();
    if let Some(MadeFamily::Counter(known)) = made.get(name) {
        return known.clone();
    }
    let vector = CounterVec::new(Opts::new(name, help), labels).unwrap_or_else(|e| lost(name, &e, || spare(labels)));
    register(vector.clone());
    made.insert(name.to_owned(), MadeFamily::Counter(vector.clone()));
    vector
}

/// The gauges of a name, made on first use.
pub fn gauge(name: &str, help: &str, labels: &[&str]) -> GaugeVec {
    let mut made = global().made.lock();
    if let Some(MadeFamily::Gauge(known)) = made.get(name) {
        return known.clone();
    }
    let spare = || GaugeVec::new(Opts::new("unnamed", "unnamed"), labels).expect("constant names are valid");
    let vector = GaugeVec::new(Opts::new(name, help), labels).unwrap_or_else(|e| lost(name, &e, spare));
    register(vector.clone());
    made.insert(name.to_owned(), MadeFamily::Gauge(vector.clone()));
    vector
}

/// The histograms of a name, made on first use.
pub fn histogram(name: &str, help: &str, labels: &[&str], buckets: Vec<f64>) -> HistogramVec {
    let mut made = global().made.lock();
    if let Some(MadeFamily::Histogram(known)) = made.get(name) {
        return known.clone();
    }
    let spare =
        || HistogramVec::new(HistogramOpts::new("unnamed", "unnamed"), labels).expect("constant names are valid");
    let options = HistogramOpts::new(name, help).buckets(buckets);
    let vector = HistogramVec::new(options, labels).unwrap_or_else(|e| lost(name, &e, spare));
    register(vector.clone());
    made.insert(name.to_owned(), MadeFamily::Histogram(vector.clone()));
    vector
}

/// The summaries of a name, made on first use.
pub fn summary(name: &str, help: &str, labels: &[&str]) -> SummaryVec {
    let mut made = global().made.lock();
    if let Some(MadeFamily::Summary(known)) = made.get(name) {
        return known.clone();
    }
    let spare = || SummaryVec::new("unnamed", "unnamed", labels).expect("constant names are valid");
    let vector = SummaryVec::new(name, help, labels).unwrap_or_else(|e| lost(name, &e, spare));
    register(vector.clone());
    made.insert(name.to_owned(), MadeFamily::Summary(vector.clone()));
    vector
}

/// Families that are shown on a page of their own.
#[derive(Default)]
pub struct MetricsPage(Registry);

impl MetricsPage {
    /// Adds counters.
    pub fn counter(&self, name: &str, help: &str, labels: &[&str]) -> CounterVec {
        let vector =
            CounterVec::new(Opts::new(name, help), labels).unwrap_or_else(|e| lost(name, &e, || spare(labels)));
        self.add(vector.clone());
        vector
    }

    /// Adds histograms.
    pub fn histogram(&self, name: &str, help: &str, labels: &[&str], buckets: Vec<f64>) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(buckets);
        let spare =
            || HistogramVec::new(HistogramOpts::new("unnamed", "unnamed"), labels).expect("constant names are valid");
        let vector = HistogramVec::new(options, labels).unwrap_or_else(|e| lost(name, &e, spare));
        self.add(vector.clone());
        vector
    }

    fn add(&self, collector: impl Collector + 'static) {
        if let Err(e) = self.0.register(Box::new(collector)) {
            tracing::error!(err = %e, "Failed to register metric");
        }
    }

    /// The page as Prometheus text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for family in self.0.gather().iter().filter(|family| !family.get_metric().is_empty()) {
            render(&mut out, family);
        }
        out
    }
}

fn spare(labels: &[&str]) -> CounterVec {
    CounterVec::new(Opts::new("unnamed", "unnamed"), labels).expect("constant names are valid")
}

/// A metric that cannot be made must not take the component down: it counts into the void.
fn lost<T>(name: &str, error: &prometheus::Error, spare: impl FnOnce() -> T) -> T {
    tracing::error!(metric = name, err = %error, "Failed to create metric");
    spare()
}

/// `count` buckets, each `factor` times the one before.
pub fn exponential(start: f64, factor: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(start), |b| Some(b * factor)).take(count).collect()
}

/// `count` buckets, each `width` more than the one before.
pub fn linear(start: f64, width: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(start), |b| Some(b + width)).take(count).collect()
}

/// Prometheus' usual buckets.
pub fn default_buckets() -> Vec<f64> {
    prometheus::DEFAULT_BUCKETS.to_vec()
}

/// The answer to `DELETE /metrics`.
pub const WAS_RESET: &str = "metrics reset\n";

/// Begins to count anew, as far as anybody can see.
pub fn reset() {
    let families = global().registry.gather();
    *global().baseline.write() = Baseline::of(families);
}

/// Renders all metrics in Prometheus' text format, families sorted by name.
pub fn gather() -> String {
    workqueue::refresh();
    let mut out = String::with_capacity(16 * 1024);
    let disabled = global().disabled.read();
    let allowed = global().allowed.read();
    let baseline = global().baseline.read();
    let mut stages = BTreeMap::new();
    for mut family in global().registry.gather() {
        if disabled.iter().any(|name| name == family.name()) {
            continue;
        }
        *stages.entry(stage(family.help()).to_owned()).or_insert(0) += 1;
        baseline.apply(&mut family);
        allowed.apply(&mut family);
        if !family.get_metric().is_empty() {
            render(&mut out, &family);
        }
    }
    families(&mut out, &stages, disabled.len());
    build_info(&mut out);
    features(&mut out, &global().gates.read());
    process::render(&mut out);
    out
}

/// The stability that a family's text begins with; families of no stage are upstream's libraries'.
fn stage(help: &str) -> &str {
    help.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or("", |(stage, _)| stage)
}

/// Writes the families about metrics: the number by stability, and of disabled ones.
fn families(out: &mut String, stages: &BTreeMap<String, usize>, disabled: usize) {
    let _ = writeln!(out, "# HELP registered_metrics_total [BETA] Number of registered metrics, by stability level.");
    let _ = writeln!(out, "# TYPE registered_metrics_total counter");
    for (stage, count) in stages.iter().filter(|(stage, _)| !stage.is_empty()) {
        let labels = format!("deprecated_version=\"\",stability_level=\"{stage}\"");
        let _ = writeln!(out, "registered_metrics_total{{{labels}}} {count}");
    }
    for (name, help, count) in [
        ("disabled_metrics_total", "[BETA] Number of disabled metrics.", disabled),
        ("hidden_metrics_total", "[BETA] Number of hidden metrics.", 0),
    ] {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {count}");
    }
}

fn build_info(out: &mut String) {
    let info = crate::version::info();
    let text = |key: &str| info[key].as_str().unwrap_or("").to_owned();
    let labels = [
        ("build_date", text("buildDate")),
        ("compiler", text("compiler")),
        ("git_commit", text("gitCommit")),
        ("git_tree_state", text("gitTreeState")),
        ("git_version", text("gitVersion")),
        ("go_version", text("goVersion")),
        ("major", text("major")),
        ("minor", text("minor")),
        ("platform", text("platform")),
    ];
    let labels: Vec<String> = labels.iter().map(|(k, v)| format!("{k}=\"{}\"", escaped(v))).collect();
    let _ = writeln!(out, "# HELP kubernetes_build_info [ALPHA] The release this process stands in for.");
    let _ = writeln!(out, "# TYPE kubernetes_build_info gauge\nkubernetes_build_info{{{}}} 1", labels.join(","));
}

fn features(out: &mut String, gates: &FeatureGates) {
    let _ = writeln!(out, "# HELP kubernetes_feature_enabled [BETA] Feature gates: 1 is on, 0 is off.");
    let _ = writeln!(out, "# TYPE kubernetes_feature_enabled gauge");
    for (name, stage, on) in gates.all() {
        let stage = if stage == "GA" { "" } else { stage };
        let _ = writeln!(out, "kubernetes_feature_enabled{{name=\"{name}\",stage=\"{stage}\"}} {}", u8::from(on));
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}

fn number(value: f64) -> String {
    if value == f64::INFINITY {
        "+Inf".to_owned()
    } else if value == f64::NEG_INFINITY {
        "-Inf".to_owned()
    } else if value.is_nan() {
        "NaN".to_owned()
    } else if value != 0.0 && (value.abs() < 1e-4 || value.abs() >= 1e6) {
        // Go pads exponents to two digits.
        let text = format!("{value:e}");
        match text.split_once('e') {
            Some((mantissa, exponent)) => {
                let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |d| ('-', d));
                format!("{mantissa}e{sign}{digits:0>2}")
            }
            None => text,
        }
    } else {
        value.to_string()
    }
}

fn render(out: &mut String, family: &MetricFamily) {
    let name = family.name();
    let kind = match family.get_field_type() {
        MetricType::COUNTER => "counter",
        MetricType::GAUGE => "gauge",
        MetricType::HISTOGRAM => "histogram",
        MetricType::SUMMARY => "summary",
        _ => return,
    };
    let _ = writeln!(out, "# HELP {name} {}", family.help().replace('\\', "\\\\").replace('\n', "\\n"));
    let _ = writeln!(out, "# TYPE {name} {kind}");
    for metric in family.get_metric() {
        let labels: Vec<String> =
            metric.get_label().iter().map(|l| format!("{}=\"{}\"", l.name(), escaped(l.value()))).collect();
        let labels = labels.join(",");
        let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        match family.get_field_type() {
            MetricType::COUNTER => {
                let _ = writeln!(out, "{name}{braced} {}", number(metric.get_counter().get_value()));
            }
            MetricType::GAUGE => {
                let _ = writeln!(out, "{name}{braced} {}", number(metric.get_gauge().get_value()));
            }
            MetricType::SUMMARY => {
                let summary = metric.get_summary();
                let comma = if labels.is_empty() { "" } else { "," };
                for q in summary.get_quantile() {
                    let (quantile, value) = (number(q.quantile()), number(q.value()));
                    let _ = writeln!(out, "{name}{{{labels}{comma}quantile=\"{quantile}\"}} {value}");
                }
                let _ = writeln!(out, "{name}_sum{braced} {}", number(summary.sample_sum()));
                let _ = writeln!(out, "{name}_count{braced} {}", summary.sample_count());
            }
            _ => {
                let histogram = metric.get_histogram();
                let comma = if labels.is_empty() { "" } else { "," };
                let mut line = |bound: f64, count: u64| {
                    let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{}\"}} {count}", number(bound));
                };
                for bucket in histogram.get_bucket() {
                    line(bucket.upper_bound(), bucket.cumulative_count());
                }
                line(f64::INFINITY, histogram.get_sample_count());
                let _ = writeln!(out, "{name}_sum{braced} {}", number(histogram.get_sample_sum()));
                let _ = writeln!(out, "{name}_count{braced} {}", histogram.get_sample_count());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_metrics_are_those_of_the_release_before() {
        for (version, good) in [("", true), ("1.34", true), ("1.33", false), ("1.35", false), ("soon", false)] {
            let arg = format!("--show-hidden-metrics-for-version={version}");
            let flags = FlagSet::of("kube-apiserver", &[&arg]).expect("flags");
            assert_eq!(check_hidden(&flags).is_ok(), good, "{version}");
        }
    }

    #[test]
    fn the_same_name_is_the_same_vector() {
        counter("test_things_total", "Things.", &["kind"]).with_label_values(&["a\"b"]).inc();
        counter("test_things_total", "Things.", &["kind"]).with_label_values(&["a\"b"]).inc();
        let text = gather();
        assert!(text.contains("# TYPE test_things_total counter\ntest_things_total{kind=\"a\\\"b\"} 2\n"), "{text}");
    }

    #[test]
    fn histograms_and_queues() {
        let queue = workqueue("test-queue");
        queue.adds.inc();
        queue.latency.observe(0.5);
        let text = gather();
        for line in [
            "workqueue_adds_total{name=\"test-queue\"} 1",
            "workqueue_queue_duration_seconds_bucket{name=\"test-queue\",le=\"1e-08\"} 0",
            "workqueue_queue_duration_seconds_bucket{name=\"test-queue\",le=\"0.1\"} 0",
            "workqueue_queue_duration_seconds_bucket{name=\"test-queue\",le=\"+Inf\"} 1",
            "workqueue_queue_duration_seconds_sum{name=\"test-queue\"} 0.5",
            "workqueue_depth{name=\"test-queue\"} 0",
            "kubernetes_feature_enabled{name=\"ComponentFlagz\",stage=\"ALPHA\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
        assert!(text.contains("process_resident_memory_bytes "));
    }

    #[test]
    fn what_does_not_wait_is_told_of_like_a_queue() {
        let passage = Passage::new("test-passage");
        let under_way = passage.begin();
        let seen = || {
            let text = gather();
            let value = |start: &str| text.lines().find_map(|l| l.strip_prefix(start)).map(str::to_owned);
            (
                value("workqueue_adds_total{name=\"test-passage\"} "),
                value("workqueue_queue_duration_seconds_sum{name=\"test-passage\"} "),
                value("workqueue_work_duration_seconds_count{name=\"test-passage\"} "),
            )
        };
        let some = |n: &str| Some(n.to_owned());
        assert_eq!(seen(), (some("1"), some("0"), some("0")));
        drop(under_way);
        assert_eq!(seen(), (some("1"), some("0"), some("1")));
    }

    #[test]
    fn what_is_turned_off_is_not_shown() {
        counter("test_off_total", "[ALPHA] Off.", &[]).with_label_values::<&str>(&[]).inc();
        assert!(gather().contains("\ntest_off_total 1\n"));
        disable(vec!["test_off_total".to_owned()]);
        let text = gather();
        disable(Vec::new());
        assert!(!text.contains("test_off_total") && text.contains("\ndisabled_metrics_total 1\n"), "{text}");
        assert_eq!((stage("[STABLE] Things."), stage("Things.")), ("STABLE", ""));
    }

    #[test]
    fn numbers_as_go_prints_them() {
        for (value, want) in [
            (1.0, "1"),
            (0.5, "0.5"),
            (1e-8, "1e-08"),
            (f64::INFINITY, "+Inf"),
            (2_592_000.0, "2.592e+06"),
            (1e-4, "0.0001"),
            (604_800.0, "604800"),
        ] {
            assert_eq!(number(value), want);
        }
    }
}
