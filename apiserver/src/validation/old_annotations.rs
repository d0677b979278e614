//! Annotations of nodes and pods that were the form of fields before there were fields. Nobody acts on them any more,
//! but what is in them has to be right.

use proto::Value;
use serde_json::json;
use shared::status::field::{Error, Path};

use super::node::taints;
use super::pod::placement::tolerations;
use super::tree::{at, flag, get, list, text};
use crate::rules::options::FieldErrors;

const TAINTS: &str = "scheduler.alpha.kubernetes.io/taints";
const AVOIDED: &str = "scheduler.alpha.kubernetes.io/preferAvoidPods";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";

/// Fault of an annotation, in Go's words.
#[derive(Debug, thiserror::Error)]
enum AnnotationError {
    /// No JSON.
    #[error(transparent)]
    Syntax(#[from] proto::json::SyntaxError),
    /// Values that JSON has not.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// Another type.
    #[error("json: cannot unmarshal {found} into Go value of type {wanted}")]
    Type { found: &'static str, wanted: &'static str },
}

/// Parses an annotation; `None` when it is missing or empty.
fn read(metadata: &Value, key: &str, wanted: AnnotationForm) -> Option<Result<Value, AnnotationError>> {
    let text = text(get(metadata, "annotations"), key);
    (!text.is_empty()).then(|| parse(text, wanted))
}

/// Expected form of an annotation: JSON and the name of its Go type.
#[derive(Clone, Copy)]
enum AnnotationForm {
    List(&'static str),
    Struct(&'static str),
}

fn parse(text: &str, wanted: AnnotationForm) -> Result<Value, AnnotationError> {
    proto::json::syntax(text.as_bytes())?;
    let value: Value = serde_json::from_str(text)?;
    let found = match (&value, wanted) {
        (Value::Null, _)
        | (Value::Array(_), AnnotationForm::List(_))
        | (Value::Object(_), AnnotationForm::Struct(_)) => return Ok(value),
        (Value::Array(_), _) => "array",
        (Value::Object(_), _) => "object",
        (Value::String(_), _) => "string",
        (Value::Bool(_), _) => "bool",
        (Value::Number(_), _) => "number",
    };
    let (AnnotationForm::List(wanted) | AnnotationForm::Struct(wanted)) = wanted;
    Err(AnnotationError::Type { found, wanted })
}

/// Of a node.
pub(super) fn of_node(node: &Value, out: &mut FieldErrors) {
    let metadata = get(node, "metadata");
    let path = Path::of(&["metadata", "annotations"]);
    match read(metadata, TAINTS, AnnotationForm::List("[]core.Taint")) {
        Some(Ok(all)) => taints(&json!({"taints": all}), &path.child(TAINTS), out),
        Some(Err(why)) => out.push(Error::invalid(&path, TAINTS, &why.to_string())),
        None => {}
    }
    match read(metadata, AVOIDED, AnnotationForm::Struct("v1.AvoidPods")) {
        Some(Ok(all)) => {
            for (i, avoided) in list(&all, "preferAvoidPods").iter().enumerate() {
                controller(avoided, &path.child(AVOIDED).index(i).child("PodSignature"), out);
            }
        }
        Some(Err(why)) => out.push(Error::invalid(path.child("AvoidPods"), AVOIDED, &why.to_string())),
        None => {}
    }
}

/// Pods are avoided by whose they are.
fn controller(avoided: &Value, path: &Path, out: &mut FieldErrors) {
    let controller = at(avoided, &["podSignature", "podController"]);
    if controller.is_null() {
        out.push(Error::required(path, ""));
    } else if !flag(controller, "controller") {
        let path = path.child("PodController").child("Controller");
        out.push(Error::invalid(path, false, "must point to a controller"));
    }
}

/// Of a pod or template.
pub(super) fn of_pod(metadata: &Value, path: &Path, out: &mut FieldErrors) {
    match read(metadata, TOLERATIONS, AnnotationForm::List("[]core.Toleration")) {
        Some(Ok(all)) => tolerations(&json!({"tolerations": all}), &path.child(TOLERATIONS), out),
        Some(Err(why)) => out.push(Error::invalid(path, TOLERATIONS, &why.to_string())),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(key: &str, text: &str) -> Vec<String> {
        let mut out = FieldErrors::default();
        of_node(&json!({"metadata": {"annotations": {key: text}}}), &mut out);
        out.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn nodes() {
        let within = format!("metadata.annotations.{TAINTS}[0]");
        let avoided = format!("metadata.annotations.{AVOIDED}[0].PodSignature");
        for (key, text, want) in [
            (TAINTS, "", vec![]),
            (TAINTS, r#"[{"key": "a", "effect": "NoSchedule"}]"#, vec![]),
            (
                TAINTS,
                "x",
                vec![format!(
                    "metadata.annotations: Invalid value: \"{TAINTS}\": invalid character 'x' looking for beginning of value"
                )],
            ),
            (
                TAINTS,
                "{}",
                vec![format!(
                    "metadata.annotations: Invalid value: \"{TAINTS}\": json: cannot unmarshal object into Go value of type []core.Taint"
                )],
            ),
            (TAINTS, r#"[{"key": "a"}]"#, vec![format!("{within}.effect: Required value")]),
            (AVOIDED, r#"{"preferAvoidPods": [{"podSignature": {"podController": {"controller": true}}}]}"#, vec![]),
            (AVOIDED, r#"{"preferAvoidPods": [{"podSignature": {}}]}"#, vec![format!("{avoided}: Required value")]),
            (
                AVOIDED,
                r#"{"preferAvoidPods": [{"podSignature": {"podController": {"controller": false}}}]}"#,
                vec![format!("{avoided}.PodController.Controller: Invalid value: false: must point to a controller")],
            ),
            (
                AVOIDED,
                "[]",
                vec![format!(
                    "metadata.annotations.AvoidPods: Invalid value: \"{AVOIDED}\": json: cannot unmarshal array into Go value of type v1.AvoidPods"
                )],
            ),
        ] {
            assert_eq!(node(key, text), want, "{text}");
        }
    }

    #[test]
    fn pods() {
        let of = |text: &str| {
            let mut out = FieldErrors::default();
            of_pod(&json!({"annotations": {TOLERATIONS: text}}), &Path::of(&["metadata", "annotations"]), &mut out);
            out.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of(r#"[{"key": "a", "operator": "Exists"}]"#), [""; 0]);
        let got = of(r#"[{"operator": "Equal"}]"#);
        assert!(
            got.len() == 1 && got[0].starts_with(&format!("metadata.annotations.{TOLERATIONS}[0].operator: ")),
            "{got:?}"
        );
        assert_eq!(
            of("[x]"),
            [format!(
                "metadata.annotations: Invalid value: \"{TOLERATIONS}\": invalid character 'x' looking for beginning of value"
            )]
        );
    }
}
