//! Sets of processors in the kernel's notation: `0-3,8`.
//! Answers for `k8s.io/utils/cpuset`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Processors beyond this number are no processors.
const MOST: u32 = 1 << 16;

/// Text that is no set of processors.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid set of processors {0:?}")]
pub struct InvalidSet(String);

/// Processors by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(pub(crate) BTreeSet<u32>);

impl CpuSet {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn is_superset(&self, other: &Self) -> bool {
        self.0.is_superset(&other.0)
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        Self(&self.0 | &other.0)
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        Self(&self.0 & &other.0)
    }

    pub(crate) fn difference(&self, other: &Self) -> Self {
        Self(&self.0 - &other.0)
    }

    /// The processors, in order.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = InvalidSet;

    fn from_str(text: &str) -> Result<Self, InvalidSet> {
        let invalid = || InvalidSet(text.to_owned());
        let mut cpus = BTreeSet::new();
        for range in text.trim().split(',').filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number < MOST);
            let (first, last) = number(first).zip(number(last)).ok_or_else(invalid)?;
            if first > last {
                return Err(invalid());
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for cpu in self.ids() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        let text =
            |(first, last): (u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
        f.write_str(&ranges.into_iter().map(text).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for (text, expected) in [("", Ok("")), ("0-3,8", Ok("0-3,8")), ("3,1,2\n", Ok("1-3")), ("7", Ok("7"))] {
            let expected: Result<&str, InvalidSet> = expected;
            assert_eq!(text.parse::<CpuSet>().map(|set| set.to_string()), expected.map(str::to_owned), "{text}");
        }
        for text in ["3-1", "a", "1-", "-1", "0-4294967295", "1 2"] {
            text.parse::<CpuSet>().expect_err(text);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(cpus in proptest::collection::btree_set(0_u32..200, 0..50)) {
            let set = CpuSet(cpus);
            prop_assert_eq!(set.to_string().parse::<CpuSet>(), Ok(set));
        }
    }
}
