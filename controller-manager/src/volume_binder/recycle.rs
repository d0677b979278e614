//! Volumes with the policy Recycle: a pod empties them, then they are free again.
//!
//! In: a released volume and its recycler pod, as far as there is one. Out: the next writes. The pod is found by its
//! name, so that another leader goes on where the last one ended. No I/O here.

use k8s_openapi::api::core::v1::{
    Container, PersistentVolume, Pod as NewPod, PodSpec, PodTemplate, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proto::quantity::Quantity;

use super::plan::{failed_phase, unbind};
use crate::engine::action::Action;
use crate::engine::pod::Pod;
use crate::engine::{object, pods};

/// Where recycler pods run.
pub const NAMESPACE: &str = "default";
const PREFIX: &str = "recycler-for-";
const IMAGE: &str = "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6";
const SCRIPT: &str = "test -e /scrub && find /scrub -mindepth 1 -delete && test -z \"$(ls -A /scrub)\" || exit 1";

/// The `--pv-recycler-*` flags of one kind of volume.
#[derive(Clone, Debug, Default)]
pub struct Recycler {
    /// Seconds that a volume of any size may take.
    pub minimum: i64,
    /// Seconds more for each GiB.
    pub per_gib: i64,
    /// The pod from `--pv-recycler-pod-template-filepath-*`, read when the process started.
    pub template: Option<Box<PodTemplate>>,
}

/// The volume that a recycler pod is for.
#[must_use]
pub fn volume_of(pod: &Pod) -> Option<&str> {
    let here = object::namespace(&pod.metadata) == NAMESPACE;
    object::name(&pod.metadata).strip_prefix(PREFIX).filter(|_| here)
}

/// The name of the recycler pod of a volume.
#[must_use]
pub fn pod_name(volume: &str) -> String {
    format!("{PREFIX}{volume}")
}

/// Whether the volume is waiting to be emptied.
#[must_use]
pub fn due(volume: &PersistentVolume) -> bool {
    let released = volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Released");
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|s| s.persistent_volume_reclaim_policy.as_deref()) == Some("Recycle");
    released && policy && spec.is_some_and(|s| s.host_path.is_some() || s.nfs.is_some())
}

/// The next writes for a volume that is [`due`]. `users` are the pods that still mount it.
#[must_use]
pub fn plan(volume: &PersistentVolume, pod: Option<&Pod>, users: &[String], recycler: &Recycler) -> Vec<Action> {
    let about = object::reference::<PersistentVolume>(&volume.metadata);
    let Some(pod) = pod else {
        if !users.is_empty() {
            let text = format!("Volume is used by pods: {}", users.join(","));
            return vec![Action::normal(&about, "VolumeFailedRecycle", text)];
        }
        return vec![Action::create(&recycler_pod(volume, recycler))];
    };
    if object::deleting(&pod.metadata) {
        return Vec::new();
    }
    match pods::phase(pod) {
        "Succeeded" => vec![
            Action::normal(&about, "VolumeRecycled", "Volume recycled".into()),
            Action::update(&unbind(volume)),
            Action::delete::<Pod>(&pod.metadata),
        ],
        "Failed" => {
            let text = "Recycle failed: pod failed, pod.Status.Message unknown".to_owned();
            vec![
                Action::warning(&about, "VolumeFailedRecycle", text.clone()),
                failed_phase(volume, text),
                Action::delete::<Pod>(&pod.metadata),
            ]
        }
        _ => Vec::new(),
    }
}

fn seconds(volume: &PersistentVolume, recycler: &Recycler) -> i64 {
    const GIB: i64 = 1 << 30;
    let size = volume.spec.as_ref().and_then(|s| s.capacity.as_ref()?.get("storage"));
    let bytes = size.and_then(|q| Quantity::parse(&q.0).ok()).map_or(0, |q| q.saturating_milli_value() / 1000);
    (bytes / GIB).saturating_mul(recycler.per_gib).max(recycler.minimum)
}

fn recycler_pod(volume: &PersistentVolume, recycler: &Recycler) -> NewPod {
    let spec = volume.spec.as_ref();
    let template = recycler.template.as_deref().and_then(|t| t.template.clone());
    let mut pod = template.map_or_else(standard, |t| NewPod {
        metadata: t.metadata.unwrap_or_default(),
        spec: t.spec,
        status: None,
    });
    pod.metadata.name = Some(pod_name(object::name(&volume.metadata)));
    pod.metadata.generate_name = None;
    pod.metadata.namespace = Some(NAMESPACE.into());
    let limit = seconds(volume, recycler);
    if let Some(pod_spec) = pod.spec.as_mut() {
        pod_spec.active_deadline_seconds = Some(limit);
        if let Some(first) = pod_spec.volumes.as_mut().and_then(|v| v.first_mut()) {
            first.host_path = spec.and_then(|s| s.host_path.clone());
            first.nfs = spec.and_then(|s| s.nfs.clone());
        }
    }
    pod
}

fn standard() -> NewPod {
    NewPod {
        metadata: ObjectMeta::default(),
        spec: Some(PodSpec {
            restart_policy: Some("Never".into()),
            volumes: Some(vec![Volume { name: "vol".into(), ..Volume::default() }]),
            containers: vec![Container {
                name: "pv-recycler".into(),
                image: Some(IMAGE.into()),
                command: Some(vec!["/bin/sh".into()]),
                args: Some(vec!["-c".into(), SCRIPT.into()]),
                volume_mounts: Some(vec![VolumeMount {
                    name: "vol".into(),
                    mount_path: "/scrub".into(),
                    ..VolumeMount::default()
                }]),
                ..Container::default()
            }],
            ..PodSpec::default()
        }),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume_binder::plan::BY_US;
    use serde_json::json;

    fn volume() -> PersistentVolume {
        serde_json::from_value(json!({"metadata": {"name": "v", "annotations": {BY_US: "yes"}}, "status": {"phase": "Released"},
            "spec": {"persistentVolumeReclaimPolicy": "Recycle", "capacity": {"storage": "10Gi"}, "hostPath": {"path": "/d"},
                "claimRef": {"namespace": "ns", "name": "c", "uid": "u"}}}))
        .expect("volume")
    }

    #[test]
    fn a_pod_empties_it_and_then_it_is_free() {
        let recycler = Recycler { minimum: 60, per_gib: 30, template: None };
        assert!(due(&volume()));
        let Some(Action::Create { path, body }) = plan(&volume(), None, &[], &recycler).into_iter().next() else {
            panic!("no pod")
        };
        assert_eq!(path, "/api/v1/namespaces/default/pods");
        assert_eq!(body["metadata"]["name"], "recycler-for-v");
        assert_eq!(body["spec"]["activeDeadlineSeconds"], 300);
        assert_eq!(body["spec"]["volumes"][0]["hostPath"]["path"], "/d");
        let pod = |phase: &str| -> Pod {
            let v = json!({"metadata": {"name": "recycler-for-v", "namespace": "default"}, "status": {"phase": phase}});
            serde_json::from_value(v).expect("pod")
        };
        assert_eq!(volume_of(&pod("Running")), Some("v"));
        assert!(plan(&volume(), Some(&pod("Running")), &[], &recycler).is_empty());
        let done = plan(&volume(), Some(&pod("Succeeded")), &[], &recycler);
        let [_, Action::Update { body, .. }, Action::Delete { .. }] = done.as_slice() else { panic!("{done:?}") };
        assert!(body["spec"]["claimRef"].is_null());
        assert!(!due(&serde_json::from_value(body.clone())
            .map(|mut v: PersistentVolume| {
                v.status = None;
                v
            })
            .expect("volume")));
        assert_eq!(plan(&volume(), Some(&pod("Failed")), &[], &recycler).len(), 3);
        let used = plan(&volume(), None, &["ns/p".to_owned()], &recycler);
        assert!(matches!(used.as_slice(), [Action::Event { .. }]), "{used:?}");
    }
}
