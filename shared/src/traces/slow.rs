//! The words of the log for a request that was slow, as upstream's `utiltrace` says them.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::flags::format_duration;
use crate::status::go_quote;

/// Something that took its time: a request, or a part of one.
#[derive(Debug, Default)]
pub(super) struct TracePart {
    pub(super) name: &'static str,
    /// All times are counted from when the request began.
    pub(super) began: Duration,
    pub(super) ended: Option<Duration>,
    /// Threshold of the duration.
    pub(super) least: Option<Duration>,
    /// Fields of the log line: `key:value,key:value`.
    pub(super) fields: String,
    pub(super) items: Vec<Item>,
}

/// Item of a trace.
#[derive(Debug)]
pub(super) enum Item {
    /// Something was done.
    Step {
        /// Name of the step.
        name: &'static str,
        /// Time of the step.
        after: Duration,
        /// Fields of the step.
        fields: String,
    },
    /// A part of its own.
    Part(TracePart),
    /// Nested part, by its number, while the tree is built.
    Below(u8),
}

/// Time base and extent of a logged trace.
struct Telling {
    begun: SystemTime,
    now: Duration,
    whole: bool,
}

impl TracePart {
    fn is_slow(&self) -> bool {
        let Some(ended) = self.ended else { return false };
        self.least.is_none_or(|least| ended.saturating_sub(self.began) >= least)
    }

    /// Threshold of a step's duration: its share of the part's, less those of nested parts.
    fn share(&self) -> Option<Duration> {
        let least = self.least?;
        let below = self.items.iter().filter_map(|item| match item {
            Item::Part(part) => part.least,
            _ => None,
        });
        let (mut left, mut count) = (i128::try_from(least.as_nanos()).unwrap_or(i128::MAX), self.items.len() + 1);
        for below in below {
            left -= i128::try_from(below.as_nanos()).unwrap_or(i128::MAX);
            count -= 1;
        }
        let bottom = least / 4;
        let left = u64::try_from(left).map_or(Duration::ZERO, Duration::from_nanos);
        Some(if left < bottom { share(bottom, self.items.len() + 1) } else { share(left, count) })
    }
}

fn share(of: Duration, count: usize) -> Duration {
    of / u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

impl Telling {
    fn clock(&self, after: Duration) -> String {
        self.time(after).strftime("%H:%M:%S%.3f").to_string()
    }

    fn time(&self, after: Duration) -> jiff::Zoned {
        Timestamp::try_from(self.begun + after).unwrap_or_default().to_zoned(TimeZone::UTC)
    }

    fn summary(&self, out: &mut String, (name, fields): (&str, &str), took: Duration, at: Duration) {
        let _ = write!(out, "{} ", go_quote(name));
        if !fields.is_empty() {
            let _ = write!(out, "{fields} ");
        }
        let _ = write!(out, "{}ms ({})", took.as_millis(), self.clock(at));
    }

    fn items(&self, out: &mut String, part: &TracePart, indent: &str, share: Option<Duration>) {
        let mut last = part.began;
        for item in &part.items {
            match item {
                Item::Step { name, after, fields } => {
                    let took = after.saturating_sub(last);
                    if self.whole || share.is_none_or(|share| took >= share) {
                        let _ = write!(out, "{indent}---");
                        self.summary(out, (name, fields), took, *after);
                    }
                    last = *after;
                }
                Item::Part(below) => {
                    self.below(out, below, indent, share);
                    last = below.ended.unwrap_or(below.began);
                }
                Item::Below(_) => {}
            }
        }
    }

    fn below(&self, out: &mut String, part: &TracePart, indent: &str, share: Option<Duration>) {
        if self.whole || part.is_slow() {
            let _ = write!(out, "{indent}[");
            self.summary(out, (part.name, &part.fields), self.now.saturating_sub(part.began), part.began);
            self.items(out, part, &format!("{indent} "), part.share().or(share));
            out.push(']');
            return;
        }
        for item in &part.items {
            if let Item::Part(lower) = item {
                self.below(out, lower, indent, share);
            }
        }
    }
}

/// The lines about a request that began then and took so long; `whole`: also what was quick.
pub(super) fn text(request: &TracePart, begun: SystemTime, took: Duration, whole: bool, number: u32) -> String {
    let telling = Telling { begun, now: took, whole };
    let mut out = format!("Trace[{number}]: {} ", go_quote(request.name));
    if !request.fields.is_empty() {
        let _ = write!(out, "{} ", request.fields);
    }
    let date = telling.time(Duration::ZERO).strftime("%d-%b-%Y %H:%M:%S%.3f").to_string();
    let _ = write!(out, "({date}) (total time: {}ms):", took.as_millis());
    telling.items(&mut out, request, &format!("\nTrace[{number}]: "), request.share());
    let took = format_duration(took);
    let _ = write!(out, "\nTrace[{number}]: [{took}] [{took}] END");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, after: u64, fields: &str) -> Item {
        Item::Step { name, after: Duration::from_millis(after), fields: fields.to_owned() }
    }

    fn part(name: &'static str, (began, ended): (u64, u64), fields: &str, items: Vec<Item>) -> TracePart {
        TracePart {
            name,
            began: Duration::from_millis(began),
            ended: Some(Duration::from_millis(ended)),
            least: Some(super::super::SLOW),
            fields: fields.to_owned(),
            items,
        }
    }

    fn told(request: &TracePart, whole: bool) -> String {
        // 18 September 2025, 10:00:00.5
        let begun = SystemTime::UNIX_EPOCH + Duration::from_millis(1_758_189_600_500);
        let took = request.ended.expect("it has ended");
        text(request, begun, took, whole, 7)
    }

    /// The words are those of k8s.io/utils/trace for the same.
    #[test]
    fn slow_requests_are_told_as_upstream_tells_them() {
        let create = |etcd: (u64, u64)| {
            let txn = step("Txn call succeeded", etcd.1 - 1, "");
            let below = vec![step("About to Encode", etcd.0, ""), step("Encode succeeded", etcd.0 + 1, "len:9"), txn];
            let items = vec![
                step("limitedReadBody succeeded", 300, "len:123"),
                step("Conversion done", 301, ""),
                Item::Part(part("Create etcd3", etcd, "key:/pods/a/b", below)),
                step("Write to database call succeeded", etcd.1, "len:123"),
            ];
            part("Create", (0, etcd.1 + 2), "accept:a,verb:POST", items)
        };
        let head = "Trace[7]: \"Create\" accept:a,verb:POST (18-Sep-2025 10:00:00.500) (total time: 912ms):\n";
        let body = "Trace[7]: ---\"limitedReadBody succeeded\" len:123 300ms (10:00:00.800)\n";
        let below = "Trace[7]: [\"Create etcd3\" key:/pods/a/b 602ms (10:00:00.810)\n";
        let txn = "Trace[7]:  ---\"Txn call succeeded\" 598ms (10:00:01.409)]\n";
        let end = "Trace[7]: [912ms] [912ms] END";
        let converted = "Trace[7]: ---\"Conversion done\" 1ms (10:00:00.801)\n";
        let encoded = "Trace[7]:  ---\"About to Encode\" 0ms (10:00:00.810)\n\
            Trace[7]:  ---\"Encode succeeded\" len:9 1ms (10:00:00.811)\n";
        let written = "Trace[7]: ---\"Write to database call succeeded\" len:123 0ms (10:00:01.410)\n";
        let request = create((310, 910));
        assert_eq!(told(&request, false), [head, body, below, txn, end].concat());
        assert_eq!(told(&request, true), [head, body, converted, below, encoded, txn, written, end].concat());
        // A part that was quick is not told of.
        let quick = [&head.replace("912", "412"), body, &end.replace("912", "412")].concat();
        assert_eq!(told(&create((310, 410)), false), quick);
    }
}
