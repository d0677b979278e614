//! Defaults that are younger than their kinds.
//!
//! What is read from etcd may have been written by an older release, long ago. It is shown with today's defaults, so it is
//! looked at where it comes in. That nearly always finds nothing, so it must cost nearly nothing: no tree is built of
//! what has the fields that are named here.

use crate::protobuf::lacks;
use crate::schema::Message;

/// A path of JSON names.
type Path = &'static [&'static str];

/// The youngest fields with defaults, by message (without `k8s.io.`), sorted. Where they are all there, nothing is missing;
/// where one is not, it may be right so. What a feature gate takes away stays away: it has no place here.
const LATE: &[(&str, &[Path])] = &[
    ("api.apps.v1.DaemonSet", &[&["spec", "updateStrategy", "rollingUpdate", "maxSurge"]]),
    ("api.apps.v1.StatefulSet", &[&["spec", "persistentVolumeClaimRetentionPolicy"]]),
    (
        "api.batch.v1.Job",
        &[
            &["spec", "completionMode"],
            &["spec", "manualSelector"],
            &["spec", "podReplacementPolicy"],
            &["spec", "suspend"],
        ],
    ),
    ("api.core.v1.Namespace", &[&["metadata", "labels", "kubernetes.io/metadata.name"]]),
    ("api.core.v1.PersistentVolume", &[&["spec", "volumeMode"]]),
    ("api.core.v1.PersistentVolumeClaim", &[&["spec", "volumeMode"]]),
    ("api.core.v1.Service", &[&["spec", "internalTrafficPolicy"], &["status", "loadBalancer", "ingress", "ipMode"]]),
    ("api.flowcontrol.v1.PriorityLevelConfiguration", &[&["spec", "limited", "lendablePercent"]]),
    ("api.networking.v1.IngressClass", &[&["spec", "parameters", "scope"]]),
    ("api.scheduling.v1.PriorityClass", &[&["preemptionPolicy"]]),
    (
        "api.storage.v1.CSIDriver",
        &[&["spec", "fsGroupPolicy"], &["spec", "requiresRepublish"], &["spec", "storageCapacity"]],
    ),
];

/// Reports whether an object, in protobuf without an envelope, may lack a default that its kind has today.
#[must_use]
pub fn may_lack(schema: &Message, body: &[u8]) -> bool {
    let Some(name) = schema.name.strip_prefix("k8s.io.") else { return false };
    let Ok(at) = LATE.binary_search_by(|(known, _)| (*known).cmp(name)) else { return false };
    LATE[at].1.iter().any(|path| lacks(schema, body, path))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{defaulting, protobuf, schema};

    /// An object of each kind that has everything which is named above.
    fn whole(message: &str) -> Value {
        match message {
            "api.core.v1.Service" => json!({"spec": {"type": "LoadBalancer"},
                "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}}}),
            "api.flowcontrol.v1.PriorityLevelConfiguration" => json!({"spec": {"type": "Limited", "limited": {}}}),
            "api.networking.v1.IngressClass" => json!({"spec": {"parameters": {"kind": "k", "name": "n"}}}),
            "api.core.v1.Namespace" => json!({"metadata": {"name": "n"}}),
            _ => json!({"metadata": {"name": "n"}, "spec": {}}),
        }
    }

    fn removed(object: &mut Value, path: &[&str]) {
        let Some((last, way)) = path.split_last() else { return };
        let mut place = object;
        for name in way {
            place = &mut place[*name];
            if place.is_array() {
                place = &mut place[0];
            }
        }
        place.as_object_mut().and_then(|map| map.remove(*last)).expect("it is there");
    }

    #[test]
    fn what_is_missing_is_seen_and_is_a_default() {
        assert!(LATE.is_sorted_by_key(|(name, _)| *name));
        for (name, paths) in LATE {
            let message = schema::message(&format!("k8s.io.{name}")).expect("a message");
            let mut object = whole(name);
            defaulting::apply(message, &mut object);
            let bytes = |object: &Value| protobuf::encode(message, object);
            assert!(!may_lack(message, &bytes(&object)), "{name} {object}");
            for path in *paths {
                let mut old = object.clone();
                removed(&mut old, path);
                assert!(may_lack(message, &bytes(&old)), "{name} {path:?}");
                defaulting::apply(message, &mut old);
                assert_eq!(old, object, "{name} {path:?}");
            }
        }
        let pod = schema::message("k8s.io.api.core.v1.Pod").expect("a message");
        assert!(!may_lack(pod, &[]), "others are not looked at");
    }
}
