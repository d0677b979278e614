//! Faults underneath a scenario. Everything is counted or comes from a seed, so that a failure repeats.

use std::time::Duration;

/// One way in which the world is unkind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// No fault.
    None,
    /// Somebody else writes to an object just before the controllers do.
    Conflicts,
    /// Some writes fail; of some the answer is lost although they were carried out.
    Failing,
    /// Writes take seconds.
    Slow,
    /// Watches break, and what they missed is forgotten.
    Gaps,
    /// The server is away now and then.
    Restarts,
    /// The leader dies and another takes over.
    Failover,
    /// Watches tell of everything seconds late.
    Lag,
    /// A kind cannot be listed.
    Unlistable,
    /// The server is away for five minutes.
    Away,
    /// The leader is frozen, another takes over, and the first thaws.
    Frozen,
}

impl Fault {
    /// All of them.
    pub(super) const ALL: [Self; 11] = [
        Self::None,
        Self::Conflicts,
        Self::Failing,
        Self::Slow,
        Self::Gaps,
        Self::Restarts,
        Self::Failover,
        Self::Lag,
        Self::Unlistable,
        Self::Away,
        Self::Frozen,
    ];
}

impl Fault {
    /// The names that exceptions have for it: one by design under a lesser fault is one under the greater, too.
    pub(super) fn names(self) -> impl Iterator<Item = String> {
        let lesser = match self {
            Self::Away => Some(Self::Restarts),
            Self::Frozen => Some(Self::Failover),
            // More time passes between two steps.
            Self::Lag | Self::Unlistable => Some(Self::Slow),
            _ => None,
        };
        [Some(self), lesser].into_iter().flatten().map(|fault| format!("{fault:?}").to_lowercase())
    }
}

/// The kind that cannot be listed under a seed: of each, informers or the metadata of everything want to know, and no
/// scenario is about it unless it says so.
pub(super) fn unlistable(seed: u64) -> &'static str {
    const KINDS: [&str; 4] = ["limitranges", "runtimeclasses", "ingressclasses", "podtemplates"];
    KINDS[usize::try_from(mixed(seed) % 4).unwrap_or(0)]
}

/// Delay until a watch tells of the `n`th news: up to four seconds.
pub(super) fn lag(seed: u64, n: u64) -> Duration {
    Duration::from_millis(mixed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n) % 4000)
}

/// Fates of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The write is carried out.
    Done,
    /// The write is carried out after somebody else's.
    Second,
    /// The write is refused.
    Refused,
    /// The write is carried out, and its answer is lost.
    Unheard,
    /// The write is carried out later.
    Later(Duration),
}

/// A number that has nothing to do with its neighbours' (the finaliser of splitmix64). Were every third write in conflict,
/// two that write by turns could meet it for ever.
fn mixed(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// The fate of the `n`th write.
pub(super) fn of_write(fault: Fault, n: u64) -> Fate {
    match fault {
        Fault::Conflicts if mixed(n).is_multiple_of(3) => Fate::Second,
        Fault::Failing if n % 11 == 7 => Fate::Unheard,
        Fault::Failing if n % 4 == 1 => Fate::Refused,
        Fault::Slow => Fate::Later(Duration::from_millis(n % 5 * 400)),
        _ => Fate::Done,
    }
}
