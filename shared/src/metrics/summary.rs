//! Summaries: quantiles of what was observed in the last hours, by label values.
//!
//! Observations are counted in buckets that grow by a constant factor, so that a quantile is off by a few percent at
//! most; observing takes no lock but that of finding the row.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType, Quantile, Summary as Shown};

/// Observations older than this do not count for quantiles; some that are half as old do not either.
const AGE: Duration = Duration::from_secs(5 * 3600);
const QUANTILES: [f64; 3] = [0.5, 0.9, 0.99];
/// The upper bound of the first bucket, in the unit observed.
const FIRST: f64 = 1e-6;
/// Buckets in which a value doubles.
const PER_DOUBLING: f64 = 8.0;
/// From a millionth to about a thousand.
const BUCKETS: usize = 240;

/// Observations of about half the age that counts.
struct Window([AtomicU32; BUCKETS]);

impl Default for Window {
    fn default() -> Self {
        Self([const { AtomicU32::new(0) }; BUCKETS])
    }
}

/// The present window, the one before, and when the present one began.
struct Windows {
    now: Arc<Window>,
    before: Arc<Window>,
    since: Instant,
}

/// One row.
pub struct Summary {
    count: AtomicU64,
    /// In millionths.
    sum: AtomicU64,
    windows: Mutex<Windows>,
}

fn bucket(value: f64) -> usize {
    let at = (value / FIRST).log2() * PER_DOUBLING;
    // Whatever is smaller or larger is in the first or the last one.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "clamped to the number of buckets"
    )]
    let at = at.ceil().clamp(0.0, (BUCKETS - 1) as f64) as usize;
    at
}

/// The middle of a bucket.
#[expect(clippy::cast_precision_loss, reason = "a bucket's number is small")]
fn value_of(bucket: usize) -> f64 {
    FIRST * ((bucket as f64 - 0.5) / PER_DOUBLING).exp2()
}

impl Summary {
    fn new(now: Instant) -> Self {
        let windows = Windows { now: Arc::default(), before: Arc::default(), since: now };
        Self { count: AtomicU64::new(0), sum: AtomicU64::new(0), windows: Mutex::new(windows) }
    }

    /// The windows as they are at a time.
    fn windows(&self, now: Instant) -> [Arc<Window>; 2] {
        let mut windows = self.windows.lock();
        let age = now.duration_since(windows.since);
        if age >= AGE / 2 {
            let last = std::mem::take(&mut windows.now);
            windows.before = if age >= AGE { Arc::default() } else { last };
            windows.since = now;
        }
        [windows.now.clone(), windows.before.clone()]
    }

    /// Counts a value.
    pub fn observe(&self, value: f64) {
        self.observe_at(value, Instant::now());
    }

    fn observe_at(&self, value: f64, now: Instant) {
        self.count.fetch_add(1, Ordering::Relaxed);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a sum in millionths; casts of floats saturate"
        )]
        self.sum.fetch_add((value * 1e6) as u64, Ordering::Relaxed);
        self.windows(now)[0].0[bucket(value)].fetch_add(1, Ordering::Relaxed);
    }

    /// Computes the quantiles; NaN without observations.
    fn quantiles(&self, now: Instant) -> [f64; 3] {
        let [present, before] = self.windows(now);
        let of =
            |i: usize| u64::from(present.0[i].load(Ordering::Relaxed)) + u64::from(before.0[i].load(Ordering::Relaxed));
        let counts: Vec<u64> = (0..BUCKETS).map(of).collect();
        let all: u64 = counts.iter().sum();
        QUANTILES.map(|quantile| {
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a rank among counts; casts of floats saturate"
            )]
            let rank = (quantile * all as f64).ceil() as u64;
            let mut seen = 0;
            let at = counts.iter().position(|count| {
                seen += count;
                seen >= rank && seen > 0
            });
            at.map_or(f64::NAN, value_of)
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
    fn shown(&self, now: Instant) -> Shown {
        let mut shown = Shown::default();
        shown.set_sample_count(self.count.load(Ordering::Relaxed));
        shown.set_sample_sum(self.sum.load(Ordering::Relaxed) as f64 / 1e6);
        let quantile = |(quantile, value): (f64, f64)| {
            let mut one = Quantile::default();
            one.set_quantile(quantile);
            one.set_value(value);
            one
        };
        shown.set_quantile(QUANTILES.into_iter().zip(self.quantiles(now)).map(quantile).collect());
        shown
    }
}

/// The summaries of a name.
#[derive(Clone)]
pub struct SummaryVec(Arc<Rows>);

struct Rows {
    desc: Desc,
    rows: RwLock<HashMap<Vec<String>, Arc<Summary>>>,
}

impl SummaryVec {
    pub(super) fn new(name: &str, help: &str, labels: &[&str]) -> Result<Self, prometheus::Error> {
        let labels = labels.iter().map(|&l| l.to_owned()).collect();
        let desc = Desc::new(name.to_owned(), help.to_owned(), labels, HashMap::new())?;
        Ok(Self(Arc::new(Rows { desc, rows: RwLock::default() })))
    }

    /// The row of these values, in the order of the labels.
    pub fn with_label_values(&self, values: &[&str]) -> Arc<Summary> {
        let key: Vec<String> = values.iter().map(|&v| v.to_owned()).collect();
        if let Some(known) = self.0.rows.read().get(&key) {
            return known.clone();
        }
        self.0.rows.write().entry(key).or_insert_with(|| Arc::new(Summary::new(Instant::now()))).clone()
    }
}

impl Collector for SummaryVec {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.0.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let (now, desc) = (Instant::now(), &self.0.desc);
        let mut rows: Vec<_> = self.0.rows.read().iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        rows.sort_by(|(a, _), (b, _)| a.cmp(b));
        let metric = |(values, row): (Vec<String>, Arc<Summary>)| {
            let pair = |(name, value): (&String, String)| {
                let mut pair = LabelPair::default();
                pair.set_name(name.clone());
                pair.set_value(value);
                pair
            };
            let mut metric = Metric::from_label(desc.variable_labels.iter().zip(values).map(pair).collect());
            metric.set_summary(row.shown(now));
            metric
        };
        let mut family = MetricFamily::default();
        family.set_name(desc.fq_name.clone());
        family.set_help(desc.help.clone());
        family.set_field_type(MetricType::SUMMARY);
        family.set_metric(rows.into_iter().map(metric).collect());
        vec![family]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, want: f64) -> bool {
        (found / want - 1.0).abs() < 0.1
    }

    #[test]
    fn quantiles_are_of_the_last_hours() {
        let start = Instant::now();
        let row = Summary::new(start);
        assert!(row.quantiles(start).iter().all(|q| q.is_nan()));
        for i in 1..=1000_u32 {
            row.observe_at(f64::from(i) / 1000.0, start);
        }
        let [half, most, nearly] = row.quantiles(start);
        assert!(near(half, 0.5) && near(most, 0.9) && near(nearly, 0.99), "{half} {most} {nearly}");
        let later = start + AGE / 2;
        row.observe_at(3.0, later);
        assert!(near(row.quantiles(later)[0], 0.5), "what is not old counts");
        let much_later = later + AGE / 2;
        assert!(near(row.quantiles(much_later)[0], 3.0), "the first ones are old");
        assert!(row.quantiles(much_later + AGE)[0].is_nan());
        assert_eq!(row.count.load(Ordering::Relaxed), 1001);
    }

    #[test]
    fn all_values_have_a_bucket() {
        for value in [0.0, 1e-9, 1e-6, 0.001, 1.0, 1e9, f64::INFINITY] {
            assert!(bucket(value) < BUCKETS, "{value}");
        }
    }
}
