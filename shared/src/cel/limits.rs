//! Limits of expressions: their size, their cost, and the work inside of one step.

/// Longest expression that is compiled, in bytes.
pub const MAX_EXPRESSION: usize = 100 * 1024;
/// Maximum cost of one evaluation of an expression.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// Maximum cost of all evaluations on one object, or for one policy.
pub const RUNTIME_BUDGET: u64 = 10_000_000;
/// Maximum cost of all match conditions of one webhook or policy.
pub const MATCH_CONDITIONS_BUDGET: u64 = RUNTIME_BUDGET / 4;
/// Longest message an expression may make, in bytes.
pub const MAX_MESSAGE: usize = 5 * 1024;
/// Values compared or copied in one step of an expression, whatever upstream's cost counts for it: shared parts of lists
/// can be met again and again.
pub(super) const MAX_STEP: u64 = 10_000_000;
/// Deepest nesting of an expression.
pub(super) const MAX_NESTING: u16 = 250;

/// Remaining cost budget.
#[derive(Debug)]
pub struct Budget {
    left: Option<u64>,
}

impl Budget {
    /// So much.
    #[must_use]
    pub fn new(total: u64) -> Self {
        Self { left: Some(total) }
    }

    /// Reports whether more was spent than available.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.left.is_none()
    }

    /// Remaining cost.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left.unwrap_or(0)
    }

    /// Takes from it.
    pub fn spend(&mut self, cost: u64) {
        self.left = self.left.and_then(|l| l.checked_sub(cost));
    }
}
