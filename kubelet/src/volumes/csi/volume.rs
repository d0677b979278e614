//! CSI volumes as pods use them, and what drivers are told of them. Pure.

use super::driver::Capability;
use super::error::LifecycleError;
use super::v1;
use super::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode};
use crate::pods;
use crate::volumes::metrics::Plugin;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod, SecretReference, Volume as PodVolume};
use k8s_openapi::api::storage::v1::CSIDriver;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// Access mode of a volume that one pod alone may use.
const ONE_POD: &str = "ReadWriteOncePod";
const ONE_NODE: &str = "ReadWriteOnce";

/// Lives of volumes; upstream's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifecycle {
    /// Life of a persistent volume.
    Persistent,
    /// Life of a pod: the driver makes the volume when it is published.
    Ephemeral,
}

impl Lifecycle {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Persistent => "Persistent",
            Self::Ephemeral => "Ephemeral",
        }
    }
}

/// A secret that a driver is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SecretName {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// A volume of a driver, as a pod uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Name of the persistent volume, or that of an inline volume in its pod.
    pub name: String,
    /// The driver.
    pub driver: String,
    /// The driver's name of the volume.
    pub handle: String,
    pub(super) lifecycle: Lifecycle,
    pub(super) fs_type: String,
    pub(super) mount_options: Vec<String>,
    /// The first access mode of the persistent volume.
    pub(super) access_mode: String,
    pub(super) read_only: bool,
    /// A device rather than a file system.
    pub is_block: bool,
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) stage_secret: Option<SecretName>,
    pub(super) publish_secret: Option<SecretName>,
    pub(super) expand_secret: Option<SecretName>,
    /// Made for a plugin of old.
    pub(crate) is_migrated: bool,
    /// Name of the volume in the pod that uses it.
    pub(crate) used_as: String,
}

fn secret(reference: Option<&SecretReference>) -> Option<SecretName> {
    let reference = reference?;
    let name = reference.name.clone().filter(|name| !name.is_empty())?;
    Some(SecretName { namespace: reference.namespace.clone().unwrap_or_default(), name })
}

/// Hexadecimal SHA-256 of a text.
pub(super) fn digest(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Volume {
    /// The volume of a persistent volume with a CSI source; a pod may use it read-only.
    pub(crate) fn persistent(persistent: &PersistentVolume, read_only: bool) -> Option<Self> {
        let spec = persistent.spec.as_ref()?;
        let source = spec.csi.as_ref()?;
        let modes = spec.access_modes.as_deref().unwrap_or_default();
        Some(Self {
            name: persistent.metadata.name.clone().unwrap_or_default(),
            driver: source.driver.clone(),
            handle: source.volume_handle.clone(),
            lifecycle: Lifecycle::Persistent,
            fs_type: source.fs_type.clone().unwrap_or_default(),
            mount_options: spec.mount_options.clone().unwrap_or_default(),
            access_mode: modes.first().cloned().unwrap_or_else(|| ONE_NODE.to_owned()),
            read_only,
            is_block: spec.volume_mode.as_deref() == Some("Block"),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            stage_secret: secret(source.node_stage_secret_ref.as_ref()),
            publish_secret: secret(source.node_publish_secret_ref.as_ref()),
            expand_secret: secret(source.node_expand_secret_ref.as_ref()),
            is_migrated: false,
            used_as: String::new(),
        })
    }

    /// The inline volume of a pod.
    pub(crate) fn inline(pod: &Pod, volume: &PodVolume) -> Option<Self> {
        let source = volume.csi.as_ref()?;
        let publish_secret = source.node_publish_secret_ref.as_ref().filter(|secret| !secret.name.is_empty());
        let namespace = pods::namespace(pod).to_owned();
        Some(Self {
            name: volume.name.clone(),
            driver: source.driver.clone(),
            handle: format!("csi-{}", digest(&format!("{}{}", pods::uid(pod), volume.name))),
            lifecycle: Lifecycle::Ephemeral,
            fs_type: source.fs_type.clone().unwrap_or_default(),
            mount_options: Vec::new(),
            access_mode: ONE_NODE.to_owned(),
            read_only: source.read_only.unwrap_or(false),
            is_block: false,
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            stage_secret: None,
            publish_secret: publish_secret.map(|secret| SecretName { namespace, name: secret.name.clone() }),
            expand_secret: None,
            is_migrated: false,
            used_as: volume.name.clone(),
        })
    }

    /// Names the volume as a pod does.
    pub(crate) fn used_as(self, name: &str) -> Self {
        Self { used_as: name.to_owned(), ..self }
    }

    /// Reports whether it outlives the pod.
    pub(super) fn is_persistent(&self) -> bool {
        self.lifecycle == Lifecycle::Persistent
    }

    /// Marks the volume as made for a plugin of old, or not.
    pub(crate) fn migrated(self, is_migrated: bool) -> Self {
        Self { is_migrated, ..self }
    }

    /// The plugin as metrics name it.
    pub(crate) fn plugin(&self) -> Plugin {
        Plugin::driver(&self.driver, self.is_migrated)
    }

    /// Identity among all drivers' volumes.
    pub(super) fn key(&self) -> super::layout::Key {
        (self.driver.clone(), self.handle.clone())
    }

    /// Name in `volumesInUse` and `volumesAttached` of the node.
    pub(crate) fn unique_name(&self) -> String {
        unique_name(&self.driver, &self.handle)
    }

    /// Name of the VolumeAttachment of this volume on a node.
    pub(super) fn attachment(&self, node: &str) -> String {
        format!("csi-{}", digest(&format!("{}{}{node}", self.handle, self.driver)))
    }

    /// Reports whether the pod may not write it.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Reports whether a driver that is able to stages it: staging is for what outlives its pod.
    pub(super) fn is_staged(&self, able: &BTreeSet<Capability>) -> bool {
        self.lifecycle == Lifecycle::Persistent && able.contains(&Capability::StageUnstageVolume)
    }

    /// Reports whether one pod alone may use it.
    pub(super) fn is_of_one_pod(&self) -> bool {
        self.access_mode == ONE_POD
    }

    /// The capability that every call names. `group` is for drivers that give the volume to it themselves.
    pub(super) fn capability(&self, able: &BTreeSet<Capability>, group: Option<u32>) -> v1::VolumeCapability {
        let access_type = if self.is_block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume {
                fs_type: self.fs_type.clone(),
                mount_flags: self.mount_options.clone(),
                volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
            })
        };
        let mode = access_mode(&self.access_mode, able.contains(&Capability::SingleNodeMultiWriter));
        let access_mode = Some(AccessMode { mode: mode.into() });
        v1::VolumeCapability { access_type: Some(access_type), access_mode }
    }
}

/// Name of a driver's volume in the node's status.
pub(super) fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// A driver that tells pods of one node apart is told the narrower modes.
fn access_mode(mode: &str, tells_pods_apart: bool) -> Mode {
    match (mode, tells_pods_apart) {
        (ONE_NODE, true) => Mode::SingleNodeMultiWriter,
        (ONE_POD, true) => Mode::SingleNodeSingleWriter,
        (ONE_NODE | ONE_POD, false) => Mode::SingleNodeWriter,
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        _ => Mode::Unknown,
    }
}

/// Reports whether a driver's volumes are attached before they are mounted.
pub(super) fn needs_attachment(driver: Option<&CSIDriver>) -> bool {
    driver.and_then(|driver| driver.spec.attach_required).unwrap_or(true)
}

/// Refuses a volume of a life that its driver does not have. Upstream's `supportsVolumeLifecycleMode`.
pub(super) fn check_lifecycle(volume: &Volume, driver: Option<&CSIDriver>) -> Result<(), LifecycleError> {
    let (mode, name) = (volume.lifecycle.as_str(), volume.driver.clone());
    let Some(driver) = driver else {
        return match volume.lifecycle {
            Lifecycle::Persistent => Ok(()),
            Lifecycle::Ephemeral => Err(LifecycleError::NoDescription { mode, driver: name }),
        };
    };
    let modes = driver.spec.volume_lifecycle_modes.clone().filter(|modes| !modes.is_empty());
    let modes = modes.unwrap_or_else(|| vec![Lifecycle::Persistent.as_str().to_owned()]);
    if modes.iter().any(|known| known == mode) {
        return Ok(());
    }
    Err(LifecycleError::Other { mode, driver: name, known: modes })
}

/// Reports whether the kubelet gives the files of a volume to the pod's group. Upstream's `supportsFSGroup`.
pub(super) fn gives_to_group(volume: &Volume, driver: Option<&CSIDriver>) -> bool {
    if volume.read_only || volume.is_block {
        return false;
    }
    match driver.and_then(|driver| driver.spec.fs_group_policy.as_deref()) {
        Some("None") => false,
        Some("File") => true,
        // Without a type the driver does not own the file system, and a shared one is not one pod's to give.
        _ => !volume.fs_type.is_empty() && matches!(volume.access_mode.as_str(), ONE_NODE | ONE_POD),
    }
}

/// Facts of the pod for a driver that asks for them. Upstream's `getPodInfoAttrs`.
pub(super) fn pod_info(volume: &Volume, pod: &Pod, driver: Option<&CSIDriver>) -> BTreeMap<String, String> {
    if driver.and_then(|driver| driver.spec.pod_info_on_mount) != Some(true) {
        return BTreeMap::new();
    }
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone()).unwrap_or_default();
    let is_ephemeral = volume.lifecycle == Lifecycle::Ephemeral;
    [
        ("pod.name", pods::name(pod).to_owned()),
        ("pod.namespace", pods::namespace(pod).to_owned()),
        ("pod.uid", pods::uid(pod).to_owned()),
        ("serviceAccount.name", account),
        ("ephemeral", is_ephemeral.to_string()),
    ]
    .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value))
    .into()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A persistent volume `pv` of the driver `d`, with changes of its specification.
    pub(in crate::volumes::csi) fn persistent(change: Value) -> PersistentVolume {
        let mut spec = json!({"csi": {"driver": "d", "volumeHandle": "h"}, "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"}});
        for (name, value) in change.as_object().expect("object") {
            spec[name] = value.clone();
        }
        serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).expect("a volume")
    }

    pub(in crate::volumes::csi) fn driver(spec: Value) -> CSIDriver {
        serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).expect("a driver")
    }

    fn volume(change: Value) -> Volume {
        Volume::persistent(&persistent(change), false).expect("a volume")
    }

    fn pod() -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [], "serviceAccountName": "a",
            "volumes": [{"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}}]}}))
        .expect("a pod")
    }

    #[test]
    fn access_modes_are_as_narrow_as_the_driver_knows_them() {
        for (mode, apart, expected) in [
            ("ReadWriteOnce", false, Mode::SingleNodeWriter),
            ("ReadWriteOnce", true, Mode::SingleNodeMultiWriter),
            ("ReadWriteOncePod", false, Mode::SingleNodeWriter),
            ("ReadWriteOncePod", true, Mode::SingleNodeSingleWriter),
            ("ReadOnlyMany", true, Mode::MultiNodeReaderOnly),
            ("ReadWriteMany", false, Mode::MultiNodeMultiWriter),
            ("Other", false, Mode::Unknown),
        ] {
            assert_eq!(access_mode(mode, apart), expected, "{mode} {apart}");
        }
    }

    #[test]
    fn names_are_upstreams() {
        let volume = volume(json!({}));
        assert_eq!(volume.unique_name(), "kubernetes.io/csi/d^h");
        let attachment = "csi-c42cf57099d6443b605c16f111056170d3d4e01cedcbcbac71a93245953703cf";
        assert_eq!(volume.attachment("node"), attachment);
        let inline = Volume::inline(&pod(), &pod().spec.expect("spec").volumes.expect("volumes")[0]).expect("inline");
        assert_eq!(inline.handle, "csi-e6184ce10e266134fdcfa401e8f1a95005bcd4f18d16b62b757323e2833fe9a9");
        assert_eq!(inline.publish_secret, Some(SecretName { namespace: "n".to_owned(), name: "s".to_owned() }));
    }

    #[test]
    fn lives_are_those_of_the_driver() {
        let inline =
            || Volume::inline(&pod(), &pod().spec.expect("spec").volumes.expect("volumes")[0]).expect("inline");
        let no_object = "volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)";
        let other = "volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])";
        let not_persistent = "volume mode \"Persistent\" not supported by driver d (only supports [\"Ephemeral\"])";
        for (volume, object, expected) in [
            (volume(json!({})), None, Ok(())),
            (inline(), None, Err(no_object)),
            (volume(json!({})), Some(json!({})), Ok(())),
            (inline(), Some(json!({})), Err(other)),
            (inline(), Some(json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]})), Ok(())),
            (volume(json!({})), Some(json!({"volumeLifecycleModes": ["Ephemeral"]})), Err(not_persistent)),
        ] {
            let object = object.map(driver);
            let found = check_lifecycle(&volume, object.as_ref()).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{object:?}");
        }
    }

    #[test]
    fn the_group_is_given_what_the_policy_says() {
        let typed =
            |mode: &str| json!({"accessModes": [mode], "csi": {"driver": "d", "volumeHandle": "h", "fsType": "ext4"}});
        for (spec, policy, expected) in [
            (typed("ReadWriteOnce"), None, true),
            (typed("ReadWriteOncePod"), Some("ReadWriteOnceWithFSType"), true),
            (typed("ReadWriteMany"), None, false),
            (typed("ReadWriteMany"), Some("File"), true),
            (typed("ReadWriteOnce"), Some("None"), false),
            (json!({}), None, false),
            (json!({}), Some("File"), true),
            (json!({"volumeMode": "Block"}), Some("File"), false),
        ] {
            let object = policy.map(|policy| driver(json!({"fsGroupPolicy": policy})));
            assert_eq!(gives_to_group(&volume(spec.clone()), object.as_ref()), expected, "{spec} {policy:?}");
        }
        let read_only = Volume::persistent(&persistent(typed("ReadWriteOnce")), true).expect("a volume");
        assert!(!gives_to_group(&read_only, None));
    }

    #[test]
    fn the_driver_learns_of_the_pod_if_it_asks() {
        let volume = volume(json!({}));
        assert!(pod_info(&volume, &pod(), None).is_empty());
        let told = pod_info(&volume, &pod(), Some(&driver(json!({"podInfoOnMount": true}))));
        let expected = [
            ("csi.storage.k8s.io/ephemeral", "false"),
            ("csi.storage.k8s.io/pod.name", "p"),
            ("csi.storage.k8s.io/pod.namespace", "n"),
            ("csi.storage.k8s.io/pod.uid", "u"),
            ("csi.storage.k8s.io/serviceAccount.name", "a"),
        ];
        assert_eq!(told, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    }
}
