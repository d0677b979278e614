//! Admission policies and their bindings: shape, and expressions that can be compiled. What only policies that mutate
//! have is in [`mutating_policy`](super::mutating_policy). Answers for upstream's `ValidateValidatingAdmissionPolicy`.

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::admissionregistration::rule_of;
use super::fields::{choice, one_of, shaped};
use super::names::{complain, dns1035_label, dns1123_subdomain, qualified_name};
use super::selectors::label_selector;
use super::tree::{get, has, list, text, texts};
use crate::expressions::{Dialect, Names, ResultType};
use crate::rules::options::FieldErrors;

/// Most match conditions.
const CONDITIONS: usize = 64;
/// Most annotations of audit events.
const ANNOTATIONS: usize = 20;
/// Longest expression for one of them, in bytes.
const LONGEST_VALUE_EXPRESSION: usize = 5 * 1024;

/// `ValidatingAdmissionPolicy`.
pub(crate) fn policy(object: &Value, out: &mut FieldErrors) {
    either(object, None, out);
}

/// A changed `ValidatingAdmissionPolicy`.
pub(crate) fn policy_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    either(new, Some(old), out);
}

/// A policy that is new, or was another before.
fn either(object: &Value, old: Option<&Value>, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    constraints(spec, &path, out);
    let names = expressions(spec, old, &path, out);
    let (validations, annotations) = (list(spec, "validations"), list(spec, "auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        for field in ["validations", "auditAnnotations"] {
            let why = "validations or auditAnnotations must contain at least one item";
            out.push(Error::required(path.child(field), why));
        }
    }
    for (i, validation) in validations.iter().enumerate() {
        self::validation(validation, &names, &path.child("validations").index(i), out);
    }
    if annotations.len() > ANNOTATIONS {
        let why = format!("must not have more than {ANNOTATIONS} auditAnnotations");
        out.push(Error::invalid(path.child("auditAnnotations"), get(spec, "auditAnnotations").clone(), &why));
    }
    let (owner, mut keys) = (text(get(object, "metadata"), "name"), BTreeSet::new());
    for (i, one) in annotations.iter().enumerate() {
        let path = path.child("auditAnnotations").index(i);
        annotation(one, owner, &names, &path, out);
        if !keys.insert(text(one, "key")) {
            out.push(Error::duplicate(path.child("key"), text(one, "key")));
        }
    }
}

/// An annotation of audit events, whose key has the policy's name before it.
fn annotation(annotation: &Value, owner: &str, names: &Names, path: &Path, out: &mut FieldErrors) {
    let full = format!("{owner}/{}", text(annotation, "key"));
    complain(out, &path.child("key"), &full, qualified_name(&full));
    let (given, path) = (text(annotation, "valueExpression"), path.child("valueExpression"));
    let trimmed = given.trim();
    if trimmed.is_empty() {
        out.push(Error::required(path, "valueExpression is not specified"));
    } else if trimmed.len() > LONGEST_VALUE_EXPRESSION {
        let why = format!("must not exceed {LONGEST_VALUE_EXPRESSION} bytes in length");
        out.push(Error::required(path, &why));
    } else if let Err(why) = names.compile(trimmed, ResultType::TextOrNull) {
        out.push(Error::invalid(path, given, &why.to_string()));
    }
}

/// `status` of a policy: what was found out about its expressions.
pub(crate) fn status(new: &Value, _: &Value, out: &mut FieldErrors) {
    let (status, path) = (get(new, "status"), Path::new("status"));
    let warnings = list(get(status, "typeChecking"), "expressionWarnings");
    for (i, warning) in warnings.iter().enumerate() {
        let path = path.child("typeChecking").child("expressionWarnings").index(i);
        for key in ["warning", "fieldRef"] {
            let missing =
                if key == "fieldRef" { text(warning, key).trim().is_empty() } else { text(warning, key).is_empty() };
            if missing {
                out.push(Error::required(path.child(key), ""));
            }
        }
    }
    super::conditions::conditions(status, &path, out);
}

/// Validates the match constraints and parameter kind of a policy.
pub(super) fn constraints(spec: &Value, path: &Path, out: &mut FieldErrors) {
    choice(spec, "failurePolicy", &["Fail", "Ignore"], path, out);
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
pub(super) fn expressions(spec: &Value, old: Option<&Value>, path: &Path, out: &mut FieldErrors) -> Names {
    let mut names = Names::of(Dialect::Policy { params: has(spec, "paramKind") });
    // Conditions that are stored, and may name what they could name then, are not judged once more.
    let stays = |old: &Value| ["paramKind", "matchConditions"].iter().all(|key| get(spec, key) == get(old, key));
    if !old.is_some_and(|old| stays(get(old, "spec"))) {
        conditions(spec, &names, &path.child("matchConditions"), out);
    }
    variables(spec, &mut names, &path.child("variables"), out);
    names
}

/// Requires an expression that can be compiled.
pub(super) fn expression(
    entry: &Value,
    field: &str,
    missing: &str,
    (names, wanted): (&Names, ResultType),
    path: &Path,
    out: &mut FieldErrors,
) {
    let given = text(entry, field);
    if given.trim().is_empty() {
        out.push(Error::required(path.child(field), missing));
    } else if let Err(why) = names.compile(given, wanted) {
        out.push(Error::invalid(path.child(field), given, &why.to_string()));
    }
}

fn param_kind(kind: &Value, path: &Path, out: &mut FieldErrors) {
    let (given, at) = (text(kind, "apiVersion"), path.child("apiVersion"));
    let (group, version) = given.split_once('/').unwrap_or(("", given));
    if given.is_empty() {
        out.push(Error::required(at, ""));
    } else if version.contains('/') {
        out.push(Error::invalid(at, given, &format!("unexpected GroupVersion string: {given}")));
    } else {
        let wrong = dns1123_subdomain(group);
        if !group.is_empty() && !wrong.is_empty() {
            out.push(Error::invalid(&at, group, &wrong.join(",")));
        }
        let wrong = dns1035_label(version);
        if version.is_empty() {
            out.push(Error::invalid(at, given, "version must be specified"));
        } else if !wrong.is_empty() {
            out.push(Error::invalid(at, version, &wrong.join(",")));
        }
    }
    match text(kind, "kind") {
        "" => out.push(Error::required(path.child("kind"), "")),
        name => crate::rules::embedded_kind(name, &path.child("kind"), out),
    }
}

/// Match constraints of a policy, match resources of a binding.
fn resources(matching: &Value, path: &Path, out: &mut FieldErrors) {
    one_of(matching, "matchPolicy", &["Equivalent", "Exact"], path, out);
    for key in ["namespaceSelector", "objectSelector"] {
        label_selector(get(matching, key), &path.child(key), out);
    }
    for key in ["resourceRules", "excludeResourceRules"] {
        for (i, rule) in list(matching, key).iter().enumerate() {
            let of_rule = path.child(key).index(i);
            let mut seen = BTreeSet::new();
            for (j, name) in texts(rule, "resourceNames").into_iter().enumerate() {
                let path = of_rule.child("resourceNames").index(j);
                complain(out, &path, name, super::names::path_segment(name, false));
                if !seen.insert(name) {
                    out.push(Error::duplicate(path, name));
                }
            }
            rule_of(rule, &of_rule, out);
        }
    }
}

/// Match conditions, of policies and of webhooks.
pub(super) fn conditions(spec: &Value, names: &Names, path: &Path, out: &mut FieldErrors) {
    let all = list(spec, "matchConditions");
    if all.len() > CONDITIONS {
        out.push(Error::too_many(path, all.len(), CONDITIONS));
    }
    let mut seen = BTreeSet::new();
    for (i, condition) in all.iter().enumerate() {
        let path = path.index(i);
        // These are compiled, and shown, without what surrounds them.
        let given = text(condition, "expression").trim();
        if given.is_empty() {
            out.push(Error::required(path.child("expression"), ""));
        } else if let Err(why) = names.compile(given, ResultType::Bool) {
            out.push(Error::invalid(path.child("expression"), given, &why.to_string()));
        }
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
pub(super) fn variables(spec: &Value, names: &mut Names, path: &Path, out: &mut FieldErrors) {
    names.with_variables();
    for (i, variable) in list(spec, "variables").iter().enumerate() {
        let path = path.index(i);
        let name = text(variable, "name");
        if name.trim().is_empty() {
            out.push(Error::required(path.child("name"), "name is not specified"));
        } else if !shared::cel::is_identifier(name) {
            out.push(Error::invalid(path.child("name"), name, "name is not a valid CEL identifier"));
        }
        expression(variable, "expression", "expression is not specified", (names, ResultType::Any), &path, out);
        let _ = names.declare(name, text(variable, "expression"));
    }
}

fn validation(v: &Value, names: &Names, path: &Path, out: &mut FieldErrors) {
    let (message, made) = (text(v, "message"), text(v, "messageExpression"));
    expression(v, "expression", "expression is not specified", (names, ResultType::Bool), path, out);
    if !made.is_empty() {
        if made.trim().is_empty() {
            out.push(Error::invalid(path.child("messageExpression"), made, "must be non-empty if specified"));
        } else if let Err(why) = names.without_authorizer().compile(made, ResultType::Text) {
            out.push(Error::invalid(path.child("messageExpression"), made, &why.to_string()));
        }
    }
    if !message.is_empty() && message.trim().is_empty() {
        out.push(Error::invalid(path.child("message"), message, "message must be non-empty if specified"));
    } else if message.trim().contains(['\n', '\r']) {
        out.push(Error::invalid(path.child("message"), message, "message must not contain line breaks"));
    }
    one_of(v, "reason", &["Forbidden", "Invalid", "RequestEntityTooLarge"], path, out);
}

/// `ValidatingAdmissionPolicyBinding`.
pub(crate) fn binding(object: &Value, out: &mut FieldErrors) {
    any_binding(object, out);
    actions(get(object, "spec"), &Path::of(&["spec", "validationActions"]), out);
}

/// Validates the fields that bindings of all policies share.
pub(super) fn any_binding(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    shaped(spec, "policyName", dns1123_subdomain, &path, out);
    if has(spec, "paramRef") {
        param_ref(get(spec, "paramRef"), &path.child("paramRef"), out);
    }
    resources(get(spec, "matchResources"), &path.child("matchResources"), out);
}

fn param_ref(reference: &Value, path: &Path, out: &mut FieldErrors) {
    let (name, selects) = (text(reference, "name"), has(reference, "selector"));
    let alone = |field: &str, out: &mut FieldErrors| {
        if !name.is_empty() && selects {
            out.push(Error::forbidden(path.child(field), "name and selector are mutually exclusive"));
        }
    };
    complain(out, &path.child("name"), name, super::names::path_segment(name, false));
    alone("name", out);
    label_selector(get(reference, "selector"), &path.child("selector"), out);
    alone("selector", out);
    if name.is_empty() && !selects {
        out.push(Error::required(path, "one of name or selector must be specified"));
    }
    choice(reference, "parameterNotFoundAction", &["Deny", "Allow"], path, out);
}

fn actions(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let all = texts(spec, "validationActions");
    if all.is_empty() {
        out.push(Error::required(path, "at least one validation action is required"));
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
