//! What may go wrong underneath a scenario. Everything is counted, nothing is random, so that a failure repeats.

use std::time::Duration;

/// One way in which the world is unkind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is kind.
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
}

impl Fault {
    /// All of them.
    pub(super) const ALL: [Self; 7] =
        [Self::None, Self::Conflicts, Self::Failing, Self::Slow, Self::Gaps, Self::Restarts, Self::Failover];
}

/// What becomes of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is carried out.
    Done,
    /// It is carried out after somebody else's.
    Second,
    /// It is refused.
    Refused,
    /// It is carried out, and nobody hears of it.
    Unheard,
    /// It is carried out later.
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
