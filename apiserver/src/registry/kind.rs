//! Definition of a built-in kind: all that is particular about it, in one value.
//!
//! A kind is a file, `registry/<group>/<kind>.rs`, with a `static KIND`, and a line in `kinds`. What it does not say it
//! has as plain kinds have it.

use super::selectable::Selectable;
use super::strategy::{PLAIN, Strategy};
use crate::printers::Cells;
use crate::rules::options::Warnings;
use crate::validation::kind_rules::KindRules;

/// Warnings about an object; second is what it is changed from.
pub(crate) type Warn = fn(&proto::Value, Option<&proto::Value>, &mut Warnings);

/// A built-in kind: all that is particular about it.
pub(crate) struct KindDefinition {
    pub(crate) group: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) strategy: Strategy,
    pub(crate) rules: Option<KindRules>,
    pub(crate) warns: Option<Warn>,
    pub(crate) warns_of_status: Option<Warn>,
    pub(crate) cells: Option<Cells>,
    pub(crate) selectable: &'static [Selectable],
}

impl KindDefinition {
    /// A plain kind.
    pub(crate) const fn new(group: &'static str, plural: &'static str) -> Self {
        Self {
            group,
            plural,
            strategy: PLAIN,
            rules: None,
            warns: None,
            warns_of_status: None,
            cells: None,
            selectable: &[],
        }
    }

    /// Sets the strategy of writes.
    pub(crate) const fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Sets the validation rules.
    pub(crate) const fn rules(mut self, rules: KindRules) -> Self {
        self.rules = Some(rules);
        self
    }

    /// Sets the warnings about objects that are accepted.
    pub(crate) const fn warns(mut self, warns: Warn) -> Self {
        self.warns = Some(warns);
        self
    }

    /// Sets the warnings about a write of `status`.
    pub(crate) const fn warns_of_status(mut self, warns: Warn) -> Self {
        self.warns_of_status = Some(warns);
        self
    }

    /// Sets the cells of tables.
    pub(crate) const fn cells(mut self, cells: Cells) -> Self {
        self.cells = Some(cells);
        self
    }

    /// Sets the selectable fields beyond name and namespace.
    pub(crate) const fn selectable(mut self, fields: &'static [Selectable]) -> Self {
        self.selectable = fields;
        self
    }
}
