//! State that functions use beside their arguments: bounded work, and patterns that are made while an expression runs.

use super::{Error, Fuel};
use crate::patterns::compile_within;

/// Regular expressions that one run may compile: those that are not known beforehand.
pub(super) const MAX_PATTERNS: u32 = 1_000;
/// Largest compiled form of a pattern that is made while an expression runs, in bytes: there may be many of them.
const MAX_RUNNING_BYTES: usize = 1 << 20;

/// State that functions may use beside their arguments.
#[derive(Debug, Default)]
pub(super) struct Tools {
    pub(super) fuel: Fuel,
    patterns: u32,
    last: Option<(String, regex::Regex)>,
}

impl Tools {
    /// A regular expression that is made while the expression runs.
    pub(super) fn pattern(&mut self, text: &str) -> Result<regex::Regex, Error> {
        if let Some((_, known)) = self.last.as_ref().filter(|(t, _)| t == text) {
            return Ok(known.clone());
        }
        self.patterns += 1;
        if self.patterns > MAX_PATTERNS {
            return Err(Error::Cancelled);
        }
        let made = compile_within(text, MAX_RUNNING_BYTES).map_err(Error::new)?;
        self.last = Some((text.to_owned(), made.clone()));
        Ok(made)
    }
}
