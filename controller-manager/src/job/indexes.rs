//! Sets of completion indexes in their stored form, `1,3-5,7`. Answers for upstream's `parseIndexesFromString`,
//! `orderedIntervals`.

use std::fmt;

use k8s_openapi::api::batch::v1::Job;

use crate::engine::object;
use crate::engine::pod::Pod;

/// The annotation and label with a pod's completion index.
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Reports whether the job's pods have completion indexes.
#[must_use]
pub fn indexed(job: &Job) -> bool {
    job.spec.as_ref().and_then(|s| s.completion_mode.as_deref()) == Some("Indexed")
}

/// The completion index of a pod.
#[must_use]
pub fn of(pod: &Pod) -> Option<i32> {
    object::annotation(&pod.metadata, INDEX)?.parse().ok().filter(|i| *i >= 0)
}

/// Indexes as sorted ranges with gaps between them, each from its first to its last index: a job may have 2^31 - 1.
///
/// Answers for upstream's `orderedIntervals`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexSet(Vec<(i32, i32)>);

impl IndexSet {
    /// Reads the stored form; indexes at or beyond `completions` are dropped.
    #[must_use]
    pub fn parse(text: &str, completions: i32) -> Self {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.parse().ok()?, last.parse::<i32>().ok()?.min(completions - 1)))
        };
        Self::of_ranges(text.split(',').filter_map(range).collect())
    }

    fn of_ranges(mut ranges: Vec<(i32, i32)>) -> Self {
        ranges.retain(|(first, last)| first <= last);
        ranges.sort_unstable();
        let mut merged: Vec<(i32, i32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// The indexes of both.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self::of_ranges(self.0.iter().chain(&other.0).copied().collect())
    }

    /// Number of indexes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|range| length(*range)).sum()
    }

    /// Reports whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reports whether an index is among them.
    #[must_use]
    pub fn contains(&self, index: i32) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= index);
        after > 0 && index <= self.0[after - 1].1
    }

    /// Number of indexes that are in both.
    #[must_use]
    pub fn common(&self, other: &Self) -> usize {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut common = 0;
        while let (Some(one), Some(two)) = (a.peek(), b.peek()) {
            common += length((one.0.max(two.0), one.1.min(two.1)));
            if one.1 < two.1 {
                a.next()
            } else {
                b.next()
            };
        }
        common
    }

    /// The indexes below `completions` that are not among them, in order.
    pub fn missing(&self, completions: i32) -> impl Iterator<Item = i32> {
        let starts = std::iter::once(0).chain(self.0.iter().map(|(_, last)| last.saturating_add(1)));
        let ends = self.0.iter().map(|(first, _)| *first).chain([i32::MAX]);
        starts.zip(ends).flat_map(move |(start, end)| start..end.min(completions))
    }
}

/// Number of indexes in a range; none when it ends before it begins.
fn length((first, last): (i32, i32)) -> usize {
    usize::try_from(i64::from(last) - i64::from(first) + 1).unwrap_or(0)
}

impl FromIterator<i32> for IndexSet {
    fn from_iter<I: IntoIterator<Item = i32>>(indexes: I) -> Self {
        Self::of_ranges(indexes.into_iter().map(|index| (index, index)).collect())
    }
}

/// The stored form: ranges of three and more are written with a dash.
impl fmt::Display for IndexSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match length((*first, *last)) {
                1 => write!(f, "{comma}{first}")?,
                2 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn stored_form() {
        for (text, list) in [
            ("", vec![]),
            ("0", vec![0]),
            ("0,1", vec![0, 1]),
            ("1,3-5,7", vec![1, 3, 4, 5, 7]),
            ("0-2", vec![0, 1, 2]),
        ] {
            let set: IndexSet = list.into_iter().collect();
            assert_eq!(IndexSet::parse(text, 10), set, "{text}");
            assert_eq!(set.to_string(), text);
        }
        assert_eq!(IndexSet::parse("0-9", 3).to_string(), "0-2");
        assert_eq!(IndexSet::parse("5-3,x,1-y", 9), IndexSet::default());
    }

    #[test]
    fn largest_job_costs_no_more_than_a_small_one() {
        let all = IndexSet::parse("0-2147483646", i32::MAX);
        assert_eq!((all.len(), all.common(&all)), (2_147_483_647, 2_147_483_647));
        assert!(all.contains(2_147_483_646) && !all.contains(-1));
        assert_eq!(all.missing(i32::MAX).next(), None);
        let but_last = IndexSet::parse("0-2147483645", i32::MAX);
        assert_eq!(but_last.missing(i32::MAX).collect::<Vec<_>>(), [2_147_483_646]);
    }

    proptest::proptest! {
        #[test]
        fn ranges_are_sets(a in proptest::collection::btree_set(0..40_i32, 0..20), b in proptest::collection::btree_set(0..40_i32, 0..20)) {
            let (one, two): (IndexSet, IndexSet) = (a.iter().copied().collect(), b.iter().copied().collect());
            let both: IndexSet = a.union(&b).copied().collect();
            assert_eq!(IndexSet::parse(&one.to_string(), 40), one.clone());
            assert_eq!(one.len(), a.len());
            assert_eq!(one.common(&two), a.intersection(&b).count());
            assert_eq!(one.union(&two), both);
            assert!((-1..41).all(|index| one.contains(index) == a.contains(&index)));
            let missing: BTreeSet<i32> = one.missing(30).collect();
            assert_eq!(missing, (0..30).filter(|index| !a.contains(index)).collect());
        }
    }
}
