//! Histograms of how long a ratio had which value: every nanosecond counts as one sample. Answers for upstream's
//! `TimingHistogram`.

use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// Histogram of a ratio over time.
#[derive(Debug, Clone)]
pub(super) struct Timing {
    bounds: &'static [f64],
    nanos: Vec<u64>,
    sum: f64,
    ratio: f64,
    since: Duration,
}

impl Timing {
    pub(super) fn new(bounds: &'static [f64], now: Duration) -> Self {
        Self { bounds, nanos: vec![0; bounds.len() + 1], sum: 0.0, ratio: 0.0, since: now }
    }

    /// From now on the ratio is this one.
    pub(super) fn set(&mut self, now: Duration, value: f64, of: f64) {
        let passed = now.saturating_sub(self.since);
        self.since = self.since.max(now);
        let at = self.bounds.partition_point(|bound| *bound < self.ratio);
        self.nanos[at] += u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
        #[expect(clippy::cast_precision_loss, reason = "a mean needs no last digit")]
        let samples = passed.as_nanos() as f64;
        self.sum += self.ratio * samples;
        self.ratio = if of > 0.0 { value / of } else { value };
    }

    fn metric(&self, labels: &[(&str, &str)]) -> Metric {
        let mut below = 0;
        let buckets = self.bounds.iter().zip(&self.nanos).map(|(bound, nanos)| {
            below += nanos;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(below);
            bucket
        });
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(self.nanos.iter().sum());
        histogram.set_sample_sum(self.sum);
        let mut metric = Metric::default();
        metric.set_histogram(histogram);
        let pair = |(name, value): &(&str, &str)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        };
        metric.set_label(labels.iter().map(pair).collect());
        metric
    }
}

/// A family of timings, asked for when somebody looks.
pub(super) struct TimingFamily {
    desc: Option<Desc>,
    name: &'static str,
    help: &'static str,
    timings: Box<dyn Fn(&mut Rows) + Send + Sync>,
}

impl TimingFamily {
    pub(super) fn new(name: &'static str, help: &'static str, timings: Box<dyn Fn(&mut Rows) + Send + Sync>) -> Self {
        let desc = Desc::new(name.to_owned(), help.to_owned(), Vec::new(), std::collections::HashMap::new()).ok();
        Self { desc, name, help, timings }
    }
}

/// The lines of a family.
#[derive(Default)]
pub(super) struct Rows(Vec<Metric>);

impl Rows {
    pub(super) fn add(&mut self, timing: &Timing, labels: &[(&str, &str)]) {
        self.0.push(timing.metric(labels));
    }
}

impl Collector for TimingFamily {
    fn desc(&self) -> Vec<&Desc> {
        self.desc.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut rows = Rows::default();
        (self.timings)(&mut rows);
        let mut family = MetricFamily::default();
        family.set_name(self.name.to_owned());
        family.set_help(self.help.to_owned());
        family.set_field_type(MetricType::HISTOGRAM);
        family.set_metric(rows.0);
        vec![family]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_attributed_to_the_current_ratio() {
        let mut timing = Timing::new(&[0.0, 0.5, 1.0], Duration::ZERO);
        timing.set(Duration::from_nanos(10), 1.0, 2.0);
        timing.set(Duration::from_nanos(15), 4.0, 2.0);
        timing.set(Duration::from_nanos(18), 0.0, 2.0);
        assert_eq!(timing.nanos, [10, 5, 0, 3]);
        assert!((timing.sum - 8.5).abs() < 1e-9);
        let metric = timing.metric(&[("phase", "executing")]);
        assert_eq!(metric.get_histogram().get_sample_count(), 18);
    }
}
