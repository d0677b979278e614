//! Thresholds over time: since when each is met, and which of them drive evictions. Pure.
//! Answers for `thresholdsFirstObservedAt`, `thresholdsMetGracePeriod` and `nodeConditionsObservedSince`.

use super::signals::{Observed, Signal, Threshold};
use crate::pressure::Pressure;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Thresholds by their index, as they were found at the looks so far.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    met_since: HashMap<usize, Instant>,
    /// Thresholds that pods were to go for at the last look: upstream's `thresholdsMet`.
    driving: HashSet<usize>,
    /// Time at which each signal's threshold was met last.
    pressed: HashMap<Signal, Instant>,
}

impl Tracker {
    /// Takes in a look at the node; the thresholds that pods have to go for. One that did so stays until as much as is wanted
    /// has been reclaimed; a soft one whose grace period is not over ends with the shortage.
    pub(super) fn look(&mut self, thresholds: &[Threshold], observed: &Observed, now: Instant) -> Vec<Threshold> {
        let mut due = Vec::new();
        for (index, threshold) in thresholds.iter().enumerate() {
            let was_driving = self.driving.remove(&index);
            let is_met = observed.meets(threshold) || (was_driving && observed.is_unresolved(threshold));
            if !is_met {
                self.met_since.remove(&index);
                continue;
            }
            self.pressed.insert(threshold.signal, now);
            let since = *self.met_since.entry(index).or_insert(now);
            if threshold.grace.is_none_or(|grace| now.duration_since(since) >= grace) {
                self.driving.insert(index);
                due.push(threshold.clone());
            }
        }
        due
    }

    /// Resources that are short, or were not longer ago than `transition`.
    pub(super) fn pressure(&self, now: Instant, transition: Duration) -> Pressure {
        let lately = |signals: &[Signal]| {
            let mut times = signals.iter().filter_map(|signal| self.pressed.get(signal));
            times.any(|at| now.duration_since(*at) < transition)
        };
        Pressure {
            memory: lately(&[Signal::Memory, Signal::PodsMemory]),
            disk: lately(&[Signal::NodeDisk, Signal::NodeInodes, Signal::ImageDisk, Signal::ImageInodes]),
            pid: lately(&[Signal::Processes]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::signals::Least;
    use super::*;
    use crate::stats::machine::Disk;

    fn left(available: u64) -> Observed {
        let node_disk = Some(Disk { capacity: 1000, available, inodes: 0, inodes_free: 0 });
        Observed { node_disk, ..Observed::default() }
    }

    /// Less than 100 must not be left, and 150 have to be once pods had to go for it.
    fn threshold(grace: Option<u64>) -> Threshold {
        Threshold {
            signal: Signal::NodeDisk,
            least: Least::Amount(100),
            grace: grace.map(Duration::from_secs),
            reclaim: Some(Least::Amount(50)),
        }
    }

    #[test]
    fn a_soft_threshold_counts_from_the_time_when_it_is_met_again() {
        let start = Instant::now();
        for (grace, looks) in [
            // Seconds, what is left, and whether a pod has to go.
            (
                Some(60),
                vec![
                    (0, 90, false),
                    (30, 120, false),
                    (60, 120, false),
                    (70, 90, false),
                    (120, 90, false),
                    (130, 90, true),
                ],
            ),
            (
                Some(60),
                vec![
                    (0, 90, false),
                    (60, 90, true),
                    (70, 120, true),
                    (80, 149, true),
                    (90, 150, false),
                    (100, 120, false),
                ],
            ),
            (None, vec![(0, 120, false), (10, 99, true), (20, 149, true), (30, 150, false), (40, 149, false)]),
        ] {
            let mut tracker = Tracker::default();
            for (second, available, expected) in looks {
                let now = start + Duration::from_secs(second);
                let due = tracker.look(&[threshold(grace)], &left(available), now);
                assert_eq!(!due.is_empty(), expected, "{grace:?}: {available} are left after {second} s");
            }
        }
    }

    #[test]
    fn a_shortage_is_told_of_for_a_while() {
        let (start, mut tracker) = (Instant::now(), Tracker::default());
        let transition = Duration::from_secs(300);
        assert_eq!(tracker.pressure(start, transition), Pressure::default());
        tracker.look(&[threshold(Some(60))], &left(90), start);
        tracker.look(&[threshold(Some(60))], &left(500), start + Duration::from_secs(10));
        let disk = |second| tracker.pressure(start + Duration::from_secs(second), transition).disk;
        assert_eq!([disk(0), disk(299), disk(300)], [true, true, false]);
    }
}
