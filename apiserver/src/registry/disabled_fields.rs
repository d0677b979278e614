//! Fields behind disabled feature gates: dropped from writes unless the stored object uses them already. Enabled gates
//! may also add or relax validation (`validation/options.rs`). Answers for upstream's `DropDisabledFields`,
//! `DropDisabledPodFields`.
//!
//! A kind's home pairs its fields with their gates; the fields of pods, which many kinds describe, are a table
//! ([`table`]). Rules about more than fields are functions ([`pods`]).

mod pods;
mod table;

use proto::Value;
use proto::resources::Resource;
use shared::flags::FeatureGates;
use shared::status::field::Error;

use super::field_gates::{DisabledFields, FieldGates};
use super::gated_fields::GatedFields;
use super::kinds::{all, kind_of};
use crate::machinery::GroupResource;
use crate::validation::{ValidationOptions, strict_addresses};
use pods::RULES;
use table::OF_PODS;

impl DisabledFields {
    fn of(resource: GroupResource<'static>, within: &str, gated: &GatedFields) -> Self {
        let parts = |path: &str| path.split('.').map(str::to_owned).collect();
        Self {
            resource,
            paths: gated.fields.iter().map(|field| parts(&format!("{within}.{field}"))).collect(),
            used_by: gated.used_by.iter().map(|path| parts(path)).collect(),
            always: gated.always,
        }
    }

    fn are_used(&self, old: &Value) -> bool {
        self.paths.iter().chain(&self.used_by).any(|path| has(old, path))
    }
}

impl FieldGates {
    /// Of a server with these gates.
    pub fn new(gates: &FeatureGates) -> Self {
        let is_off = |gated: &&GatedFields| !gates.enabled(gated.gate);
        let mut disabled = Self {
            pod_rules: RULES.iter().filter(|(gate, _)| !gates.enabled(gate)).map(|(_, rule)| *rule).collect(),
            strict_addresses: gates.enabled("StrictIPCIDRValidation"),
            unmerged_keys: !gates.enabled("MatchLabelKeysInPodTopologySpread")
                || !gates.enabled("MatchLabelKeysInPodTopologySpreadSelectorMerge"),
            whole_resize: gates.enabled("InPlacePodLevelResourcesVerticalScaling"),
            relaxed: ValidationOptions::new(gates),
            ..Self::default()
        };
        for kind in all() {
            let own = kind.gated.iter().filter(is_off);
            disabled.off.extend(own.map(|gated| DisabledFields::of(kind.resource, gated.within, gated)));
            if let Some(template) = kind.pod_template {
                let spec = template.keys("spec").join(".");
                let of_pods = OF_PODS.iter().filter(is_off);
                disabled.off.extend(of_pods.map(|gated| DisabledFields::of(kind.resource, &spec, gated)));
            }
            let rule = kind.rule_without.filter(|(gate, _)| !gates.enabled(gate));
            disabled.rules.extend(rule.map(|(_, rule)| (kind.resource, rule)));
            let defaults = kind.defaults_with.filter(|(gate, _)| gates.enabled(gate));
            disabled.defaults.extend(defaults.map(|(_, defaults)| (kind.resource, defaults)));
        }
        disabled
    }

    /// Validation errors that depend on these gates.
    pub fn validate_gated(&self, row: &Resource, subresource: &str, new: &Value, old: Option<&Value>) -> Vec<Error> {
        let Some(kind) = kind_of(row) else { return Vec::new() };
        if self.strict_addresses {
            return strict_addresses::check(kind.addresses.as_ref(), kind.pod_template, subresource, new, old);
        }
        let rules = self.rules.iter().filter(|(resource, _)| *resource == kind.resource);
        old.map(|old| rules.flat_map(|(_, rule)| rule(new, old)).collect()).unwrap_or_default()
    }

    /// Takes what is behind a gate that is off out of an object about to be stored in the place of `old`, and fills in
    /// what one that is on has a default for.
    pub fn drop_disabled_fields(&self, row: &Resource, object: &mut Value, old: Option<&Value>) {
        let Some(kind) = kind_of(row) else { return };
        for fields in self.off.iter().filter(|fields| fields.resource == kind.resource) {
            if fields.always || old.is_none_or(|old| !fields.are_used(old)) {
                for path in &fields.paths {
                    take(object, path);
                }
            }
        }
        if let Some(template) = kind.pod_template {
            let pointer = template.pointer() + "/spec";
            if let Some(spec) = object.pointer_mut(&pointer) {
                self.pod_rules.iter().for_each(|rule| rule(spec, old.and_then(|old| old.pointer(&pointer))));
            }
        }
        for (_, defaults) in self.defaults.iter().filter(|(resource, _)| *resource == kind.resource) {
            defaults(object);
        }
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
