//! Label selectors.

use std::collections::BTreeSet;
use std::fmt;
use std::iter::once;

use serde_json::{Map, Value};

use super::error::Error;
use super::format::{label_key, label_value, quote};
use super::parse;

/// Operator of a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operator {
    /// `key in (a, b)`
    In,
    /// `key notin (a, b)`
    NotIn,
    /// `key = a`
    Equals,
    /// `key == a`
    DoubleEquals,
    /// `key != a`
    NotEquals,
    /// `key`
    Exists,
    /// `!key`
    DoesNotExist,
    /// `key > 1`
    GreaterThan,
    /// `key < 1`
    LessThan,
}

/// One condition on one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: BTreeSet<String>,
}

impl Requirement {
    /// A checked requirement.
    ///
    /// # Errors
    /// Upstream's complaint when the key or a value is malformed or the number of values does not suit the operator.
    pub fn new(key: &str, operator: Operator, values: BTreeSet<String>) -> Result<Self, Error> {
        let mut errors = Vec::new();
        if let Some(complaint) = joined(label_key(key)) {
            errors.push(format!("key: Invalid value: {}: {complaint}", quote(key)));
        }
        let wrong = |detail: &str| {
            let list = Value::from_iter(values.iter().cloned());
            format!("values: Invalid value: {list}: {detail}")
        };
        match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                errors.push(wrong("for 'in', 'notin' operators, values set can't be empty"));
            }
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals if values.len() != 1 => {
                errors.push(wrong("exact-match compatibility requires one single value"));
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                errors.push(wrong("values set must be empty for exists and does not exist"));
            }
            Operator::GreaterThan | Operator::LessThan => {
                if values.len() != 1 {
                    errors.push(wrong("for 'Gt', 'Lt' operators, exactly one value is required"));
                }
                for (i, v) in values.iter().enumerate().filter(|(_, v)| v.parse::<i64>().is_err()) {
                    let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                    errors.push(format!("values[{i}]: Invalid value: {}: {detail}", quote(v)));
                }
            }
            _ => {}
        }
        for (i, v) in values.iter().enumerate() {
            if let Some(complaint) = joined(label_value(v)) {
                errors.push(format!("values[{i}][{key}]: Invalid value: {}: {complaint}", quote(v)));
            }
        }
        match errors.as_slice() {
            [] => Ok(Self { key: key.to_owned(), operator, values }),
            [one] => Err(Error::new(one.as_str())),
            many => Err(Error::new(format!("[{}]", many.join(", ")))),
        }
    }

    /// The label key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The comparison.
    #[must_use]
    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// The values, sorted.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(String::as_str)
    }

    /// Reports whether a label value (or its absence) satisfies the requirement.
    #[must_use]
    pub fn matches(&self, value: Option<&str>) -> bool {
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => value.is_some_and(|v| self.values.contains(v)),
            Operator::NotIn | Operator::NotEquals => value.is_none_or(|v| !self.values.contains(v)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan | Operator::LessThan => {
                let bound = self.values.first().and_then(|v| v.parse::<i64>().ok());
                match (value.and_then(|v| v.parse::<i64>().ok()), bound) {
                    (Some(v), Some(bound)) if self.operator == Operator::GreaterThan => v > bound,
                    (Some(v), Some(bound)) => v < bound,
                    _ => false,
                }
            }
        }
    }
}

pub(super) fn joined(complaints: Vec<String>) -> Option<String> {
    if complaints.is_empty() { None } else { Some(complaints.join("; ")) }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<&str> = self.values().collect();
        let values = values.join(",");
        let key = &self.key;
        match self.operator {
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

/// A label selector: all requirements must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selector {
    nothing: bool,
    requirements: Vec<Requirement>,
}

impl Selector {
    /// Matches every object.
    #[must_use]
    pub fn everything() -> Self {
        Self::default()
    }

    /// Matches no object.
    #[must_use]
    pub fn nothing() -> Self {
        Self { nothing: true, requirements: Vec::new() }
    }

    /// Reads the text form, equality-based or set-based.
    ///
    /// # Errors
    /// Upstream's complaint.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut requirements = parse::parse(text)?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { nothing: false, requirements })
    }

    /// Reads a `meta/v1.LabelSelector`; absent matches nothing, empty matches everything.
    ///
    /// # Errors
    /// Upstream's complaint about the first unusable requirement.
    pub fn from_object(object: Option<&Value>) -> Result<Self, Error> {
        let Some(object) = object.filter(|o| !o.is_null()) else { return Ok(Self::nothing()) };
        let mut requirements = Vec::new();
        if let Some(labels) = object.get("matchLabels").and_then(Value::as_object) {
            requirements.extend(equalities(labels)?);
        }
        for expression in object.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let operator = match expression.get("operator").and_then(Value::as_str).unwrap_or_default() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => return Err(Error::new(format!("{} is not a valid label selector operator", quote(other)))),
            };
            let values = expression.get("values").and_then(Value::as_array).into_iter().flatten();
            let values = values.filter_map(Value::as_str).map(str::to_owned).collect();
            let key = expression.get("key").and_then(Value::as_str).unwrap_or_default();
            requirements.push(Requirement::new(key, operator, values)?);
        }
        Ok(Self { nothing: false, requirements })
    }

    /// Reads a plain map of labels, such as a Service's selector.
    ///
    /// # Errors
    /// Upstream's complaint about the first malformed label.
    pub fn from_map(labels: &Map<String, Value>) -> Result<Self, Error> {
        Ok(Self { nothing: false, requirements: equalities(labels)?.collect() })
    }

    /// Reports whether the selector matches everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    /// Returns the requirements.
    #[must_use]
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Reports whether labels (a JSON object, or none) satisfy the selector.
    #[must_use]
    pub fn matches(&self, labels: Option<&Value>) -> bool {
        let labels = labels.and_then(Value::as_object);
        self.matches_with(|key| labels.and_then(|l| l.get(key)).and_then(Value::as_str))
    }

    /// Reports whether labels behind a lookup satisfy the selector.
    pub fn matches_with<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(lookup(&r.key)))
    }

    /// The value a label must have, when the selector pins it to one.
    #[must_use]
    pub fn exact(&self, key: &str) -> Option<&str> {
        let pinned = |r: &&Requirement| {
            r.key == key
                && r.values.len() == 1
                && matches!(r.operator, Operator::In | Operator::Equals | Operator::DoubleEquals)
        };
        self.requirements.iter().find(pinned).and_then(|r| r.values.first()).map(String::as_str)
    }
}

fn equalities(labels: &Map<String, Value>) -> Result<impl Iterator<Item = Requirement>, Error> {
    let requirements: Result<Vec<_>, _> = labels
        .iter()
        .map(|(k, v)| Requirement::new(k, Operator::Equals, once(v.as_str().unwrap_or_default().to_owned()).collect()))
        .collect();
    let mut requirements = requirements?;
    requirements.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(requirements.into_iter())
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, r) in self.requirements.iter().enumerate() {
            write!(f, "{}{r}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_parse_and_print() {
        let table = [
            ("", ""),
            ("x=a,y=b,z=c", "x=a,y=b,z=c"),
            ("z==c, a", "a,z==c"),
            ("x!=a,!y", "x!=a,!y"),
            ("x in (b,a,),y notin (in,notin)", "x in (,a,b),y notin (in,notin)"),
            ("x>1,z<5", "x>1,z<5"),
            ("x=", "x="),
            ("x=,z= ", "x=,z="),
            ("x in ()", "x in ()"),
            ("x in (,)", "x in ()"),
            ("in in (in)", "in in (in)"),
            ("a.b/c=d", "a.b/c=d"),
        ];
        for (text, want) in table {
            assert_eq!(Selector::parse(text).map(|s| s.to_string()), Ok(want.to_owned()), "{text}");
        }
    }

    #[test]
    fn complaints_are_upstreams() {
        let table = [
            ("a===b", "unable to parse requirement: found '=', expected: identifier"),
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            ("x in (a", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("x a", "unable to parse requirement: found 'a', expected: in, notin, =, ==, !=, gt, lt"),
            ("!x=a", "found '=', expected: ',' or 'end of string'"),
            ("x=a,", "found '', expected: identifier after ','"),
            (",x", "found ',', expected: !, identifier, or 'end of string'"),
            ("!(", "unable to parse requirement: found '(', expected: identifier"),
            (
                "x>a",
                "unable to parse requirement: values[0]: Invalid value: \"a\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
        ];
        for (text, want) in table {
            assert_eq!(Selector::parse(text).map_err(|e| e.to_string()), Err(want.to_owned()), "{text}");
        }
        let long = Selector::parse("a/b/c=1").map_err(|e| e.to_string()).err().unwrap_or_default();
        assert!(long.starts_with(
            "unable to parse requirement: <nil>: Invalid value: \"a/b/c\": a valid label key must consist"
        ));
    }

    #[test]
    fn matching() {
        let labels = json!({"app": "web", "tier": "5", "empty": ""});
        let table = [
            ("", true),
            ("app=web", true),
            ("app!=web", false),
            ("nope!=x", true),
            ("app in (a,web)", true),
            ("app notin (a,web)", false),
            ("nope notin (a)", true),
            ("tier>4,tier<6", true),
            ("app>4", false),
            ("empty=", true),
            ("nope=", false),
            ("app,!nope", true),
        ];
        for (text, want) in table {
            assert_eq!(Selector::parse(text).map(|s| s.matches(Some(&labels))), Ok(want), "{text}");
        }
    }

    #[test]
    fn objects() {
        let of = |v: Value| Selector::from_object(Some(&v)).map(|s| s.to_string()).map_err(|e| e.to_string());
        assert!(!Selector::from_object(None).is_ok_and(|s| s.matches(None)));
        assert!(Selector::from_object(Some(&json!({}))).is_ok_and(|s| s.matches(None)));
        let full = json!({"matchLabels": {"b": "1", "a": "2"}, "matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["y", "x"]}, {"key": "d", "operator": "Exists"}]});
        assert_eq!(of(full), Ok("a=2,b=1,c notin (x,y),d".to_owned()));
        assert_eq!(
            of(json!({"matchExpressions": [{"key": "c", "operator": "Gt"}]})),
            Err("\"Gt\" is not a valid label selector operator".to_owned())
        );
        assert!(
            of(json!({"matchLabels": {"a": "b c"}}))
                .is_err_and(|e| e.starts_with("values[0][a]: Invalid value: \"b c\": a valid label must be"))
        );
    }
}
