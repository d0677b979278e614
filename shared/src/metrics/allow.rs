//! `--allow-metric-labels`: a label shows the values it is allowed, and `unexpected` in place of all others.

use std::collections::{BTreeMap, BTreeSet};

use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType, Summary};
use proto::json::DecodeError;
use thiserror::Error;

use super::FlagError;
use crate::flags::FlagSet;
use crate::os::FileError;

const UNEXPECTED: &str = "unexpected";

/// Values by family and label.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AllowList(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl AllowList {
    /// Reads the allow-list of labels from the flags. An unreadable manifest is ignored; a readable one applies to all
    /// metrics.
    ///
    /// # Errors
    /// A key that is not a family and a label.
    pub(super) fn read(flags: &FlagSet) -> Result<Self, FlagError> {
        let mut pairs = flags.map("allow-metric-labels");
        let manifest = flags.string("allow-metric-labels-manifest");
        if !manifest.is_empty() {
            match read_manifest(&manifest) {
                Ok(listed) => pairs.extend(listed),
                Err(why) => tracing::error!(manifest, %why, "Failed to read the manifest of allowed metric labels"),
            }
        }
        Self::of(pairs)
    }

    fn of(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self, FlagError> {
        let mut allowed = Self::default();
        for (key, values) in pairs {
            let Some((family, label)) = key.split_once(',').filter(|(f, l)| is_name(f, true) && is_name(l, false))
            else {
                return Err(FlagError::AllowedLabels);
            };
            let label = allowed.0.entry(family.to_owned()).or_default().entry(label.to_owned()).or_default();
            label.extend(values.split(',').map(str::to_owned));
        }
        Ok(allowed)
    }

    /// Shows other values as one. Rows that come to have the same labels are one row.
    pub(super) fn apply(&self, family: &mut MetricFamily) {
        let Some(labels) = self.0.get(family.name()) else { return };
        let kind = family.get_field_type();
        let mut rows: Vec<Metric> = Vec::new();
        for mut row in std::mem::take(family.mut_metric()) {
            for label in row.mut_label() {
                if labels.get(label.name()).is_some_and(|allowed| !allowed.contains(label.value())) {
                    label.set_value(UNEXPECTED.to_owned());
                }
            }
            match rows.iter_mut().find(|other| same_labels(other.get_label(), row.get_label())) {
                Some(other) => add(other, &row, kind),
                None => rows.push(row),
            }
        }
        family.set_metric(rows);
    }
}

/// Reports whether a text is the name of a family (which may have colons) or of a label.
fn is_name(text: &str, colons: bool) -> bool {
    let first = text.chars().next().is_some_and(|c| !c.is_ascii_digit());
    first && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':'))
}

/// Errors of reading a manifest of allowed labels.
#[derive(Debug, Error)]
enum ManifestError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Yaml(#[from] DecodeError),
    #[error("it is no map")]
    NoMap,
    #[error("its values are no texts")]
    NoTexts,
}

fn read_manifest(path: &str) -> Result<Vec<(String, String)>, ManifestError> {
    let bytes = crate::os::read(path)?;
    let tree = proto::yaml::decode_any(&bytes)?;
    let listed = tree.as_object().ok_or(ManifestError::NoMap)?;
    let text = |v: &proto::Value| v.as_str().map(str::to_owned).ok_or(ManifestError::NoTexts);
    listed.iter().map(|(key, values)| Ok((key.clone(), text(values)?))).collect()
}

fn same_labels(a: &[LabelPair], b: &[LabelPair]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.name() == b.name() && a.value() == b.value())
}

/// Adds what one row counts to another.
fn add(to: &mut Metric, row: &Metric, kind: MetricType) {
    match kind {
        MetricType::COUNTER => {
            let mut sum = Counter::default();
            sum.set_value(to.get_counter().get_value() + row.get_counter().get_value());
            to.set_counter(sum);
        }
        MetricType::GAUGE => {
            let mut sum = Gauge::default();
            sum.set_value(to.get_gauge().get_value() + row.get_gauge().get_value());
            to.set_gauge(sum);
        }
        MetricType::HISTOGRAM => to.set_histogram(added(to.get_histogram(), row.get_histogram())),
        MetricType::SUMMARY => {
            // Quantiles of both together are not known from quantiles of each.
            let (a, b) = (to.get_summary(), row.get_summary());
            let mut sum = Summary::default();
            sum.set_sample_count(a.sample_count() + b.sample_count());
            sum.set_sample_sum(a.sample_sum() + b.sample_sum());
            to.set_summary(sum);
        }
        MetricType::UNTYPED => {}
    }
}

fn added(a: &Histogram, b: &Histogram) -> Histogram {
    let buckets = a.get_bucket().iter().zip(b.get_bucket()).map(|(a, b)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(a.upper_bound());
        bucket.set_cumulative_count(a.cumulative_count() + b.cumulative_count());
        bucket
    });
    let mut sum = Histogram::default();
    sum.set_bucket(buckets.collect());
    sum.set_sample_count(a.get_sample_count() + b.get_sample_count());
    sum.set_sample_sum(a.get_sample_sum() + b.get_sample_sum());
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::core::Collector as _;
    use prometheus::{CounterVec, HistogramOpts, HistogramVec, Opts};

    fn list(pairs: &[(&str, &str)]) -> Result<AllowList, FlagError> {
        AllowList::of(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())))
    }

    #[test]
    fn other_values_are_one() {
        let allowed = list(&[("things_total,kind", "a,b"), ("times,kind", "a")]).expect("a list");
        let things = CounterVec::new(Opts::new("things_total", "x"), &["kind", "zone"]).expect("a vector");
        for (kind, zone) in [("a", "z"), ("c", "z"), ("d", "z"), ("d", "y")] {
            things.with_label_values(&[kind, zone]).inc();
        }
        let mut family = things.collect().remove(0);
        allowed.apply(&mut family);
        let mut rows: Vec<(String, f64)> = family
            .get_metric()
            .iter()
            .map(|m| {
                let labels: Vec<&str> = m.get_label().iter().map(LabelPair::value).collect();
                (labels.join(" "), m.get_counter().get_value())
            })
            .collect();
        rows.sort_by(|a, b| a.0.cmp(&b.0));
        let want = [("a z", 1.0), ("unexpected y", 1.0), ("unexpected z", 2.0)];
        assert_eq!(rows, want.map(|(labels, n)| (labels.to_owned(), n)));

        let options = HistogramOpts::new("times", "x").buckets(vec![1.0]);
        let times = HistogramVec::new(options, &["kind"]).expect("a vector");
        times.with_label_values(&["x"]).observe(0.5);
        times.with_label_values(&["y"]).observe(2.0);
        let mut family = times.collect().remove(0);
        allowed.apply(&mut family);
        let sum = family.get_metric()[0].get_histogram();
        assert_eq!((family.get_metric().len(), sum.get_sample_count(), sum.get_sample_sum()), (1, 2, 2.5));
        assert_eq!(sum.get_bucket()[0].cumulative_count(), 1);
    }

    #[test]
    fn flags_and_manifests() {
        let path = std::env::temp_dir().join(format!("allowed-labels-{}", std::process::id()));
        std::fs::write(&path, "\"m2,l2\": v3,v4\n").expect("a file");
        let manifest = format!("--allow-metric-labels-manifest={}", path.display());
        let flags = FlagSet::of("kube-scheduler", &["--allow-metric-labels=m,l=v1,v2", &manifest]);
        let read = AllowList::read(&flags.unwrap_or_else(|_| unreachable!("good flags")));
        std::fs::remove_file(&path).expect("a file");
        assert_eq!(read, list(&[("m,l", "v1,v2"), ("m2,l2", "v3,v4")]));
        for key in ["m", "m,", "1m,l", "m,l:x"] {
            assert!(list(&[(key, "v")]).is_err(), "{key}");
        }
    }
}
