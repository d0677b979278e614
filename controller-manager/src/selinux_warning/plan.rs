//! Pods that cannot share a volume on one node because of their SELinux labels. Answers for upstream's
//! `pkg/controller/volume/selinuxwarning/cache` (`volumeCache`).
//!
//! In: pods, and whether volumes can be mounted with a label. Out: how a pod wants a volume labelled, and in what it is in
//! another one's way. Labels are compared part by part; a part that is left open takes the node's default and is in
//! nobody's way. No I/O here.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, SELinuxOptions, SecurityContext, VolumeMount};

use crate::engine::object::Key;

const RECURSIVE: &str = "Recursive";
const MOUNT: &str = "MountOption";

/// Label and change policy with which a pod uses a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// `user:role:type:level`, with empty parts; empty where files are labelled one by one.
    pub label: String,
    /// `Recursive` or `MountOption`.
    pub policy: String,
}

impl Use {
    /// Returns how a pod uses a volume whose files are labelled one by one.
    #[must_use]
    pub fn unlabelled() -> Self {
        Self { label: String::new(), policy: RECURSIVE.to_owned() }
    }
}

/// Two pods that are in each other's way, from the first one's side.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Conflict {
    /// Reason of the event.
    pub reason: &'static str,
    /// `SELinuxLabel` or `SELinuxChangePolicy`.
    pub property: &'static str,
    /// Pod that is warned.
    pub pod: Key,
    /// Value of the pod that is warned.
    pub value: String,
    /// The other.
    pub other: Key,
    /// The other's value.
    pub other_value: String,
}

impl Conflict {
    /// Returns the message to the warned pod. Pods of other namespaces are not named.
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

/// The containers of a pod do not agree on the label of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixed;

/// The volumes that containers of a pod have mounted; blocks are nobody's concern.
#[must_use]
pub fn mounted(pod: &Pod) -> BTreeSet<&str> {
    mounts(pod).map(|(_, mount)| mount.name.as_str()).collect()
}

/// Returns how a pod uses a volume, which can be mounted with a label if it is `labelled`.
///
/// # Errors
/// In several ways.
pub fn wanted(pod: &Pod, volume: &str, labelled: bool) -> Result<Use, Mixed> {
    let security = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let whole = security.and_then(|s| s.se_linux_options.as_ref());
    // Who says nothing takes what the others have.
    let labels: BTreeSet<String> = mounts(pod)
        .filter(|(_, mount)| mount.name == volume)
        .filter_map(|(own, _)| own.and_then(|s| s.se_linux_options.as_ref()).or(whole).map(text))
        .collect();
    if labels.len() > 1 {
        return Err(Mixed);
    }
    let label = labels.into_iter().next().unwrap_or_default();
    let asked = security.and_then(|s| s.se_linux_change_policy.as_deref()).unwrap_or(MOUNT);
    // Whatever the pod asks for: without a label, or where none can be given, files are labelled one by one.
    let policy = if labelled && !label.is_empty() { asked } else { RECURSIVE };
    let label = if policy == RECURSIVE { String::new() } else { label };
    Ok(Use { label, policy: policy.to_owned() })
}

/// Every mount of every container, with what the container says of its security.
fn mounts(pod: &Pod) -> impl Iterator<Item = (Option<&SecurityContext>, &VolumeMount)> {
    let spec = pod.spec.iter();
    let usual = spec.clone().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
    let usual = usual.map(|c| (c.security_context.as_ref(), c.volume_mounts.as_ref()));
    let brief = spec.flat_map(|s| s.ephemeral_containers.iter().flatten());
    let brief = brief.map(|c| (c.security_context.as_ref(), c.volume_mounts.as_ref()));
    usual.chain(brief).flat_map(|(own, mounts)| mounts.into_iter().flatten().map(move |m| (own, m)))
}

/// Options that say nothing are as good as none.
fn text(o: &SELinuxOptions) -> String {
    let parts = [&o.user, &o.role, &o.type_, &o.level].map(|p| p.as_deref().unwrap_or_default());
    if parts.iter().all(|p| p.is_empty()) { String::new() } else { parts.join(":") }
}

/// In what two pods are in each other's way at a volume, from the side of both.
#[must_use]
pub fn between((a, mine): (&Key, &Use), (b, theirs): (&Key, &Use)) -> Vec<Conflict> {
    let mut out = Vec::new();
    let mut say = |reason, property, value: &str, other_value: &str| {
        for ((pod, value), (other, other_value)) in [((a, value), (b, other_value)), ((b, other_value), (a, value))] {
            let (pod, value, other, other_value) =
                (pod.clone(), value.to_owned(), other.clone(), other_value.to_owned());
            out.push(Conflict { reason, property, pod, value, other, other_value });
        }
    };
    if mine.policy != theirs.policy {
        say("SELinuxChangePolicyConflict", "SELinuxChangePolicy", &mine.policy, &theirs.policy);
    }
    if differ(&mine.label, &theirs.label) {
        say("SELinuxLabelConflict", "SELinuxLabel", &mine.label, &theirs.label);
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

    fn key(namespace: &str, name: &str) -> Key {
        Key::new(namespace, name)
    }

    #[test]
    fn what_is_told() {
        let of = |label: &str| Use { label: label.to_owned(), policy: MOUNT.to_owned() };
        let told = |namespace: &str| {
            between((&key("ns", "a"), &of(":::s0:c1")), (&key(namespace, "b"), &of(":::s0:c2")))[0].message()
        };
        assert_eq!(
            told("ns"),
            "SELinuxLabel \":::s0:c1\" conflicts with pod b that uses the same volume as this pod with SELinuxLabel \":::s0:c2\". If both pods land on the same node, only one of them may access the volume."
        );
        assert_eq!(
            told("secret"),
            "SELinuxLabel \":::s0:c1\" conflicts with another pod that uses the same volume as this pod with a different SELinuxLabel. If both pods land on the same node, only one of them may access the volume."
        );
    }

    #[test]
    fn labels_are_compared_part_by_part() {
        for (a, b, want) in [
            ("", "", false),
            ("", "system_u:system_r:t:s0", false),
            ("u:r:t:s0:c1,c2", "u:r:t:s0:c1,c2", false),
            ("u:r:t:s0:c1,c2", ":::s0:c1,c2", false),
            ("u:r:t:s0:c1,c2", ":::s0:c98,c99", true),
            ("u:r:t:s0", "u:r:other:s0", true),
            (":r::", "u::t:s0", false),
        ] {
            assert_eq!((differ(a, b), differ(b, a)), (want, want), "{a} {b}");
        }
    }

    #[test]
    fn how_a_pod_wants_a_volume() {
        let level = |l: &str| json!({"seLinuxOptions": {"level": l}});
        let own =
            |l: Value| json!({"name": "x", "securityContext": l, "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
        let (one, two, bare) = (own(level("s0:c1")), own(level("s0:c2")), own(Value::Null));
        let recursive = json!({"seLinuxOptions": {"level": "s0"}, "seLinuxChangePolicy": RECURSIVE});
        let nothing = own(json!({"seLinuxOptions": {}}));
        let want = |label: &str, policy: &str| Ok(format!("{label} {policy}"));
        for (security, containers, labelled, expected) in [
            (level("s0"), json!([bare]), true, want(":::s0", MOUNT)),
            (level("s0"), json!([bare]), false, want("", RECURSIVE)),
            (recursive, json!([bare]), true, want("", RECURSIVE)),
            (json!({}), json!([bare]), true, want("", RECURSIVE)),
            (json!({}), json!([nothing]), true, want("", RECURSIVE)),
            (json!({}), json!([one, bare]), true, want(":::s0:c1", MOUNT)),
            (level("s0"), json!([one, {"name": "y"}]), true, want(":::s0:c1", MOUNT)),
            (level("s0"), json!([one, bare]), true, Err(Mixed)),
            (json!({}), json!([one, two]), true, Err(Mixed)),
            (json!({}), json!([one, two]), false, Err(Mixed)),
            (json!({}), json!([one, nothing]), true, Err(Mixed)),
        ] {
            let spec = json!({"securityContext": security, "containers": containers});
            let pod = serde_json::from_value(json!({"spec": spec})).expect("pod");
            assert_eq!(wanted(&pod, "v", labelled).map(|u| format!("{} {}", u.label, u.policy)), expected, "{spec}");
        }
    }

    #[test]
    fn what_is_mounted() {
        let mount = |name: &str| json!([{"name": name, "mountPath": "/"}]);
        let pod = serde_json::from_value(json!({"spec": {
            "containers": [{"name": "a", "volumeMounts": mount("one"), "volumeDevices": [{"name": "block", "devicePath": "/d"}]}],
            "initContainers": [{"name": "b", "volumeMounts": mount("two")}],
            "ephemeralContainers": [{"name": "c", "volumeMounts": mount("three")}]}}))
        .expect("pod");
        assert_eq!(mounted(&pod).into_iter().collect::<Vec<_>>(), ["one", "three", "two"]);
    }
}
