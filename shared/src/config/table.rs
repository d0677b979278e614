//! The configuration kinds and their fields as compact text tables.

use std::collections::HashMap;

use serde_json::Value;

/// A field's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Text,
    Bytes,
    Bool,
    Int {
        bits: u32,
        signed: bool,
    },
    Float,
    Duration,
    /// A duration, or a number of nanoseconds: `TimeOrMetaDuration`.
    TimeOrDuration,
    Time,
    Quantity,
    Any,
    List(&'static str),
    Map(&'static str),
    Struct(&'static str),
}

/// One field.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    /// The type's text without `*`.
    pub(super) type_text: &'static str,
    /// Absent and zero differ.
    pub(super) pointer: bool,
}

pub(super) struct Struct {
    /// Go type as printed: `v1beta1.KubeletConfiguration`.
    pub(super) go_name: &'static str,
    pub(super) fields: Vec<Field>,
}

/// The structs by their name in the table. Built for one decode and dropped after it.
pub(super) struct Table(HashMap<&'static str, Struct>);

const TYPES: &str = include_str!("tables/types.txt");
const KINDS: &str = include_str!("tables/kinds.txt");
const DEFAULTS: &str = include_str!("tables/defaults.json");

pub(super) fn parse_type(text: &'static str) -> Type {
    let text = text.strip_prefix('*').unwrap_or(text);
    if let Some(item) = text.strip_prefix("[]") {
        return Type::List(item);
    }
    if let Some(item) = text.strip_prefix("map[string]") {
        return Type::Map(item);
    }
    match text {
        "string" => Type::Text,
        "bytes" => Type::Bytes,
        "bool" => Type::Bool,
        "int32" => Type::Int { bits: 32, signed: true },
        "int" | "int64" => Type::Int { bits: 64, signed: true },
        "uint32" => Type::Int { bits: 32, signed: false },
        "uint64" => Type::Int { bits: 64, signed: false },
        "float32" | "float64" => Type::Float,
        "Duration" => Type::Duration,
        "TimeOrDuration" => Type::TimeOrDuration,
        "Time" => Type::Time,
        "Quantity" => Type::Quantity,
        "any" => Type::Any,
        other => Type::Struct(other),
    }
}

impl Table {
    pub(super) fn new() -> Self {
        let mut raw: HashMap<&'static str, Struct> = HashMap::new();
        let mut inlined: Vec<(&'static str, &'static str)> = Vec::new();
        let mut current = "";
        for line in TYPES.lines() {
            if let Some(head) = line.strip_prefix("= ") {
                let (name, go_name) = head.split_once('\t').unwrap_or((head, head));
                current = name;
                raw.insert(name, Struct { go_name, fields: Vec::new() });
            } else if let Some((name, type_text)) = line.split_once('\t') {
                if name.is_empty() {
                    inlined.push((current, type_text));
                } else if let Some(owner) = raw.get_mut(current) {
                    let field = Field {
                        name,
                        type_text: type_text.trim_start_matches('*'),
                        pointer: type_text.starts_with('*'),
                    };
                    owner.fields.push(field);
                }
            }
        }
        // An inlined struct may inline another; the table lists owners before what they inline, so go backwards.
        for (owner, inner) in inlined.into_iter().rev() {
            let fields = raw.get(inner).map(|s| s.fields.clone()).unwrap_or_default();
            if let Some(owner) = raw.get_mut(owner) {
                owner.fields.extend(fields);
            }
        }
        Self(raw)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Struct> {
        self.0.get(name)
    }
}

/// The struct of a kind.
pub(super) fn kind(group: &str, version: &str, kind: &str) -> Option<&'static str> {
    KINDS.lines().find_map(|line| {
        let mut cells = line.split('\t');
        let matches = cells.next() == Some(group) && cells.next() == Some(version) && cells.next() == Some(kind);
        if matches { cells.next() } else { None }
    })
}

/// The group versions that know a kind, `group/version` each, newest last.
pub(super) fn versions(kind: &str) -> Vec<String> {
    let rows = KINDS.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    rows.filter(|cells| cells.get(2) == Some(&kind))
        .map(|cells| proto::schema::group_version(cells[0], cells[1]))
        .collect()
}

/// Defaults of a kind: an empty object after defaulting.
pub(super) fn defaults(api_version: &str, kind: &str) -> Option<Value> {
    let wanted = format!("\"{api_version} {kind}\":");
    let line = DEFAULTS.lines().find_map(|line| line.strip_prefix(&wanted))?;
    serde_json::from_str(line.trim_end_matches(',')).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_known() {
        let table = Table::new();
        let mut seen = 0;
        for owner in table.0.values() {
            for field in &owner.fields {
                seen += 1;
                let mut kind = parse_type(field.type_text);
                while let Type::List(item) | Type::Map(item) = kind {
                    kind = parse_type(item);
                }
                if let Type::Struct(name) = kind {
                    assert!(table.get(name).is_some(), "{}.{}: {name}", owner.go_name, field.name);
                }
            }
        }
        assert!(seen > 500, "{seen}");
        for line in KINDS.lines() {
            assert!(table.get(line.rsplit('\t').next().expect("type")).is_some(), "{line}");
        }
    }

    #[test]
    fn every_default_is_json() {
        let mut kinds = 0;
        for line in DEFAULTS.lines().filter(|l| l.starts_with('"')) {
            let (name, _) = line[1..].split_once('"').expect("name");
            let (api_version, kind) = name.split_once(' ').expect("kind");
            assert!(defaults(api_version, kind).is_some(), "{name}");
            kinds += 1;
        }
        assert!(kinds > 20, "{kinds}");
    }
}
