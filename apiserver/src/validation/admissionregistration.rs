//! Webhook configurations. Answers for upstream's `ValidateValidatingWebhookConfiguration`,
//! `ValidateMutatingWebhookConfiguration`.

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};
use shared::url::Url;

use super::fields::{one_of, shaped};
use super::names::{complain, dns1123_subdomain};
use super::selectors::{is_invalid, own_selector};
use super::tree::{get, has, int, list, text, texts};
use crate::rules::options::FieldErrors;

const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];

/// `ValidatingWebhookConfiguration`.
pub(crate) fn validating(object: &Value, out: &mut FieldErrors) {
    webhooks(object, false, StrictRules::ALL, out);
}

/// `MutatingWebhookConfiguration`.
pub(crate) fn mutating(object: &Value, out: &mut FieldErrors) {
    webhooks(object, true, StrictRules::ALL, out);
}

/// A changed `ValidatingWebhookConfiguration`.
pub(crate) fn validating_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    webhooks(new, false, StrictRules::of_change(new, old), out);
}

/// A changed `MutatingWebhookConfiguration`.
pub(crate) fn mutating_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    webhooks(new, true, StrictRules::of_change(new, old), out);
}

/// Rules of v1 that v1beta1 did not have. A configuration stored without meeting one need not meet it when updated.
#[derive(Clone, Copy)]
struct StrictRules {
    /// Side effects that a call may have.
    effects: &'static [&'static str],
    /// A version of reviews that is sent.
    known_versions: bool,
    /// One name for each.
    unique_names: bool,
    /// Match conditions that can be compiled: not asked again as long as none of them changes.
    conditions: bool,
}

/// Versions of reviews that are sent.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const NO_EFFECTS: &[&str] = &["None", "NoneOnDryRun"];
const EFFECTS: &[&str] = &["None", "NoneOnDryRun", "Some", "Unknown"];

impl StrictRules {
    const ALL: Self = Self { effects: NO_EFFECTS, known_versions: true, unique_names: true, conditions: true };

    fn of_change(new: &Value, old: &Value) -> Self {
        let hooks = list(old, "webhooks");
        let names: BTreeSet<&str> = hooks.iter().map(|hook| text(hook, "name")).collect();
        let harmless = hooks.iter().all(|hook| NO_EFFECTS.contains(&text(hook, "sideEffects")));
        // A webhook of an older release may say no version at all.
        let known = |versions: Vec<&str>| versions.is_empty() || versions.iter().any(|v| VERSIONS.contains(v));
        let conditions = |object| list(object, "webhooks").iter().map(|hook| get(hook, "matchConditions"));
        Self {
            effects: if harmless { NO_EFFECTS } else { EFFECTS },
            known_versions: hooks.iter().all(|hook| known(texts(hook, "admissionReviewVersions"))),
            unique_names: names.len() == hooks.len(),
            conditions: !conditions(new).eq(conditions(old)),
        }
    }
}

/// Reports whether a webhook has an invalid selector.
pub(crate) fn have_invalid_selectors(webhooks: &Value) -> bool {
    let selectors = |hook| ["namespaceSelector", "objectSelector"].map(|key| get(hook, key));
    webhooks.as_array().into_iter().flatten().flat_map(selectors).any(is_invalid)
}

fn webhooks(object: &Value, mutating: bool, demands: StrictRules, out: &mut FieldErrors) {
    let mut names = BTreeSet::new();
    for (i, hook) in list(object, "webhooks").iter().enumerate() {
        let path = Path::new("webhooks").index(i);
        let name = text(hook, "name");
        webhook(hook, mutating, demands, &path, out);
        if demands.unique_names && !name.is_empty() && !names.insert(name) {
            out.push(Error::duplicate(path.child("name"), name));
        }
    }
}

fn webhook(hook: &Value, mutating: bool, demands: StrictRules, path: &Path, out: &mut FieldErrors) {
    shaped(hook, "name", full_name, path, out);
    for (i, rule) in list(hook, "rules").iter().enumerate() {
        rule_of(rule, &path.child("rules").index(i), out);
    }
    one_of(hook, "failurePolicy", &["Fail", "Ignore"], path, out);
    one_of(hook, "matchPolicy", &["Equivalent", "Exact"], path, out);
    if has(hook, "sideEffects") {
        one_of(hook, "sideEffects", demands.effects, path, out);
    } else {
        let why = format!("must specify one of {}", demands.effects.join(", "));
        out.push(Error::required(path.child("sideEffects"), &why));
    }
    if let Some(seconds) = int(hook, "timeoutSeconds").filter(|s| !(1..=30).contains(s)) {
        let message = "the timeout value must be between 1 and 30 seconds";
        out.push(Error::invalid(path.child("timeoutSeconds"), seconds, message));
    }
    for key in ["namespaceSelector", "objectSelector"] {
        own_selector(get(hook, key), &path.child(key), out);
    }
    if mutating {
        one_of(hook, "reinvocationPolicy", &["IfNeeded", "Never"], path, out);
    }
    client(get(hook, "clientConfig"), &path.child("clientConfig"), out);
    if demands.conditions {
        let names = crate::expressions::Names::of(crate::expressions::Dialect::Policy { params: false });
        super::admission_policy::conditions(hook, &names, &path.child("matchConditions"), out);
    }
    versions(hook, demands.known_versions, &path.child("admissionReviewVersions"), out);
}

/// Errors of a name that must be a fully qualified domain name of at least three segments.
fn full_name(name: &str) -> Vec<String> {
    let wrong = dns1123_subdomain(name);
    match name.split('.').count() {
        _ if !wrong.is_empty() => vec![wrong.join(",")],
        0..3 => vec!["should be a domain with at least three segments separated by dots".to_owned()],
        _ => wrong,
    }
}

fn versions(hook: &Value, known: bool, path: &Path, out: &mut FieldErrors) {
    let versions = texts(hook, "admissionReviewVersions");
    if versions.is_empty() {
        out.push(Error::required(path, "must specify one of v1, v1beta1"));
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, version) in versions.iter().enumerate() {
        if !seen.insert(version) {
            out.push(Error::invalid(path.index(i), *version, "duplicate version"));
            continue;
        }
        complain(out, &path.index(i), version, super::names::dns1035_label(version));
    }
    if known && !versions.iter().any(|v| VERSIONS.contains(v)) {
        let value = get(hook, "admissionReviewVersions").clone();
        out.push(Error::invalid(path, value, "must include at least one of v1, v1beta1"));
    }
}

pub(super) fn rule_of(rule: &Value, path: &Path, out: &mut FieldErrors) {
    let operations = texts(rule, "operations");
    if operations.is_empty() {
        out.push(Error::required(path.child("operations"), ""));
    }
    if operations.len() > 1 && operations.contains(&"*") {
        let value = get(rule, "operations").clone();
        let message = "if '*' is present, must not specify other operations";
        out.push(Error::invalid(path.child("operations"), value, message));
    }
    for (i, operation) in operations.iter().enumerate() {
        if !OPERATIONS.contains(operation) {
            out.push(Error::not_supported(path.child("operations").index(i), *operation, OPERATIONS));
        }
    }
    for (key, what) in [("apiGroups", "API groups"), ("apiVersions", "API versions")] {
        let values = texts(rule, key);
        if values.is_empty() {
            out.push(Error::required(path.child(key), ""));
        }
        if values.len() > 1 && values.contains(&"*") {
            let message = format!("if '*' is present, must not specify other {what}");
            out.push(Error::invalid(path.child(key), get(rule, key).clone(), &message));
        }
        for (i, _) in values.iter().enumerate().filter(|(_, v)| v.is_empty() && key == "apiVersions") {
            out.push(Error::required(path.child(key).index(i), ""));
        }
    }
    resources(&texts(rule, "resources"), &path.child("resources"), out);
    one_of(rule, "scope", &["*", "Cluster", "Namespaced"], path, out);
}

/// Resources, also those of resources; nothing is named that a wildcard before it stands for.
fn resources(all: &[&str], path: &Path, out: &mut FieldErrors) {
    if all.is_empty() {
        out.push(Error::required(path, ""));
    }
    let (mut of_resources, mut of_subs) = (BTreeSet::new(), BTreeSet::new());
    // Upstream remembers the last one only.
    let mut plain = false;
    for (i, one) in all.iter().enumerate() {
        if one.is_empty() {
            out.push(Error::required(path.index(i), ""));
            continue;
        }
        let Some((resource, sub)) = one.split_once('/') else {
            plain = *one != "*";
            continue;
        };
        let covered =
            [(format!("{resource}/*"), of_resources.contains(resource)), (format!("*/{sub}"), of_subs.contains(sub))];
        for (by, _) in covered.iter().filter(|(_, covered)| *covered) {
            let why = format!("if '{by}' is present, must not specify {one}");
            out.push(Error::invalid(path.index(i), *one, &why));
        }
        if sub == "*" {
            of_resources.insert(resource);
        }
        if resource == "*" {
            of_subs.insert(sub);
        }
    }
    let mut complain = |why: &str| out.push(Error::invalid(path, all, why));
    if all.len() > 1 && all.contains(&"*/*") {
        complain("if '*/*' is present, must not specify other resources");
    }
    if all.contains(&"*") && plain {
        complain("if '*' is present, must not specify other resources without subresources");
    }
}

/// Validates the `clientConfig` of a webhook: a URL or a service.
pub(super) fn client(config: &Value, path: &Path, out: &mut FieldErrors) {
    match (has(config, "url"), has(config, "service")) {
        (true, false) => url(text(config, "url"), &path.child("url"), out),
        (false, true) => {
            let (service, path) = (get(config, "service"), path.child("service"));
            // Upstream takes the one for the other.
            for (key, said) in [("namespace", "name"), ("name", "namespace")] {
                if text(service, key).is_empty() {
                    out.push(Error::required(path.child(said), ""));
                }
            }
            if let Some(port) = int(service, "port").filter(|p| !(1..=65535).contains(p)) {
                let message = "port is not valid: must be between 1 and 65535, inclusive";
                out.push(Error::invalid(path.child("port"), port, message));
            }
            service_path(text(service, "path"), &path.child("path"), out);
        }
        _ => out.push(Error::required(path, "exactly one of url or service is required")),
    }
}

/// A path of names.
fn service_path(target: &str, path: &Path, out: &mut FieldErrors) {
    if matches!(target, "" | "/") {
        return;
    }
    let mut complain = |message: &str| out.push(Error::invalid(path, target, message));
    if target == "//" {
        return complain("segment[0] may not be empty");
    }
    if !target.starts_with('/') {
        complain("must start with a '/'");
    }
    let mut rest = target.chars();
    rest.next();
    let rest = rest.as_str();
    for (i, step) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if step.is_empty() {
            complain(&format!("segment[{i}] may not be empty"));
            continue;
        }
        for why in dns1123_subdomain(step) {
            complain(&format!("segment[{i}]: {why}"));
        }
    }
}

fn url(url: &str, path: &Path, out: &mut FieldErrors) {
    const FORM: &str = "; desired format: https://host[/path]";
    let url = match Url::parse(url.as_bytes()) {
        Ok(url) => url,
        Err(why) => {
            out.push(Error::required(path, &format!("url must be a valid URL: {why}{FORM}")));
            return;
        }
    };
    let mut complain = |value: &str, message: &str| out.push(Error::invalid(path, value, message));
    if url.scheme != "https" {
        complain(&url.scheme, &format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if url.host.is_empty() {
        complain("", &format!("host must be specified{FORM}"));
    }
    if let Some(user) = url.user {
        complain(&String::from_utf8_lossy(&user.write()), "user information is not permitted in the URL");
    }
    if !url.fragment.is_empty() {
        complain(&String::from_utf8_lossy(&url.fragment), "fragments are not permitted in the URL");
    }
    if !url.query.is_empty() {
        complain(&String::from_utf8_lossy(&url.query), "query parameters are not permitted in the URL");
    }
}
