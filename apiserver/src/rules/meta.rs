//! `metadata` of every kind. Answers for upstream's `ValidateObjectMeta`, `ValidateObjectMetaUpdate`.

use proto::Value;
use proto::resources::Resource;
use serde_json::json;
use shared::status::field::{Error, Path};

use super::names::{NameRule, complain, label_key, label_value, not_negative, qualified_name};
use super::tree::{at, entries, flag, get, has, int, list, text, texts};

/// Most bytes of all annotations together.
const ANNOTATION_BYTES: usize = 256 * 1024;
/// Finalizers that need no domain.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// A new object's metadata.
pub(crate) fn create(object: &Value, rule: NameRule, row: &Resource, path: &Path, out: &mut Vec<Error>) {
    any(object, rule, row, path, out);
    core_finalizers(row, object, path, out);
}

/// Validates the metadata that objects of all kinds share.
pub(crate) fn any(object: &Value, rule: NameRule, row: &Resource, path: &Path, out: &mut Vec<Error>) {
    let meta = get(object, "metadata");
    let prefix = text(meta, "generateName");
    if !prefix.is_empty() {
        complain(out, &path.child("generateName"), prefix, rule.check(prefix, true));
    }
    let name = text(meta, "name");
    if name.is_empty() {
        out.push(Error::required(path.child("name"), "name or generateName is required"));
    } else {
        complain(out, &path.child("name"), name, rule.check(name, false));
    }
    let namespace = text(meta, "namespace");
    match (row.namespaced, namespace.is_empty()) {
        (true, true) => out.push(Error::required(path.child("namespace"), "")),
        (true, false) => complain(out, &path.child("namespace"), namespace, NameRule::Label.check(namespace, false)),
        (false, false) => out.push(Error::forbidden(path.child("namespace"), "not allowed on this type")),
        (false, true) => {}
    }
    not_negative(out, path.child("generation"), int(meta, "generation"));
    maps_and_lists(meta, path, out);
    finalizers(meta, path, out);
}

/// Metadata of an object inside another: what is there has to make sense, nothing has to be there.
pub(crate) fn embedded(meta: &Value, path: &Path, out: &mut Vec<Error>) {
    for (key, rule, prefix) in [
        ("generateName", NameRule::PathSegment, true),
        ("name", NameRule::PathSegment, false),
        ("namespace", NameRule::Label, false),
    ] {
        let name = text(meta, key);
        if !name.is_empty() {
            complain(out, &path.child(key), name, rule.check(name, prefix));
        }
    }
    not_negative(out, path.child("generation"), int(meta, "generation"));
    maps_and_lists(meta, path, out);
    finalizers(meta, path, out);
}

fn maps_and_lists(meta: &Value, path: &Path, out: &mut Vec<Error>) {
    labels(meta, "labels", &path.child("labels"), out);
    annotations(meta, &path.child("annotations"), out);
    owners(meta, &path.child("ownerReferences"), out);
}

/// A map of labels.
pub(crate) fn labels(holder: &Value, key: &str, path: &Path, out: &mut Vec<Error>) {
    for (k, v) in entries(holder, key) {
        complain(out, path, k, label_key(k));
        let v = v.as_str().unwrap_or_default();
        complain(out, path, v, label_value(v));
    }
}

/// A map of annotations.
pub(crate) fn annotations(meta: &Value, path: &Path, out: &mut Vec<Error>) {
    let mut total = 0;
    for (k, v) in entries(meta, "annotations") {
        complain(out, path, k, label_key(&k.to_lowercase()));
        total += k.len() + v.as_str().unwrap_or_default().len();
    }
    if total > ANNOTATION_BYTES {
        out.push(Error::too_long(path, ANNOTATION_BYTES));
    }
}

fn owners(meta: &Value, path: &Path, out: &mut Vec<Error>) {
    let mut first: Option<String> = None;
    for owner in list(meta, "ownerReferences") {
        let api_version = text(owner, "apiVersion");
        let version = api_version.rsplit('/').next().unwrap_or_default();
        if version.is_empty() || api_version.matches('/').count() > 1 {
            out.push(Error::invalid(path.child("apiVersion"), api_version, "version must not be empty"));
        }
        for key in ["kind", "name", "uid"] {
            if text(owner, key).is_empty() {
                out.push(Error::invalid(path.child(key), "", "must not be empty"));
            }
        }
        if api_version == "v1" && text(owner, "kind") == "Event" {
            out.push(Error::invalid(path, owner.clone(), "/v1, Kind=Event is disallowed from being an owner"));
        }
        if flag(owner, "controller") {
            let this = format!("{}/{}", text(owner, "kind"), text(owner, "name"));
            match &first {
                Some(first) => {
                    let message = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                    );
                    out.push(Error::invalid(path, get(meta, "ownerReferences").clone(), &message));
                }
                None => first = Some(this),
            }
        }
    }
}

/// One finalizer.
pub(crate) fn finalizer(name: &str, path: &Path, out: &mut Vec<Error>) {
    complain(out, path, name, qualified_name(name));
    known_finalizer(name, path, out);
}

fn known_finalizer(name: &str, path: &Path, out: &mut Vec<Error>) {
    if !name.contains('/') && !STANDARD_FINALIZERS.contains(&name) {
        out.push(Error::invalid(path, name, "name is neither a standard finalizer name nor is it fully qualified"));
    }
}

/// Finalizers of built-in kinds without a domain have to be known ones, except where upstream's generic library is the
/// judge.
pub(crate) fn core_finalizers(row: &Resource, object: &Value, path: &Path, out: &mut Vec<Error>) {
    const GENERIC: [&str; 6] = [
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
        "coordination.k8s.io",
        "node.k8s.io",
        "policy",
    ];
    if GENERIC.contains(&&*row.group) {
        return;
    }
    for (i, name) in texts(get(object, "metadata"), "finalizers").iter().enumerate() {
        known_finalizer(name, &path.child("finalizers").index(i), out);
    }
}

/// Metadata of a template from which objects are made that have their own name.
pub(crate) fn template(meta: &Value, path: &Path, out: &mut Vec<Error>) {
    /// Fields in the order of Go's struct, each with its first letter in lower case.
    const OTHERS: [(&str, &str); 13] = [
        ("name", "name"),
        ("generateName", "generateName"),
        ("namespace", "namespace"),
        ("selfLink", "selfLink"),
        ("uid", "uID"),
        ("resourceVersion", "resourceVersion"),
        ("generation", "generation"),
        ("creationTimestamp", "creationTimestamp"),
        ("deletionTimestamp", "deletionTimestamp"),
        ("deletionGracePeriodSeconds", "deletionGracePeriodSeconds"),
        ("ownerReferences", "ownerReferences"),
        ("finalizers", "finalizers"),
        ("managedFields", "managedFields"),
    ];
    annotations(meta, &path.child("annotations"), out);
    labels(meta, "labels", &path.child("labels"), out);
    for (key, shown) in OTHERS {
        if !super::tree::is_empty(get(meta, key)) {
            out.push(Error::forbidden(path.child(shown), "cannot be set"));
        }
    }
}

fn finalizers(meta: &Value, path: &Path, out: &mut Vec<Error>) {
    let path = path.child("finalizers");
    let names = texts(meta, "finalizers");
    for name in &names {
        complain(out, &path, name, qualified_name(name));
    }
    if names.contains(&"orphan") && names.contains(&"foregroundDeletion") {
        out.push(Error::invalid(&path, json!(names), "finalizer orphan and foregroundDeletion cannot be both set"));
    }
}

/// A changed object's metadata.
pub(crate) fn update(new: &Value, old: &Value, path: &Path, out: &mut Vec<Error>) {
    let (meta, before) = (get(new, "metadata"), get(old, "metadata"));
    if has(before, "deletionTimestamp") {
        let known = texts(before, "finalizers");
        let mut extra: Vec<&str> = texts(meta, "finalizers").into_iter().filter(|f| !known.contains(f)).collect();
        extra.sort_unstable();
        extra.dedup();
        if !extra.is_empty() {
            let shown: Vec<String> = extra.iter().map(|f| shared::status::go_quote(f)).collect();
            let message = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                shown.join(", ")
            );
            out.push(Error::forbidden(path.child("finalizers"), &message));
        }
    }
    if let (Some(a), Some(b)) = (int(meta, "generation"), int(before, "generation"))
        && a < b
    {
        out.push(Error::invalid(path.child("generation"), a, "must not be decremented"));
    }
    for key in ["name", "namespace", "uid", "creationTimestamp"] {
        if !text(before, key).is_empty() && text(meta, key) != text(before, key) {
            out.push(Error::invalid(path.child(key), get(meta, key).clone(), "field is immutable"));
        }
    }
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        immutable(get(meta, key), get(before, key), &path.child(key), out);
    }
    maps_and_lists(meta, path, out);
}

/// The text of an annotation.
pub(crate) fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    text(at(object, &["metadata", "annotations"]), key)
}

/// A field that may not change: `field is immutable`.
pub(crate) fn immutable(new: &Value, old: &Value, path: &Path, out: &mut Vec<Error>) {
    if !super::tree::same(new, old) {
        out.push(Error::invalid(path, new.clone(), "field is immutable"));
    }
}
