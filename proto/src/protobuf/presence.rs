//! Search for absent fields, without decoding those present.

use super::decode::occurrences;
use super::wire::{Wire, values};
use crate::schema::{Card, Field, Message, ValueKind};

/// Reports whether the field at the end of a path of JSON names is absent from an object without an envelope. Through a
/// list, it is absent if any element lacks it; the last name of a path through a map is a key.
#[must_use]
pub fn lacks(schema: &Message, data: &[u8], path: &[&str]) -> bool {
    let [name, rest @ ..] = path else { return false };
    let Some(field) = schema.field(name) else { return false };
    let found = occurrences(schema, data, name).map(|(_, found)| found).unwrap_or_default();
    let inside = |wire: &Wire<'_>| lacks_inside(field, *wire, rest);
    match field.card {
        Card::Single => found.last().is_none_or(inside),
        Card::Repeated => found.iter().any(inside),
        Card::Map => rest.first().is_some_and(|key| !found.iter().any(|wire| has_key(*wire, key))),
    }
}

fn lacks_inside(field: &Field, wire: Wire<'_>, path: &[&str]) -> bool {
    let ValueKind::Message(inner) = &field.kind else { return false };
    wire.bytes(&field.json).is_ok_and(|data| lacks(inner, data, path))
}

fn has_key(entry: Wire<'_>, key: &str) -> bool {
    const KEY: u32 = 1;
    entry.bytes(key).is_ok_and(|entry| values(entry, KEY).any(|found| found == key.as_bytes()))
}
