//! Objects that mutations make: `Object{...}`, `Object.spec{...}`, `JSONPatch{...}`.

use std::sync::{Arc, LazyLock};

use cel::common::ast::{EntryExpr, StructExpr};

use super::super::node::{ExprKind, Node};
use super::super::types::{Shape, Type};
use super::Checker;

/// Reports whether an opaque type counts as a structure with unknown fields.
pub(super) fn is_structure(name: &str) -> bool {
    !name.starts_with("net.")
}

/// `Object` or a part of one, whose fields can be anything.
#[derive(Debug)]
struct ObjectPart(String);

impl Shape for ObjectPart {
    fn name(&self) -> &str {
        &self.0
    }

    fn field(&self, _: &str) -> Option<Type> {
        Some(Type::Dyn)
    }
}

static PATCH: LazyLock<Type> = LazyLock::new(|| {
    let texts = ["op", "path", "from"].map(|name| (name, Type::String));
    Type::object("JSONPatch", texts.into_iter().chain([("value", Type::Dyn)]))
});

/// The type of a name.
fn made(name: &str) -> Option<Type> {
    match name {
        "JSONPatch" => Some(PATCH.clone()),
        _ if name == "Object" || name.starts_with("Object.") => {
            Some(Type::Object(Arc::new(ObjectPart(name.to_owned()))))
        }
        _ => None,
    }
}

impl Checker<'_> {
    pub(super) fn object(&self, name: &str) -> Option<Type> {
        made(name).filter(|_| self.extras.patch)
    }

    pub(super) fn made(&mut self, id: u64, made: &StructExpr) -> Node {
        let name = made.type_name.trim_start_matches('.');
        let Some(of) = self.object(name) else { return self.undeclared(id, &made.type_name) };
        let mut fields = Vec::new();
        for entry in &made.entries {
            let EntryExpr::StructField(field) = &entry.expr else { continue };
            let value = self.expression(&field.value);
            let wanted = self.field(entry.id, &of, &field.field, false);
            let given = self.given(&value, field.optional);
            if !self.known.fit(&wanted, &given) {
                let message =
                    format!("expected type of field '{}' is '{wanted}' but provided type is '{given}'", field.field);
                self.problems.add(entry.id, message);
            }
            fields.push((field.field.as_str().into(), value, field.optional));
        }
        Node { kind: ExprKind::Struct { name: name.into(), fields }, of, id }
    }
}
