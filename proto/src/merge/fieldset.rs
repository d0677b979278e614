//! Sets of field paths and their stored form, `FieldsV1`.
//!
//! A path element is a field (`f:name`), a list element by key (`k:{"name":"c"}`) or by value (`v:"x"`), or an index
//! (`i:0`). Keys and values are held as canonical JSON text so that elements compare cheaply.

mod element;
mod stored;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

pub use element::{Element, path_text};
pub(super) use stored::StoredFields;

/// A set of paths.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Set {
    pub(super) members: BTreeSet<Element>,
    pub(super) children: BTreeMap<Element, Set>,
}

impl Set {
    /// The empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A set of plain field paths, e.g. `["metadata", "name"]`.
    #[must_use]
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Self::new();
        for path in paths {
            let path: Vec<Element> = path.iter().map(|p| Element::field(p)).collect();
            set.insert(&path);
        }
        set
    }

    /// Reports whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.values().all(Self::is_empty)
    }

    /// Adds a path; the empty path is ignored.
    pub fn insert(&mut self, path: &[Element]) {
        match path {
            [] => {}
            [last] => {
                if !self.members.contains(last) {
                    self.members.insert(last.clone());
                }
            }
            [head, rest @ ..] => match self.children.get_mut(head) {
                Some(child) => child.insert(rest),
                None => {
                    let mut child = Self::new();
                    child.insert(rest);
                    self.children.insert(head.clone(), child);
                }
            },
        }
    }

    /// Adds an element, with what is below it, to a set that does not have it yet.
    pub(super) fn attach(&mut self, element: Element, member: bool, below: Self) {
        match (member, below.is_empty()) {
            (true, true) => {
                self.members.insert(element);
            }
            (true, false) => {
                self.members.insert(element.clone());
                self.children.insert(element, below);
            }
            (false, false) => {
                self.children.insert(element, below);
            }
            (false, true) => {}
        }
    }

    /// Reports whether the path itself is in the set.
    #[must_use]
    pub fn has(&self, path: &[Element]) -> bool {
        match path {
            [] => false,
            [last] => self.members.contains(last),
            [head, rest @ ..] => self.children.get(head).is_some_and(|c| c.has(rest)),
        }
    }

    /// Subset below an element.
    #[must_use]
    pub fn below(&self, element: &Element) -> Option<&Self> {
        self.children.get(element)
    }

    /// Reports whether any path of `other` is in the set.
    #[must_use]
    pub fn touches(&self, other: &Self) -> bool {
        other.members.iter().any(|m| self.members.contains(m))
            || other.children.iter().any(|(e, below)| self.children.get(e).is_some_and(|own| own.touches(below)))
    }

    /// Reports whether every path of `other` is in the set.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        other.members.iter().all(|m| self.members.contains(m))
            && other.children.iter().all(|(e, below)| match self.children.get(e) {
                Some(own) => own.contains(below),
                None => below.is_empty(),
            })
    }

    /// Union of both sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut out = self.clone();
        out.extend(other);
        out
    }

    /// Adds everything of another set.
    pub fn extend(&mut self, other: &Self) {
        self.members.extend(other.members.iter().cloned());
        for (element, child) in &other.children {
            self.children.entry(element.clone()).or_default().extend(child);
        }
    }

    /// Intersection of both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let members = self.members.intersection(&other.members).cloned().collect();
        let children = self.children.iter().filter_map(|(element, child)| {
            let both = child.intersection(other.children.get(element)?);
            (!both.is_empty()).then(|| (element.clone(), both))
        });
        Self { members, children: children.collect() }
    }

    /// Paths that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let members = self.members.difference(&other.members).cloned().collect();
        let children = self.children.iter().map(|(element, child)| match other.children.get(element) {
            Some(o) => (element.clone(), child.difference(o)),
            None => (element.clone(), child.clone()),
        });
        Self { members, children: children.filter(|(_, c)| !c.is_empty()).collect() }
    }

    /// Takes out what is in `other`, which costs as much as that is large.
    pub fn subtract(&mut self, other: &Self) {
        for element in &other.members {
            self.members.remove(element);
        }
        for (element, gone) in &other.children {
            if let Some(child) = self.children.get_mut(element) {
                child.subtract(gone);
                if child.is_empty() {
                    self.children.remove(element);
                }
            }
        }
    }

    /// Takes out what is in `other` or below one of its members.
    pub fn prune(&mut self, other: &Self) {
        for element in &other.members {
            self.members.remove(element);
            self.children.remove(element);
        }
        for (element, gone) in &other.children {
            if let Some(child) = self.children.get_mut(element) {
                child.prune(gone);
                if child.is_empty() {
                    self.children.remove(element);
                }
            }
        }
    }

    /// Keeps what is at, above or below the places of `patterns`, paths of fields in which `*` is any element.
    pub fn keep(&mut self, patterns: &[&[&str]]) {
        let is_at = |pattern: &&&[&str], element: &Element| match pattern.first() {
            Some(&"*") => true,
            Some(name) => matches!(element, Element::Field(field) if **field == **name),
            None => false,
        };
        self.members.retain(|element| patterns.iter().any(|pattern| is_at(&pattern, element)));
        self.children.retain(|element, child| {
            let below: Vec<&[&str]> = patterns.iter().filter(|p| is_at(p, element)).map(|p| &p[1..]).collect();
            if !below.iter().any(|pattern| pattern.is_empty()) {
                child.keep(&below);
            }
            !child.is_empty()
        });
    }

    /// Paths that are neither in `other` nor below one of its members.
    #[must_use]
    pub fn recursive_difference(&self, other: &Self) -> Self {
        let members = self.members.difference(&other.members).cloned().collect();
        let children = self.children.iter().filter(|(element, _)| !other.members.contains(*element));
        let children = children.map(|(element, child)| match other.children.get(element) {
            Some(o) => (element.clone(), child.recursive_difference(o)),
            None => (element.clone(), child.clone()),
        });
        Self { members, children: children.filter(|(_, c)| !c.is_empty()).collect() }
    }

    /// All paths, members before what lies below them.
    #[must_use]
    pub fn paths(&self) -> Vec<Vec<Element>> {
        let mut out = Vec::new();
        self.walk(&mut Vec::new(), &mut out);
        out
    }

    fn walk(&self, at: &mut Vec<Element>, out: &mut Vec<Vec<Element>>) {
        for element in &self.members {
            at.push(element.clone());
            out.push(at.clone());
            at.pop();
        }
        for (element, child) in &self.children {
            at.push(element.clone());
            child.walk(at, out);
            at.pop();
        }
    }

    /// Reads the stored form. None when it is malformed.
    #[must_use]
    pub fn parse(fields: &Value) -> Option<Self> {
        let mut set = Self::new();
        for (text, below) in fields.as_object()? {
            if text == "." {
                continue;
            }
            let element = Element::parse(text)?;
            let below_map = below.as_object()?;
            if below_map.is_empty() || below_map.contains_key(".") {
                set.members.insert(element.clone());
            }
            let child = Self::parse(below)?;
            if !child.is_empty() {
                set.children.insert(element, child);
            }
        }
        Some(set)
    }

    /// The stored form.
    #[must_use]
    pub fn to_value(&self) -> Value {
        // Nearly in order: then a map is made at once.
        let mut all = Vec::with_capacity(self.members.len() + self.children.len() + 1);
        for element in &self.members {
            let below = self.children.get(element).filter(|c| !c.is_empty());
            let mut below = below.map_or_else(|| Value::Object(Map::new()), Self::to_value);
            if let Some(map) = below.as_object_mut().filter(|map| !map.is_empty()) {
                map.insert(".".to_owned(), Value::Object(Map::new()));
            }
            all.push((element.stored(), below));
        }
        let others = self.children.iter().filter(|(e, child)| !self.members.contains(*e) && !child.is_empty());
        all.extend(others.map(|(element, child)| (element.stored(), child.to_value())));
        Value::Object(all.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(v: Value) -> Set {
        Set::parse(&v).unwrap()
    }

    #[test]
    fn stored_form_round_trips() {
        let table = [
            json!({"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:image": {}}}}}),
            json!({"f:metadata": {"f:finalizers": {".": {}, "v:\"a/b\"": {}}, "f:labels": {".": {}, "f:a.b/c": {}}}}),
            json!({"f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}}, "i:3": {}}}),
        ];
        for v in table {
            let parsed = set(v.clone());
            assert_eq!(set(parsed.to_value()), parsed);
            if v.get("f:ports").is_none() {
                assert_eq!(parsed.to_value(), v);
            }
        }
        assert_eq!(set(json!({"f:x": {"k:{\"b\":1,\"a\":2}": {}}})), set(json!({"f:x": {"k:{\"a\":2,\"b\":1}": {}}})));
        for bad in [json!({"x": {}}), json!({"f:a": 1}), json!([]), json!({"k:[": {}})] {
            assert_eq!(Set::parse(&bad), None);
        }
    }

    #[test]
    fn set_operations() {
        let a = set(json!({"f:a": {".": {}, "f:b": {}, "f:c": {}}, "f:d": {}}));
        let b = set(json!({"f:a": {"f:b": {}}, "f:d": {}, "f:e": {}}));
        assert_eq!(a.difference(&b).to_value(), json!({"f:a": {".": {}, "f:c": {}}}));
        assert_eq!(a.intersection(&b).to_value(), json!({"f:a": {"f:b": {}}, "f:d": {}}));
        assert_eq!(a.union(&b).to_value(), json!({"f:a": {".": {}, "f:b": {}, "f:c": {}}, "f:d": {}, "f:e": {}}));
        assert_eq!(a.recursive_difference(&set(json!({"f:a": {}}))).to_value(), json!({"f:d": {}}));
        assert!(a.difference(&a).is_empty());
    }

    #[test]
    fn what_is_stored_answers_as_the_set_does() {
        let stored = json!({"f:a": {".": {}, "f:b": {}, "f:c": {"f:x": {}}}, "f:d": {}, "f:l": {"k:{\"name\":\"c\"}": {".": {}, "v:\"y\"": {}}}});
        for (other, touches, contains) in [
            (json!({}), false, true),
            (json!({"f:a": {}}), true, true),
            (json!({"f:a": {"f:b": {}, "f:z": {}}}), true, false),
            (json!({"f:a": {"f:c": {}}}), false, false),
            (json!({"f:a": {"f:c": {"f:x": {}}}, "f:d": {}}), true, true),
            (json!({"f:d": {"f:e": {}}}), false, false),
            (json!({"f:l": {"k:{\"name\":\"c\"}": {".": {}, "v:\"y\"": {}}}}), true, true),
            (json!({"f:l": {"k:{\"name\":\"d\"}": {}}}), false, false),
        ] {
            let other = set(other);
            let (lazy, read) = (StoredFields::stored(stored.clone()), StoredFields::from(set(stored.clone())));
            for fields in [&lazy, &read] {
                assert_eq!((fields.touches(&other), fields.contains(&other)), (touches, contains), "{other:?}");
            }
            let mut less = lazy.clone();
            less.subtract(&other);
            assert_eq!(less.into_set(), set(stored.clone()).difference(&other));
            assert_eq!(lazy.into_value(), stored);
        }
        assert!(StoredFields::stored(Value::Null).is_empty() && StoredFields::stored(json!({})).is_empty());
    }

    #[test]
    fn paths_print_as_in_conflicts() {
        let all = set(
            json!({"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {"f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {}}}}, "f:x": {"v:\"y\"": {}}}}),
        );
        let texts: Vec<String> = all.paths().iter().map(|p| path_text(p)).collect();
        assert_eq!(texts, [".spec.containers[name=\"c\"].ports[containerPort=80,protocol=\"TCP\"]", ".spec.x[=\"y\"]"]);
    }
}
