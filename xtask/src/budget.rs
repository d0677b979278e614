//! Numbers that a check may still count, by key: they fall with the tree and never rise.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

/// The count of one key of a check: a crate, a file, a name.
pub struct Finding {
    /// The key of the budget.
    pub key: String,
    /// The number that was counted.
    pub count: usize,
    /// Some of the places, for the message.
    pub places: Vec<String>,
}

/// Places that a message shows at most.
const SHOWN: usize = 5;

/// Budgets by check and key, and the counts that they are compared with.
#[derive(Default)]
pub struct Budgets {
    allowed: BTreeMap<(String, String), usize>,
    counted: BTreeMap<(String, String), usize>,
}

impl Budgets {
    /// Reads `check key number` lines; lines that begin with `#` are comments.
    ///
    /// # Errors
    /// When the file cannot be read or a line has another form.
    pub fn read(file: &Path) -> Result<Self> {
        Self::parse(&std::fs::read_to_string(file).with_context(|| file.display().to_string())?)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut budgets = Self::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            let (Some(check), Some(key), Some(number)) = (words.next(), words.next(), words.next()) else {
                anyhow::bail!("{line:?} is not `check key number`");
            };
            let number = number.parse().with_context(|| line.to_owned())?;
            budgets.allowed.insert((check.to_owned(), key.to_owned()), number);
        }
        Ok(budgets)
    }

    /// Returns a message for each finding above its budget, which is 0 where none is named.
    pub fn exceeded(&mut self, check: &str, findings: Vec<Finding>) -> Vec<String> {
        let mut messages = Vec::new();
        for finding in findings {
            let key = (check.to_owned(), finding.key.clone());
            let allowed = self.allowed.get(&key).copied().unwrap_or(0);
            self.counted.insert(key, finding.count);
            if finding.count > allowed {
                let shown = finding.places.iter().take(SHOWN).fold(String::new(), |all, place| all + "\n  " + place);
                messages.push(format!("{}: {}, allowed {allowed}{shown}", finding.key, finding.count));
            }
        }
        messages
    }

    /// Writes budgets lowered to what was counted.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, file: &Path) -> Result<()> {
        std::fs::write(file, self.lowered()).with_context(|| file.display().to_string())
    }

    fn lowered(&self) -> String {
        let mut text =
            String::from("# What `cargo xtask tidy` still allows: check, key, number. UPDATE=1 lowers it.\n");
        for ((check, key), allowed) in &self.allowed {
            let counted = self.counted.get(&(check.clone(), key.clone())).copied().unwrap_or(0);
            let number = counted.min(*allowed);
            if number > 0 {
                let _ = writeln!(text, "{check} {key} {number}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(key: &str, count: usize) -> Finding {
        Finding { key: key.to_owned(), count, places: vec!["a.rs:1".to_owned()] }
    }

    #[test]
    fn counts_above_the_budget_are_named_and_budgets_never_rise() {
        let mut budgets = Budgets::parse("# head\ndocs proto 3\ndocs shared 2\ndocs gone 9\n").expect("well formed");
        let found = vec![finding("proto", 1), finding("shared", 4), finding("new", 1), finding("none", 0)];
        let messages = budgets.exceeded("docs", found);
        assert_eq!(messages, ["shared: 4, allowed 2\n  a.rs:1", "new: 1, allowed 0\n  a.rs:1"]);
        let text = budgets.lowered();
        assert!(text.ends_with("docs proto 1\ndocs shared 2\n"), "{text}");
    }

    #[test]
    fn lines_of_another_form_are_refused() {
        assert!(Budgets::parse("docs proto").is_err());
        assert!(Budgets::parse("docs proto many").is_err());
    }
}
