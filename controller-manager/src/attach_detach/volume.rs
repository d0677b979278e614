//! Driver that attaches a volume, and the names under which the attachment is known. Answers for upstream's
//! `pkg/volume/csi/csi_attacher.go` (`getAttachmentName`).

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeSpec, Volume};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use shared::csi;

use crate::engine::object;

/// The prefix of a CSI volume's name in a node's status.
pub const CSI_PREFIX: &str = "kubernetes.io/csi/";

/// A volume that a CSI driver may have to attach.
#[derive(Clone, Debug, PartialEq)]
pub struct Attachable {
    /// The PersistentVolume, or what stands for it where a pod names a disk itself.
    pub volume: String,
    /// The CSI driver, of the volume itself or of the in-tree kind that it replaces.
    pub driver: String,
    /// The driver's name of the volume.
    pub handle: String,
    /// The volume can be attached to a single node only.
    pub exclusive: bool,
    /// PersistentVolume spec of a disk that a pod names itself.
    pub inline: Option<Arc<PersistentVolumeSpec>>,
}

/// Reports whether one node at a time may have a volume with these access modes. Of one without any the driver knows.
#[must_use]
pub fn exclusive(modes: &[String]) -> bool {
    !modes.is_empty() && !modes.iter().any(|m| m == "ReadWriteMany" || m == "ReadOnlyMany")
}

impl Attachable {
    /// None when no CSI driver is in charge of the volume.
    #[must_use]
    pub fn of(volume: &PersistentVolume) -> Option<Self> {
        let name = object::name(&volume.metadata);
        let found = csi::known(volume).inspect_err(|error| tracing::debug!(volume = name, %error, "no driver"));
        let csi::Known { driver, handle, modes } = found.ok()??;
        Some(Self { volume: name.to_owned(), driver, handle, exclusive: exclusive(&modes), inline: None })
    }

    /// A disk that a pod of `namespace` names itself.
    #[must_use]
    pub fn of_disk(disk: &Volume, namespace: &str) -> Option<Self> {
        let found = csi::inline(disk, namespace);
        let found = found.inspect_err(|error| tracing::debug!(volume = disk.name, namespace, %error, "no driver"));
        let (volume, spec) = found.ok()??;
        Self::of_spec(volume, Arc::new(spec))
    }

    fn of_spec(volume: String, spec: Arc<PersistentVolumeSpec>) -> Option<Self> {
        let csi = spec.csi.as_ref()?;
        Some(Self {
            volume,
            driver: csi.driver.clone(),
            handle: csi.volume_handle.clone(),
            exclusive: exclusive(spec.access_modes.as_deref().unwrap_or_default()),
            inline: Some(spec),
        })
    }

    /// Returns the volume of an attachment, where it is known.
    pub fn attached(
        attachment: &VolumeAttachment,
        volume: impl FnOnce(&str) -> Option<Arc<PersistentVolume>>,
    ) -> Option<Self> {
        let source = &attachment.spec.source;
        match (&source.persistent_volume_name, &source.inline_volume_spec) {
            (Some(name), _) => Self::of(&*volume(name)?),
            (None, Some(spec)) => Self::of_spec(String::new(), Arc::new(spec.clone())),
            (None, None) => None,
        }
    }

    /// Key that attachments of the same volume have in common: [`key_of`] them.
    #[must_use]
    pub fn key(&self) -> String {
        if self.inline.is_some() { self.unique_name() } else { self.volume.clone() }
    }

    /// The source of an attachment.
    #[must_use]
    pub fn source(&self) -> Value {
        match &self.inline {
            Some(spec) => json!({"inlineVolumeSpec": &**spec}),
            None => json!({"persistentVolumeName": self.volume}),
        }
    }

    /// The name in `status.volumesAttached` and `status.volumesInUse` of a node.
    #[must_use]
    pub fn unique_name(&self) -> String {
        unique_name(&self.driver, &self.handle)
    }

    /// The name of the VolumeAttachment, which kubelet and drivers compute, too.
    #[must_use]
    pub fn attachment(&self, node: &str) -> String {
        given_name(&self.driver, &self.handle, node)
    }
}

fn given_name(driver: &str, handle: &str, node: &str) -> String {
    let mut out = "csi-".to_owned();
    for byte in Sha256::new().chain_update(handle).chain_update(driver).chain_update(node).finalize() {
        // Writing to a string cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// Returns the name of the PersistentVolume of an attachment.
#[must_use]
pub fn of(attachment: &VolumeAttachment) -> Option<&str> {
    attachment.spec.source.persistent_volume_name.as_deref()
}

/// Returns the one of a node's unique names of volumes that is of an attachment with a given name.
fn name_among<'a>(attachment: &str, node: &str, mut names: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    names.find(|name| {
        let parts = name.strip_prefix(CSI_PREFIX).and_then(|rest| rest.split_once('^'));
        parts.is_some_and(|(driver, handle)| given_name(driver, handle, node) == attachment)
    })
}

/// Returns the unique name of an unknown volume out of what is known of its node, and of what was left mounted there; empty
/// where neither has it.
#[must_use]
pub fn name_known(attachment: &str, (node, known): (&str, Option<&Node>), left: Option<&Vec<String>>) -> String {
    let names = known.into_iter().flat_map(names_on).chain(left.into_iter().flatten());
    name_among(attachment, node, names).cloned().unwrap_or_default()
}

/// Returns the unique name by which a node uses a volume: its own, or, where the volume is unknown, one that its attachment
/// to the node is named after.
#[must_use]
pub fn used_as<'a>(unique: &str, (attachment, node): (&str, &str), in_use: &'a HashSet<String>) -> Option<&'a String> {
    if unique.is_empty() { name_among(attachment, node, in_use.iter()) } else { in_use.get(unique) }
}

/// Returns the unique names that a node's status has.
fn names_on(node: &Node) -> impl Iterator<Item = &String> {
    let status = node.status.iter();
    status.flat_map(|status| {
        let attached = status.volumes_attached.iter().flatten().map(|volume| &volume.name);
        status.volumes_in_use.iter().flatten().chain(attached)
    })
}

fn unique_name(driver: &str, handle: &str) -> String {
    format!("{CSI_PREFIX}{driver}^{handle}")
}

/// See [`Attachable::key`].
#[must_use]
pub fn key_of(attachment: &VolumeAttachment) -> String {
    let source = &attachment.spec.source;
    let inline = || source.inline_volume_spec.as_ref()?.csi.as_ref();
    let name = || inline().map(|csi| unique_name(&csi.driver, &csi.volume_handle));
    source.persistent_volume_name.clone().or_else(name).unwrap_or_default()
}

/// Reports whether the name is one that [`Attachable::attachment`] gives: attachments that others named are left alone.
#[must_use]
pub fn is_given_name(name: &str) -> bool {
    let hash = name.strip_prefix("csi-").unwrap_or_default();
    hash.len() == 64 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A volume that is not known any more, or not yet, is still mounted where the node says so.
    #[test]
    fn attachments_are_found_in_a_nodes_status_by_their_names() {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n1"}, "status": {
            "volumesInUse": ["kubernetes.io/csi/d.example.com^a", "kubernetes.io/fc/x"],
            "volumesAttached": [{"name": "kubernetes.io/csi/d.example.com^b", "devicePath": ""}]}}))
        .expect("a node");
        let found = |handle: &str| name_among(&given_name("d.example.com", handle, "n1"), "n1", names_on(&node));
        assert_eq!(found("a").map(String::as_str), Some("kubernetes.io/csi/d.example.com^a"));
        assert_eq!(found("b").map(String::as_str), Some("kubernetes.io/csi/d.example.com^b"));
        assert_eq!(found("c"), None);
    }

    fn volume(spec: Value) -> PersistentVolume {
        serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).expect("volume")
    }

    #[test]
    fn names() {
        let csi =
            json!({"csi": {"driver": "hostpath.csi.k8s.io", "volumeHandle": "h1"}, "accessModes": ["ReadWriteOnce"]});
        let a = Attachable::of(&volume(csi)).expect("attachable");
        assert_eq!(a.unique_name(), "kubernetes.io/csi/hostpath.csi.k8s.io^h1");
        // sha256("h1hostpath.csi.k8s.ion1")
        let name = a.attachment("n1");
        assert_eq!((name.len(), &name[..4], a.exclusive), (68, "csi-", true));
        assert_ne!(name, a.attachment("n2"));
        assert!(is_given_name(&name));
        for other in ["va-e2e-x2z4p", "csi-", "csi-abc", &name[4..], &name.to_uppercase()] {
            assert!(!is_given_name(other), "{other}");
        }
    }

    #[test]
    fn who_shares_a_volume() {
        let cinder = |modes: &[&str]| {
            Attachable::of(&volume(json!({"cinder": {"volumeID": "c"}, "accessModes": modes}))).expect("attachable")
        };
        assert_eq!(cinder(&[]).unique_name(), "kubernetes.io/csi/cinder.csi.openstack.org^c");
        for (modes, alone) in
            [(&[][..], false), (&["ReadWriteOnce"], true), (&["ReadWriteOnce", "ReadOnlyMany"], false)]
        {
            assert_eq!(cinder(modes).exclusive, alone, "{modes:?}");
        }
        assert_eq!(Attachable::of(&volume(json!({"hostPath": {"path": "/x"}}))), None);
    }

    #[test]
    fn disks_that_pods_name() {
        let disk = serde_json::from_value(json!({"name": "v", "cinder": {"volumeID": "c"}})).expect("volume");
        let a = Attachable::of_disk(&disk, "ns").expect("attachable");
        assert_eq!((a.volume.as_str(), a.exclusive), ("cinder.csi.openstack.org-c", true));
        let attachment: VolumeAttachment = serde_json::from_value(json!({"metadata": {"name": "a"},
            "spec": {"attacher": a.driver, "nodeName": "n", "source": a.source()}}))
        .expect("attachment");
        assert_eq!(attachment.spec.source.inline_volume_spec.as_ref(), a.inline.as_deref());
        assert_eq!(key_of(&attachment), a.key());
        let seen = Attachable::attached(&attachment, |_| None).expect("attachable");
        assert_eq!(seen.attachment("n"), a.attachment("n"));
        let pv = volume(json!({"cinder": {"volumeID": "c"}}));
        assert_eq!(Attachable::of(&pv).expect("attachable").attachment("n"), a.attachment("n"), "the same disk");
        let other = serde_json::from_value(json!({"name": "v", "emptyDir": {}})).expect("volume");
        assert_eq!(Attachable::of_disk(&other, "ns"), None);
    }
}
