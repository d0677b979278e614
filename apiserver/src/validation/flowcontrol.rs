//! FlowSchemas and PriorityLevelConfigurations. Answers for upstream's `ValidateFlowSchema`,
//! `ValidatePriorityLevelConfiguration`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use proto::Value;
use serde_json::json;
use shared::status::field::{Error, Path};

use super::names::{complain, dns1123_label, dns1123_subdomain};
use super::tree::{get, has, int, list, same, text, texts, without};
use crate::rules::flow_control::FlowControlDefaults;
use crate::rules::options::FieldErrors;

const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];
/// The precedence of the catch-all.
const LAST: i64 = 10_000;

/// `FlowSchema`
pub(crate) fn schema(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let name = text(get(object, "metadata"), "name");
    let precedence = int(spec, "matchingPrecedence").unwrap_or(0);
    let at = path.child("matchingPrecedence");
    if precedence <= 0 {
        out.push(Error::invalid(&at, precedence, "must be a positive value"));
    }
    if precedence > LAST {
        out.push(Error::invalid(&at, precedence, "must not be greater than 10000"));
    }
    if precedence == 1 && name != "exempt" {
        out.push(Error::invalid(&at, precedence, "only the schema named 'exempt' may have matchingPrecedence 1"));
    }
    if has(spec, "distinguisherMethod") {
        let kind = text(get(spec, "distinguisherMethod"), "type");
        if !matches!(kind, "ByUser" | "ByNamespace") {
            let at = path.child("distinguisherMethod").child("type");
            // Upstream shows what holds the type, under the name that the type has in Go.
            out.push(Error::not_supported(at, json!({"Type": kind}), &["ByNamespace", "ByUser"]));
        }
    }
    let at = path.child("priorityLevelConfiguration").child("name");
    match text(get(spec, "priorityLevelConfiguration"), "name") {
        "" => out.push(Error::required(at, "must reference a priority level")),
        level => complain(out, &at, level, dns1123_subdomain(level)),
    }
    for (i, rule) in list(spec, "rules").iter().enumerate() {
        self::rule(rule, &path.child("rules").index(i), out);
    }
    if mandatory(&MANDATORY_SCHEMAS, name).is_some_and(|fixed| !same(spec, fixed)) {
        out.push(Error::invalid(&path, spec.clone(), &format!("spec of '{name}' must equal the fixed value")));
    }
    conditions(object, out);
}

/// Specifications by name, of the objects without which no request would be let through.
type Mandatory = LazyLock<BTreeMap<String, Value>>;

static MANDATORY_SCHEMAS: Mandatory = LazyLock::new(|| mandatory_of(FlowControlDefaults::read().schemas));
static MANDATORY_LEVELS: Mandatory = LazyLock::new(|| mandatory_of(FlowControlDefaults::read().levels));

fn mandatory_of(all: Vec<Value>) -> BTreeMap<String, Value> {
    let named = all.into_iter().map(|o| (text(get(&o, "metadata"), "name").to_owned(), get(&o, "spec").clone()));
    named.filter(|(name, _)| matches!(&**name, "exempt" | "catch-all")).collect()
}

fn mandatory<'m>(of: &'m Mandatory, name: &str) -> Option<&'m Value> {
    of.get(name)
}

/// `status` of both kinds.
pub(crate) fn status(new: &Value, _: &Value, out: &mut FieldErrors) {
    conditions(new, out);
}

fn conditions(object: &Value, out: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (i, condition) in list(get(object, "status"), "conditions").iter().enumerate() {
        let (kind, path) = (text(condition, "type"), Path::of(&["status", "conditions"]).index(i).child("type"));
        if !seen.insert(kind) {
            out.push(Error::duplicate(&path, kind));
        }
        if kind.is_empty() {
            out.push(Error::required(path, "must not be empty"));
        }
    }
}

fn rule(rule: &Value, path: &Path, out: &mut FieldErrors) {
    if list(rule, "subjects").is_empty() {
        out.push(Error::required(path.child("subjects"), "subjects must contain at least one value"));
    }
    for (i, subject) in list(rule, "subjects").iter().enumerate() {
        self::subject(subject, &path.child("subjects").index(i), out);
    }
    let (resources, paths) = (list(rule, "resourceRules"), list(rule, "nonResourceRules"));
    if resources.is_empty() && paths.is_empty() {
        out.push(Error::required(path, "at least one of resourceRules and nonResourceRules has to be non-empty"));
    }
    for (i, rule) in resources.iter().enumerate() {
        resource_rule(rule, &path.child("resourceRules").index(i), out);
    }
    for (i, rule) in paths.iter().enumerate() {
        let path = path.child("nonResourceRules").index(i);
        verbs(rule, &path.child("verbs"), out);
        let (urls, missing) = (texts(rule, "nonResourceURLs"), "nonResourceURLs must contain at least one value");
        alone(rule, "nonResourceURLs", missing, "non-resource URLs", &path, out);
        for (j, url) in urls.iter().enumerate().filter(|_| !urls.contains(&"*")) {
            url_path(url, &path.child("nonResourceURLs").index(j), out);
        }
    }
}

fn subject(subject: &Value, path: &Path, out: &mut FieldErrors) {
    const KINDS: [(&str, &str); 3] = [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];
    let kind = text(subject, "kind");
    let Some((_, own)) = KINDS.into_iter().find(|(of, _)| *of == kind) else {
        out.push(Error::not_supported(path.child("kind"), kind, &["Group", "ServiceAccount", "User"]));
        return;
    };
    if has(subject, own) {
        somebody(get(subject, own), own == "serviceAccount", &path.child(own), out);
    } else {
        out.push(Error::required(path.child(own), &format!("{own} is required when subject kind is '{kind}'")));
    }
    for (of, field) in KINDS.into_iter().filter(|(_, field)| *field != own && has(subject, field)) {
        let why = format!("{field} is forbidden when subject kind is not '{of}'");
        out.push(Error::forbidden(path.child(field), &why));
    }
}

/// Validates a subject. `*` means all service accounts of a namespace.
fn somebody(who: &Value, account: bool, path: &Path, out: &mut FieldErrors) {
    match text(who, "name") {
        "" => out.push(Error::required(path.child("name"), "")),
        name if account && name != "*" => complain(out, &path.child("name"), name, dns1123_subdomain(name)),
        _ => {}
    }
    match text(who, "namespace") {
        _ if !account => {}
        "" => out.push(Error::required(path.child("namespace"), "must specify namespace for service account")),
        namespace => complain(out, &path.child("namespace"), namespace, dns1123_label(namespace)),
    }
}

/// A list that is not empty, and in which `*` stands alone.
fn alone(rule: &Value, key: &str, missing: &str, others: &str, path: &Path, out: &mut FieldErrors) {
    let all = texts(rule, key);
    if all.is_empty() {
        out.push(Error::required(path.child(key), missing));
    } else if all.len() > 1 && all.contains(&"*") {
        let why = format!("if '*' is present, must not specify other {others}");
        out.push(Error::invalid(path.child(key), get(rule, key).clone(), &why));
    }
}

fn verbs(rule: &Value, path: &Path, out: &mut FieldErrors) {
    let all = texts(rule, "verbs");
    if all.is_empty() {
        out.push(Error::required(path, "verbs must contain at least one value"));
    } else if all.contains(&"*") {
        if all.len() > 1 {
            let why = "if '*' is present, must not specify other verbs";
            out.push(Error::invalid(path, get(rule, "verbs").clone(), why));
        }
    } else if all.iter().any(|v| !VERBS.contains(v)) {
        out.push(Error::not_supported(path, get(rule, "verbs").clone(), &VERBS));
    }
}

fn resource_rule(rule: &Value, path: &Path, out: &mut FieldErrors) {
    verbs(rule, &path.child("verbs"), out);
    alone(rule, "apiGroups", "resource rules must supply at least one api group", "api groups", path, out);
    alone(rule, "resources", "resource rules must supply at least one resource", "resources", path, out);
    let namespaces = texts(rule, "namespaces");
    if namespaces.is_empty() && !super::tree::flag(rule, "clusterScope") {
        let why = "resource rules that are not cluster scoped must supply at least one namespace";
        out.push(Error::required(path.child("namespaces"), why));
    } else if namespaces.len() > 1 && namespaces.contains(&"*") {
        let why = "if '*' is present, must not specify other namespaces";
        out.push(Error::invalid(path.child("namespaces"), get(rule, "namespaces").clone(), why));
    }
    for (i, namespace) in namespaces.iter().enumerate().filter(|_| !namespaces.contains(&"*")) {
        const INTRO: &str = "each member of this list must be '*' or a DNS-1123 label; ";
        let wrong = dns1123_label(namespace).into_iter().map(|why| format!("{INTRO}{why}"));
        complain(out, &path.child("namespaces").index(i), namespace, wrong.collect());
    }
}

fn url_path(url: &str, path: &Path, out: &mut FieldErrors) {
    if url.is_empty() {
        out.push(Error::invalid(path, url, "must not be empty"));
    } else if !url.starts_with('/') {
        out.push(Error::invalid(path, url, "must start with slash"));
    } else if url.contains(' ') {
        out.push(Error::invalid(path, url, "must not contain white-space"));
    } else if url.contains("//") {
        out.push(Error::invalid(path, url, "must not contain double slash"));
    } else if url.trim_end_matches('*').contains('*') || (url.ends_with('*') && !url.ends_with("/*")) {
        let why = "wildcard can only do suffix matching";
        out.push(Error::invalid(path, url, why));
    }
}

/// `PriorityLevelConfiguration`
pub(crate) fn level(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let name = text(get(object, "metadata"), "name");
    let exempt = name == "exempt";
    let kind = text(spec, "type");
    if (kind == "Exempt") != exempt {
        let why = "type must be 'Exempt' if and only if name is 'exempt'";
        out.push(Error::invalid(path.child("type"), kind, why));
    }
    match kind {
        "Exempt" => {
            if has(spec, "limited") {
                out.push(Error::forbidden(path.child("limited"), "must be nil if the type is not Limited"));
            }
            nominal(get(spec, "exempt"), &path.child("exempt"), out);
            lendable(get(spec, "exempt"), &path.child("exempt"), out);
        }
        "Limited" => {
            if has(spec, "exempt") {
                out.push(Error::forbidden(path.child("exempt"), "must be nil if the type is Limited"));
            }
            if has(spec, "limited") {
                limited(get(spec, "limited"), &path.child("limited"), out);
            } else {
                out.push(Error::required(path.child("limited"), "must not be empty when type is Limited"));
            }
        }
        _ => out.push(Error::not_supported(path.child("type"), kind, &["Exempt", "Limited"])),
    }
    // What the exempt level borrows and lends is the administrator's to say.
    let (but, free): (_, &[&str]) = if exempt { (" except the 'spec.exempt' field", &["exempt"]) } else { ("", &[]) };
    let fixed = mandatory(&MANDATORY_LEVELS, name);
    if fixed.is_some_and(|fixed| !same(&without(spec, free), &without(fixed, free))) {
        let why = format!("spec of '{name}'{but} must equal the fixed value");
        out.push(Error::invalid(&path, spec.clone(), &why));
    }
    conditions(object, out);
}

fn nominal(of: &Value, path: &Path, out: &mut FieldErrors) {
    if let Some(n) = int(of, "nominalConcurrencyShares").filter(|n| *n < 0) {
        out.push(Error::invalid(path.child("nominalConcurrencyShares"), n, "must be a non-negative integer"));
    }
}

fn lendable(of: &Value, path: &Path, out: &mut FieldErrors) {
    if let Some(n) = int(of, "lendablePercent").filter(|n| !(0..=100).contains(n)) {
        out.push(Error::invalid(path.child("lendablePercent"), n, "must be between 0 and 100, inclusive"));
    }
}

fn limited(of: &Value, path: &Path, out: &mut FieldErrors) {
    nominal(of, path, out);
    limit_response(get(of, "limitResponse"), &path.child("limitResponse"), out);
    lendable(of, path, out);
    if let Some(n) = int(of, "borrowingLimitPercent").filter(|n| *n < 0) {
        let why = "if specified, must be a non-negative integer";
        out.push(Error::invalid(path.child("borrowingLimitPercent"), n, why));
    }
}

fn limit_response(response: &Value, path: &Path, out: &mut FieldErrors) {
    match (text(response, "type"), has(response, "queuing")) {
        ("Reject", true) => {
            out.push(Error::forbidden(
                path.child("queuing"),
                "must be nil if limited.limitResponse.type is not Limited",
            ));
        }
        ("Queue", false) => {
            out.push(Error::required(
                path.child("queuing"),
                "must not be empty if limited.limitResponse.type is Limited",
            ));
        }
        ("Queue", true) => queuing(get(response, "queuing"), &path.child("queuing"), out),
        ("Reject", false) => {}
        (other, _) => out.push(Error::not_supported(path.child("type"), other, &["Queue", "Reject"])),
    }
}

/// Hands from a deck are numbered with 60 bits.
const ENTROPY: f64 = 60.0;

fn queuing(of: &Value, path: &Path, out: &mut FieldErrors) {
    const MOST: i64 = 10 * 1000 * 1000;
    let number = |key: &str| int(of, key).unwrap_or(0);
    let (queues, hand) = (number("queues"), number("handSize"));
    if number("queueLengthLimit") <= 0 {
        let at = path.child("queueLengthLimit");
        out.push(Error::invalid(at, number("queueLengthLimit"), "must be positive"));
    }
    if queues <= 0 {
        out.push(Error::invalid(path.child("queues"), queues, "must be positive"));
    } else if queues > MOST {
        out.push(Error::invalid(path.child("queues"), queues, "must not be greater than 10000000"));
    }
    if hand <= 0 {
        out.push(Error::invalid(path.child("handSize"), hand, "must be positive"));
    } else if hand > queues {
        let why = format!("should not be greater than queues ({queues})");
        out.push(Error::invalid(path.child("handSize"), hand, &why));
    } else {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            reason = "at most 10 * log2(10^7) bits"
        )]
        let bits = (0..hand).map(|i| ((queues - i) as f64).log2()).sum::<f64>().ceil() as i64;
        #[expect(clippy::cast_precision_loss, reason = "at most 10 * log2(10^7) bits")]
        if bits as f64 > ENTROPY {
            let why =
                format!("required entropy bits of deckSize {queues} and handSize {hand} should not be greater than 60");
            out.push(Error::invalid(path.child("handSize"), hand, &why));
        }
    }
}
