//! Eviction signals and thresholds. Pure.
//! Answers for `parseThresholdStatement`, `makeSignalObservations` and `thresholdsMet` of upstream's
//! `pkg/kubelet/eviction`.

use crate::config::KubeletConfiguration;
use crate::stats::machine::{Disk, Memory};
use proto::quantity::ParseError;
use proto::quantity::Quantity;
use shared::flags::{DurationError, format_nanos, parse_nanos};
use std::num::ParseFloatError;
use std::time::Duration;

/// Resources that can run short, in the order in which they are reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Signal {
    /// `allocatableMemory.available`: what all pods may have together.
    PodsMemory,
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
    const ALL: [(Self, &'static str); 7] = [
        (Self::PodsMemory, "allocatableMemory.available"),
        (Self::Memory, "memory.available"),
        (Self::NodeDisk, "nodefs.available"),
        (Self::NodeInodes, "nodefs.inodesFree"),
        (Self::ImageDisk, "imagefs.available"),
        (Self::ImageInodes, "imagefs.inodesFree"),
        (Self::Processes, "pid.available"),
    ];

    /// Returns the name in the configuration.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(signal, _)| *signal == self).map_or("", |(_, name)| name)
    }

    /// Returns the resource that messages name.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Memory | Self::PodsMemory => "memory",
            Self::NodeDisk | Self::ImageDisk => "ephemeral-storage",
            Self::NodeInodes | Self::ImageInodes => "inodes",
            Self::Processes => "pids",
        }
    }

    /// Reports whether files make the signal short.
    pub fn is_disk(self) -> bool {
        !matches!(self, Self::Memory | Self::PodsMemory | Self::Processes)
    }
}

/// Amounts that must be left.
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
    /// Resource of the threshold.
    pub signal: Signal,
    /// Amount that must be left.
    pub least: Least,
    /// Set for soft thresholds.
    pub grace: Option<Duration>,
    /// Amount that has to be left beyond the threshold before the shortage is over.
    pub reclaim: Option<Least>,
}

/// Signals that follow those of the file system that they are on, whatever is configured for them.
const FOLLOWING: [&str; 2] = ["containerfs.available", "containerfs.inodesFree"];

/// Thresholds that are wrong, in upstream's words.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ThresholdError {
    /// No such signal.
    #[error("unsupported eviction signal {0}")]
    Signal(String),
    /// A soft threshold has no period of grace.
    #[error("grace period must be specified for the soft eviction threshold {0}")]
    NoGrace(String),
    /// A period of grace is negative.
    #[error("invalid eviction grace period specified: {}, must be a positive value", format_nanos(*.0))]
    NegativeGrace(i64),
    /// A period of grace is none.
    #[error(transparent)]
    Grace(#[from] DurationError),
    /// A share is no number.
    #[error(transparent)]
    Share(#[from] ParseFloatError),
    /// An amount is none.
    #[error(transparent)]
    Amount(#[from] ParseError),
    /// A share is negative.
    #[error("eviction percentage threshold {name} must be >= 0%: {text}")]
    NegativeShare {
        /// The signal.
        name: String,
        /// The threshold.
        text: String,
    },
    /// A share is more than everything.
    #[error("eviction percentage threshold {name} must be <= 100%: {text}")]
    LargeShare {
        /// The signal.
        name: String,
        /// The threshold.
        text: String,
    },
    /// An amount is not positive.
    #[error("eviction threshold {name} must be positive: {text}")]
    NoAmount {
        /// The signal.
        name: String,
        /// The threshold.
        text: String,
    },
    /// A share that is to be reclaimed is not positive.
    #[error("eviction percentage minimum reclaim {name} must be positive: {text}")]
    NoReclaimedShare {
        /// The signal.
        name: String,
        /// The share.
        text: String,
    },
    /// An amount that is to be reclaimed is negative.
    #[error("negative eviction minimum reclaim specified for {0}")]
    NegativeReclaim(String),
}

/// The thresholds of a configuration. Answers for upstream's `ParseThresholdConfig`.
///
/// # Errors
/// The first that is wrong.
pub fn thresholds(kubelet: &KubeletConfiguration) -> Result<Vec<Threshold>, ThresholdError> {
    let grace = |name: &str| match kubelet.eviction_soft_grace_period.get(name) {
        None => Err(ThresholdError::NoGrace(name.to_owned())),
        Some(text) => match parse_nanos(text)? {
            nanos @ 0.. => Ok(Some(Duration::from_nanos(nanos.unsigned_abs()))),
            nanos => Err(ThresholdError::NegativeGrace(nanos)),
        },
    };
    let reclaim = |name: &str| kubelet.eviction_minimum_reclaim.get(name).map(|text| reclaimed(name, text)).transpose();
    for name in kubelet.eviction_minimum_reclaim.keys().chain(kubelet.eviction_soft_grace_period.keys()) {
        signal(name)?;
    }
    let mut all = Vec::new();
    let hard = kubelet.eviction_hard.iter().map(|entry| (entry, true));
    for ((name, value), is_hard) in hard.chain(kubelet.eviction_soft.iter().map(|entry| (entry, false))) {
        let Some(signal) = signal(name)? else { continue };
        let Some(least) = least(name, value)? else { continue };
        let grace = if is_hard { None } else { grace(name)? };
        all.push(Threshold { signal, least, grace, reclaim: reclaim(name)? });
    }
    if kubelet.enforce_node_allocatable.iter().any(|what| what == "pods") {
        let of_memory = |threshold: &&Threshold| threshold.signal == Signal::Memory && threshold.grace.is_none();
        let pods: Vec<Threshold> = all
            .iter()
            .filter(of_memory)
            .map(|found| Threshold { signal: Signal::PodsMemory, ..found.clone() })
            .collect();
        all.extend(pods);
    }
    Ok(all)
}

fn signal(name: &str) -> Result<Option<Signal>, ThresholdError> {
    match Signal::ALL.into_iter().find(|(_, known)| *known == name) {
        Some((signal, _)) => Ok(Some(signal)),
        None if FOLLOWING.contains(&name) => Ok(None),
        None => Err(ThresholdError::Signal(name.to_owned())),
    }
}

/// Reads a threshold; none where it is switched off.
fn least(name: &str, text: &str) -> Result<Option<Least>, ThresholdError> {
    let (signal, given) = (|| name.to_owned(), || text.to_owned());
    if let Some(percent) = text.strip_suffix('%') {
        if matches!(text, "0%" | "100%") {
            return Ok(None);
        }
        let share = percent.parse::<f64>()? / 100.0;
        return match share {
            share if share < 0.0 => Err(ThresholdError::NegativeShare { name: signal(), text: given() }),
            share if share > 1.0 => Err(ThresholdError::LargeShare { name: signal(), text: given() }),
            share => Ok(Some(Least::Share(share))),
        };
    }
    let amount = text.parse::<Quantity>()?;
    match u64::try_from(amount.value()) {
        Ok(bytes @ 1..) => Ok(Some(Least::Amount(bytes))),
        _ => Err(ThresholdError::NoAmount { name: signal(), text: given() }),
    }
}

fn reclaimed(name: &str, text: &str) -> Result<Least, ThresholdError> {
    if let Some(percent) = text.strip_suffix('%') {
        let share = percent.parse::<f64>()? / 100.0;
        return match share {
            share if share <= 0.0 => {
                Err(ThresholdError::NoReclaimedShare { name: name.to_owned(), text: text.to_owned() })
            }
            share => Ok(Least::Share(share)),
        };
    }
    let amount = text.parse::<Quantity>()?;
    let bytes = u64::try_from(amount.value());
    bytes.map(Least::Amount).map_err(|_| ThresholdError::NegativeReclaim(name.to_owned()))
}

impl Least {
    fn of(&self, capacity: u64) -> u64 {
        match self {
            Self::Amount(amount) => *amount,
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a share of a capacity; casts of floats saturate"
            )]
            Self::Share(share) => (capacity as f64 * share) as u64,
        }
    }
}

impl Threshold {
    /// The threshold as an amount.
    pub fn amount(&self, capacity: u64) -> u64 {
        self.least.of(capacity)
    }
}

/// Observed amounts.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Memory.
    pub memory: Memory,
    /// Limit and use of memory by all pods.
    pub pods_memory: Option<(u64, u64)>,
    /// The file system of the root directory.
    pub node_disk: Option<Disk>,
    /// The file system of the images.
    pub image_disk: Option<Disk>,
    /// The most processes and how many there are.
    pub processes: (u64, u64),
}

impl Observed {
    /// Returns the available amount and the capacity; none when they are not known.
    pub fn available(&self, signal: Signal) -> Option<(u64, u64)> {
        match signal {
            Signal::PodsMemory => self.pods_memory.map(|(limit, used)| (limit.saturating_sub(used), limit)),
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

    /// Less is left than has to be once a threshold was met.
    pub fn is_unresolved(&self, threshold: &Threshold) -> bool {
        let more = |capacity: u64| threshold.reclaim.as_ref().map_or(0, |reclaim| reclaim.of(capacity));
        let enough = |capacity: u64| threshold.amount(capacity).saturating_add(more(capacity));
        self.available(threshold.signal).is_some_and(|(left, capacity)| left < enough(capacity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(changes: serde_json::Value) -> Result<Vec<Threshold>, ThresholdError> {
        thresholds(&serde_json::from_value(changes).expect("a configuration"))
    }

    fn threshold(signal: &str, value: &str) -> Option<Threshold> {
        parse(json!({"evictionHard": {signal: value}})).expect("parses").pop()
    }

    #[test]
    fn thresholds_are_amounts_or_shares() {
        let observed = Observed {
            memory: Memory { total: 1000 << 20, used: 950 << 20, working_set: 950 << 20, ..Memory::default() },
            node_disk: Some(Disk { capacity: 1000, available: 100, inodes: 0, inodes_free: 0 }),
            pods_memory: Some((100, 95)),
            ..Observed::default()
        };
        for (signal, value, met) in [
            ("memory.available", "100Mi", Some(true)),
            ("memory.available", "10Mi", Some(false)),
            ("allocatableMemory.available", "10", Some(true)),
            ("allocatableMemory.available", "5", Some(false)),
            ("nodefs.available", "15%", Some(true)),
            ("nodefs.available", "5%", Some(false)),
            ("nodefs.available", "0%", None),
            ("nodefs.inodesFree", "5%", Some(false)),
            ("imagefs.available", "15%", Some(false)),
            ("containerfs.available", "15%", None),
        ] {
            let threshold = threshold(signal, value);
            assert_eq!(threshold.map(|threshold| observed.meets(&threshold)), met, "{signal}<{value}");
        }
    }

    #[test]
    fn a_shortage_is_over_when_so_much_more_is_left() {
        let changes =
            json!({"evictionHard": {"nodefs.available": "10%"}, "evictionMinimumReclaim": {"nodefs.available": "50"}});
        let threshold = parse(changes).expect("parses").remove(0);
        let states = [99, 100, 149, 150].map(|available| {
            let node_disk = Some(Disk { capacity: 1000, available, inodes: 0, inodes_free: 0 });
            let observed = Observed { node_disk, ..Observed::default() };
            (observed.meets(&threshold), observed.is_unresolved(&threshold))
        });
        assert_eq!(states, [(true, true), (false, true), (false, true), (false, false)]);
    }

    #[test]
    fn memory_of_all_pods_has_the_threshold_of_the_machines() {
        let hard = json!({"memory.available": "100Mi"});
        let soft = (json!({"memory.available": "1Gi"}), json!({"memory.available": "1m"}));
        let signals = |enforced: &[&str]| -> Vec<(Signal, bool)> {
            let changes = json!({"evictionHard": hard, "evictionSoft": soft.0, "evictionSoftGracePeriod": soft.1,
                "enforceNodeAllocatable": enforced});
            parse(changes).expect("parses").iter().map(|found| (found.signal, found.grace.is_some())).collect()
        };
        let own = [(Signal::Memory, false), (Signal::Memory, true)];
        assert_eq!(signals(&["none"]), own);
        assert_eq!(signals(&["pods"]), [own[0], own[1], (Signal::PodsMemory, false)]);
    }

    #[test]
    fn bad_thresholds_are_refused_with_upstreams_texts() {
        for (changes, text) in [
            (json!({"evictionHard": {"nonsense": "1"}}), "unsupported eviction signal nonsense"),
            (
                json!({"evictionHard": {"memory.available": "-5%"}}),
                "eviction percentage threshold memory.available must be >= 0%: -5%",
            ),
            (
                json!({"evictionHard": {"memory.available": "101%"}}),
                "eviction percentage threshold memory.available must be <= 100%: 101%",
            ),
            (
                json!({"evictionHard": {"memory.available": "0"}}),
                "eviction threshold memory.available must be positive: 0",
            ),
            (
                json!({"evictionSoft": {"memory.available": "1Mi"}}),
                "grace period must be specified for the soft eviction threshold memory.available",
            ),
            (
                json!({"evictionSoft": {"memory.available": "1Mi"}, "evictionSoftGracePeriod": {"memory.available": "-1s"}}),
                "invalid eviction grace period specified: -1s, must be a positive value",
            ),
            (
                json!({"evictionHard": {"memory.available": "1"}, "evictionMinimumReclaim": {"memory.available": "-1"}}),
                "negative eviction minimum reclaim specified for memory.available",
            ),
            (json!({"evictionMinimumReclaim": {"x": "1"}}), "unsupported eviction signal x"),
        ] {
            assert_eq!(parse(changes.clone()).expect_err(text).to_string(), text, "{changes}");
        }
    }
}
