//! Events, through the older API and the newer one.

use proto::Value;
use shared::status::field::{Error, Path};

use super::meta::immutable;
use super::names::{complain, dns1123_label, dns1123_subdomain, qualified_name};
use super::tree::{get, has, int, text};

/// Most bytes of names, reasons, actions.
const MAX_NAME: usize = 128;
const MAX_NOTE: usize = 1024;

/// An event: it lives beside what it is about.
pub(super) fn create(object: &Value, out: &mut Vec<Error>) {
    let namespace = text(get(object, "metadata"), "namespace");
    let about = text(get(object, "involvedObject"), "namespace");
    let path = Path::of(&["involvedObject", "namespace"]);
    // Events of the newer API carry an event time; their texts are bounded.
    if !has(object, "eventTime") {
        let fits = if about.is_empty() { matches!(namespace, "" | "default") } else { about == namespace };
        if !fits {
            out.push(Error::invalid(path, about, "does not match event.namespace"));
        }
        return;
    }
    let fits = if about.is_empty() { matches!(namespace, "default" | "kube-system") } else { about == namespace };
    if !fits {
        out.push(Error::invalid(path, about, "does not match event.namespace"));
    }
    let controller = text(object, "reportingComponent");
    let path = Path::new("reportingController");
    if controller.is_empty() {
        out.push(Error::required(&path, ""));
    }
    complain(out, &path, controller, qualified_name(controller));
    for key in ["reportingInstance", "action", "reason"] {
        match text(object, key) {
            "" => out.push(Error::required(key, "")),
            long => bounded(long, key, MAX_NAME, out),
        }
    }
    bounded(text(object, "message"), "message", MAX_NOTE, out);
}

fn bounded(value: &str, key: &str, max: usize, out: &mut Vec<Error>) {
    if value.len() > max {
        out.push(Error::invalid(key, "", &format!("can have at most {max} characters")));
    }
}

/// An event through the newer API: nothing of the older one is set.
pub(super) fn create_new(object: &Value, out: &mut Vec<Error>) {
    create_namespace(object, out);
    create(object, out);
    let name = text(get(object, "metadata"), "name");
    complain(out, &Path::of(&["metadata", "name"]), name, dns1123_subdomain(name));
    series(object, out);
    if !has(object, "eventTime") {
        out.push(Error::required("eventTime", ""));
    }
    let kind = text(object, "type");
    if !matches!(kind, "Normal" | "Warning") {
        out.push(Error::invalid("type", "", &format!("has invalid value: {kind}")));
    }
    for key in ["firstTimestamp", "lastTimestamp"] {
        unset(has(object, key), key, out);
    }
    unset(int(object, "count").unwrap_or_default() != 0, "count", out);
    let source = get(object, "source");
    unset(["component", "host"].iter().any(|k| !text(source, k).is_empty()), "source", out);
}

fn create_namespace(object: &Value, out: &mut Vec<Error>) {
    let namespace = text(get(object, "metadata"), "namespace");
    complain(out, &Path::new("namespace"), namespace, dns1123_label(namespace));
}

fn unset(is_set: bool, key: &str, out: &mut Vec<Error>) {
    if is_set {
        out.push(Error::invalid(key, "", "needs to be unset"));
    }
}

fn series(object: &Value, out: &mut Vec<Error>) {
    let series = get(object, "series");
    if series.is_null() {
        return;
    }
    if int(series, "count").unwrap_or_default() < 2 {
        out.push(Error::invalid(Path::of(&["series", "count"]), "", "should be at least 2"));
    }
    if !has(series, "lastObservedTime") {
        out.push(Error::required(Path::of(&["series", "lastObservedTime"]), ""));
    }
}

/// Through the newer API only how often an event happened may change.
pub(super) fn update_new(new: &Value, old: &Value, out: &mut Vec<Error>) {
    const STAY: [(&str, &str); 14] = [
        ("involvedObject", "involvedObject"),
        ("reason", "reason"),
        ("message", "message"),
        ("source", "source"),
        ("firstTimestamp", "firstTimestamp"),
        ("lastTimestamp", "lastTimestamp"),
        ("count", "count"),
        ("reason", "reason"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ];
    create_namespace(new, out);
    create(new, out);
    if has(new, "series") && !super::tree::same(get(new, "series"), get(old, "series")) {
        series(new, out);
    }
    for (key, shown) in STAY {
        immutable(get(new, key), get(old, key), &Path::new(shown), out);
    }
}
