//! Lists of the indexes of an indexed job, such as `0,3-5`.

/// Fault of a list of indexes, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum IndexesError {
    /// An interval has more than two ends.
    #[error(
        "the fragment {0:?} violates the requirement that an index interval can have at most two parts separated by '-'"
    )]
    Interval(String),
    /// An index is not above the one before it.
    #[error("non-increasing order, previous: {previous}, current: {current}")]
    Order {
        /// The index before it.
        previous: i64,
        /// The index.
        current: i64,
    },
    /// An index is not below the number of completions.
    #[error("too large index: {0:?}")]
    TooLarge(String),
    /// An index is no number.
    #[error("cannot convert string to integer for index: {0:?}")]
    NoNumber(String),
}

/// Non-overlapping intervals in order, both ends included.
pub(super) type Intervals = Vec<(i64, i64)>;

/// Reads a list; indexes are below the number of completions.
pub(super) fn parse(text: &str, completions: i64) -> Result<Intervals, IndexesError> {
    let mut out: Intervals = Vec::new();
    if text.is_empty() {
        return Ok(out);
    }
    for fragment in text.split(',') {
        let ends: Vec<&str> = fragment.split('-').collect();
        let (first, last) = match ends[..] {
            [one] => (one, one),
            [first, last] => (first, last),
            _ => return Err(IndexesError::Interval(fragment.to_owned())),
        };
        let first = number(first, completions)?;
        let last = if ends.len() == 2 { number(last, completions)? } else { first };
        if ends.len() == 2 && last <= first {
            return Err(IndexesError::Order { previous: first, current: last });
        }
        if let Some((_, previous)) = out.last().filter(|(_, p)| first <= *p) {
            return Err(IndexesError::Order { previous: *previous, current: first });
        }
        out.push((first, last));
    }
    Ok(out)
}

fn number(text: &str, completions: i64) -> Result<i64, IndexesError> {
    match text.parse::<i64>() {
        Ok(n) if n >= completions => Err(IndexesError::TooLarge(text.to_owned())),
        Ok(n) => Ok(n),
        Err(_) => Err(IndexesError::NoNumber(text.to_owned())),
    }
}

/// The intervals of a list that can be read, whatever the others are.
pub(super) fn readable(text: &str, completions: i64) -> Intervals {
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts.filter_map(|part| parse(part, completions).ok()).flatten().collect()
}

/// Number of indexes in the intervals.
pub(super) fn count(intervals: &Intervals) -> i64 {
    intervals.iter().map(|(first, last)| last - first + 1).sum()
}

/// An index that is in both.
pub(super) fn overlap(a: &Intervals, b: &Intervals) -> Option<i64> {
    let common = |a: &(i64, i64), b: &(i64, i64)| (a.0.max(b.0) <= a.1.min(b.1)).then_some(a.0.max(b.0));
    a.iter().find_map(|a| b.iter().find_map(|b| common(a, b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let table = [
            ("", Ok(vec![])),
            ("0,2-4", Ok(vec![(0, 0), (2, 4)])),
            ("5", Err(r#"too large index: "5""#)),
            ("4294967296", Err(r#"too large index: "4294967296""#)),
            ("3,2-x", Err(r#"cannot convert string to integer for index: "x""#)),
            ("3,2-1", Err("non-increasing order, previous: 2, current: 1")),
            ("x", Err(r#"cannot convert string to integer for index: "x""#)),
            ("1,1", Err("non-increasing order, previous: 1, current: 1")),
            ("2-1", Err("non-increasing order, previous: 2, current: 1")),
            (
                "0-1-2",
                Err(
                    r#"the fragment "0-1-2" violates the requirement that an index interval can have at most two parts separated by '-'"#,
                ),
            ),
        ];
        for (text, want) in table {
            assert_eq!(parse(text, 5).map_err(|e| e.to_string()), want.map_err(str::to_owned), "{text}");
        }
        let parsed = |text| parse(text, 10).expect("indexes");
        assert_eq!(count(&parsed("0,2-4")), 4);
        assert_eq!(overlap(&parsed("0,2-4"), &parsed("1,3")), Some(3));
        assert_eq!(overlap(&parsed("0,2"), &parsed("1,3-5")), None);
    }
}
