//! Which pods cannot share a volume on one node because of their SELinux labels.
//!
//! In: the pods that use a volume. Out: one conflict per pod and property. Labels are compared part by part; a part that
//! is left open takes the node's default and is in nobody's way. No I/O here.

use k8s_openapi::api::core::v1::{Container, Pod, SELinuxOptions};

use crate::engine::object::Key;

/// How a pod wants a volume labelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The pod.
    pub pod: Key,
    /// `user:role:type:level`, with empty parts.
    pub label: String,
    /// `Recursive` or `MountOption`.
    pub policy: String,
}

/// Two pods that are in each other's way, from the first one's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Reason of the event.
    pub reason: &'static str,
    /// `SELinuxLabel` or `SELinuxChangePolicy`.
    pub property: &'static str,
    /// Who is warned, and its value.
    pub pod: Key,
    /// Its value.
    pub value: String,
    /// The other.
    pub other: Key,
    /// The other's value.
    pub other_value: String,
}

impl Conflict {
    /// What the warned pod is told. Pods of other namespaces are not named.
    #[must_use]
    pub fn message(&self) -> String {
        let Self { property, value, other, other_value, .. } = self;
        let who = if other.namespace == self.pod.namespace {
            format!(
                "{property} {value:?} conflicts with pod {} that uses the same volume as this pod with {property} {other_value:?}.",
                other.name
            )
        } else {
            format!(
                "{property} {value:?} conflicts with another pod that uses the same volume as this pod with a different {property}."
            )
        };
        format!("{who} If both pods land on the same node, only one of them may access the volume.")
    }
}

/// How a pod wants a volume labelled; None when its containers do not agree, or it has ended.
#[must_use]
pub fn user(pod: &Pod, volume: &str) -> Option<User> {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
    let spec = pod.spec.as_ref()?;
    let security = spec.security_context.as_ref();
    let whole = security.and_then(|s| s.se_linux_options.as_ref());
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut labels = containers.filter(|c| mounts(c, volume)).map(|c| {
        let own = c.security_context.as_ref().and_then(|s| s.se_linux_options.as_ref());
        own.or(whole).map(text).unwrap_or_default()
    });
    let label = labels.next()?;
    if labels.any(|l| l != label) {
        return None;
    }
    let policy = security.and_then(|s| s.se_linux_change_policy.clone()).unwrap_or_else(|| "MountOption".into());
    Some(User { pod: Key::of(&pod.metadata), label, policy })
}

fn mounts(container: &Container, volume: &str) -> bool {
    container.volume_mounts.iter().flatten().any(|m| m.name == volume)
}

fn text(o: &SELinuxOptions) -> String {
    let part = |p: &Option<String>| p.clone().unwrap_or_default();
    [part(&o.user), part(&o.role), part(&o.type_), part(&o.level)].join(":")
}

/// Every conflict between the users of one volume.
#[must_use]
pub fn conflicts(users: &[User]) -> Vec<Conflict> {
    let mut out = Vec::new();
    for a in users {
        for b in users.iter().filter(|b| b.pod != a.pod) {
            let mut say = |reason, property, value: &str, other_value: &str| {
                out.push(Conflict {
                    reason,
                    property,
                    pod: a.pod.clone(),
                    value: value.to_owned(),
                    other: b.pod.clone(),
                    other_value: other_value.to_owned(),
                });
            };
            if a.policy != b.policy {
                say("SELinuxChangePolicyConflict", "SELinuxChangePolicy", &a.policy, &b.policy);
            } else if a.policy == "MountOption" && differ(&a.label, &b.label) {
                // Who relabels files recursively may use what others labelled.
                say("SELinuxLabelConflict", "SELinuxLabel", &a.label, &b.label);
            }
        }
    }
    out
}

fn differ(a: &str, b: &str) -> bool {
    // A level has colons of its own.
    let parts = |l: &str| l.splitn(4, ':').map(str::to_owned).collect::<Vec<_>>();
    parts(a).iter().zip(parts(b).iter()).any(|(a, b)| !a.is_empty() && !b.is_empty() && a != b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, security: Value) -> Pod {
        serde_json::from_value(
            json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"securityContext": security,
            "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}, {"name": "d"}]}}),
        )
        .expect("pod")
    }

    fn look(a: Value, b: Value) -> Vec<Conflict> {
        let users: Vec<User> = [pod("a", a), pod("b", b)].iter().filter_map(|p| user(p, "v")).collect();
        conflicts(&users)
    }

    #[test]
    fn labels_and_policies() {
        let level = |l: &str| json!({"seLinuxOptions": {"level": l}});
        assert!(look(json!({}), json!({})).is_empty());
        assert!(look(level("s0:c1,c2"), level("s0:c1,c2")).is_empty());
        assert!(look(level("s0:c1"), json!({})).is_empty(), "what is open is the node's choice");
        let found = look(level("s0:c1"), level("s0:c2"));
        assert_eq!(found.len(), 2, "both are told");
        assert_eq!(
            found[0].message(),
            "SELinuxLabel \":::s0:c1\" conflicts with pod b that uses the same volume as this pod with SELinuxLabel \":::s0:c2\". If both pods land on the same node, only one of them may access the volume."
        );
        let found = look(json!({"seLinuxChangePolicy": "Recursive"}), json!({}));
        assert_eq!((found.len(), found[0].reason), (2, "SELinuxChangePolicyConflict"));
        let recursive = |l: &str| json!({"seLinuxOptions": {"level": l}, "seLinuxChangePolicy": "Recursive"});
        assert!(look(recursive("s0:c1"), recursive("s0:c2")).is_empty());
    }

    #[test]
    fn pods_of_other_namespaces_are_not_named() {
        let mut other = pod("b", json!({"seLinuxOptions": {"level": "s0:c2"}}));
        other.metadata.namespace = Some("secret".into());
        let users: Vec<User> = [pod("a", json!({"seLinuxOptions": {"level": "s0:c1"}})), other]
            .iter()
            .filter_map(|p| user(p, "v"))
            .collect();
        assert!(!conflicts(&users)[0].message().contains("secret"));
    }
}
