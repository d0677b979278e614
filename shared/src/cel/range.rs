//! Ranges that estimates reckon with, and those of a call's arguments.

use super::types::Type;

/// From the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) min: u64,
    pub(super) max: u64,
}

impl Range {
    pub(super) const UNKNOWN: Self = Self { min: 0, max: u64::MAX };

    pub(super) const fn fixed(n: u64) -> Self {
        Self { min: n, max: n }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub(super) fn by(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    pub(super) fn times(self, factor: f64) -> Self {
        Self { min: times(self.min, factor), max: times(self.max, factor) }
    }

    pub(super) fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

/// `⌈n · factor⌉`, or the most there is.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "upstream's formula in floats; casts saturate"
)]
pub(super) fn times(n: u64, factor: f64) -> u64 {
    (n as f64 * factor).ceil() as u64
}

/// Estimate of one argument of a call.
pub(super) struct Argument<'e> {
    /// Type of the argument.
    pub(super) of: &'e Type,
    /// Number that the argument is written as.
    pub(super) literal: Option<i64>,
    /// Size of the argument, if that is known.
    pub(super) size: Option<Range>,
}

/// Estimates of a call's arguments.
pub(super) struct Given<'e> {
    pub(super) arguments: Vec<Argument<'e>>,
    pub(super) element: Option<(bool, Range)>,
}

impl Given<'_> {
    /// Number of arguments.
    pub(super) fn count(&self) -> usize {
        self.arguments.len()
    }

    /// The size of one; anything where it is not known.
    pub(super) fn size(&self, i: usize) -> Range {
        self.known(i).unwrap_or(Range::UNKNOWN)
    }

    /// The size of one, if it is known.
    pub(super) fn known(&self, i: usize) -> Option<Range> {
        self.arguments.get(i).and_then(|argument| argument.size)
    }

    /// The type of one.
    pub(super) fn of(&self, i: usize) -> Option<&Type> {
        self.arguments.get(i).map(|argument| argument.of)
    }

    /// The number that one is written as.
    pub(super) fn literal(&self, i: usize) -> Option<i64> {
        self.arguments.get(i).and_then(|argument| argument.literal)
    }

    /// Of the elements of the first one: whether they are texts, and their size; `None` when it is not known to be a list.
    pub(super) fn element(&self) -> Option<(bool, Range)> {
        self.element
    }
}
