//! Use of volumes: bytes and files, as `/stats/summary` and the metrics tell them. Upstream's `volume_stat_calculator.go`.

use crate::trees;
use crate::volumes::csi::v1::{NodeGetVolumeStatsResponse, volume_usage::Unit};
use std::collections::HashMap;
use std::fs;
use std::io::{Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Numbers of a volume; none of what its kind does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that are left.
    pub available: Option<u64>,
    /// Bytes in all.
    pub capacity: Option<u64>,
    /// Bytes that are used.
    pub used: Option<u64>,
    /// Files that can be.
    pub inodes: Option<u64>,
    /// Files that can be made yet.
    pub inodes_free: Option<u64>,
    /// Files that there are.
    pub inodes_used: Option<u64>,
    /// The driver's word that something is wrong.
    pub is_abnormal: Option<bool>,
}

/// A volume of a pod with its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeUsage {
    /// Name in the pod.
    pub volume: String,
    /// The claim that it is of.
    pub claim: Option<String>,
    /// The numbers.
    pub usage: Usage,
}

impl Usage {
    /// The file system below a path.
    pub(super) fn of_file_system(path: &Path) -> Option<Self> {
        let disk = crate::disk::disk(path)?;
        Some(Self {
            available: Some(disk.available),
            capacity: Some(disk.capacity),
            used: Some(disk.capacity.saturating_sub(disk.available)),
            inodes: Some(disk.inodes),
            inodes_free: Some(disk.inodes_free),
            inodes_used: Some(disk.inodes.saturating_sub(disk.inodes_free)),
            is_abnormal: None,
        })
    }

    /// The files below a folder, and the file system that they are in.
    pub(super) fn of_folder(folder: &Path) -> Option<Self> {
        let size = trees::size(folder).ok()?;
        let around = Self::of_file_system(folder)?;
        Some(Self { used: Some(size.bytes), inodes_used: Some(size.inodes), ..around })
    }

    /// The size of a block device.
    pub(super) fn of_device(device: &Path) -> Option<Self> {
        let mut file = fs::OpenOptions::new().read(true).open(device).ok()?;
        Some(Self { capacity: Some(file.seek(SeekFrom::End(0)).ok()?), ..Self::default() })
    }

    /// A driver's answer, with its word on the volume's health where that is wanted.
    pub(crate) fn of_driver(answer: &NodeGetVolumeStatsResponse, with_health: bool) -> Self {
        let mut usage = Self::default();
        let number = |value: i64| u64::try_from(value).ok();
        for part in &answer.usage {
            let (total, available, used) = (number(part.total), number(part.available), number(part.used));
            match part.unit() {
                Unit::Bytes => (usage.capacity, usage.available, usage.used) = (total, available, used),
                Unit::Inodes => (usage.inodes, usage.inodes_free, usage.inodes_used) = (total, available, used),
                Unit::Unknown => {}
            }
        }
        let condition = answer.volume_condition.as_ref().filter(|_| with_health);
        usage.is_abnormal = condition.map(|condition| condition.abnormal);
        usage
    }
}

/// Numbers of a pod's volumes as they were last looked at.
struct Last {
    at: Instant,
    usage: Arc<Vec<VolumeUsage>>,
    /// Somebody looks: a file system that does not answer holds one thread.
    is_looking: bool,
}

/// Numbers of pods' volumes, by uid.
pub(super) struct KnownUsage {
    /// `volumeStatsAggPeriod`: numbers are as old as this at most.
    period: Duration,
    of_pods: HashMap<String, Last>,
}

impl KnownUsage {
    pub(super) fn new(period: Duration) -> Self {
        Self { period, of_pods: HashMap::new() }
    }

    /// The last numbers, and whether to look again: only one of those who ask is told so, and none while that one looks.
    pub(super) fn ask(&mut self, uid: &str, now: Instant) -> (Arc<Vec<VolumeUsage>>, bool) {
        let Some(last) = self.of_pods.get_mut(uid) else {
            let usage = Arc::<Vec<VolumeUsage>>::default();
            self.of_pods.insert(uid.to_owned(), Last { at: now, usage: Arc::clone(&usage), is_looking: true });
            return (usage, true);
        };
        let is_due = !last.is_looking && now.duration_since(last.at) >= self.period;
        if is_due {
            (last.at, last.is_looking) = (now, true);
        }
        (Arc::clone(&last.usage), is_due)
    }

    /// Keeps new numbers of a pod that is there yet.
    pub(super) fn keep(&mut self, uid: &str, now: Instant, usage: Arc<Vec<VolumeUsage>>) {
        if let Some(last) = self.of_pods.get_mut(uid) {
            *last = Last { at: now, usage, is_looking: false };
        }
    }

    /// Forgets a pod.
    pub(super) fn forget(&mut self, uid: &str) {
        self.of_pods.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::csi::v1::{VolumeCondition, VolumeUsage as Part};

    #[test]
    fn drivers_answers_are_read_by_unit() {
        let part = |unit: Unit, total| Part { available: 3, total, used: 7, unit: unit.into() };
        let answer = NodeGetVolumeStatsResponse {
            usage: vec![part(Unit::Bytes, 10), part(Unit::Inodes, -1)],
            volume_condition: Some(VolumeCondition { abnormal: true, message: String::new() }),
        };
        let expected = Usage {
            available: Some(3),
            capacity: Some(10),
            used: Some(7),
            inodes: None,
            inodes_free: Some(3),
            inodes_used: Some(7),
            is_abnormal: Some(true),
        };
        assert_eq!(Usage::of_driver(&answer, true), expected);
        assert_eq!(Usage::of_driver(&answer, false), Usage { is_abnormal: None, ..expected });
    }

    #[test]
    fn a_device_has_its_size() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(12 << 20).expect("a size");
        let expected = Usage { capacity: Some(12 << 20), ..Usage::default() };
        assert_eq!(Usage::of_device(file.path()), Some(expected));
        assert_eq!(Usage::of_device(Path::new("/nonexistent")), None);
    }

    #[test]
    fn numbers_are_looked_at_once_a_period() {
        const PERIOD: Duration = Duration::from_secs(30);
        let (mut known, start) = (KnownUsage::new(PERIOD), Instant::now());
        assert!(known.ask("u", start).1);
        assert!(!known.ask("u", start).1, "another one looks");
        let usage = VolumeUsage { volume: "v".to_owned(), claim: None, usage: Usage::default() };
        known.keep("u", start, Arc::new(vec![usage.clone()]));
        assert_eq!(known.ask("u", start + PERIOD / 2), (Arc::new(vec![usage.clone()]), false));
        assert_eq!(known.ask("u", start + PERIOD), (Arc::new(vec![usage.clone()]), true));
        let (last, is_due) = known.ask("u", start + PERIOD * 9);
        assert!(!is_due && last.len() == 1, "the one who looks hangs");
        known.forget("u");
        known.keep("u", start, Arc::new(vec![usage]));
        assert!(known.ask("u", start).0.is_empty(), "what is told late of a pod that is gone is not kept");
    }
}
