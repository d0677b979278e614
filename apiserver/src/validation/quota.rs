//! Resource quotas and limit ranges. Answers for upstream's `ValidateResourceQuota`, `ValidateLimitRange`.

use std::collections::BTreeSet;

use proto::Value;
use proto::quantity::{Format, Quantity};
use shared::status::field::{Error, Path};

use super::names::{complain, qualified_name};
use super::pod::resources::{STANDARD, amount, container_resource_name, overcommits, resource_name};
use super::tree::{entries, get, has, has_entries, list, quantity, text, texts};
use crate::rules::options::FieldErrors;

const SCOPES: &[&str] = &[
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

/// A resource quota.
pub(crate) fn quota(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    for (name, value) in entries(spec, "hard") {
        let path = path.child("hard").key(name);
        quota_resource(name, &path, out);
        amount(name, value, &path, out);
    }
    scopes(spec, &path.child("scopes"), out);
    scope_selector(spec, &path.child("scopeSelector").child("matchExpressions"), out);
}

/// Resources of pods that a scope can count.
const OF_PODS: [&str; 7] = ["cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory", "pods"];

/// Reports whether a scope applies to a resource; scopes outside the standard ones apply to all.
fn applies(scope: &str, resource: &str) -> bool {
    let counted = match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        _ if SCOPES.contains(&scope) => OF_PODS.contains(&resource),
        _ => true,
    };
    counted || !is_standard(resource)
}

/// Reports whether a resource is a standard one of quotas. "storage" is a size of claims; a quota counts
/// "requests.storage".
fn is_standard(resource: &str) -> bool {
    let huge = resource.starts_with("hugepages-") || resource.starts_with("requests.hugepages-");
    huge || (STANDARD.contains(&resource) && resource != "storage")
}

fn scopes(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let all = texts(spec, "scopes");
    let mut no = |why: &str| out.push(Error::invalid(path, get(spec, "scopes").clone(), why));
    for scope in &all {
        if !SCOPES.contains(scope) {
            no("unsupported scope");
        }
        for _ in entries(spec, "hard").filter(|(name, _)| !applies(scope, name)) {
            no("unsupported scope applied to resource");
        }
    }
    for () in conflicts(&all) {
        no("conflicting scopes");
    }
}

/// Scopes of which nothing is within both.
fn conflicts(scopes: &[&str]) -> impl Iterator<Item = ()> {
    let pairs = [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")];
    pairs.into_iter().filter(|(a, b)| scopes.contains(a) && scopes.contains(b)).map(drop)
}

fn scope_selector(spec: &Value, path: &Path, out: &mut FieldErrors) {
    const EXIST: [&str; 5] =
        ["Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "CrossNamespacePodAffinity"];
    let selector = get(spec, "scopeSelector");
    for term in list(selector, "matchExpressions") {
        let (scope, operator) = (text(term, "scopeName"), text(term, "operator"));
        if !SCOPES.contains(&scope) {
            out.push(Error::invalid(path.child("scopeName"), scope, "unsupported scope"));
        }
        for _ in entries(spec, "hard").filter(|(name, _)| !applies(scope, name)) {
            out.push(Error::invalid(path, selector.clone(), "unsupported scope applied to resource"));
        }
        if EXIST.contains(&scope) && operator != "Exists" {
            let why = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            out.push(Error::invalid(path.child("operator"), operator, why));
        }
        let values = list(term, "values").len();
        match operator {
            "In" | "NotIn" if values == 0 => {
                let message = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                out.push(Error::required(path.child("values"), message));
            }
            "Exists" | "DoesNotExist" if values != 0 => {
                let message = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                out.push(Error::invalid(path.child("values"), get(term, "values").clone(), message));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => out.push(Error::invalid(path.child("operator"), other, "not a valid selector operator")),
        }
    }
    let scopes: Vec<&str> = list(selector, "matchExpressions").iter().map(|term| text(term, "scopeName")).collect();
    for () in conflicts(&scopes) {
        // Upstream shows the scopes that are not selected.
        out.push(Error::invalid(path, get(spec, "scopes").clone(), "conflicting scopes"));
    }
}

fn quota_resource(name: &str, path: &Path, out: &mut FieldErrors) {
    resource_name(name, path, out);
    if !name.contains('/') && !is_standard(name) {
        out.push(Error::invalid(path, name, "must be a standard resource for quota"));
    }
}

/// `status` of a quota.
pub(crate) fn quota_status(new: &Value, _: &Value, out: &mut FieldErrors) {
    for key in ["hard", "used"] {
        for (name, value) in entries(get(new, "status"), key) {
            let path = Path::of(&["status", key]).key(name);
            quota_resource(name, &path, out);
            amount(name, value, &path, out);
        }
    }
}

/// A quota's scopes may not change.
pub(crate) fn quota_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    let scopes = |o: &Value| texts(get(o, "spec"), "scopes").into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    if scopes(new) != scopes(old) {
        let value = get(get(new, "spec"), "scopes").clone();
        out.push(Error::invalid(Path::of(&["spec", "scopes"]), value, "field is immutable"));
    }
}

/// A limit range.
pub(crate) fn limit_range(object: &Value, out: &mut FieldErrors) {
    let mut kinds = BTreeSet::new();
    for (i, limit) in list(get(object, "spec"), "limits").iter().enumerate() {
        let path = Path::of(&["spec", "limits"]).index(i);
        let kind = text(limit, "type");
        let complaints = qualified_name(kind);
        if complaints.is_empty()
            && !kind.contains('/')
            && !matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim")
        {
            let message = "must be a standard limit type or fully qualified";
            out.push(Error::invalid(path.child("type"), kind, message));
        }
        complain(out, &path.child("type"), kind, complaints);
        if !kinds.insert(kind) {
            out.push(Error::duplicate(path.child("type"), kind));
        }
        limit_item(limit, kind, &path, out);
    }
}

fn limit_item(limit: &Value, kind: &str, path: &Path, out: &mut FieldErrors) {
    let mut keys = BTreeSet::new();
    for key in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        if kind == "Pod" && matches!(key, "default" | "defaultRequest") {
            if has_entries(limit, key) {
                out.push(Error::forbidden(path.child(key), "may not be specified when `type` is 'Pod'"));
            }
            continue;
        }
        for (name, _) in entries(limit, key) {
            let path = path.child(key).key(name);
            match kind {
                "Pod" | "Container" => container_resource_name(name, &path, out),
                _ => resource_name(name, &path, out),
            }
            keys.insert(name.as_str());
        }
    }
    if kind == "PersistentVolumeClaim" && !has(get(limit, "min"), "storage") && !has(get(limit, "max"), "storage") {
        let message = "either minimum or maximum storage value is required, but neither was provided";
        out.push(Error::required(path.child("limits"), message));
    }
    for name in keys {
        compare(limit, kind, name, path, out);
    }
}

/// The values of one resource must be in order: min, default request, default, max.
fn compare(limit: &Value, kind: &str, name: &str, path: &Path, out: &mut FieldErrors) {
    let of = |key: &str| {
        let value = get(get(limit, key), name);
        let judged = kind != "Pod" || !key.starts_with("default");
        (judged && !value.is_null()).then(|| quantity(value))
    };
    // Where it is told, the shown value, the two that should be in order and their names.
    let order = [
        ("min", "min", "min", "max", "min value", "max value"),
        ("defaultRequest", "defaultRequest", "min", "defaultRequest", "min value", "default request value"),
        ("defaultRequest", "defaultRequest", "defaultRequest", "max", "default request value", "max value"),
        (
            "defaultRequest",
            "defaultRequest",
            "defaultRequest",
            "default",
            "default request value",
            "default limit value",
        ),
        ("default", "min", "min", "default", "min value", "default value"),
        ("default", "max", "default", "max", "default value", "max value"),
    ];
    for (at, shown, low, high, low_name, high_name) in order {
        if let (Some(low), Some(high), Some(shown)) = (of(low), of(high), of(shown))
            && low > high
        {
            let message = format!("{low_name} {low} is greater than {high_name} {high}");
            out.push(Error::invalid(path.child(at).key(name), shown.to_string(), &message));
        }
    }
    if let Some(ratio) = of("maxLimitRequestRatio") {
        let path = path.child("maxLimitRequestRatio").key(name);
        if ratio < Quantity::from_int(1, Format::DecimalSI) {
            out.push(Error::invalid(&path, ratio.to_string(), &format!("ratio {ratio} is less than 1")));
        }
        if let (Some(min), Some(max)) = (of("min"), of("max")) {
            let most = max.as_f64() / min.as_f64();
            if ratio.as_f64() > most {
                let message = format!("ratio {ratio} is greater than max/min = {most:.6}");
                out.push(Error::invalid(&path, ratio.to_string(), &message));
            }
        }
    }
    if !overcommits(name)
        && let (Some(request), Some(default)) = (of("defaultRequest"), of("default"))
        && request != default
    {
        let message = format!("default value {default} must equal to defaultRequest value {request} in {name}");
        out.push(Error::invalid(path.child("defaultRequest").key(name), request.to_string(), &message));
    }
}
