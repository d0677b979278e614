//! Fields of a kind that go with a feature gate, and what else a gate changes about one.

use proto::Value;
use shared::status::field::Error;

/// The fields of a gate in objects of a kind, which stay together where one of them is in use. In a path `*` stands for
/// all elements of a list or map; a part with `?` at its end goes with its last field, one with `!` with the field that
/// follows.
pub(crate) struct GatedFields {
    pub(super) gate: &'static str,
    /// Prefix of the fields' paths.
    pub(super) within: &'static str,
    pub(super) fields: &'static [&'static str],
    /// Other fields, by their whole paths, whose use counts as use of the gate.
    pub(super) used_by: &'static [&'static str],
    /// The fields are dropped even when in use.
    pub(super) always: bool,
}

/// Fields below a path that go with a gate.
pub(crate) const fn gated(gate: &'static str, within: &'static str, fields: &'static [&'static str]) -> GatedFields {
    GatedFields { gate, within, fields, used_by: &[], always: false }
}

impl GatedFields {
    /// Adds fields whose use counts as use of the gate.
    pub(crate) const fn used_by(mut self, fields: &'static [&'static str]) -> Self {
        self.used_by = fields;
        self
    }

    /// Drops the fields even when they are in use.
    pub(crate) const fn always(mut self) -> Self {
        self.always = true;
        self
    }
}

/// Defaults that a kind has where a gate is enabled.
pub(crate) type GatedDefaults = fn(&mut Value);
/// Rule for updates (new and stored object) that a kind has where a gate is disabled.
pub(crate) type UngatedRule = fn(&Value, &Value) -> Vec<Error>;
