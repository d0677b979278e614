//! Label selectors over typed label maps.

use std::collections::BTreeMap;

use super::LabelSelector;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Why a selector is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The operator is unknown.
    #[error("{0:?} is not a valid label selector operator")]
    Operator(String),
    /// The values do not suit the operator.
    #[error("{0}")]
    Values(&'static str),
}

/// Whether `labels` contain every pair of `wanted`.
pub fn matches_map(wanted: &Labels, labels: Option<&Labels>) -> bool {
    wanted.iter().all(|(k, v)| labels.and_then(|l| l.get(k)) == Some(v))
}

/// Whether a selector matches. An empty selector matches everything; callers decide what an absent one means
/// (upstream: nothing).
pub fn matches(selector: &LabelSelector, labels: Option<&Labels>) -> Result<bool, SelectorError> {
    if selector.match_labels.as_ref().is_some_and(|wanted| !matches_map(wanted, labels)) {
        return check(selector).map(|()| false);
    }
    let mut all = true;
    for r in selector.match_expressions.as_deref().unwrap_or_default() {
        let value = labels.and_then(|l| l.get(&r.key));
        let values = r.values.as_deref().unwrap_or_default();
        all &= match r.operator.as_str() {
            "In" => value.is_some_and(|v| values.contains(v)),
            "NotIn" => value.is_none_or(|v| !values.contains(v)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        };
    }
    check(selector).map(|()| all)
}

/// Whether a selector is well formed.
pub fn check(selector: &LabelSelector) -> Result<(), SelectorError> {
    for r in selector.match_expressions.as_deref().unwrap_or_default() {
        let empty = r.values.as_deref().unwrap_or_default().is_empty();
        match r.operator.as_str() {
            "In" | "NotIn" if empty => {
                return Err(SelectorError::Values("for 'in', 'notin' operators, values set can't be empty"));
            }
            "Exists" | "DoesNotExist" if !empty => {
                return Err(SelectorError::Values("values set must be empty for exists and does not exist"));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => return Err(SelectorError::Operator(other.to_owned())),
        }
    }
    Ok(())
}

/// True for a selector without requirements.
pub fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn operators() {
        let labels: Labels = [("a".to_owned(), "1".to_owned())].into();
        let table = [
            (json!({}), true),
            (json!({"matchLabels": {"a": "1"}}), true),
            (json!({"matchLabels": {"a": "2"}}), false),
            (json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}), true),
            (json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}), false),
            (json!({"matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["1"]}]}), true),
            (json!({"matchExpressions": [{"key": "b", "operator": "Exists"}]}), false),
            (json!({"matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]}), true),
        ];
        for (selector, want) in table {
            let parsed: LabelSelector = serde_json::from_value(selector.clone()).expect("selector");
            assert_eq!(matches(&parsed, Some(&labels)), Ok(want), "{selector}");
        }
    }
}
