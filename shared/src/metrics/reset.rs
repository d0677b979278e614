//! `DELETE /metrics`: what was counted before is not shown any more.
//!
//! Counters themselves go on, so that whoever holds one need not know of it: what is shown is how much more they are than
//! they were then. Gauges stay, they tell of what is and not of what was.

use std::collections::HashMap;

use prometheus::proto::{Bucket, Counter, Histogram, LabelPair, Metric, MetricFamily, MetricType, Summary};

/// Values of labels, in the order of their names.
type Labels = Vec<String>;

/// Values of all families at a time.
#[derive(Default)]
pub(super) struct Baseline(HashMap<String, HashMap<Labels, Metric>>);

fn labels(row: &Metric) -> Labels {
    row.get_label().iter().map(|label: &LabelPair| label.value().to_owned()).collect()
}

impl Baseline {
    pub(super) fn of(families: Vec<MetricFamily>) -> Self {
        let counts = |family: &MetricFamily| family.get_field_type() != MetricType::GAUGE;
        let rows = |mut family: MetricFamily| {
            let rows = family.take_metric().into_iter().map(|row| (labels(&row), row)).collect();
            (family.name().to_owned(), rows)
        };
        Self(families.into_iter().filter(counts).map(rows).collect())
    }

    /// Leaves of a family what came since. A row that nothing came to is gone, but where it is the only one there can be.
    pub(super) fn apply(&self, family: &mut MetricFamily) {
        let Some(before) = self.0.get(family.name()) else { return };
        let kind = family.get_field_type();
        let rows = family.take_metric().into_iter().filter_map(|mut row| {
            let changed = before.get(&labels(&row)).is_none_or(|then| subtract(&mut row, then, kind));
            (changed || row.get_label().is_empty()).then_some(row)
        });
        let rows = rows.collect();
        family.set_metric(rows);
    }
}

/// Subtracts a baseline; reports whether anything is left.
fn subtract(from: &mut Metric, then: &Metric, kind: MetricType) -> bool {
    match kind {
        MetricType::COUNTER => {
            let mut left = Counter::default();
            left.set_value(since(from.get_counter().get_value(), then.get_counter().get_value()));
            from.set_counter(left);
            from.get_counter().get_value() > 0.0
        }
        MetricType::HISTOGRAM => {
            let left = later(from.get_histogram(), then.get_histogram());
            from.set_histogram(left);
            from.get_histogram().get_sample_count() > 0
        }
        MetricType::SUMMARY => {
            let (now, then) = (from.get_summary(), then.get_summary());
            let mut left = Summary::default();
            left.set_quantile(now.get_quantile().to_vec());
            left.set_sample_count(now.sample_count().saturating_sub(then.sample_count()));
            left.set_sample_sum(since(now.sample_sum(), then.sample_sum()));
            from.set_summary(left);
            from.get_summary().sample_count() > 0
        }
        _ => true,
    }
}

/// A counter that has begun anew meanwhile is all new.
fn since(now: f64, then: f64) -> f64 {
    if now < then { now } else { now - then }
}

fn later(now: &Histogram, then: &Histogram) -> Histogram {
    let buckets = now.get_bucket().iter().zip(then.get_bucket()).map(|(now, then)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(now.upper_bound());
        bucket.set_cumulative_count(now.cumulative_count().saturating_sub(then.cumulative_count()));
        bucket
    });
    let mut left = Histogram::default();
    left.set_bucket(buckets.collect());
    left.set_sample_count(now.get_sample_count().saturating_sub(then.get_sample_count()));
    left.set_sample_sum(since(now.get_sample_sum(), then.get_sample_sum()));
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::core::Collector as _;
    use prometheus::{CounterVec, GaugeVec, HistogramOpts, HistogramVec, Opts};

    fn shown(baseline: &Baseline, mut family: MetricFamily) -> Vec<(String, f64)> {
        baseline.apply(&mut family);
        let value = |row: &Metric| match family.get_field_type() {
            MetricType::COUNTER => row.get_counter().get_value(),
            MetricType::GAUGE => row.get_gauge().get_value(),
            _ => row.get_histogram().get_sample_sum(),
        };
        let mut rows: Vec<_> = family.get_metric().iter().map(|row| (labels(row).join(" "), value(row))).collect();
        rows.sort_by(|a, b| a.0.cmp(&b.0));
        rows
    }

    #[test]
    fn only_what_came_since_is_shown() {
        let (things, level) = (Opts::new("things_total", "x"), Opts::new("level", "x"));
        let things = CounterVec::new(things, &["kind"]).expect("a vector");
        let all = CounterVec::new(Opts::new("all_total", "x"), &[]).expect("a vector");
        let level = GaugeVec::new(level, &["kind"]).expect("a vector");
        let times =
            HistogramVec::new(HistogramOpts::new("times", "x").buckets(vec![1.0]), &["kind"]).expect("a vector");
        let held = things.with_label_values(&["a"]);
        held.inc_by(3.0);
        things.with_label_values(&["b"]).inc();
        all.with_label_values::<&str>(&[]).inc_by(5.0);
        level.with_label_values(&["a"]).set(7.0);
        times.with_label_values(&["a"]).observe(0.5);
        times.with_label_values(&["b"]).observe(0.5);
        let collected = || [things.collect(), all.collect(), level.collect(), times.collect()].concat();
        let baseline = Baseline::of(collected());
        held.inc();
        things.with_label_values(&["c"]).inc_by(2.0);
        times.with_label_values(&["a"]).observe(2.0);

        let after: Vec<_> = collected().into_iter().map(|family| shown(&baseline, family)).collect();
        let rows = |rows: &[(&str, f64)]| rows.iter().map(|(k, n)| ((*k).to_owned(), *n)).collect::<Vec<_>>();
        let want = [rows(&[("a", 1.0), ("c", 2.0)]), rows(&[("", 0.0)]), rows(&[("a", 7.0)]), rows(&[("a", 2.0)])];
        assert_eq!(after, want);
        let mut family = times.collect().remove(0);
        baseline.apply(&mut family);
        let left = family.get_metric()[0].get_histogram();
        assert_eq!((left.get_sample_count(), left.get_bucket()[0].cumulative_count()), (1, 0));
        // One that begins anew is not less than nothing.
        held.reset();
        held.inc();
        assert_eq!(shown(&baseline, things.collect().remove(0)), rows(&[("a", 1.0), ("c", 2.0)]));
    }
}
