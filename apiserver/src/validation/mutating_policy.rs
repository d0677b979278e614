//! MutatingAdmissionPolicies and their bindings.

use proto::Value;
use shared::status::field::{Error, Path};

use super::admission_policy::{any_binding, constraints, expressions};
use super::fields::choice;
use super::tree::{get, has, list, text, texts};
use crate::expressions::{Names, ResultType};
use crate::rules::options::FieldErrors;

/// Operations that mutating policies may match: a deleted object cannot be mutated.
const OPERATIONS: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];

/// `MutatingAdmissionPolicy`.
pub(crate) fn policy(object: &Value, out: &mut FieldErrors) {
    either(object, None, out);
}

/// A changed `MutatingAdmissionPolicy`.
pub(crate) fn policy_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    either(new, Some(old), out);
}

/// A policy that is new, or was another before.
fn either(object: &Value, old: Option<&Value>, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    constraints(spec, &path, out);
    operations(spec, "matchConstraints", out);
    let mut names = expressions(spec, old, &path, out);
    names.with_patches();
    let mutations = list(spec, "mutations");
    if mutations.is_empty() {
        out.push(Error::required(path.child("mutations"), "mutations must contain at least one item"));
    }
    for (i, mutation) in mutations.iter().enumerate() {
        self::mutation(mutation, &names, &path.child("mutations").index(i), out);
    }
    choice(spec, "reinvocationPolicy", &["IfNeeded", "Never"], &path, out);
}

/// `MutatingAdmissionPolicyBinding`.
pub(crate) fn binding(object: &Value, out: &mut FieldErrors) {
    any_binding(object, out);
    operations(get(object, "spec"), "matchResources", out);
}

fn operations(spec: &Value, field: &str, out: &mut FieldErrors) {
    for rule in list(get(spec, field), "resourceRules") {
        for operation in texts(rule, "operations").into_iter().filter(|o| !OPERATIONS.contains(o)) {
            let path = Path::of(&["spec", field, "resourceRules", "operations"]);
            out.push(Error::not_supported(path, operation, &OPERATIONS));
        }
    }
}

fn mutation(mutation: &Value, names: &Names, path: &Path, out: &mut FieldErrors) {
    let (kind, own, other, wanted) = match text(mutation, "patchType") {
        "" => return out.push(Error::required(path.child("patchType"), "")),
        kind @ "ApplyConfiguration" => (kind, "applyConfiguration", "jsonPatch", ResultType::Object),
        kind @ "JSONPatch" => (kind, "jsonPatch", "applyConfiguration", ResultType::Patches),
        kind => {
            let known = ["ApplyConfiguration", "JSONPatch"];
            return out.push(Error::not_supported(path.child("patchType"), kind, &known));
        }
    };
    if has(mutation, own) {
        let (path, given) = (path.child(own).child("expression"), text(get(mutation, own), "expression").trim());
        if given.is_empty() {
            out.push(Error::required(path, ""));
        } else if let Err(why) = names.compile(given, wanted) {
            out.push(Error::invalid(path, given, &why.to_string()));
        }
    } else {
        let why = format!("must be specified when patchType is {kind}");
        out.push(Error::required(path.child(own), &why));
    }
    if has(mutation, other) {
        let why = format!("must not be specified when patchType is {kind}");
        out.push(Error::invalid(path.child(other), format!("{{{other}}}"), &why));
    }
}
