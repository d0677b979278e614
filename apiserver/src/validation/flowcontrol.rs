//! FlowSchemas and PriorityLevelConfigurations.

use proto::Value;
use shared::status::field::{Error, Path};

use super::names::{complain, dns1123_subdomain};
use super::tree::{get, has, int, list, text, texts};

const VERBS: [&str; 10] =
    ["*", "create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];
/// The precedence of the catch-all.
const LAST: i64 = 10_000;

/// `FlowSchema`
pub(super) fn schema(object: &Value, out: &mut Vec<Error>) {
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
            out.push(Error::not_supported(at, kind, &["ByNamespace", "ByUser"]));
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
}

fn rule(rule: &Value, path: &Path, out: &mut Vec<Error>) {
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
        alone(
            rule,
            "nonResourceURLs",
            "nonResourceURLs must contain at least one value",
            "non-resource URLs",
            &path,
            out,
        );
        for (j, url) in texts(rule, "nonResourceURLs").into_iter().enumerate() {
            url_path(url, &path.child("nonResourceURLs").index(j), out);
        }
    }
}

fn subject(subject: &Value, path: &Path, out: &mut Vec<Error>) {
    const KINDS: [(&str, &str); 3] = [("User", "user"), ("Group", "group"), ("ServiceAccount", "serviceAccount")];
    let kind = text(subject, "kind");
    if !KINDS.iter().any(|(k, _)| *k == kind) {
        out.push(Error::not_supported(path.child("kind"), kind, &["Group", "ServiceAccount", "User"]));
        return;
    }
    for (of, field) in KINDS {
        match (of == kind, has(subject, field)) {
            (true, false) => {
                out.push(Error::required(
                    path.child(field),
                    &format!("{field} is required when subject kind is '{of}'"),
                ));
            }
            (false, true) => {
                let why = format!("{field} is forbidden when subject kind is not '{of}'");
                out.push(Error::forbidden(path.child(field), &why));
            }
            (true, true) => {
                let (who, path) = (get(subject, field), path.child(field));
                if text(who, "name").is_empty() {
                    out.push(Error::required(path.child("name"), ""));
                }
                if of == "ServiceAccount" && text(who, "namespace").is_empty() {
                    out.push(Error::required(path.child("namespace"), "must specify namespace for service account"));
                }
            }
            (false, false) => {}
        }
    }
}

/// A list that is not empty, and in which `*` stands alone.
fn alone(rule: &Value, key: &str, missing: &str, others: &str, path: &Path, out: &mut Vec<Error>) {
    let all = texts(rule, key);
    if all.is_empty() {
        out.push(Error::required(path.child(key), missing));
    } else if all.len() > 1 && all.contains(&"*") {
        let why = format!("if '*' is present, must not specify other {others}");
        out.push(Error::invalid(path.child(key), get(rule, key).clone(), &why));
    }
}

fn verbs(rule: &Value, path: &Path, out: &mut Vec<Error>) {
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

fn resource_rule(rule: &Value, path: &Path, out: &mut Vec<Error>) {
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
    for (i, namespace) in namespaces.iter().enumerate().filter(|(_, n)| **n != "*") {
        complain(out, &path.child("namespaces").index(i), namespace, super::names::dns1123_label(namespace));
    }
}

fn url_path(url: &str, path: &Path, out: &mut Vec<Error>) {
    if url == "*" {
        return;
    }
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
pub(super) fn level(object: &Value, out: &mut Vec<Error>) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let exempt = text(get(object, "metadata"), "name") == "exempt";
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
            shares(get(spec, "exempt"), &path.child("exempt"), out);
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
}

fn shares(of: &Value, path: &Path, out: &mut Vec<Error>) {
    if let Some(n) = int(of, "nominalConcurrencyShares").filter(|n| *n < 0) {
        out.push(Error::invalid(path.child("nominalConcurrencyShares"), n, "must be a non-negative integer"));
    }
    if let Some(n) = int(of, "lendablePercent").filter(|n| !(0..=100).contains(n)) {
        out.push(Error::invalid(path.child("lendablePercent"), n, "must be between 0 and 100, inclusive"));
    }
}

fn limited(of: &Value, path: &Path, out: &mut Vec<Error>) {
    shares(of, path, out);
    if let Some(n) = int(of, "borrowingLimitPercent").filter(|n| *n < 0) {
        out.push(Error::invalid(
            path.child("borrowingLimitPercent"),
            n,
            "if specified, must be a non-negative integer",
        ));
    }
    let (response, path) = (get(of, "limitResponse"), path.child("limitResponse"));
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

fn queuing(of: &Value, path: &Path, out: &mut Vec<Error>) {
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
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
        let bits = (0..hand).map(|i| ((queues - i) as f64).log2()).sum::<f64>().ceil() as i64;
        #[allow(clippy::cast_precision_loss)]
        if bits as f64 > ENTROPY {
            let why =
                format!("required entropy bits of deckSize {queues} and handSize {hand} should not be greater than 60");
            out.push(Error::invalid(path.child("handSize"), hand, &why));
        }
    }
}
