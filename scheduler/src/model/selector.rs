//! Label selectors, node selectors, tolerations: parsed once, matched often.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use shared::placement;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// One condition on a label (or, in a node selector, on a field).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Requirement {
    /// Label key.
    pub key: String,
    /// Operator of the comparison.
    pub op: Op,
    /// The values to compare with.
    pub values: Vec<String>,
}

/// Comparison in a [`Requirement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// The value is one of the listed.
    In,
    /// The label is absent or its value is none of the listed.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is not there.
    DoesNotExist,
    /// The value is a greater integer.
    Gt,
    /// The value is a lesser integer.
    Lt,
    /// An operator nobody knows: matches nothing.
    Unknown,
}

impl Op {
    fn parse(text: &str) -> Self {
        match text {
            "In" => Self::In,
            "NotIn" => Self::NotIn,
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            "Gt" => Self::Gt,
            "Lt" => Self::Lt,
            _ => Self::Unknown,
        }
    }
}

impl Requirement {
    /// Reports whether a label value (or its absence) meets the requirement.
    pub fn matches(&self, value: Option<&str>) -> bool {
        let listed = |v: &str| self.values.iter().any(|x| x == v);
        match self.op {
            Op::In => value.is_some_and(listed),
            Op::NotIn => !value.is_some_and(listed),
            Op::Exists => value.is_some(),
            Op::DoesNotExist => value.is_none(),
            Op::Gt | Op::Lt => {
                let (Some(have), [want]) = (value.and_then(|v| v.parse::<i64>().ok()), self.values.as_slice()) else {
                    return false;
                };
                let Ok(want) = want.parse::<i64>() else { return false };
                if self.op == Op::Gt { have > want } else { have < want }
            }
            Op::Unknown => false,
        }
    }
}

/// A label selector; `None` inside means "nothing" (an absent selector), an empty list "everything".
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Selector(pub Option<Vec<Requirement>>);

impl Selector {
    /// Matches nothing.
    pub const NOTHING: Self = Self(None);

    /// Reads the API form.
    pub fn from_api(selector: Option<&LabelSelector>) -> Self {
        let Some(selector) = selector else { return Self::NOTHING };
        let mut all: Vec<Requirement> = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            all.push(Requirement { key: key.clone(), op: Op::In, values: vec![value.clone()] });
        }
        for e in selector.match_expressions.iter().flatten() {
            let op = match Op::parse(&e.operator) {
                Op::Gt | Op::Lt => Op::Unknown,
                op => op,
            };
            all.push(Requirement { key: e.key.clone(), op, values: e.values.clone().unwrap_or_default() });
        }
        Self(Some(all))
    }

    /// A selector from plain `key: value` pairs.
    pub fn from_map(map: &Labels) -> Self {
        Self(Some(
            map.iter().map(|(k, v)| Requirement { key: k.clone(), op: Op::In, values: vec![v.clone()] }).collect(),
        ))
    }

    /// Adds one more requirement.
    pub fn and(&mut self, key: &str, op: Op, value: &str) {
        if let Some(all) = &mut self.0 {
            all.push(Requirement { key: key.to_owned(), op, values: vec![value.to_owned()] });
        }
    }

    /// Reports whether the labels meet every requirement.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.as_ref().is_some_and(|all| all.iter().all(|r| r.matches(labels.get(&r.key).map(String::as_str))))
    }
}

/// One alternative of a node selector.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeTerm {
    /// Conditions on labels.
    pub labels: Vec<Requirement>,
    /// Conditions on `metadata.name`.
    pub fields: Vec<Requirement>,
}

impl NodeTerm {
    /// Reads the API form.
    pub fn from_api(term: &core::NodeSelectorTerm) -> Self {
        let read = |list: &Option<Vec<core::NodeSelectorRequirement>>| {
            list.iter()
                .flatten()
                .map(|e| Requirement {
                    key: e.key.clone(),
                    op: Op::parse(&e.operator),
                    values: e.values.clone().unwrap_or_default(),
                })
                .collect()
        };
        Self { labels: read(&term.match_expressions), fields: read(&term.match_fields) }
    }

    /// Reports whether a node meets the term. An empty term matches no node.
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        if self.labels.is_empty() && self.fields.is_empty() {
            return false;
        }
        self.labels.iter().all(|r| r.matches(labels.get(&r.key).map(String::as_str)))
            && self.fields.iter().all(|r| r.key == "metadata.name" && r.matches(Some(name)))
    }

    /// The node names the term is limited to, if it is.
    pub fn names(&self) -> Option<Vec<&str>> {
        let mut names: Option<Vec<&str>> = None;
        for r in self.fields.iter().filter(|r| r.key == "metadata.name" && r.op == Op::In) {
            let these: Vec<&str> = r.values.iter().map(String::as_str).collect();
            names = Some(match names {
                None => these,
                Some(old) => old.into_iter().filter(|n| these.contains(n)).collect(),
            });
        }
        names
    }
}

/// A taint on a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value.
    pub value: String,
    /// Effect.
    pub effect: Effect,
}

/// Effects of a taint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Keeps new pods away.
    NoSchedule,
    /// Makes the node less liked.
    PreferNoSchedule,
    /// Keeps new pods away and evicts running ones.
    NoExecute,
    /// No effect anybody knows.
    Unknown,
}

impl Effect {
    fn parse(text: &str) -> Self {
        match text {
            "NoSchedule" => Self::NoSchedule,
            "PreferNoSchedule" => Self::PreferNoSchedule,
            "NoExecute" => Self::NoExecute,
            _ => Self::Unknown,
        }
    }
}

impl Taint {
    /// Reads the API form.
    pub fn from_api(t: &core::Taint) -> Self {
        Self { key: t.key.clone(), value: t.value.clone().unwrap_or_default(), effect: Effect::parse(&t.effect) }
    }
}

/// A pod's toleration.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Toleration {
    key: String,
    op: String,
    value: String,
    /// `None` tolerates every effect.
    pub effect: Option<Effect>,
}

impl Toleration {
    /// Reads the API form.
    pub fn from_api(t: &core::Toleration) -> Self {
        Self {
            key: t.key.clone().unwrap_or_default(),
            op: t.operator.clone().unwrap_or_default(),
            value: t.value.clone().unwrap_or_default(),
            effect: t.effect.as_deref().filter(|e| !e.is_empty()).map(Effect::parse),
        }
    }

    /// Reports whether the toleration covers the taint; `compares` lets it do so by comparing numbers
    /// (TaintTolerationComparisonOperators).
    pub fn tolerates(&self, taint: &Taint, compares: bool) -> bool {
        if self.effect.is_some_and(|e| e != taint.effect) || (!self.key.is_empty() && self.key != taint.key) {
            return false;
        }
        placement::value_tolerates(&self.op, &self.value, &taint.value, compares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn requirements() {
        let have = labels(&[("zone", "a"), ("n", "5")]);
        for (key, op, values, want) in [
            ("zone", Op::In, vec!["a", "b"], true),
            ("zone", Op::In, vec!["b"], false),
            ("none", Op::In, vec!["b"], false),
            ("zone", Op::NotIn, vec!["b"], true),
            ("none", Op::NotIn, vec!["b"], true),
            ("zone", Op::Exists, vec![], true),
            ("none", Op::DoesNotExist, vec![], true),
            ("n", Op::Gt, vec!["4"], true),
            ("n", Op::Gt, vec!["5"], false),
            ("n", Op::Lt, vec!["6"], true),
            ("zone", Op::Gt, vec!["1"], false),
            ("n", Op::Unknown, vec![], false),
        ] {
            let r = Requirement { key: key.into(), op, values: values.iter().map(|v| (*v).to_owned()).collect() };
            assert_eq!(r.matches(have.get(key).map(String::as_str)), want, "{r:?}");
        }
    }

    #[test]
    fn tolerations() {
        let taint = Taint { key: "k".into(), value: "v".into(), effect: Effect::NoSchedule };
        let number = Taint { key: "n".into(), value: "6".into(), effect: Effect::NoSchedule };
        for (key, op, value, effect, want) in [
            ("k", "Equal", "v", "NoSchedule", true),
            ("k", "", "v", "", true),
            ("k", "Equal", "w", "", false),
            ("k", "Exists", "", "", true),
            ("", "Exists", "", "", true),
            ("", "Exists", "", "NoExecute", false),
            ("j", "Exists", "", "", false),
            ("k", "Weird", "v", "", false),
            ("n", "Gt", "5", "", true),
            ("n", "Gt", "05", "", false),
        ] {
            let t = Toleration::from_api(&core::Toleration {
                key: Some(key.into()),
                operator: Some(op.into()),
                value: Some(value.into()),
                effect: Some(effect.into()),
                ..Default::default()
            });
            let taint = if key == "n" { &number } else { &taint };
            assert_eq!(t.tolerates(taint, true), want, "{t:?}");
            assert_eq!(t.tolerates(taint, false), want && op != "Gt", "{t:?}");
        }
    }
}
