//! Limits of the tree, and the form of numbers in it.

use serde_json::Number;

/// Deepest nesting that becomes a tree.
pub const MAX_TREE_DEPTH: usize = 256;
/// Additional depth for field names in an object's own managed fields: every accepted object can be written and read
/// again.
pub(super) const NAMES: usize = 16;

/// The integer that a float is, where JSON's readers tell it apart from its neighbours.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "checked to be whole and below 2^53")]
pub fn whole(value: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_991.0;
    (value.fract() == 0.0 && value.abs() <= EXACT).then_some(value as i64)
}

/// A float as the tree keeps it: whole numbers of exact size as integers, so that equal values have one form. `None` for
/// what is no number in JSON.
#[must_use]
pub fn number(value: f64) -> Option<Number> {
    whole(value).map(Number::from).or_else(|| Number::from_f64(value))
}
