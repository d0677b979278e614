//! Walks over trees with their types: checking, field sets, comparison, merging, removal.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::error::TypeMismatch;
use super::fieldset::{Element, Set, path_text};
use super::managed::Ownable;
use super::shape::{List, MapShape, Relation, Scalar, Shape, Type, deduced};
use super::{go_print, go_syntax};

fn shape<'a>(kind: Type<'a>, a: Option<&Value>, b: Option<&Value>) -> Shape<'a> {
    match kind.shape() {
        Shape::Any => deduced([a, b]),
        known => known,
    }
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(_) => false,
    }
}

/// Checks a tree against its type. Complaints read `.spec.x: field not declared in schema`.
pub(super) fn check(kind: Type<'_>, value: &Value) -> Result<(), TypeMismatch> {
    let mut found = Found { unique: true, errors: Vec::new() };
    check_at(kind, value, &mut Vec::new(), &mut found);
    if found.errors.is_empty() { Ok(()) } else { Err(TypeMismatch(found.errors)) }
}

/// Reports whether a tree conforms to its type; lists may have duplicates, as in objects stored before these were
/// refused.
pub(super) fn fits(kind: Type<'_>, value: &Value) -> bool {
    let mut found = Found { unique: false, errors: Vec::new() };
    check_at(kind, value, &mut Vec::new(), &mut found);
    found.errors.is_empty()
}

/// Options and findings of a check.
struct Found {
    /// Elements that are there twice are wrong.
    unique: bool,
    errors: Vec<String>,
}

fn complain(path: &[Element], text: &str, found: &mut Found) {
    let at = path_text(path);
    found.errors.push(if at.is_empty() { text.to_owned() } else { format!("{at}: {text}") });
}

fn check_at(kind: Type<'_>, value: &Value, path: &mut Vec<Element>, found: &mut Found) {
    // Upstream prints what wraps the value there.
    let unwanted = |what: &str| format!("expected {what}, got &{{{}}}", go_print(value));
    match shape(kind, Some(value), None) {
        _ if value.is_null() => {}
        Shape::Scalar(Scalar::Numeric) if !value.is_number() => {
            complain(path, &format!("expected numeric (int or float), got {}", super::go_type(value)), found);
        }
        Shape::Scalar(Scalar::Text) if !value.is_string() => {
            let there = go_syntax(value, "string");
            complain(path, &format!("expected string, got &value.valueUnstructured{{Value:{there}}}"), found);
        }
        Shape::Scalar(Scalar::Boolean) if !value.is_boolean() => complain(path, &unwanted("boolean"), found),
        Shape::Scalar(Scalar::Untyped) if value.is_object() || value.is_array() => {
            complain(path, &unwanted("any scalar"), found);
        }
        Shape::Scalar(_) | Shape::Any => {}
        Shape::List(list) => {
            let Value::Array(items) = value else { return complain(path, &unwanted("list"), found) };
            let mut seen = BTreeSet::new();
            for (i, item) in items.iter().enumerate() {
                match list.identify(i, item) {
                    Ok(element) => {
                        if found.unique && !seen.insert(element.clone()) {
                            complain(path, &format!("duplicate entries for key {element}"), found);
                        }
                        path.push(element);
                        check_at(list.element, item, path, found);
                        path.pop();
                    }
                    Err(e) => return complain(path, &format!("element {i}: {e}"), found),
                }
            }
        }
        Shape::Map(map) => {
            let Value::Object(entries) = value else { return complain(path, &unwanted("map"), found) };
            for (key, item) in entries {
                path.push(Element::field(key));
                match map.child(key) {
                    Some(child) => check_at(child, item, path, found),
                    None => complain(path, "field not declared in schema", found),
                }
                path.pop();
            }
        }
    }
}

/// The places of a tree that are replaced as a whole: `.spec.selector`, `.spec.volumes[0].secret.items`.
pub(super) fn atomic_places(kind: Type<'_>, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    find_atomic(kind, value, &mut Vec::new(), &mut found);
    found
}

fn find_atomic(kind: Type<'_>, value: &Value, path: &mut Vec<Element>, found: &mut Vec<String>) {
    match (shape(kind, Some(value), None), value) {
        (Shape::Map(map), Value::Object(entries)) => {
            if map.atomic {
                found.push(path_text(path));
            }
            for (key, item) in entries.iter().filter(|(key, _)| map.declares(key)) {
                path.push(Element::field(key));
                find_atomic(map.child(key).unwrap_or(Type::Any), item, path, found);
                path.pop();
            }
        }
        (Shape::List(list), Value::Array(items)) => {
            if matches!(list.relation, Relation::Atomic) {
                found.push(path_text(path));
            }
            for (i, item) in items.iter().enumerate() {
                path.push(Element::Index(i64::try_from(i).unwrap_or(i64::MAX)));
                find_atomic(list.element, item, path, found);
                path.pop();
            }
        }
        _ => {}
    }
}

/// The fields a configuration sets.
pub(super) fn to_set(kind: Type<'_>, value: &Value) -> Set {
    collect(kind, value).1
}

/// Collects the fields set below a place; the flag reports whether the place is a leaf.
fn collect(kind: Type<'_>, value: &Value) -> (bool, Set) {
    let mut set = Set::new();
    match shape(kind, Some(value), None) {
        Shape::Scalar(_)
        | Shape::Any
        | Shape::List(List { relation: Relation::Atomic, .. })
        | Shape::Map(MapShape { atomic: true, .. }) => return (true, set),
        Shape::List(list) => {
            for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                let Ok(element) = list.identify(i, item) else { continue };
                let (_, below) = collect(list.element, item);
                // Of several equal ones all count.
                if set.members.contains(&element) {
                    let mut one = Set::new();
                    one.attach(element, true, below);
                    set.extend(&one);
                } else {
                    set.attach(element, true, below);
                }
            }
        }
        Shape::Map(map) => {
            for (key, item) in value.as_object().into_iter().flatten() {
                let (leaf, below) = collect(map.child(key).unwrap_or(Type::Any), item);
                let empty_map = item.as_object().is_some_and(Map::is_empty);
                let member = leaf || item.is_null() || empty_map || !map.declares(key);
                set.attach(Element::field(key), member, below);
            }
        }
    }
    (false, set)
}

/// Difference of two trees.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    pub added: Set,
    pub modified: Set,
    pub removed: Set,
}

impl Comparison {
    pub(super) fn is_same(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    /// Leaves out what cannot be owned.
    pub(super) fn narrowed(mut self, ownable: &Ownable) -> Self {
        for set in [&mut self.added, &mut self.modified, &mut self.removed] {
            ownable.narrow(set);
        }
        self
    }

    /// Takes in what changed at and below an element.
    fn attach(&mut self, element: impl FnOnce() -> Element, own: Option<Own>, below: Self) {
        if own.is_none() && below.is_same() {
            return;
        }
        let element = element();
        let parts = [
            (&mut self.modified, Own::Modified, below.modified),
            (&mut self.removed, Own::Removed, below.removed),
            (&mut self.added, Own::Added, below.added),
        ];
        for (set, how, below) in parts {
            if own == Some(how) || !below.is_empty() {
                set.attach(element.clone(), own == Some(how), below);
            }
        }
    }
}

/// Change of a place itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Own {
    Added,
    Modified,
    Removed,
}

impl Own {
    fn leaf(old: Option<&Value>, new: Option<&Value>) -> Option<Self> {
        match (old, new) {
            (None, _) => Some(Self::Added),
            (_, None) => Some(Self::Removed),
            (Some(a), Some(b)) if !equal(a, b) => Some(Self::Modified),
            _ => None,
        }
    }

    fn place(old: Option<&Value>, new: Option<&Value>) -> Option<Self> {
        match (old, new) {
            (None, Some(_)) => Some(Self::Added),
            (Some(_), None) => Some(Self::Removed),
            _ => None,
        }
    }
}

/// Equality where `1` and `1.0` are the same number.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| equal(v, w)))
        }
        _ => a == b,
    }
}

/// Compares two trees of one type.
pub(super) fn compare(kind: Type<'_>, old: &Value, new: &Value) -> Comparison {
    let mut out = Comparison::default();
    compare_at(kind, Some(old), Some(new), &mut out);
    out
}

/// Collects the changes below a place, and returns that of the place itself. Equal trees cost one comparison.
fn compare_at(kind: Type<'_>, old: Option<&Value>, new: Option<&Value>, out: &mut Comparison) -> Option<Own> {
    match (old, new) {
        (Some(a), Some(b)) if a == b => return None,
        (None, Some(new)) => {
            out.added = everything(kind, new);
            return Some(Own::Added);
        }
        (Some(old), None) => {
            out.removed = everything(kind, old);
            return Some(Own::Removed);
        }
        _ => {}
    }
    if let (Shape::Any, Some(a), Some(b)) = (kind.shape(), old, new)
        && a.is_object() != b.is_object()
        && !a.is_null()
        && !b.is_null()
    {
        // A place of unknown type may change its form: then it is a leaf, and what was below it goes, or comes.
        let (whole, below) = if a.is_object() { (a, &mut out.removed) } else { (b, &mut out.added) };
        *below = everything(kind, whole);
        return Own::leaf(old, new);
    }
    let both_empty = is_empty(old) && is_empty(new);
    match shape(kind, old, new) {
        Shape::List(list) if !both_empty && !matches!(list.relation, Relation::Atomic) => {
            compare_list(list, old, new, out);
        }
        Shape::Map(map) if !both_empty && !map.atomic => {
            // A place of unknown type may change its form; then it is a leaf.
            let other = |v: &Value| !v.is_object() && !v.is_null();
            if old.is_some_and(other) || new.is_some_and(other) {
                return Own::leaf(old, new);
            }
            let (a, b) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
            let mut one = |key: &str, old: Option<&Value>, new: Option<&Value>| {
                let mut below = Comparison::default();
                let own = compare_at(map.child(key).unwrap_or(Type::Any), old, new, &mut below);
                out.attach(|| Element::field(key), own, below);
            };
            for (key, value) in a.into_iter().flatten() {
                one(key, Some(value), b.and_then(|m| m.get(key)));
            }
            for (key, value) in b.into_iter().flatten().filter(|(k, _)| a.is_none_or(|m| !m.contains_key(*k))) {
                one(key, None, Some(value));
            }
        }
        _ => return Own::leaf(old, new),
    }
    Own::place(old, new)
}

/// Every place below one that is there on one side only.
fn everything(kind: Type<'_>, value: &Value) -> Set {
    let mut set = Set::new();
    if is_empty(Some(value)) {
        return set;
    }
    match shape(kind, Some(value), None) {
        Shape::List(list) if !matches!(list.relation, Relation::Atomic) => {
            for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                let Ok(element) = list.identify(i, item) else { continue };
                // Of equal ones it cannot be said which is meant.
                if set.members.contains(&element) {
                    set.children.remove(&element);
                } else {
                    set.attach(element, true, everything(list.element, item));
                }
            }
        }
        Shape::Map(map) if !map.atomic => {
            for (key, item) in value.as_object().into_iter().flatten() {
                set.attach(Element::field(key), true, everything(map.child(key).unwrap_or(Type::Any), item));
            }
        }
        _ => {}
    }
    set
}

type Indexed<'v> = (Vec<Element>, BTreeMap<Element, Vec<&'v Value>>);

/// Elements by identity, in order of first appearance; unidentifiable ones are left out.
fn index<'v>(list: List<'_>, value: Option<&'v Value>) -> Indexed<'v> {
    let mut order = Vec::new();
    let mut found: BTreeMap<Element, Vec<&Value>> = BTreeMap::new();
    for (i, item) in value.and_then(Value::as_array).into_iter().flatten().enumerate() {
        let Ok(element) = list.identify(i, item) else { continue };
        let slot = found.entry(element.clone()).or_default();
        if slot.is_empty() {
            order.push(element);
        }
        slot.push(item);
    }
    (order, found)
}

fn compare_list(list: List<'_>, old: Option<&Value>, new: Option<&Value>, out: &mut Comparison) {
    let ((_, a), (_, b)) = (index(list, old), index(list, new));
    let elements: BTreeSet<&Element> = a.keys().chain(b.keys()).collect();
    for element in elements {
        let none = Vec::new();
        let (l, r) = (a.get(element).unwrap_or(&none), b.get(element).unwrap_or(&none));
        let mut below = Comparison::default();
        let own = if l.len() <= 1 && r.len() <= 1 {
            compare_at(list.element, l.first().copied(), r.first().copied(), &mut below)
        } else if l.is_empty() {
            Some(Own::Added)
        } else if r.is_empty() {
            Some(Own::Removed)
        } else {
            let same = l.len() == r.len() && l.iter().zip(r).all(|(l, r)| equal(l, r));
            (!same).then_some(Own::Modified)
        };
        out.attach(|| element.clone(), own, below);
    }
}

/// The live tree with a configuration laid over it.
pub(super) fn merge(kind: Type<'_>, live: &Value, config: &Value) -> Value {
    merge_at(kind, Some(live), Some(config)).unwrap_or_default()
}

fn merge_at(kind: Type<'_>, live: Option<&Value>, config: Option<&Value>) -> Option<Value> {
    let (Some(a), Some(b)) = (live, config) else {
        return config.or(live).cloned();
    };
    if is_empty(Some(a)) && is_empty(Some(b)) {
        return Some(b.clone());
    }
    match shape(kind, live, config) {
        Shape::List(list) if !matches!(list.relation, Relation::Atomic) => {
            if b.is_null() {
                return Some(a.clone());
            }
            Some(Value::Array(merge_list(list, live, config)))
        }
        Shape::Map(map) if !map.atomic => match (a, b) {
            (Value::Object(l), Value::Object(r)) => {
                let mut out = Map::new();
                for (key, value) in l {
                    let merged = merge_at(map.child(key).unwrap_or(Type::Any), Some(value), r.get(key));
                    out.extend(merged.map(|m| (key.clone(), m)));
                }
                for (key, value) in r.iter().filter(|(k, _)| !l.contains_key(*k)) {
                    out.insert(key.clone(), value.clone());
                }
                Some(Value::Object(out))
            }
            (Value::Object(_), Value::Null) => Some(a.clone()),
            _ => Some(b.clone()),
        },
        _ => Some(b.clone()),
    }
}

/// Merges associative lists: shared elements in the configuration's order, the others where they stood.
fn merge_list(list: List<'_>, live: Option<&Value>, config: Option<&Value>) -> Vec<Value> {
    let mut left: Vec<(Element, &Value)> = Vec::new();
    for (i, item) in live.and_then(Value::as_array).into_iter().flatten().enumerate() {
        left.extend(list.identify(i, item).ok().map(|e| (e, item)));
    }
    let (_, lefts) = index(list, live);
    let (right, rights) = index(list, config);
    let lone = |element: &Element| lefts.get(element).filter(|v| v.len() == 1).and_then(|v| v.first().copied());
    let mut shared = right.iter().filter(|e| lefts.contains_key(*e));
    let mut next_shared = shared.next();
    let mut merged: BTreeSet<&Element> = BTreeSet::new();
    let mut out = Vec::new();
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        if let (Some((element, _)), Some(wanted)) = (left.get(l), right.get(r)) {
            if element == wanted {
                merged.insert(wanted);
                let item = rights.get(wanted).and_then(|v| v.first().copied());
                out.extend(merge_at(list.element, lone(wanted), item));
                (l, r) = (l + 1, r + 1);
                next_shared = shared.next();
                continue;
            }
            if rights.contains_key(element) && next_shared.is_some_and(|n| n != element) {
                l += 1;
                continue;
            }
        }
        if let Some((element, item)) = left.get(l) {
            if !rights.contains_key(element) {
                out.push((*item).clone());
                l += 1;
                continue;
            } else if merged.contains(element) {
                l += 1;
            }
        }
        if let Some(wanted) = right.get(r) {
            merged.insert(wanted);
            let item = rights.get(wanted).and_then(|v| v.first().copied());
            out.extend(merge_at(list.element, lone(wanted), item));
            r += 1;
            if next_shared == Some(wanted) {
                next_shared = shared.next();
            }
        }
    }
    out
}

/// The tree without the places in `set`. Maps and lists that end up empty become `null`.
pub(super) fn remove(kind: Type<'_>, value: &Value, set: &Set) -> Value {
    match shape(kind, Some(value), None) {
        Shape::List(list) if !matches!(list.relation, Relation::Atomic) => {
            let mut out = Vec::new();
            for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                match list.identify(i, item) {
                    Ok(element) if set.members.contains(&element) => {}
                    Ok(element) => out.push(match set.below(&element) {
                        Some(below) if !below.is_empty() => remove(list.element, item, below),
                        _ => item.clone(),
                    }),
                    Err(_) => out.push(item.clone()),
                }
            }
            if out.is_empty() { Value::Null } else { Value::Array(out) }
        }
        Shape::Map(map) if !map.atomic => {
            let mut out = Map::new();
            for (key, item) in value.as_object().into_iter().flatten() {
                let element = Element::field(key);
                if set.members.contains(&element) {
                    continue;
                }
                let kept = match set.below(&element) {
                    Some(below) if !below.is_empty() => remove(map.child(key).unwrap_or(Type::Any), item, below),
                    _ => item.clone(),
                };
                out.insert(key.clone(), kept);
            }
            if out.is_empty() { Value::Null } else { Value::Object(out) }
        }
        Shape::List(_) | Shape::Map(_) => Value::Null,
        Shape::Scalar(_) | Shape::Any => value.clone(),
    }
}

/// The set with every declared field that has something below it as a member too.
pub(super) fn with_named_fields(kind: Type<'_>, set: &Set) -> Set {
    let mut out = Set { members: set.members.clone(), children: BTreeMap::new() };
    let shape = kind.shape();
    for (element, child) in &set.children {
        let below = match (&shape, element) {
            (Shape::Map(map), Element::Field(name)) => {
                if map.declares(name) {
                    out.members.insert(element.clone());
                }
                map.child(name).unwrap_or(Type::Any)
            }
            (Shape::List(list), _) => list.element,
            _ => Type::Any,
        };
        out.children.insert(element.clone(), with_named_fields(below, child));
    }
    out
}
