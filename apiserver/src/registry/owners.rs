//! Owners are named once.

use std::collections::HashSet;

use proto::Value;

/// Phase in which duplicate owners are warned of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DedupPhase {
    /// In what the client sent with POST or PUT.
    Sent,
    /// In what mutating admission left.
    Admitted,
}

/// Drops owner references that repeat an earlier one in all their fields, and says so in upstream's words.
pub fn dedup(object: &mut Value, when: DedupPhase, warnings: &mut Vec<String>) {
    let Some(owners) = object.pointer_mut("/metadata/ownerReferences").and_then(Value::as_array_mut) else { return };
    if owners.len() < 2 {
        return;
    }
    // A client names as many owners as a body holds, so each is looked for by its text and not among all before it.
    let mut seen = HashSet::with_capacity(owners.len());
    let mut repeated = Vec::new();
    owners.retain(|owner| {
        let first = seen.insert(owner.to_string());
        if !first {
            repeated.push(owner["uid"].as_str().unwrap_or_default().to_owned());
        }
        first
    });
    if repeated.is_empty() {
        return;
    }
    let after = if when == DedupPhase::Admitted { " after mutating admission happens" } else { "" };
    let uids = repeated.join(", ");
    warnings.push(format!(".metadata.ownerReferences contains duplicate entries{after}; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {uids}"));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_owners_are_named_once() {
        let owner = |uid: &str, name: &str| json!({"apiVersion": "v1", "kind": "Pod", "uid": uid, "name": name});
        let (a, b, c) = (owner("1", "a"), owner("2", "b"), owner("1", "c"));
        let mut object = json!({"metadata": {"ownerReferences": [a, b, a, c, b, a]}});
        let mut warnings = Vec::new();
        dedup(&mut object, DedupPhase::Sent, &mut warnings);
        assert_eq!(object["metadata"]["ownerReferences"], json!([a, b, c]), "equal uids alone are not enough");
        assert!(warnings[0].ends_with("contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: 1, 2, 1"));
        dedup(&mut object, DedupPhase::Admitted, &mut warnings);
        assert_eq!(warnings.len(), 1, "nothing is left to say");
    }
}
