//! Admission policies and their bindings: shape, and expressions that can be compiled. What only policies that mutate
//! have is in [`mutating_policy`](super::mutating_policy).

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::admissionregistration::{one_of, rule_of};
use super::names::{complain, dns1123_subdomain, qualified_name};
use super::selectors::label_selector;
use super::tree::{get, has, list, text, texts};
use crate::expressions::{Dialect, Names, Wanted};

/// Most match conditions.
const CONDITIONS: usize = 64;
/// Longest expression and message, in bytes.
const LONGEST_VALUE_EXPRESSION: usize = 5 * 1024;

/// `ValidatingAdmissionPolicy`.
pub(super) fn policy(object: &Value, out: &mut Vec<Error>) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    constraints(spec, &path, out);
    let names = expressions(spec, &path, out);
    let (validations, annotations) = (list(spec, "validations"), list(spec, "auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        for field in ["validations", "auditAnnotations"] {
            out.push(Error::required(path.child(field), "validations or auditAnnotations must be non-empty"));
        }
    }
    for (i, validation) in validations.iter().enumerate() {
        self::validation(validation, &names, &path.child("validations").index(i), out);
    }
    let mut keys = BTreeSet::new();
    for (i, annotation) in annotations.iter().enumerate() {
        let path = path.child("auditAnnotations").index(i);
        let key = text(annotation, "key");
        let full = format!("{}/{key}", text(get(object, "metadata"), "name"));
        complain(out, &path.child("key"), key, qualified_name(&full));
        if !keys.insert(key) {
            out.push(Error::duplicate(path.child("key"), key));
        }
        let missing = "valueExpression is not specified";
        expression(annotation, "valueExpression", missing, (&names, Wanted::TextOrNull), &path, out);
        let value = text(annotation, "valueExpression");
        if value.len() > LONGEST_VALUE_EXPRESSION {
            out.push(Error::too_long(path.child("valueExpression"), LONGEST_VALUE_EXPRESSION));
        }
    }
}

/// What a policy is about.
pub(super) fn constraints(spec: &Value, path: &Path, out: &mut Vec<Error>) {
    match text(spec, "failurePolicy") {
        "" => out.push(Error::required(path.child("failurePolicy"), "")),
        _ => one_of(spec, "failurePolicy", &["Fail", "Ignore"], path, out),
    }
    if has(spec, "paramKind") {
        param_kind(get(spec, "paramKind"), &path.child("paramKind"), out);
    }
    if !has(spec, "matchConstraints") {
        return out.push(Error::required(path.child("matchConstraints"), ""));
    }
    let path = path.child("matchConstraints");
    resources(get(spec, "matchConstraints"), &path, out);
    if list(get(spec, "matchConstraints"), "resourceRules").is_empty() {
        out.push(Error::required(path.child("resourceRules"), ""));
    }
}

/// Match conditions and variables; what the expressions after them may name.
pub(super) fn expressions(spec: &Value, path: &Path, out: &mut Vec<Error>) -> Names {
    let mut names = Names::of(Dialect::Policy { params: has(spec, "paramKind") });
    conditions(spec, &names, &path.child("matchConditions"), out);
    variables(spec, &mut names, &path.child("variables"), out);
    names
}

/// Requires an expression that can be compiled.
pub(super) fn expression(
    entry: &Value,
    field: &str,
    missing: &str,
    (names, wanted): (&Names, Wanted),
    path: &Path,
    out: &mut Vec<Error>,
) {
    let given = text(entry, field);
    if given.trim().is_empty() {
        out.push(Error::required(path.child(field), missing));
    } else if let Err(why) = names.compile(given, wanted) {
        out.push(Error::invalid(path.child(field), given, &why));
    }
}

fn param_kind(kind: &Value, path: &Path, out: &mut Vec<Error>) {
    let version = text(kind, "apiVersion");
    if version.is_empty() {
        out.push(Error::required(path.child("apiVersion"), ""));
    } else if version.matches('/').count() > 1 {
        out.push(Error::invalid(
            path.child("apiVersion"),
            version,
            &format!("unexpected GroupVersion string: {version}"),
        ));
    }
    if text(kind, "kind").is_empty() {
        out.push(Error::required(path.child("kind"), ""));
    }
}

/// Match constraints of a policy, match resources of a binding.
fn resources(matching: &Value, path: &Path, out: &mut Vec<Error>) {
    one_of(matching, "matchPolicy", &["Equivalent", "Exact"], path, out);
    for key in ["namespaceSelector", "objectSelector"] {
        label_selector(get(matching, key), &path.child(key), out);
    }
    for key in ["resourceRules", "excludeResourceRules"] {
        for (i, rule) in list(matching, key).iter().enumerate() {
            let path = path.child(key).index(i);
            rule_of(rule, &path, out);
            let mut seen = BTreeSet::new();
            for (j, name) in texts(rule, "resourceNames").into_iter().enumerate() {
                let path = path.child("resourceNames").index(j);
                complain(out, &path, name, super::names::path_segment(name, false));
                if !seen.insert(name) {
                    out.push(Error::duplicate(path, name));
                }
            }
        }
    }
}

/// Match conditions, of policies and of webhooks.
pub(super) fn conditions(spec: &Value, names: &Names, path: &Path, out: &mut Vec<Error>) {
    let all = list(spec, "matchConditions");
    if all.len() > CONDITIONS {
        out.push(Error::too_many(path, all.len(), CONDITIONS));
    }
    let mut seen = BTreeSet::new();
    for (i, condition) in all.iter().enumerate() {
        let path = path.index(i);
        expression(condition, "expression", "", (names, Wanted::Bool), &path, out);
        let name = text(condition, "name");
        if name.is_empty() {
            out.push(Error::required(path.child("name"), ""));
            continue;
        }
        complain(out, &path.child("name"), name, qualified_name(name));
        if !seen.insert(name) {
            out.push(Error::duplicate(path.child("name"), name));
        }
    }
}

/// Variables of a policy, each of which may use those before it.
pub(super) fn variables(spec: &Value, names: &mut Names, path: &Path, out: &mut Vec<Error>) {
    names.with_variables();
    let mut seen = BTreeSet::new();
    for (i, variable) in list(spec, "variables").iter().enumerate() {
        let path = path.index(i);
        let name = text(variable, "name");
        if name.trim().is_empty() {
            out.push(Error::required(path.child("name"), "name is not specified"));
        } else {
            if !shared::cel::is_identifier(name) {
                out.push(Error::invalid(path.child("name"), name, "name is not a valid CEL identifier"));
            }
            if !seen.insert(name) {
                out.push(Error::duplicate(path.child("name"), name));
            }
        }
        expression(variable, "expression", "expression is not specified", (names, Wanted::Any), &path, out);
        let _ = names.declare(name, text(variable, "expression"));
    }
}

fn validation(v: &Value, names: &Names, path: &Path, out: &mut Vec<Error>) {
    let (given, message, made) = (text(v, "expression"), text(v, "message"), text(v, "messageExpression"));
    expression(v, "expression", "expression is not specified", (names, Wanted::Bool), path, out);
    if !made.is_empty() {
        if made.trim().is_empty() {
            out.push(Error::invalid(path.child("messageExpression"), made, "must be non-empty if specified"));
        } else if let Err(why) = names.compile(made, Wanted::Text) {
            out.push(Error::invalid(path.child("messageExpression"), made, &why));
        }
    }
    if !message.is_empty() && message.trim().is_empty() {
        out.push(Error::invalid(path.child("message"), message, "message must be non-empty if specified"));
    } else if message.contains(['\n', '\r']) {
        out.push(Error::invalid(path.child("message"), message, "message must not contain line breaks"));
    } else if message.is_empty() && given.contains(['\n', '\r']) {
        let why = "message must be specified if expression contains line breaks";
        out.push(Error::required(path.child("message"), why));
    }
    one_of(v, "reason", &["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"], path, out);
}

/// `ValidatingAdmissionPolicyBinding`.
pub(super) fn binding(object: &Value, out: &mut Vec<Error>) {
    any_binding(object, out);
    actions(get(object, "spec"), &Path::of(&["spec", "validationActions"]), out);
}

/// What bindings of all policies have.
pub(super) fn any_binding(object: &Value, out: &mut Vec<Error>) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    match text(spec, "policyName") {
        "" => out.push(Error::required(path.child("policyName"), "")),
        name => complain(out, &path.child("policyName"), name, dns1123_subdomain(name)),
    }
    if has(spec, "paramRef") {
        param_ref(get(spec, "paramRef"), &path.child("paramRef"), out);
    }
    resources(get(spec, "matchResources"), &path.child("matchResources"), out);
}

fn param_ref(reference: &Value, path: &Path, out: &mut Vec<Error>) {
    let name = text(reference, "name");
    match (name.is_empty(), has(reference, "selector")) {
        (false, true) => {
            for field in ["name", "selector"] {
                out.push(Error::forbidden(path.child(field), "name and selector are mutually exclusive"));
            }
        }
        (true, false) => out.push(Error::required(path, "one of name or selector must be specified")),
        (false, false) => complain(out, &path.child("name"), name, super::names::path_segment(name, false)),
        (true, true) => label_selector(get(reference, "selector"), &path.child("selector"), out),
    }
    match text(reference, "parameterNotFoundAction") {
        "" => out.push(Error::required(path.child("parameterNotFoundAction"), "")),
        "Allow" | "Deny" => {}
        other => out.push(Error::not_supported(path.child("parameterNotFoundAction"), other, &["Deny", "Allow"])),
    }
}

fn actions(spec: &Value, path: &Path, out: &mut Vec<Error>) {
    let all = texts(spec, "validationActions");
    if all.is_empty() {
        out.push(Error::required(path, ""));
    }
    let mut seen = BTreeSet::new();
    for (i, action) in all.iter().enumerate() {
        if !matches!(*action, "Audit" | "Deny" | "Warn") {
            out.push(Error::not_supported(path.index(i), *action, &["Audit", "Deny", "Warn"]));
        }
        if !seen.insert(*action) {
            out.push(Error::duplicate(path.index(i), *action));
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        out.push(Error::invalid(path, get(spec, "validationActions").clone(), why));
    }
}
