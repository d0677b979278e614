//! Table of the controllers: their names, and which of them run. Answers for upstream's `IsControllerEnabled`.

use std::collections::BTreeMap;

use futures::future::BoxFuture;

use super::context::Context;
use super::rest::RestError;

/// Results of starting a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// The controller runs.
    Yes,
    /// The controller is selected, but the flags leave it nothing to do.
    Skipped,
}

type Start = for<'a> fn(&'a Context) -> BoxFuture<'a, Result<Started, RestError>>;

/// One controller.
#[derive(Clone, Copy)]
pub struct Controller {
    /// The name `--controllers` takes.
    pub name: &'static str,
    /// The older name it also takes.
    pub alias: &'static str,
    /// `*` includes the controller.
    pub on_by_default: bool,
    /// Wires it up: informers, queue, workers.
    pub start: Start,
}

impl Controller {
    /// A controller that `*` includes.
    pub const fn new(name: &'static str, alias: &'static str, start: Start) -> Self {
        Self { name, alias, on_by_default: true, start }
    }

    /// A controller that only runs when asked for by name.
    pub const fn off(name: &'static str, alias: &'static str, start: Start) -> Self {
        Self { name, alias, on_by_default: false, start }
    }
}

/// Every accepted name, to the canonical one.
#[must_use]
pub fn known(table: &[Controller]) -> BTreeMap<&'static str, &'static str> {
    let mut out = BTreeMap::new();
    for (name, alias) in table.iter().map(|c| (c.name, c.alias)) {
        out.insert(name, name);
        if !alias.is_empty() {
            out.insert(alias, name);
        }
    }
    out
}
