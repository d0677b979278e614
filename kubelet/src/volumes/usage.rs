//! Use of volumes: bytes and files, as `/stats/summary` and the metrics tell them. Upstream's `volume_stat_calculator.go`.

use crate::csi::v1::{NodeGetVolumeStatsResponse, volume_usage::Unit};
use crate::files::visit_below;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Upstream's `volumeStatsAggPeriod`: numbers are as old as this at most.
const PERIOD: Duration = Duration::from_secs(60);

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
        let disk = crate::stats::machine::disk(path)?;
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
        let (bytes, files) = measure(folder).ok()?;
        let around = Self::of_file_system(folder)?;
        Some(Self { used: Some(bytes), inodes_used: Some(files), ..around })
    }

    /// A driver's answer.
    pub(crate) fn of_driver(answer: &NodeGetVolumeStatsResponse) -> Self {
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
        usage.is_abnormal = answer.volume_condition.as_ref().map(|condition| condition.abnormal);
        usage
    }
}

/// Bytes and number of the files below a folder, itself included; nothing of other file systems.
fn measure(folder: &Path) -> io::Result<(u64, u64)> {
    let root = fs::symlink_metadata(folder)?;
    let (mut bytes, mut files) = (root.blocks() * 512, 1);
    visit_below(folder, |metadata| {
        let is_own = metadata.dev() == root.dev();
        if is_own {
            bytes += metadata.blocks() * 512;
            files += 1;
        }
        is_own
    });
    Ok((bytes, files))
}

/// Numbers of pods' volumes as they were last looked at, by uid.
#[derive(Default)]
pub(super) struct Known(HashMap<String, (Instant, Arc<Vec<VolumeUsage>>)>);

impl Known {
    /// The last numbers, and whether to look again: only one of those who ask is told so.
    pub(super) fn ask(&mut self, uid: &str, now: Instant) -> (Arc<Vec<VolumeUsage>>, bool) {
        let entry = self.0.get_mut(uid);
        let is_due = entry.as_ref().is_none_or(|(at, _)| now.duration_since(*at) >= PERIOD);
        let last = entry.map(|(_, last)| Arc::clone(last)).unwrap_or_default();
        if is_due {
            self.0.insert(uid.to_owned(), (now, Arc::clone(&last)));
        }
        (last, is_due)
    }

    /// Keeps new numbers.
    pub(super) fn keep(&mut self, uid: &str, now: Instant, usage: Arc<Vec<VolumeUsage>>) {
        self.0.insert(uid.to_owned(), (now, usage));
    }

    /// Forgets a pod.
    pub(super) fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::v1::{VolumeCondition, VolumeUsage as Part};

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
        assert_eq!(Usage::of_driver(&answer), expected);
    }

    #[test]
    fn files_of_a_folder_are_counted_and_those_of_other_file_systems_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let (before, one) = measure(folder.path()).expect("measured");
        fs::create_dir(folder.path().join("deep")).expect("made");
        fs::write(folder.path().join("deep/file"), vec![1; 10_000]).expect("written");
        std::os::unix::fs::symlink("/proc", folder.path().join("link")).expect("a link");
        let (bytes, files) = measure(folder.path()).expect("measured");
        assert!(bytes >= before + 10_000);
        assert_eq!(files, one + 3);
        measure(&folder.path().join("none")).expect_err("nothing is there");
    }

    #[test]
    fn numbers_are_looked_at_once_a_minute() {
        let (mut known, start) = (Known::default(), Instant::now());
        assert!(known.ask("u", start).1);
        assert!(!known.ask("u", start).1, "another one looks");
        let usage = VolumeUsage { volume: "v".to_owned(), claim: None, usage: Usage::default() };
        known.keep("u", start, Arc::new(vec![usage.clone()]));
        assert_eq!(known.ask("u", start + PERIOD / 2), (Arc::new(vec![usage.clone()]), false));
        assert_eq!(known.ask("u", start + PERIOD), (Arc::new(vec![usage]), true));
        known.forget("u");
        assert!(known.ask("u", start).0.is_empty());
    }
}
