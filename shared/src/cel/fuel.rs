//! Work inside of one step of an evaluation.

use super::error::Error;
use super::limits::MAX_STEP;

/// Bounds the work inside of one step.
#[derive(Debug)]
pub struct Fuel(u64);

impl Default for Fuel {
    fn default() -> Self {
        Self(MAX_STEP)
    }
}

impl Fuel {
    pub(super) fn burn(&mut self, n: u64) -> Result<(), Error> {
        self.0 = self.0.checked_sub(n).ok_or(Error::Cancelled)?;
        Ok(())
    }
}
