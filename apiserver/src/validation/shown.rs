//! Offending values as clients see them: structs named and ordered as upstream's are.

use proto::Value;
use proto::schema::{Card, Field, Message, ValueKind};
use shared::status::field::Error;

/// The field a path leads to; false when the path ends at one of its elements.
fn lookup<'a>(schema: &'a Message, path: &str) -> Option<(&'a Field, bool)> {
    let mut message = schema;
    let mut rest = path;
    loop {
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        let field = message.field(&rest[..end])?;
        rest = &rest[end..];
        let mut whole = true;
        while let Some(inner) = rest.strip_prefix('[') {
            rest = &inner[inner.find(']')? + 1..];
            whole = false;
        }
        let Some(next) = rest.strip_prefix('.') else {
            return rest.is_empty().then_some((field, whole));
        };
        if whole && field.card != Card::Single {
            return None;
        }
        match &field.kind {
            ValueKind::Message(m) => message = m,
            _ => return None,
        }
        rest = next;
    }
}

/// Reports whether the schema has all fields of a struct.
fn declared(field: &Field, value: &Value) -> bool {
    match (&field.kind, value) {
        (ValueKind::Message(m), Value::Object(map)) => map.keys().all(|k| m.field(k).is_some()),
        _ => true,
    }
}

/// Prints the structured values of `errors` as upstream does.
pub fn in_order(schema: &Message, mut errors: Vec<Error>) -> Vec<Error> {
    for error in &mut errors {
        if error.shown.is_some() || !(error.value.is_object() || error.value.is_array()) {
            continue;
        }
        let Some((field, whole)) = lookup(schema, &error.field) else { continue };
        // Some rules report an element under the path of its list, or the other way round, or name fields as Go does.
        let listed = whole && field.card == Card::Repeated;
        let (whole, fits) = match &error.value {
            Value::Array(list) => (whole, listed && list.iter().all(|v| declared(field, v))),
            value => (whole && !listed, declared(field, value)),
        };
        if fits {
            error.shown = super::internal::of_field(field, whole, &error.value);
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn structs_keep_their_order() {
        let schema = proto::schema::kind("apps", "v1", "Deployment").expect("kind");
        let owner = json!({"apiVersion": "v1", "controller": true, "kind": "Pod", "name": "a", "uid": "1"});
        let ordered = r#"{"apiVersion":"v1","kind":"Pod","name":"a","uid":"1","controller":true}"#;
        let body = |field: &str, value| in_order(schema, vec![Error::invalid(field, value, "no")])[0].body();
        assert_eq!(body("metadata.ownerReferences", json!([owner])), format!("Invalid value: [{ordered}]: no"));
        assert_eq!(body("metadata.ownerReferences[1]", owner.clone()), format!("Invalid value: {ordered}: no"));
        let port = json!({"containerPort": 1, "name": "p"});
        assert_eq!(
            body("spec.template.spec.containers[0].ports[0]", port),
            r#"Invalid value: {"Name":"p","HostPort":0,"ContainerPort":1,"Protocol":"","HostIP":""}: no"#
        );
        let named = json!({"APIVersion": "v1", "Kind": "Pod"});
        assert_eq!(body("metadata.ownerReferences[0]", named.clone()), format!("Invalid value: {named}: no"));
        for field in ["spec.nope", "metadata.labels[a.b/c]", "", "spec.template.spec.containers.x"] {
            assert_eq!(body(field, json!({"b": 1, "a": 2})), r#"Invalid value: {"a":2,"b":1}: no"#, "{field}");
        }
    }
}
