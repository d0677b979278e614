//! Persistent volumes: which one a pod's claim stands for, and what is behind it.

use super::disks::{Chap, Disk, DiskTarget, FcError, FcTarget, IscsiTarget, of_persistent};
use super::flex::FlexVolume;
use super::metrics::Plugin;
use crate::objects::{ObjectError, ObjectSource};
use crate::pods;
use crate::volumes::csi;
use k8s_openapi::api::core::v1::{
    HostPathVolumeSource, NFSVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod, Volume, VolumeNodeAffinity,
};
use shared::csi::Untranslatable;
use shared::types::ephemeral_claim;
use std::path::PathBuf;
use std::sync::Arc;

/// Reasons why a claim stands for no volume that the pod can have, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum VolumeClaimError {
    /// The claim is not to be used.
    #[error("error processing PVC {namespace}/{claim}: {cause}")]
    Claim {
        /// Namespace of the claim.
        namespace: String,
        /// Name of the claim.
        claim: String,
        /// Cause.
        #[source]
        cause: Box<BindError>,
    },
    /// The persistent volume cannot be read.
    #[error("failed to fetch PV {name} from API server: {cause}")]
    Fetch {
        /// Name of the volume.
        name: String,
        /// Cause.
        #[source]
        cause: ObjectError,
    },
    /// A device that is mounted, or a file system that is mapped.
    #[error("volume {volume} has volumeMode {mode}, but is specified in {field}")]
    Mode {
        /// The volume's name in the pod.
        volume: String,
        /// Mode of the volume.
        mode: &'static str,
        /// Field of the containers that use it.
        field: &'static str,
    },
    /// The persistent volume has no source.
    #[error("PV {0} has no source")]
    NoSource(String),
    /// The persistent volume is another claim's.
    #[error("found PV object {0} with nil or unexpected ClaimRef.UID")]
    Foreign(String),
    /// No plugin is for a volume of this source.
    #[error("no volume plugin matched for PV {0}")]
    NoPlugin(String),
    /// A volume of a plugin of old cannot be translated.
    #[error(transparent)]
    Migration(#[from] csi::MigrationError),
    /// The nodes of a volume of a plugin of old cannot be told.
    #[error(transparent)]
    Affinity(#[from] Untranslatable),
    /// The source names no disk.
    #[error(transparent)]
    Disk(#[from] FcError),
}

/// Reasons why a claim is not to be used.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// An object, or a file, that cannot be read.
    #[error("failed to fetch PVC from API server: {0}")]
    Fetch(#[from] ObjectError),
    /// Another pod's: the claim was made for it.
    #[error("PVC {namespace}/{claim} was not created for pod {namespace}/{pod} (pod is not owner)")]
    NotOwned {
        /// Namespace of both.
        namespace: String,
        /// Name of the claim.
        claim: String,
        /// Name of the pod.
        pod: String,
    },
    /// A claim that is being deleted.
    #[error("PVC is being deleted")]
    Deleted,
    /// A claim without a volume.
    #[error("PVC is not bound")]
    Unbound,
}

/// The persistent volume behind a claim.
#[derive(Clone, Debug)]
pub(super) struct Claimed {
    /// Name of the persistent volume.
    pub(super) name: String,
    pub(super) source: VolumeSources,
    /// The claim is used read-only.
    pub(super) read_only: bool,
    pub(super) claim: Arc<PersistentVolumeClaim>,
    /// `mountOptions`.
    pub(super) options: Vec<String>,
    /// Size of the persistent volume.
    pub(super) size: Option<String>,
    /// Nodes that it can be used on.
    pub(super) affinity: Option<VolumeNodeAffinity>,
    /// Group that its files are for, as the annotation says.
    pub(super) group: Option<i64>,
}

/// Annotation of a persistent volume whose files are for a group. Upstream's `VolumeGidAnnotationKey`.
const GROUP: &str = "pv.beta.kubernetes.io/gid";

/// The group of a persistent volume's annotation; none where it is no number.
fn group(persistent: &PersistentVolume) -> Option<i64> {
    persistent.metadata.annotations.as_ref()?.get(GROUP)?.parse().ok()
}

impl Claimed {
    /// The plugin as metrics name it.
    pub(super) fn plugin(&self) -> Plugin {
        match &self.source {
            VolumeSources::Path(_) => Plugin::own("host-path"),
            VolumeSources::Local(_) | VolumeSources::Device(_) => Plugin::own("local-volume"),
            VolumeSources::Nfs(_) => Plugin::own("nfs"),
            VolumeSources::Disk(disk) => Plugin::own(disk.target.plugin()),
            VolumeSources::Flex(volume) => Plugin::flex(&volume.driver),
            VolumeSources::Csi(volume) => volume.plugin(),
        }
    }
}

/// Sources of persistent volumes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum VolumeSources {
    /// A path on the node.
    Path(HostPathVolumeSource),
    /// A folder that is a disk of the node.
    Local(PathBuf),
    /// An export of an NFS server.
    Nfs(NFSVolumeSource),
    /// A block device of the node.
    Device(PathBuf),
    /// A disk that the node reaches over a network.
    Disk(Box<Disk>),
    /// A volume of a driver that is a program.
    Flex(Box<FlexVolume>),
    /// A driver's volume.
    Csi(Box<csi::Volume>),
}

/// Resolves `volume` if it is a claim. `use_of` tells how containers use it.
pub(super) async fn resolve(
    objects: &dyn ObjectSource,
    pod: &Pod,
    volume: &Volume,
    use_of: Use,
) -> Result<Option<Claimed>, VolumeClaimError> {
    let (claim, read_only) = match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => (source.claim_name.clone(), source.read_only.unwrap_or(false)),
        (None, Some(_)) => (ephemeral_claim(pods::name(pod), &volume.name), false),
        (None, None) => return Ok(None),
    };
    let namespace = pods::namespace(pod);
    let processing = |cause| VolumeClaimError::Claim {
        namespace: namespace.to_owned(),
        claim: claim.clone(),
        cause: Box::new(cause),
    };
    let found = objects.claim(namespace, &claim).await.map_err(|error| processing(error.into()))?;
    let name = bound(&found, volume.ephemeral.is_some().then_some(pod)).map_err(processing)?;
    let persistent = objects.persistent_volume(&name).await;
    let persistent = persistent.map_err(|cause| VolumeClaimError::Fetch { name: name.clone(), cause })?;
    use_of.check(&volume.name, persistent.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()))?;
    let source = match source(&persistent, &found, read_only)? {
        VolumeSources::Csi(driver) => VolumeSources::Csi(Box::new(driver.used_as(&volume.name))),
        other => other,
    };
    let spec = persistent.spec.as_ref();
    let options = spec.and_then(|spec| spec.mount_options.clone()).unwrap_or_default();
    // The nodes of a volume of old are those that its driver labels.
    let affinity = shared::csi::node_affinity(&persistent)?;
    let size = spec.and_then(|spec| spec.capacity.as_ref()?.get("storage").map(|size| size.0.clone()));
    let group = group(&persistent);
    Ok(Some(Claimed { name, source, read_only, claim: found, options, size, affinity, group }))
}

/// Use of a volume by the containers of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    /// By `volumeMounts`.
    pub(super) mounted: bool,
    /// By `volumeDevices`.
    pub(super) mapped: bool,
}

impl Use {
    /// Use of the volume of this name by a pod.
    pub(super) fn of(pod: &Pod, volume: &str) -> Self {
        let Some(spec) = &pod.spec else { return Self::default() };
        let mut found = Self::default();
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        for container in containers {
            found.mounted |= container.volume_mounts.iter().flatten().any(|mount| mount.name == volume);
            found.mapped |= container.volume_devices.iter().flatten().any(|device| device.name == volume);
        }
        for container in spec.ephemeral_containers.iter().flatten() {
            found.mounted |= container.volume_mounts.iter().flatten().any(|mount| mount.name == volume);
            found.mapped |= container.volume_devices.iter().flatten().any(|device| device.name == volume);
        }
        found
    }

    pub(super) fn is_none(self) -> bool {
        !self.mounted && !self.mapped
    }

    /// Refuses a device that is mounted, and a file system that is mapped.
    fn check(self, volume: &str, mode: Option<&str>) -> Result<(), VolumeClaimError> {
        let is_block = mode == Some("Block");
        let wrong = |mode, field| Err(VolumeClaimError::Mode { volume: volume.to_owned(), mode, field });
        match self {
            Self { mounted: true, .. } if is_block => wrong("Block", "volumeMounts"),
            Self { mapped: true, .. } if !is_block => wrong("Filesystem", "volumeDevices"),
            _ => Ok(()),
        }
    }
}

/// The name of the volume that a claim is bound to; a claim made for a pod is used by that pod alone.
fn bound(claim: &PersistentVolumeClaim, made_for: Option<&Pod>) -> Result<String, BindError> {
    if let Some(pod) = made_for {
        let owners = claim.metadata.owner_references.iter().flatten();
        let own = owners.into_iter().any(|owner| owner.uid == pods::uid(pod) && owner.controller == Some(true));
        if !own {
            let (namespace, pod) = (pods::namespace(pod).to_owned(), pods::name(pod).to_owned());
            let claim = claim.metadata.name.clone().unwrap_or_default();
            return Err(BindError::NotOwned { namespace, claim, pod });
        }
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(BindError::Deleted);
    }
    let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).filter(|name| !name.is_empty());
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    name.filter(|_| phase == Some("Bound")).ok_or(BindError::Unbound)
}

/// The source of a persistent volume that is bound to a claim.
fn source(
    persistent: &PersistentVolume,
    claim: &PersistentVolumeClaim,
    read_only: bool,
) -> Result<VolumeSources, VolumeClaimError> {
    let pv = persistent.metadata.name.as_deref().unwrap_or_default();
    let Some(spec) = &persistent.spec else { return Err(VolumeClaimError::NoSource(pv.to_owned())) };
    let claimed = spec.claim_ref.as_ref().is_some_and(|reference| reference.uid == claim.metadata.uid);
    if !claimed {
        return Err(VolumeClaimError::Foreign(pv.to_owned()));
    }
    let migrated = csi::migrated(persistent)?;
    let persistent = migrated.as_ref().unwrap_or(persistent);
    let spec = persistent.spec.as_ref().unwrap_or(spec);
    if let Some(volume) = csi::Volume::persistent(persistent, read_only) {
        return Ok(VolumeSources::Csi(Box::new(volume.migrated(migrated.is_some()))));
    }
    let is_block = spec.volume_mode.as_deref() == Some("Block");
    if let Some(nfs) = spec.nfs.as_ref().filter(|_| !is_block) {
        return Ok(VolumeSources::Nfs(nfs.clone()));
    }
    if let Some(disk) = disk(persistent, read_only)? {
        return Ok(VolumeSources::Disk(Box::new(Disk { is_block, ..disk })));
    }
    if let Some(flex) = spec.flex_volume.as_ref().filter(|_| !is_block) {
        return Ok(VolumeSources::Flex(Box::new(FlexVolume::persistent(pv, flex, read_only))));
    }
    match (&spec.host_path, &spec.local) {
        (None, Some(local)) if is_block => Ok(VolumeSources::Device(local.path.clone().into())),
        (None, Some(local)) => Ok(VolumeSources::Local(local.path.clone().into())),
        (Some(source), _) if !is_block => Ok(VolumeSources::Path(source.clone())),
        _ => Err(VolumeClaimError::NoPlugin(pv.to_owned())),
    }
}

/// The disk of a persistent volume, if it is one.
fn disk(persistent: &PersistentVolume, read_only: bool) -> Result<Option<Disk>, FcError> {
    let Some(spec) = &persistent.spec else { return Ok(None) };
    let name = persistent.metadata.name.as_deref().unwrap_or_default();
    let options = spec.mount_options.clone().unwrap_or_default();
    if let Some(source) = &spec.iscsi {
        let (source, chap) = of_persistent(source);
        let target = DiskTarget::Iscsi(Box::new((IscsiTarget::new(name, &source), chap)));
        let kind = source.fs_type.unwrap_or_default();
        return Ok(Some(Disk { target, kind, read_only, options, is_block: false }));
    }
    let Some(source) = &spec.fc else { return Ok(None) };
    let kind = source.fs_type.clone().unwrap_or_default();
    Ok(Some(Disk { target: DiskTarget::Fc(FcTarget::new(source)?), kind, read_only, options, is_block: false }))
}

/// The disk of a pod's volume, if it is one.
pub(super) fn inline_disk(volume: &Volume) -> Result<Option<Disk>, FcError> {
    let disk = |target, kind: &Option<String>, read_only: Option<bool>| Disk {
        target,
        kind: kind.clone().unwrap_or_default(),
        read_only: read_only.unwrap_or(false),
        options: Vec::new(),
        is_block: false,
    };
    if let Some(source) = &volume.iscsi {
        let target = DiskTarget::Iscsi(Box::new((IscsiTarget::new(&volume.name, source), Chap::from(source))));
        return Ok(Some(disk(target, &source.fs_type, source.read_only)));
    }
    let Some(source) = &volume.fc else { return Ok(None) };
    Ok(Some(disk(DiskTarget::Fc(FcTarget::new(source)?), &source.fs_type, source.read_only)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(change: Value) -> PersistentVolumeClaim {
        let mut claim = json!({"metadata": {"name": "p-v", "uid": "c"}, "spec": {"volumeName": "pv"},
            "status": {"phase": "Bound"}});
        for (name, value) in change.as_object().expect("object") {
            claim[name] = value.clone();
        }
        serde_json::from_value(claim).expect("claim")
    }

    #[test]
    fn a_claim_has_to_be_bound_and_the_pods_own() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}})).expect("pod");
        let error = |text: &str| Err(text.to_owned());
        let owned = |uid: &str| {
            let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true});
            json!({"metadata": {"name": "p-v", "ownerReferences": [owner]}})
        };
        let foreign = error("PVC n/p-v was not created for pod n/p (pod is not owner)");
        for (change, made_for, expected) in [
            (json!({}), None, Ok("pv".to_owned())),
            (json!({"status": {"phase": "Pending"}}), None, error("PVC is not bound")),
            (json!({"spec": {}}), None, error("PVC is not bound")),
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), None, error("PVC is being deleted")),
            (owned("u"), Some(&pod), Ok("pv".to_owned())),
            (owned("other"), Some(&pod), foreign),
        ] {
            assert_eq!(bound(&claim(change.clone()), made_for).map_err(|e| e.to_string()), expected, "{change}");
        }
    }

    #[test]
    fn what_lies_on_the_node_is_a_path_on_it() {
        let pv = |uid: &str, kind: &str, source: Value| -> PersistentVolume {
            let spec = json!({"claimRef": {"uid": uid}, kind: source});
            serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).expect("volume")
        };
        let path = |pv: PersistentVolume| match source(&pv, &claim(json!({})), false).map_err(|e| e.to_string())? {
            VolumeSources::Path(source) => Ok::<_, String>((source.path, source.type_)),
            VolumeSources::Local(path) => Ok((path.display().to_string(), Some("Directory".to_owned()))),
            other => Err(format!("{other:?}")),
        };
        let made = || Some("DirectoryOrCreate".to_owned());
        let host_path = json!({"path": "/x", "type": "DirectoryOrCreate"});
        assert_eq!(path(pv("c", "hostPath", host_path.clone())), Ok(("/x".to_owned(), made())));
        assert_eq!(path(pv("c", "local", json!({"path": "/y"}))), Ok(("/y".to_owned(), Some("Directory".to_owned()))));
        let other = "found PV object pv with nil or unexpected ClaimRef.UID".to_owned();
        assert_eq!(path(pv("d", "hostPath", host_path)), Err(other));
        let nfs = source(&pv("c", "nfs", json!({"path": "/", "server": "s"})), &claim(json!({})), false);
        assert!(matches!(nfs, Ok(VolumeSources::Nfs(_))), "{nfs:?}");
        let old = pv("c", "awsElasticBlockStore", json!({"volumeID": "vol-1"}));
        let old = source(&old, &claim(json!({})), false);
        let is_drivers = matches!(&old, Ok(VolumeSources::Csi(volume)) if volume.driver == "ebs.csi.aws.com");
        assert!(is_drivers, "{old:?}");
        let disk = json!({"targetPortal": "192.0.2.1", "iqn": "iqn.x", "lun": 0});
        let found = source(&pv("c", "iscsi", disk.clone()), &claim(json!({})), true);
        assert!(matches!(&found, Ok(VolumeSources::Disk(disk)) if disk.read_only), "{found:?}");
        let mut block = pv("c", "iscsi", disk);
        block.spec.as_mut().expect("spec").volume_mode = Some("Block".to_owned());
        let found = source(&block, &claim(json!({})), false);
        assert!(matches!(&found, Ok(VolumeSources::Disk(disk)) if disk.is_block), "{found:?}");
        let flex = source(&pv("c", "flexVolume", json!({"driver": "d"})), &claim(json!({})), true);
        assert!(matches!(&flex, Ok(VolumeSources::Flex(flex)) if flex.read_only), "{flex:?}");
        let none = pv("c", "glusterfs", json!({"endpoints": "e", "path": "p"}));
        assert_eq!(path(none), Err("no volume plugin matched for PV pv".to_owned()));
        let mut device = pv("c", "local", json!({"path": "/dev/x"}));
        device.spec.as_mut().expect("spec").volume_mode = Some("Block".to_owned());
        let found = source(&device, &claim(json!({})), false).expect("a device");
        assert_eq!(found, VolumeSources::Device("/dev/x".into()));
    }

    #[test]
    fn devices_are_mapped_and_file_systems_are_mounted() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "containers": [{"name": "c", "volumeMounts": [{"name": "m", "mountPath": "/m"}]}],
            "initContainers": [{"name": "i", "volumeDevices": [{"name": "d", "devicePath": "/d"}]}],
            "ephemeralContainers": [{"name": "e", "volumeMounts": [{"name": "e", "mountPath": "/e"}]}]}}))
        .expect("a pod");
        let (mounted, mapped) = (Use { mounted: true, mapped: false }, Use { mounted: false, mapped: true });
        for (volume, expected) in [("m", mounted), ("d", mapped), ("e", mounted), ("x", Use::default())] {
            assert_eq!(Use::of(&pod, volume), expected, "{volume}");
        }
        let wrong = |mode, field| Err(format!("volume v has volumeMode {mode}, but is specified in {field}"));
        for (used, mode, expected) in [
            (mounted, None, Ok(())),
            (mounted, Some("Block"), wrong("Block", "volumeMounts")),
            (mapped, Some("Block"), Ok(())),
            (mapped, Some("Filesystem"), wrong("Filesystem", "volumeDevices")),
        ] {
            assert_eq!(used.check("v", mode).map_err(|error| error.to_string()), expected);
        }
    }
}
