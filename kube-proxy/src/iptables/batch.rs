//! Input for `iptables-restore --noflush`: chains to write and chains to remove, table by table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Changes that are committed together, table by table.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    tables: BTreeMap<&'static str, Table>,
    /// Rules written so far, by table, also those that were taken.
    written: BTreeMap<&'static str, usize>,
}

#[derive(Debug, Default)]
struct Table {
    /// Declarations, which empty the chains. They come first: a rule may jump to a chain that comes later.
    declared: String,
    rules: String,
    removed: BTreeSet<String>,
}

impl Batch {
    /// Writes a chain whole.
    pub(crate) fn write(&mut self, table: &'static str, chain: &str, rules: &[String]) {
        *self.written.entry(table).or_default() += rules.len();
        let table = self.tables.entry(table).or_default();
        writeln!(table.declared, ":{chain} - [0:0]").ok();
        for rule in rules {
            writeln!(table.rules, "-A {chain} {rule}").ok();
        }
    }

    /// Removes a chain, after everything that was written.
    pub(crate) fn remove(&mut self, table: &'static str, chain: String) {
        self.tables.entry(table).or_default().removed.insert(chain);
    }

    /// Rules of a table that were written so far.
    #[must_use]
    pub(crate) fn written(&self, table: &str) -> usize {
        self.written.get(table).copied().unwrap_or(0)
    }

    /// The tool's input; there is nothing left to write afterwards.
    #[must_use]
    pub(crate) fn take(&mut self) -> String {
        let mut text = String::new();
        for (name, Table { declared, rules, removed }) in &std::mem::take(&mut self.tables) {
            writeln!(text, "*{name}").ok();
            text.push_str(declared);
            for chain in removed {
                writeln!(text, ":{chain} - [0:0]").ok();
            }
            text.push_str(rules);
            for chain in removed {
                writeln!(text, "-X {chain}").ok();
            }
            text.push_str("COMMIT\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_declared_before_rules_and_removed_after_them() {
        let mut batch = Batch::default();
        assert_eq!(batch.take(), "");
        batch.write("nat", "B", &["-j Z".to_owned()]);
        batch.write("nat", "D", &["-j W".to_owned()]);
        batch.remove("nat", "C".to_owned());
        batch.write("filter", "A", &[]);
        assert_eq!(
            batch.take(),
            "*filter\n:A - [0:0]\nCOMMIT\n*nat\n:B - [0:0]\n:D - [0:0]\n:C - [0:0]\n-A B -j Z\n-A D -j W\n-X C\nCOMMIT\n"
        );
        assert_eq!((batch.take().as_str(), batch.written("nat"), batch.written("filter")), ("", 2, 0));
    }
}
