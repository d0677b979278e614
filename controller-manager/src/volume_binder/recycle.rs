//! Volumes with the policy Recycle: a pod empties them, then they are free again. Answers for upstream's
//! `recycleVolumeOperation`.
//!
//! In: a released volume, the flags, and what a recycler pod came to. Out: the pod, and the writes that follow. No I/O
//! here; [`super::recycler_client`] runs the pod.

use k8s_openapi::api::core::v1::{
    Container, HostPathVolumeSource, NFSVolumeSource, ObjectReference, PersistentVolume, Pod, PodSpec, Volume,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proto::json::DecodeError;
use proto::quantity::Quantity;
use shared::typed::ReadError;
use thiserror::Error;

use super::plan::{fails, unbind};
use crate::engine::action::Action;
use crate::engine::object;
use crate::engine::rest::RestError;
use crate::engine::settings::Recycler;

const NAMESPACE: &str = "default";
const IMAGE: &str = "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6";
const SCRIPT: &str = "test -e /scrub && find /scrub -mindepth 1 -delete && test -z \"$(ls -A /scrub)\" || exit 1";

/// The recyclers of both kinds of volumes that have one, with their pods.
#[derive(Clone, Debug)]
pub struct Recyclers {
    host_path: (Recycler, Pod),
    nfs: (Recycler, Pod),
}

impl Recyclers {
    /// Read the pods that the flags name.
    ///
    /// # Errors
    /// A file that is none, or holds no pod that could empty a volume.
    pub fn load(host_path: &Recycler, nfs: &Recycler) -> Result<Self, RecyclerError> {
        let one = |recycler: &Recycler, kind: &'static str| {
            let failed = |error| RecyclerError { kind, path: recycler.path.clone(), source: Box::new(error) };
            Ok::<_, RecyclerError>((recycler.clone(), template(&recycler.path).map_err(failed)?))
        };
        Ok(Self { host_path: one(host_path, "hostpath")?, nfs: one(nfs, "NFS")? })
    }

    /// The pod that empties a volume; none for a kind of volume that nobody can empty.
    #[must_use]
    pub fn pod(&self, volume: &PersistentVolume) -> Option<Pod> {
        let spec = volume.spec.as_ref()?;
        let (recycler, mut pod) = match (&spec.host_path, &spec.nfs) {
            (Some(_), _) => self.host_path.clone(),
            (None, Some(_)) => self.nfs.clone(),
            (None, None) => return None,
        };
        pod.metadata.name = Some(format!("recycler-for-{}", object::name(&volume.metadata)));
        pod.metadata.generate_name = None;
        let pod_spec = pod.spec.get_or_insert_default();
        pod_spec.active_deadline_seconds = Some(seconds(volume, &recycler));
        if let Some(first) = pod_spec.volumes.as_mut().and_then(|v| v.first_mut()) {
            // Nothing but the place: how users mount it is not the recycler's affair.
            *first = Volume {
                name: std::mem::take(&mut first.name),
                host_path: spec.host_path.as_ref().map(|h| HostPathVolumeSource { path: h.path.clone(), type_: None }),
                nfs: spec.nfs.as_ref().filter(|_| spec.host_path.is_none()).map(|n| NFSVolumeSource {
                    path: n.path.clone(),
                    server: n.server.clone(),
                    read_only: None,
                }),
                ..Volume::default()
            };
        }
        Some(pod)
    }
}

/// Template of recycler pods that cannot be used.
#[derive(Debug, Error)]
#[error("could not create {kind} recycler pod from file {path}: {source}")]
pub struct RecyclerError {
    kind: &'static str,
    path: String,
    source: Box<TemplateError>,
}

/// Errors of a file that should hold a pod.
#[derive(Debug, Error)]
pub enum TemplateError {
    /// The file cannot be read.
    #[error("failed to read file path {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Cause.
        source: std::io::Error,
    },
    /// The file is empty.
    #[error("file was empty: {0}")]
    Empty(String),
    /// The file is no YAML.
    #[error("failed decoding file: {0}")]
    Yaml(#[from] DecodeError),
    /// The file holds another kind.
    #[error("failed decoding file: it holds no Pod of v1")]
    NoPod,
    /// The pod in it cannot be read.
    #[error("failed decoding file: {0}")]
    Pod(#[from] ReadError),
    /// The pod in it mounts nothing.
    #[error("pod specification ({0}): does not contain any volumes")]
    NoVolumes(String),
}

/// Failures of a recycler pod.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PodFailure {
    /// The pod's own message.
    #[error("{0}")]
    Message(String),
    /// The pod does not say why.
    #[error("pod failed, pod.Status.Message unknown")]
    Unknown,
    /// Somebody deleted it.
    #[error("recycler pod was deleted")]
    Deleted,
    /// The pod cannot be looked at.
    #[error("recycler pod watcher failed")]
    Watch,
}

/// Errors of emptying a volume, in upstream's words.
#[derive(Debug, Error)]
pub enum RecycleError {
    /// Nothing can be watched.
    #[error(transparent)]
    Watch(#[from] kube::Error),
    /// The pod has no namespace.
    #[error("unexpected error creating recycler pod:  an empty namespace may not be set during creation")]
    NoNamespace,
    /// The pod cannot be created.
    #[error("unexpected error creating recycler pod:  {0}")]
    Create(#[source] RestError),
    /// A pod of its name is there and cannot be deleted.
    #[error("failed to delete old recycler pod {pod}: {source}")]
    DeleteOld {
        /// Namespace and name.
        pod: String,
        /// Cause.
        source: RestError,
    },
    /// A pod of its name was there.
    #[error("old recycler pod found, will retry later")]
    Old,
    /// The pod failed.
    #[error("failed to recycle volume: {0}")]
    Pod(#[source] PodFailure),
    /// The pod cannot be deleted.
    #[error("failed to delete recycler pod: {0}")]
    Delete(#[source] RestError),
}

/// The pod in a file.
fn template(path: &str) -> Result<Pod, TemplateError> {
    if path.is_empty() {
        return Ok(standard());
    }
    let text = std::fs::read(path).map_err(|source| TemplateError::Read { path: path.to_owned(), source })?;
    if text.is_empty() {
        return Err(TemplateError::Empty(path.to_owned()));
    }
    let tree = proto::yaml::decode_any(&text)?;
    if tree["kind"] != "Pod" || tree["apiVersion"] != "v1" {
        return Err(TemplateError::NoPod);
    }
    let pod: Pod = shared::types::from_tree(&tree)?;
    if pod.spec.as_ref().and_then(|s| s.volumes.as_ref()).is_none_or(Vec::is_empty) {
        return Err(TemplateError::NoVolumes(path.to_owned()));
    }
    Ok(pod)
}

/// Reports whether the volume is waiting to be emptied. One that could not be is tried again.
#[must_use]
pub fn due(volume: &PersistentVolume) -> bool {
    let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
    let spec = volume.spec.as_ref();
    matches!(phase, Some("Released" | "Failed"))
        && spec.and_then(|s| s.persistent_volume_reclaim_policy.as_deref()) == Some("Recycle")
        && spec.is_some_and(|s| s.host_path.is_some() || s.nfs.is_some())
}

/// Returns the event of a volume that has to wait for the pods that still mount it.
#[must_use]
pub fn in_use(volume: &PersistentVolume, users: &[String]) -> Action {
    let about = object::reference::<PersistentVolume>(&volume.metadata);
    Action::normal(&about, "VolumeFailedRecycle", format!("Volume is used by pods: {}", users.join(",")))
}

/// The writes after its pod has come to an end.
#[must_use]
pub fn done(volume: &PersistentVolume, outcome: Result<(), RecycleError>) -> Vec<Action> {
    match outcome {
        Ok(()) => {
            let about = object::reference::<PersistentVolume>(&volume.metadata);
            vec![Action::normal(&about, "VolumeRecycled", "Volume recycled".into()), Action::update(&unbind(volume))]
        }
        Err(why) => fails(volume, "VolumeFailedRecycle", format!("Recycle failed: {why}")),
    }
}

/// Repeats an event about the recycler pod for the volume.
#[must_use]
pub fn relayed(volume: &ObjectReference, kind: &str, message: &str) -> Action {
    let text = format!("Recycler pod: {message}");
    let tell = if kind == "Warning" { Action::warning } else { Action::normal };
    tell(volume, "RecyclerPod", text)
}

/// Returns the result of a pod; none as long as it runs.
#[must_use]
pub fn verdict(pod: &Pod) -> Option<Result<(), PodFailure>> {
    let status = pod.status.as_ref()?;
    match status.phase.as_deref()? {
        "Succeeded" => Some(Ok(())),
        "Failed" => {
            let message = status.message.clone().filter(|m| !m.is_empty());
            Some(Err(message.map_or(PodFailure::Unknown, PodFailure::Message)))
        }
        _ => None,
    }
}

fn seconds(volume: &PersistentVolume, recycler: &Recycler) -> i64 {
    const GIB: i64 = 1 << 30;
    let size = volume.spec.as_ref().and_then(|s| s.capacity.as_ref()?.get("storage"));
    let bytes = size.and_then(|q| Quantity::parse(&q.0).ok()).map_or(0, |q| q.saturating_milli_value() / 1000);
    (bytes / GIB).saturating_mul(recycler.per_gib).max(recycler.minimum)
}

fn standard() -> Pod {
    Pod {
        metadata: ObjectMeta { namespace: Some(NAMESPACE.into()), ..ObjectMeta::default() },
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
#[path = "recycle_tests.rs"]
mod tests;
