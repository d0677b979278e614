//! Fields behind disabled feature gates: dropped from writes unless the stored object uses them already. Enabled gates
//! may also add or relax validation (`validation/options.rs`). Answers for upstream's `DropDisabledFields`,
//! `dropDisabledPodFields`.
//!
//! A table ([`table`]) and one walk; a gate of another field is one line. What is not a matter of fields alone is a
//! function ([`pods`]).

mod pods;
mod table;

use proto::Value;
use proto::resources::Resource;
use shared::flags::FeatureGates;
use shared::status::field::Error;

use crate::validation::{self, PODS, ValidationOptions, strict_addresses};
use pods::{RULES, Rule};
use table::{GATES, Gate};

/// Fields of one gate in one resource.
struct GatedFields {
    plural: &'static str,
    group: &'static str,
    paths: Vec<Vec<String>>,
    /// Other fields whose use counts as use of the gate.
    used_by: Vec<Vec<String>>,
    /// The fields are dropped even when in use.
    always: bool,
}

impl GatedFields {
    fn are_used(&self, old: &Value) -> bool {
        self.paths.iter().chain(&self.used_by).any(|path| has(old, path))
    }
}

/// The fields of the gates that are off.
#[derive(Default)]
pub struct FieldGates {
    off: Vec<GatedFields>,
    /// Further rules for pod specs.
    rules: Vec<Rule>,
    /// `StrictIPCIDRValidation`
    strict_addresses: bool,
    /// `MutableCSINodeAllocatableCount` is off: how many volumes a node can attach does not change.
    fixed_counts: bool,
    /// `MatchLabelKeysInPodTopologySpreadSelectorMerge` is off, or what it builds on: the keys by which pods are spread
    /// are not made part of the selector.
    pub unmerged_keys: bool,
    /// `MaxUnavailableStatefulSet`: stateful sets say how many of their pods may be down while they are updated.
    counts_unavailable: bool,
    /// `InPlacePodLevelResourcesVerticalScaling`: a resize may change what a pod has as a whole.
    pub whole_resize: bool,
    /// Validation rules that are relaxed.
    pub relaxed: ValidationOptions,
}

impl FieldGates {
    /// Of a server with these gates.
    pub fn new(gates: &FeatureGates) -> Self {
        let of = |gate: &'static Gate, (row, prefix): &(&'static str, &'static str)| {
            let (plural, group) = row.split_once('.').unwrap_or((row, ""));
            let parts = |path: &str| path.split('.').map(str::to_owned).collect();
            let paths = gate.fields.iter().map(|field| parts(&format!("{prefix}.{field}"))).collect();
            let used_by = gate.used_by.iter().map(|path| parts(path)).collect();
            GatedFields { plural, group, paths, used_by, always: gate.always }
        };
        let off = GATES.iter().filter(|gate| !gates.enabled(gate.name));
        Self {
            off: off.flat_map(|gate| gate.within.iter().map(move |row| of(gate, row))).collect(),
            rules: RULES.iter().filter(|(gate, _)| !gates.enabled(gate)).map(|(_, rule)| *rule).collect(),
            strict_addresses: gates.enabled("StrictIPCIDRValidation"),
            fixed_counts: !gates.enabled("MutableCSINodeAllocatableCount"),
            unmerged_keys: !gates.enabled("MatchLabelKeysInPodTopologySpread")
                || !gates.enabled("MatchLabelKeysInPodTopologySpreadSelectorMerge"),
            counts_unavailable: gates.enabled("MaxUnavailableStatefulSet"),
            whole_resize: gates.enabled("InPlacePodLevelResourcesVerticalScaling"),
            relaxed: ValidationOptions::new(gates),
        }
    }

    /// Validation errors that depend on these gates.
    pub fn validate_gated(&self, row: &Resource, subresource: &str, new: &Value, old: Option<&Value>) -> Vec<Error> {
        match old {
            _ if row.custom.is_some() => Vec::new(),
            _ if self.strict_addresses => strict_addresses::check(row, subresource, new, old),
            Some(old) if self.fixed_counts && row.plural == "csinodes" => validation::counts_stay(new, old),
            _ => Vec::new(),
        }
    }

    /// Takes what is behind a gate that is off out of an object about to be stored in the place of `old`, and fills in
    /// what one that is on has a default for.
    pub fn drop_disabled_fields(&self, row: &Resource, object: &mut Value, old: Option<&Value>) {
        if row.custom.is_some() {
            return;
        }
        for fields in self.off.iter().filter(|f| f.plural == row.plural && f.group == row.group) {
            if fields.always || old.is_none_or(|old| !fields.are_used(old)) {
                for path in &fields.paths {
                    take(object, path);
                }
            }
        }
        self.drop_disabled_pod_fields(row, object, old);
        if self.counts_unavailable && (&*row.plural, &*row.group) == ("statefulsets", "apps") {
            one_unavailable(object);
        }
    }

    fn drop_disabled_pod_fields(&self, row: &Resource, object: &mut Value, old: Option<&Value>) {
        let is_of = |of: &str| of.split_once('.').unwrap_or((of, "")) == (&*row.plural, &*row.group);
        let Some((_, path)) = PODS.iter().find(|(of, _)| !self.rules.is_empty() && is_of(of)) else { return };
        let pointer = format!("/{}", path.replace('.', "/"));
        if let Some(spec) = object.pointer_mut(&pointer) {
            self.rules.iter().for_each(|rule| rule(spec, old.and_then(|old| old.pointer(&pointer))));
        }
    }
}

/// One pod at a time, as it always was.
fn one_unavailable(set: &mut Value) {
    let update = set.pointer_mut("/spec/updateStrategy/rollingUpdate").and_then(Value::as_object_mut);
    if let Some(update) = update.filter(|update| update.get("maxUnavailable").is_none_or(Value::is_null)) {
        update.insert("maxUnavailable".to_owned(), Value::from(1));
    }
}

fn name(part: &str) -> &str {
    part.trim_end_matches(['?', '!'])
}

/// Reports whether there is a value at a path.
fn has(value: &Value, path: &[String]) -> bool {
    let Some((part, rest)) = path.split_first() else { return !value.is_null() };
    match value {
        Value::Array(items) => items.iter().any(|item| has(item, rest)),
        Value::Object(map) if part == "*" => map.values().any(|item| has(item, rest)),
        Value::Object(map) => map.get(name(part)).is_some_and(|inner| has(inner, rest)),
        _ => false,
    }
}

/// Removes what is at a path. True when something was there.
fn take(value: &mut Value, path: &[String]) -> bool {
    let Some((part, rest)) = path.split_first() else { return false };
    match value {
        Value::Array(items) => take_of(items.iter_mut(), rest),
        Value::Object(map) if part == "*" => take_of(map.values_mut(), rest),
        Value::Object(map) if rest.is_empty() => map.remove(name(part)).is_some(),
        Value::Object(map) => {
            let Some(inner) = map.get_mut(name(part)) else { return false };
            let taken = take(inner, rest);
            let emptied = part.ends_with('?') && inner.as_object().is_some_and(|left| left.is_empty());
            if taken && (emptied || part.ends_with('!')) {
                map.remove(name(part));
            }
            taken
        }
        _ => false,
    }
}

/// Removes a path from every item; reports whether one had it.
fn take_of<'v>(items: impl Iterator<Item = &'v mut Value>, path: &[String]) -> bool {
    let mut taken = false;
    for item in items {
        taken |= take(item, path);
    }
    taken
}

#[cfg(test)]
mod tests;
