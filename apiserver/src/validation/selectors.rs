//! Label selectors and node selectors inside objects.

use proto::Value;
use proto::selector::Selector;
use shared::status::field::{Error, Path};

use super::meta::labels;
use super::names::{complain, label_key, label_value};
use super::tree::{get, has_entries, list, text, texts};
use crate::rules::options::{FieldErrors, ValidationOption};

const IN_WANTS_VALUES: &str = "must be specified when `operator` is 'In' or 'NotIn'";
const EXISTS_WANTS_NONE: &str = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";

/// A `meta/v1.LabelSelector`; null is fine.
pub(super) fn label_selector(selector: &Value, path: &Path, out: &mut FieldErrors) {
    label_selector_of(selector, true, path, out);
}

/// The one that an object has for its own purpose: one may go on with values that no label has.
pub(super) fn own_selector(selector: &Value, path: &Path, out: &mut FieldErrors) {
    label_selector_of(selector, !out.allows(ValidationOption::InvalidLabelValueInSelector), path, out);
}

/// Reports whether a selector is invalid.
pub(crate) fn is_invalid(selector: &Value) -> bool {
    let mut out = FieldErrors::default();
    label_selector(selector, &Path::default(), &mut out);
    !out.is_empty()
}

/// A selector; unless it is strict, expressions may name any values.
pub(super) fn label_selector_of(selector: &Value, strict: bool, path: &Path, out: &mut FieldErrors) {
    labels(selector, "matchLabels", &path.child("matchLabels"), out);
    for (i, r) in list(selector, "matchExpressions").iter().enumerate() {
        requirement(r, &path.child("matchExpressions").index(i), false, strict, out);
    }
}

/// One expression over labels; those of nodes can also compare numbers. Strictly, values are values of labels.
fn requirement(r: &Value, path: &Path, compares: bool, strict: bool, out: &mut FieldErrors) {
    let values = texts(r, "values");
    match text(r, "operator") {
        "In" | "NotIn" if values.is_empty() => out.push(Error::required(path.child("values"), IN_WANTS_VALUES)),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            out.push(Error::forbidden(path.child("values"), EXISTS_WANTS_NONE));
        }
        "Gt" | "Lt" if compares && values.len() != 1 => {
            let message = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            out.push(Error::required(path.child("values"), message));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        "Gt" | "Lt" if compares => {}
        other => out.push(Error::invalid(path.child("operator"), other, "not a valid selector operator")),
    }
    complain(out, &path.child("key"), text(r, "key"), label_key(text(r, "key")));
    for (j, value) in values.iter().enumerate().filter(|_| strict) {
        complain(out, &path.child("values").index(j), value, label_value(value));
    }
}

/// Has neither labels nor expressions.
pub(super) fn is_empty(selector: &Value) -> bool {
    !has_entries(selector, "matchLabels") && list(selector, "matchExpressions").is_empty()
}

/// Reports whether a selector matches the labels of a template; `None` when it is invalid. An absent one matches
/// nothing.
pub(super) fn picks(selector: &Value, labels: &Value) -> Option<bool> {
    Selector::from_object(Some(selector)).ok().map(|s| s.matches(Some(labels)))
}

/// The terms of a `NodeSelector`; unless it is strict, expressions may name any values.
pub(super) fn node_selector(selector: &Value, strict: bool, path: &Path, out: &mut FieldErrors) {
    let path = path.child("nodeSelectorTerms");
    let terms = list(selector, "nodeSelectorTerms");
    if terms.is_empty() {
        out.push(Error::required(&path, "must have at least one node selector term"));
        return;
    }
    for (i, term) in terms.iter().enumerate() {
        node_selector_term(term, strict, &path.index(i), out);
    }
}

/// One term of a `NodeSelector`; those that nodes are only preferred by may name any values.
pub(super) fn node_selector_term(term: &Value, strict: bool, path: &Path, out: &mut FieldErrors) {
    for (i, r) in list(term, "matchExpressions").iter().enumerate() {
        requirement(r, &path.child("matchExpressions").index(i), true, strict, out);
    }
    for (i, r) in list(term, "matchFields").iter().enumerate() {
        let path = path.child("matchFields").index(i);
        match text(r, "operator") {
            "In" | "NotIn" => {
                if texts(r, "values").len() != 1 {
                    let message = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                    out.push(Error::required(path.child("values"), message));
                }
            }
            other => out.push(Error::invalid(path.child("operator"), other, "not a valid selector operator")),
        }
        let key = text(r, "key");
        if key == "metadata.name" {
            for (j, value) in texts(r, "values").iter().enumerate() {
                complain(out, &path.child("values").index(j), value, super::names::dns1123_subdomain(value));
            }
        } else {
            out.push(Error::invalid(path.child("key"), key, "not a valid field selector key"));
        }
    }
}

/// The labels of a template under `metadata`.
pub(super) fn template_labels(template: &Value) -> &Value {
    get(get(template, "metadata"), "labels")
}
