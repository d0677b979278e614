//! Numbers that do not fit, as upstream's arithmetic treats them on the machines that most servers are (amd64).
//!
//! Sums of whole numbers wrap. A fraction that no whole number can hold becomes the least one, so that a measurement
//! past all bounds asks for nothing; only metrics that are a total of all replicas ask for as much as there is.

/// A fraction cut to a whole number; the least one if it does not fit.
#[allow(clippy::cast_possible_truncation, reason = "it is in range")]
pub(super) fn int32(number: f64) -> i32 {
    let whole = number.trunc();
    if (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&whole) { whole as i32 } else { i32::MIN }
}

/// Converts like [`int32`], to 64 bits.
#[allow(clippy::cast_possible_truncation, reason = "it is in range")]
pub(super) fn int64(number: f64) -> i64 {
    const BOUND: f64 = 9_223_372_036_854_775_808.0;
    if (-BOUND..BOUND).contains(&number) { number as i64 } else { i64::MIN }
}

/// Rounded up to replicas.
pub(super) fn ceil(replicas: f64) -> i32 {
    int32(replicas.ceil())
}

/// Rounded up to replicas; too many are the most there can be.
pub(super) fn at_most(replicas: f64) -> i32 {
    if replicas > f64::from(i32::MAX) { i32::MAX } else { ceil(replicas) }
}

/// The sum of numbers, which wraps.
pub(super) fn sum(numbers: impl IntoIterator<Item = i64>) -> i64 {
    numbers.into_iter().fold(0, i64::wrapping_add)
}

/// The sum of the values of series whose target is one for all: no more than fits.
pub(super) fn total_of_series(values: &[i64]) -> i64 {
    let mut sum = 0i64;
    for value in values {
        if *value > 0 && sum.checked_add(*value).is_none() {
            return i64::MAX;
        }
        sum = sum.wrapping_add(*value);
    }
    sum
}

/// The sum of the values of series whose target is one for each replica. One below zero is taken to have been too much.
pub(super) fn shared_of_series(values: &[i64]) -> i64 {
    let mut sum = 0i64;
    for value in values {
        sum = sum.wrapping_add(*value);
        if sum < 0 {
            return i64::MAX;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions() {
        for (number, cut, up, most) in [
            (2.5, 2, 3, 3),
            (-2.5, -2, -2, -2),
            (2_147_483_646.5, 2_147_483_646, i32::MAX, i32::MAX),
            (2_147_483_647.5, i32::MAX, i32::MIN, i32::MAX),
            (2_147_483_648.0, i32::MIN, i32::MIN, i32::MAX),
            (-3e9, i32::MIN, i32::MIN, i32::MIN),
            (f64::INFINITY, i32::MIN, i32::MIN, i32::MAX),
            (f64::NAN, i32::MIN, i32::MIN, i32::MIN),
        ] {
            assert_eq!((int32(number), ceil(number), at_most(number)), (cut, up, most), "{number}");
        }
        for (number, cut) in [(1e18, 1_000_000_000_000_000_000), (1e19, i64::MIN), (f64::NAN, i64::MIN)] {
            assert_eq!(int64(number), cut, "{number}");
        }
    }

    #[test]
    fn sums() {
        const MAX: i64 = i64::MAX;
        for (values, wrapped, total, shared) in [
            (&[1, 2][..], 3, 3, 3),
            (&[MAX, 1], i64::MIN, MAX, MAX),
            (&[MAX, 1, MAX], -1, MAX, MAX),
            (&[-5, 2], -3, -3, MAX),
            (&[], 0, 0, 0),
        ] {
            let got = (sum(values.iter().copied()), total_of_series(values), shared_of_series(values));
            assert_eq!(got, (wrapped, total, shared), "{values:?}");
        }
    }
}
