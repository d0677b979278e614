//! Numbers that follow from a seed (SplitMix64).

use std::time::Duration;

/// See the module.
#[derive(Clone)]
pub struct Dice(u64);

impl Dice {
    /// Begins the sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `sides`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let n = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (n ^ (n >> 31)) % sides
    }

    /// A number from `from` to below `to`; `from` where there is none.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.roll((to - from).max(1))
    }

    /// A time below this many milliseconds.
    pub fn milliseconds(&mut self, below: u64) -> Duration {
        Duration::from_millis(self.between(0, below))
    }

    /// One of a list that is not empty.
    pub fn one_of<T: Clone>(&mut self, list: &[T]) -> T {
        let place = usize::try_from(self.between(0, list.len() as u64)).expect("a place in a list");
        list[place].clone()
    }
}
