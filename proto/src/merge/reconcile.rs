//! Ownership that was noted when the schema was another one: who owned parts of a place that is replaced as a whole now
//! owns the place. The other way round nothing is to be done; who owned the whole keeps that, and no part of it.

use serde_json::Value;

use super::fieldset::{Element, Set, StoredFields};
use super::shape::{MapShape, Relation, Shape, Type};

/// Type below a place.
enum Below<'a> {
    /// Atomic: it is replaced as a whole.
    Whole,
    Map(MapShape<'a>),
    List(Type<'a>),
    /// Not described by a schema.
    Unknown,
}

fn below(kind: Type<'_>) -> Below<'_> {
    match kind.shape() {
        Shape::Map(map) if map.atomic => Below::Whole,
        Shape::List(list) if matches!(list.relation, Relation::Atomic) => Below::Whole,
        Shape::Map(map) => Below::Map(map),
        Shape::List(list) => Below::List(list.element),
        Shape::Scalar(_) | Shape::Any => Below::Unknown,
    }
}

impl<'a> Below<'a> {
    /// The type of what a field, or an element of a list (`None`), stands for.
    fn at(&self, field: Option<&str>) -> Option<Type<'a>> {
        match (self, field) {
            (Self::Map(map), Some(name)) => map.child(name),
            (Self::List(element), None) => Some(*element),
            _ => None,
        }
    }
}

/// Brings a set of an object of a type up to date.
pub(super) fn reconcile(kind: Type<'_>, fields: &mut StoredFields) {
    if fields.unread().is_none_or(|stored| is_finer(&below(kind), stored)) {
        fields.change(|set| coarsen(&below(kind), set));
    }
}

/// Reports whether a stored set has parts of an atomic field.
fn is_finer(kind: &Below<'_>, stored: &Value) -> bool {
    stored.as_object().into_iter().flatten().any(|(text, parts)| {
        if !parts.as_object().is_some_and(|map| map.keys().any(|key| key != ".")) {
            return false;
        }
        match kind.at(text.strip_prefix("f:")).map(below) {
            None | Some(Below::Unknown) => false,
            Some(Below::Whole) => true,
            Some(known) => is_finer(&known, parts),
        }
    })
}

fn coarsen(kind: &Below<'_>, set: &mut Set) {
    let mut whole = Vec::new();
    for (element, parts) in &mut set.children {
        let field = match element {
            Element::Field(name) => Some(&**name),
            _ => None,
        };
        match kind.at(field).map(below) {
            None | Some(Below::Unknown) => {}
            Some(Below::Whole) if parts.is_empty() => {}
            Some(Below::Whole) => whole.push(element.clone()),
            Some(known) => coarsen(&known, parts),
        }
    }
    for element in whole {
        set.children.remove(&element);
        set.members.insert(element);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parts_of_a_whole_become_the_whole() {
        let kind = Type::Message(crate::schema::kind("", "v1", "Pod").expect("a kind"));
        let unchanged = |set: Value| (set.clone(), set);
        for (noted, now) in [
            // A list of commands and a selector are replaced as a whole.
            (
                json!({"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:args": {".": {}, "i:0": {}}}}}}),
                json!({"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:args": {}}}}}),
            ),
            (
                json!({"f:spec": {"f:nodeSelector": {"f:a": {}}, "f:hostname": {}}}),
                json!({"f:spec": {"f:nodeSelector": {}, "f:hostname": {}}}),
            ),
            unchanged(json!({"f:spec": {"f:containers": {}, "f:nodeSelector": {}}})),
            unchanged(json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}, "f:gone": {"f:x": {"i:0": {}}}})),
            unchanged(
                json!({"f:spec": {"f:tolerations": {}, "f:volumes": {"k:{\"name\":\"v\"}": {".": {}, "f:name": {}}}}}),
            ),
        ] {
            let mut fields = StoredFields::stored(noted.clone());
            reconcile(kind, &mut fields);
            assert_eq!(fields.into_value(), now);
            let mut read = StoredFields::from(Set::parse(&noted).expect("a set"));
            reconcile(kind, &mut read);
            assert_eq!(read.into_value(), now);
        }
    }
}
