//! Events, through the older API and the newer one. Answers for upstream's `ValidateEventCreate`,
//! `ValidateEventUpdate`.

use proto::Value;
use shared::status::field::{Error, Path};

use super::meta::immutable;
use super::names::{complain, dns1123_subdomain, qualified_name};
use super::tree::{get, has, int, text};
use crate::rules::options::FieldErrors;

/// Most bytes of names, reasons, actions.
const MAX_NAME: usize = 128;
const MAX_NOTE: usize = 1024;
/// Field of the reporter in events.k8s.io/v1.
const NEWER: &str = "reportingController";

/// An event through the older API.
pub(crate) fn create(object: &Value, out: &mut FieldErrors) {
    of_any(object, "reportingComponent", out);
}

/// Validates an event of either API, whose reporter field is named differently.
fn of_any(object: &Value, reporter: &str, out: &mut FieldErrors) {
    if has(object, "eventTime") {
        timed(object, reporter, out)
    } else {
        beside(object, out)
    }
    let namespace = text(get(object, "metadata"), "namespace");
    complain(out, &Path::new("namespace"), namespace, dns1123_subdomain(namespace));
}

/// An event without a time lives beside what it is about.
fn beside(object: &Value, out: &mut FieldErrors) {
    let namespace = text(get(object, "metadata"), "namespace");
    let about = text(get(object, "involvedObject"), "namespace");
    let fits = if about.is_empty() { matches!(namespace, "" | "default") } else { about == namespace };
    if !fits {
        misplaced(about, out);
    }
}

fn misplaced(about: &str, out: &mut FieldErrors) {
    let path = Path::of(&["involvedObject", "namespace"]);
    out.push(Error::invalid(path, about, "does not match event.namespace"));
}

/// Events of the newer API have a time, and texts that are bounded.
fn timed(object: &Value, reporter: &str, out: &mut FieldErrors) {
    let namespace = text(get(object, "metadata"), "namespace");
    let about = text(get(object, "involvedObject"), "namespace");
    if about.is_empty() && !matches!(namespace, "default" | "kube-system") {
        misplaced(about, out);
    }
    let controller = text(object, "reportingComponent");
    let path = Path::new(reporter);
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

fn bounded(value: &str, key: &str, max: usize, out: &mut FieldErrors) {
    if value.len() > max {
        out.push(Error::invalid(key, "", &format!("can have at most {max} characters")));
    }
}

/// An event through the newer API: nothing of the older one is set.
pub(crate) fn create_new(object: &Value, out: &mut FieldErrors) {
    of_any(object, NEWER, out);
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

fn unset(is_set: bool, key: &str, out: &mut FieldErrors) {
    if is_set {
        out.push(Error::invalid(key, "", "needs to be unset"));
    }
}

fn series(object: &Value, out: &mut FieldErrors) {
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
pub(crate) fn update_new(new: &Value, old: &Value, out: &mut FieldErrors) {
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
        ("reportingComponent", NEWER),
        ("reportingInstance", "reportingInstance"),
    ];
    of_any(new, NEWER, out);
    if has(new, "series") && !super::tree::same(get(new, "series"), get(old, "series")) {
        series(new, out);
    }
    for (key, shown) in STAY {
        immutable(get(new, key), get(old, key), &Path::new(shown), out);
    }
}
