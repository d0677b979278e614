//! Which pods cannot share a volume on one node because of their SELinux labels.
//!
//! In: the pods that use a volume, and whether its driver can mount it with a label. Out: one conflict per pod and
//! property. Labels are compared part by part; a part that is left open takes the node's default and is in nobody's way.
//! No I/O here.

use k8s_openapi::api::core::v1::{Container, PersistentVolume, Pod, SELinuxOptions};

use crate::attach_detach::volume::Attachable;
use crate::engine::object::Key;

const RECURSIVE: &str = "Recursive";
const MOUNT: &str = "MountOption";

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

/// Whether a volume can be mounted with a label; `asked` is what its driver says. None where labels are nobody's concern.
#[must_use]
pub fn mounts_labelled(volume: &PersistentVolume, asked: &dyn Fn(&str) -> bool) -> Option<bool> {
    let spec = volume.spec.as_ref()?;
    if spec.fc.is_some() || spec.iscsi.is_some() {
        return Some(true);
    }
    Attachable::of(volume).map(|found| asked(&found.driver))
}

/// The containers of a pod do not agree on the label of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixed;

/// How a pod wants a volume labelled, which can be mounted with a label if it is `labelled`; None when it has ended, or
/// does not mount it.
pub fn user(pod: &Pod, volume: &str, labelled: bool) -> Result<Option<User>, Mixed> {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    let Some(spec) = pod.spec.as_ref().filter(|_| !matches!(phase, Some("Succeeded" | "Failed"))) else {
        return Ok(None);
    };
    let security = spec.security_context.as_ref();
    let whole = security.and_then(|s| s.se_linux_options.as_ref());
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut mounting = containers.filter(|c| mounts(c, volume)).peekable();
    if mounting.peek().is_none() {
        return Ok(None);
    }
    // Who says nothing takes what the others have.
    let mut labels = mounting.filter_map(|c| {
        let own = c.security_context.as_ref().and_then(|s| s.se_linux_options.as_ref());
        own.or(whole).map(text)
    });
    let label = labels.next().unwrap_or_default();
    if labels.any(|l| l != label) {
        return Err(Mixed);
    }
    let asked = security.and_then(|s| s.se_linux_change_policy.as_deref()).unwrap_or(MOUNT);
    // Whatever the pod asks for: without a label, or where none can be given, files are labelled one by one.
    let policy = if labelled && !label.is_empty() { asked } else { RECURSIVE };
    let label = if policy == RECURSIVE { String::new() } else { label };
    Ok(Some(User { pod: Key::of(&pod.metadata), label, policy: policy.to_owned() }))
}

/// Whether a container has a volume, as files or as a device.
fn mounts(container: &Container, volume: &str) -> bool {
    container.volume_mounts.iter().flatten().any(|m| m.name == volume)
        || container.volume_devices.iter().flatten().any(|d| d.name == volume)
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
            } else if a.policy == MOUNT && differ(&a.label, &b.label) {
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
        let users: Vec<User> =
            [pod("a", a), pod("b", b)].iter().filter_map(|p| user(p, "v", true).expect("one label")).collect();
        conflicts(&users)
    }

    #[test]
    fn labels_and_policies() {
        let level = |l: &str| json!({"seLinuxOptions": {"level": l}});
        assert!(look(json!({}), json!({})).is_empty());
        assert!(look(level("s0:c1,c2"), level("s0:c1,c2")).is_empty());
        assert!(
            look(level("s0:c1"), json!({"seLinuxOptions": {"type": "t"}})).is_empty(),
            "what is open is the node's choice"
        );
        let found = look(level("s0:c1"), json!({}));
        assert_eq!(
            (found.len(), found[0].reason),
            (2, "SELinuxChangePolicyConflict"),
            "without a label there is no mount"
        );
        let found = look(level("s0:c1"), level("s0:c2"));
        assert_eq!(found.len(), 2, "both are told");
        assert_eq!(
            found[0].message(),
            "SELinuxLabel \":::s0:c1\" conflicts with pod b that uses the same volume as this pod with SELinuxLabel \":::s0:c2\". If both pods land on the same node, only one of them may access the volume."
        );
        let found = look(json!({"seLinuxOptions": {"level": "s0"}, "seLinuxChangePolicy": "Recursive"}), level("s0"));
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
            .filter_map(|p| user(p, "v", true).expect("one label"))
            .collect();
        assert!(!conflicts(&users)[0].message().contains("secret"));
    }

    #[test]
    fn how_a_pod_wants_a_volume() {
        let level = |l: &str| json!({"seLinuxOptions": {"level": l}});
        let own =
            |l: Value| json!({"name": "x", "securityContext": l, "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
        let (one, two) = (own(level("s0:c1")), own(level("s0:c2")));
        let want = |label: &str, policy: &str| Ok(Some(format!("{label} {policy}")));
        for (security, containers, labelled, phase, expected) in [
            (level("s0"), json!([own(Value::Null)]), true, "Running", want(":::s0", MOUNT)),
            (level("s0"), json!([own(Value::Null)]), false, "Running", want("", RECURSIVE)),
            (json!({}), json!([own(Value::Null)]), true, "Running", want("", RECURSIVE)),
            (json!({}), json!([one, own(Value::Null)]), true, "Running", want(":::s0:c1", MOUNT)),
            (json!({}), json!([one, two]), true, "Running", Err(Mixed)),
            (json!({}), json!([one, two]), true, "Succeeded", Ok(None)),
            (level("s0"), json!([{"name": "x"}]), true, "Running", Ok(None)),
        ] {
            let pod = json!({"metadata": {"name": "p"}, "status": {"phase": phase},
                "spec": {"securityContext": security, "containers": containers}});
            let got = user(&serde_json::from_value(pod.clone()).expect("pod"), "v", labelled);
            assert_eq!(got.map(|u| u.map(|u| format!("{} {}", u.label, u.policy))), expected, "{pod} {labelled}");
        }
    }

    #[test]
    fn which_volumes_can_be_mounted_with_a_label() {
        for (spec, want) in [
            (json!({"csi": {"driver": "good", "volumeHandle": "h"}}), Some(true)),
            (json!({"csi": {"driver": "other", "volumeHandle": "h"}}), Some(false)),
            (json!({"iscsi": {"iqn": "i", "lun": 0, "targetPortal": "t"}}), Some(true)),
            (json!({"nfs": {"server": "s", "path": "/"}}), None),
        ] {
            let volume = serde_json::from_value(json!({"metadata": {"name": "v"}, "spec": spec})).expect("volume");
            assert_eq!(mounts_labelled(&volume, &|driver| driver == "good"), want, "{spec}");
        }
    }
}
