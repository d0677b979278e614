//! What the user is told of a write that failed.

use crate::engine::action::Action;

/// A write that is worth telling of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    CreatePod(String),
    CreateClaim(String),
    DeletePod(String),
    Other,
}

impl Doing {
    /// What an action does.
    pub(super) fn of(action: &Action) -> Self {
        match action {
            Action::Create { body, .. } => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                match body["kind"].as_str() {
                    Some("Pod") => Self::CreatePod(name),
                    Some("PersistentVolumeClaim") => Self::CreateClaim(name),
                    _ => Self::Other,
                }
            }
            Action::Delete { path, .. } => match path.rsplit_once("/pods/") {
                Some((_, name)) => Self::DeletePod(name.to_owned()),
                None => Self::Other,
            },
            _ => Self::Other,
        }
    }

    /// The reasons and messages of its failure.
    pub(super) fn failed(&self, set: &str, error: &str) -> Vec<(&'static str, String)> {
        let pod = |verb: &str, name: &str, error: &str| {
            format!("{verb} Pod {name} in StatefulSet {set} failed error: {error}")
        };
        match self {
            Self::CreatePod(name) => vec![("FailedCreate", pod("create", name, error))],
            Self::DeletePod(name) => vec![("FailedDelete", pod("delete", name, error))],
            Self::CreateClaim(claim) => {
                // Claims are named after their template and their pod.
                let ordinal = claim.rsplit('-').next().unwrap_or_default();
                let name = format!("{set}-{ordinal}");
                let text = format!("create Claim {claim} for Pod {name} in StatefulSet {set} failed error: {error}");
                let why = format!("failed to create PVC {claim}: {error}");
                vec![("FailedCreate", text), ("FailedCreate", pod("create", &name, &why))]
            }
            Self::Other => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn failures_are_told() {
        let create = |kind: &str, name: &str| Action::Create {
            path: String::new(),
            body: json!({"kind": kind, "metadata": {"name": name}}),
        };
        let delete = |path: &str| Action::Delete { path: path.into(), options: json!({}) };
        for (action, want) in [
            (create("Pod", "web-1"), vec!["create Pod web-1 in StatefulSet web failed error: no"]),
            (
                create("PersistentVolumeClaim", "data-web-1"),
                vec![
                    "create Claim data-web-1 for Pod web-1 in StatefulSet web failed error: no",
                    "create Pod web-1 in StatefulSet web failed error: failed to create PVC data-web-1: no",
                ],
            ),
            (delete("/api/v1/namespaces/ns/pods/web-1"), vec!["delete Pod web-1 in StatefulSet web failed error: no"]),
            (delete("/apis/apps/v1/namespaces/ns/controllerrevisions/web-1"), vec![]),
            (create("ControllerRevision", "web-1"), vec![]),
        ] {
            let told: Vec<String> = Doing::of(&action).failed("web", "no").into_iter().map(|(_, text)| text).collect();
            assert_eq!(told, want, "{action:?}");
        }
    }
}
