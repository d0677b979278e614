//! Eviction signals and thresholds. Pure.

use crate::stats::machine::{Disk, Memory};
use proto::quantity::Quantity;
use std::time::Duration;

/// What can run short, in the order in which it is dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Signal {
    /// `memory.available`
    Memory,
    /// `nodefs.available`
    NodeDisk,
    /// `nodefs.inodesFree`
    NodeInodes,
    /// `imagefs.available`
    ImageDisk,
    /// `imagefs.inodesFree`
    ImageInodes,
    /// `pid.available`
    Processes,
}

impl Signal {
    const ALL: [(Self, &'static str); 6] = [
        (Self::Memory, "memory.available"),
        (Self::NodeDisk, "nodefs.available"),
        (Self::NodeInodes, "nodefs.inodesFree"),
        (Self::ImageDisk, "imagefs.available"),
        (Self::ImageInodes, "imagefs.inodesFree"),
        (Self::Processes, "pid.available"),
    ];

    /// As in the configuration.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(signal, _)| *signal == self).map_or("", |(_, name)| name)
    }

    /// As in messages.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::NodeDisk | Self::ImageDisk => "ephemeral-storage",
            Self::NodeInodes | Self::ImageInodes => "inodes",
            Self::Processes => "pids",
        }
    }

    /// Freeing disk space helps.
    pub fn is_disk(self) -> bool {
        !matches!(self, Self::Memory | Self::Processes)
    }
}

/// How little may be left.
#[derive(Clone, Debug, PartialEq)]
pub enum Least {
    /// So much.
    Amount(u64),
    /// This share of the capacity.
    Share(f64),
}

/// A threshold; a soft one must be met for its grace period.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    /// What runs short.
    pub signal: Signal,
    /// How little may be left.
    pub least: Least,
    /// Set for soft thresholds.
    pub grace: Option<Duration>,
}

impl Threshold {
    /// From the configuration; none when the threshold is switched off (`0%`) or of a signal that this kubelet does
    /// not watch.
    ///
    /// # Errors
    /// Not a quantity or percentage.
    pub fn parse(signal: &str, value: &str, grace: Option<Duration>) -> Result<Option<Self>, String> {
        let Some((signal, _)) = Signal::ALL.into_iter().find(|(_, name)| *name == signal) else {
            let known =
                matches!(signal, "containerfs.available" | "containerfs.inodesFree" | "allocatableMemory.available");
            return if known { Ok(None) } else { Err(format!("unsupported signal {signal}")) };
        };
        let least = if let Some(percent) = value.strip_suffix('%') {
            let share = percent.trim().parse::<f64>().map_err(|e| e.to_string())? / 100.0;
            if share <= 0.0 || share >= 1.0 {
                return Ok(None);
            }
            Least::Share(share)
        } else {
            let amount = value.parse::<Quantity>().map_err(|e| e.to_string())?;
            Least::Amount(u64::try_from(amount.value()).map_err(|_| format!("{value} is negative"))?)
        };
        Ok(Some(Self { signal, least, grace }))
    }

    /// The threshold as an amount.
    pub fn amount(&self, capacity: u64) -> u64 {
        match self.least {
            Least::Amount(amount) => amount,
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
            Least::Share(share) => (capacity as f64 * share) as u64,
        }
    }
}

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Memory.
    pub memory: Memory,
    /// The file system of the root directory.
    pub node_disk: Option<Disk>,
    /// The file system of the images.
    pub image_disk: Option<Disk>,
    /// The most processes and how many there are.
    pub processes: (u64, u64),
}

impl Observed {
    /// What is left and the capacity; none when it is not known.
    pub fn available(&self, signal: Signal) -> Option<(u64, u64)> {
        match signal {
            Signal::Memory => (self.memory.total > 0).then(|| (self.memory.available(), self.memory.total)),
            Signal::NodeDisk => self.node_disk.map(|disk| (disk.available, disk.capacity)),
            Signal::NodeInodes => self.node_disk.map(|disk| (disk.inodes_free, disk.inodes)),
            Signal::ImageDisk => self.image_disk.map(|disk| (disk.available, disk.capacity)),
            Signal::ImageInodes => self.image_disk.map(|disk| (disk.inodes_free, disk.inodes)),
            Signal::Processes => {
                let (most, now) = self.processes;
                (most > 0).then(|| (most.saturating_sub(now), most))
            }
        }
        // File systems without a fixed number of inodes say zero.
        .filter(|(_, capacity)| *capacity > 0)
    }

    /// Less is left than may be.
    pub fn meets(&self, threshold: &Threshold) -> bool {
        self.available(threshold.signal).is_some_and(|(left, capacity)| left < threshold.amount(capacity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_amounts_or_shares() {
        let observed = Observed {
            memory: Memory { total: 1000 << 20, used: 950 << 20, working_set: 950 << 20, rss: 0 },
            node_disk: Some(Disk { capacity: 1000, available: 100, inodes: 0, inodes_free: 0 }),
            ..Observed::default()
        };
        for (signal, value, met) in [
            ("memory.available", "100Mi", Some(true)),
            ("memory.available", "10Mi", Some(false)),
            ("nodefs.available", "15%", Some(true)),
            ("nodefs.available", "5%", Some(false)),
            ("nodefs.available", "0%", None),
            ("nodefs.inodesFree", "5%", Some(false)),
            ("imagefs.available", "15%", Some(false)),
        ] {
            let threshold = Threshold::parse(signal, value, None).expect("parses");
            assert_eq!(threshold.map(|threshold| observed.meets(&threshold)), met, "{signal}<{value}");
        }
        assert!(
            Threshold::parse("nonsense", "1", None).is_err()
                && Threshold::parse("memory.available", "x", None).is_err()
        );
    }
}
