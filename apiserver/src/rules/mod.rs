//! The vocabulary of validation: names, metadata of objects, and fields of trees, as field errors with upstream's texts.
//!
//! Answers for upstream's `apimachinery/pkg/api/validation` and `util/validation`. Pure. Must not know a kind: what is
//! particular about one is in `validation`, and schemas of custom resources are in `crd`.

pub(crate) mod flow_control;
pub(crate) mod meta;
pub(crate) mod names;
pub(crate) mod options;
pub(crate) mod tree;

use proto::Value;
use shared::status::field::{Error, Path};

/// Metadata of an object inside another.
pub(crate) fn embedded_metadata(metadata: &Value, path: &Path, out: &mut Vec<Error>) {
    meta::embedded(metadata, path, out);
}

/// The kind of an object inside another.
pub(crate) fn embedded_kind(kind: &str, path: &Path, out: &mut Vec<Error>) {
    let wrong = names::dns1035_label(&kind.to_lowercase());
    if !wrong.is_empty() {
        let why = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
        out.push(Error::invalid(path.clone(), kind, &why));
    }
}

/// Labels or annotations that a conversion changed; upstream's path of annotations lacks a letter.
pub(crate) fn converted_texts(field: &str, metadata: &Value) -> Vec<Error> {
    let mut out = Vec::new();
    match field {
        "labels" => meta::labels(metadata, field, &Path::of(&["metadata", "labels"]), &mut out),
        _ => meta::annotations(metadata, &Path::of(&["metadata", "annotation"]), &mut out),
    }
    out
}
