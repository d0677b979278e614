//! Naming conditions of definitions: accepts names, or reports conflicts. Pure. Answers for upstream's
//! `apiextensions-apiserver/pkg/controller/status` (`calculateNamesAndConditions`).

use std::collections::BTreeSet;

use proto::Value;
use serde_json::Map;

use crate::crd::is_true;
use crate::machinery::tree;
use crate::registry::apiextensions::set_condition;

/// Names other definitions of the group have.
fn taken<'o>(own: &str, group: &str, others: impl Iterator<Item = &'o Value>) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut resources, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    for other in others.filter(|o| tree::name(o) != own && tree::text(o, "/spec/group") == group) {
        let names = &other["status"]["acceptedNames"];
        for key in ["plural", "singular"] {
            resources.insert(names[key].as_str().unwrap_or("").to_owned());
        }
        resources.extend(tree::strings(names, "/shortNames"));
        for key in ["kind", "listKind"] {
            kinds.insert(names[key].as_str().unwrap_or("").to_owned());
        }
    }
    (resources, kinds)
}

/// Accepts what names of a definition are free, and notes the outcome. True when the status changed.
pub(super) fn accept<'o>(definition: &mut Value, others: impl Iterator<Item = &'o Value>, now: &str) -> bool {
    let group = tree::text(definition, "/spec/group").to_owned();
    let (resources, kinds) = taken(tree::name(definition), &group, others);
    let asked = definition["spec"]["names"].clone();
    let before = definition["status"]["acceptedNames"].clone();
    let mut accepted: Map<String, Value> = before.as_object().cloned().unwrap_or_default();
    let mut conflict: Option<(&str, String)> = None;
    for (key, reason, used) in [
        ("plural", "PluralConflict", &resources),
        ("singular", "SingularConflict", &resources),
        ("shortNames", "ShortNamesConflict", &resources),
        ("kind", "KindConflict", &kinds),
        ("listKind", "ListKindConflict", &kinds),
    ] {
        let names: Vec<&str> = match &asked[key] {
            Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
            other => other.as_str().into_iter().collect(),
        };
        let clashes: Vec<&str> = names.iter().copied().filter(|n| used.contains(*n)).collect();
        match clashes.first() {
            None => {
                match asked.get(key) {
                    Some(v) if !v.is_null() => accepted.insert(key.to_owned(), v.clone()),
                    _ => accepted.remove(key),
                };
            }
            Some(name) => {
                let message = clashes.iter().map(|n| format!("{n:?} is already in use")).collect::<Vec<_>>().join(", ");
                let message =
                    if clashes.len() > 1 { format!("[{message}]") } else { format!("{name:?} is already in use") };
                conflict = Some((reason, message));
            }
        }
    }
    match asked.get("categories") {
        Some(v) if !v.is_null() => accepted.insert("categories".to_owned(), v.clone()),
        _ => accepted.remove("categories"),
    };
    let accepted = Value::Object(accepted);
    let mut changed = accepted != before;
    *tree::field(definition, &["status", "acceptedNames"]) = accepted;
    let (accepted, reason, message) = match &conflict {
        None => ("True", "NoConflicts", "no conflicts found"),
        Some((reason, message)) => ("False", *reason, message.as_str()),
    };
    changed |= set_condition(definition, "NamesAccepted", accepted, reason, message, now);
    // What was established stays so.
    if !is_true(definition, "Established") {
        changed |= match conflict {
            None => {
                let message = "the initial names have been accepted";
                set_condition(definition, "Established", "True", "InitialNamesAccepted", message, now)
            }
            Some(_) => {
                let message = "not all names are accepted";
                set_condition(definition, "Established", "False", "NotAccepted", message, now)
            }
        };
    }
    changed | approve(definition, now)
}

/// Groups of the project itself need somebody's approval, which an annotation names.
fn approve(definition: &mut Value, now: &str) -> bool {
    const KIND: &str = "KubernetesAPIApprovalPolicyConformant";
    let group = tree::text(definition, "/spec/group").to_owned();
    let protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|g| group.strip_suffix(g).is_some_and(|r| r.is_empty() || r.ends_with('.')));
    if !protected {
        return false;
    }
    let text = tree::annotation(definition, "api-approved.kubernetes.io").unwrap_or("").to_owned();
    let (status, reason, message) = if text.is_empty() {
        let message = "protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111";
        ("False", "MissingAnnotation", message.to_owned())
    } else if text.starts_with("unapproved") {
        ("False", "UnapprovedAnnotation", format!("not approved: {text:?}"))
    } else if text.starts_with("http://") || text.starts_with("https://") {
        ("True", "ApprovedAnnotation", format!("approved in {text}"))
    } else {
        let message = "protected groups must have approval annotation \"api-approved.kubernetes.io\" with either a URL or a reason starting with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111";
        ("False", "InvalidAnnotation", message.to_owned())
    };
    set_condition(definition, KIND, status, reason, &message, now)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_has_the_name() {
        let one = json!({"metadata": {"name": "foos.ex.com"}, "spec": {"group": "ex.com", "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList", "shortNames": ["f"]}}});
        let mut first = one.clone();
        assert!(accept(&mut first, std::iter::empty(), "t0"));
        assert!(super::is_true(&first, "Established"));
        assert!(!accept(&mut first, std::iter::empty(), "t1"), "nothing new");
        let mut second = one;
        second["metadata"]["name"] = json!("bars.ex.com");
        second["spec"]["names"]["plural"] = json!("bars");
        second["spec"]["names"]["shortNames"] = json!(["b"]);
        assert!(accept(&mut second, [&first].into_iter(), "t2"));
        let conditions = tree::list(&second, "/status/conditions");
        assert_eq!(
            (conditions[0]["reason"].as_str(), conditions[0]["message"].as_str()),
            (Some("ListKindConflict"), Some("\"FooList\" is already in use"))
        );
        assert_eq!(conditions[1]["reason"], "NotAccepted");
        assert_eq!(second["status"]["acceptedNames"]["plural"], "bars");
        assert!(second["status"]["acceptedNames"].get("kind").is_none());
    }
}
