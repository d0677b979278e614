//! Which driver attaches a volume, and under which names the attachment is known.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec};
use sha2::{Digest, Sha256};

use crate::engine::object;

/// The prefix of a CSI volume's name in a node's status.
pub const CSI_PREFIX: &str = "kubernetes.io/csi/";

/// A volume that a CSI driver may have to attach.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attachable {
    /// The PersistentVolume.
    pub volume: String,
    /// The CSI driver, of the volume itself or of the in-tree kind that it replaces.
    pub driver: String,
    /// The driver's name of the volume.
    pub handle: String,
    /// Whether one node at a time may have it.
    pub exclusive: bool,
}

impl Attachable {
    /// None when no CSI driver is in charge of the volume.
    #[must_use]
    pub fn of(volume: &PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let (driver, handle) = source(spec, volume)?;
        let modes = spec.access_modes.as_deref().unwrap_or_default();
        let shared = modes.iter().any(|m| m == "ReadWriteMany" || m == "ReadOnlyMany");
        Some(Self {
            volume: object::name(&volume.metadata).to_owned(),
            driver,
            handle,
            exclusive: !modes.is_empty() && !shared,
        })
    }

    /// The name in `status.volumesAttached` and `status.volumesInUse` of a node.
    #[must_use]
    pub fn unique_name(&self) -> String {
        format!("{CSI_PREFIX}{}^{}", self.driver, self.handle)
    }

    /// The name of the VolumeAttachment, which kubelet and drivers compute, too.
    #[must_use]
    pub fn attachment(&self, node: &str) -> String {
        let mut out = "csi-".to_owned();
        let hash = Sha256::new().chain_update(&self.handle).chain_update(&self.driver).chain_update(node).finalize();
        for byte in hash {
            // Writing to a string cannot fail.
            let _ = write!(out, "{byte:02x}");
        }
        out
    }
}

/// Whether an attachment may have been named by [`Attachable::attachment`]; those that others made are theirs.
#[must_use]
pub fn names_attachment(name: &str) -> bool {
    name.strip_prefix("csi-").is_some_and(|hash| hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Driver and handle; in-tree kinds that were moved to CSI are translated as upstream's library does.
fn source(spec: &PersistentVolumeSpec, volume: &PersistentVolume) -> Option<(String, String)> {
    let pair = |driver: &str, handle: &str| Some((driver.to_owned(), handle.to_owned()));
    if let Some(csi) = &spec.csi {
        return pair(&csi.driver, &csi.volume_handle);
    }
    if let Some(ebs) = &spec.aws_elastic_block_store {
        return pair("ebs.csi.aws.com", ebs.volume_id.rsplit('/').next().unwrap_or_default());
    }
    if let Some(disk) = &spec.gce_persistent_disk {
        let zone = ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"]
            .into_iter()
            .find_map(|l| object::label(&volume.metadata, l));
        let place = match zone.map(|z| z.split("__").collect::<Vec<_>>()) {
            None => "zones/UNSPECIFIED".to_owned(),
            Some(zones) => match zones.as_slice() {
                [zone] => format!("zones/{zone}"),
                // A disk in two zones belongs to their region.
                [zone, ..] => format!("regions/{}", zone.rsplit_once('-').map_or(*zone, |(region, _)| region)),
                [] => "zones/UNSPECIFIED".to_owned(),
            },
        };
        return pair("pd.csi.storage.gke.io", &format!("projects/UNSPECIFIED/{place}/disks/{}", disk.pd_name));
    }
    if let Some(disk) = &spec.azure_disk {
        return pair("disk.csi.azure.com", &disk.disk_uri);
    }
    if let Some(cinder) = &spec.cinder {
        return pair("cinder.csi.openstack.org", &cinder.volume_id);
    }
    if let Some(vsphere) = &spec.vsphere_volume {
        return pair("csi.vsphere.vmware.com", &vsphere.volume_path);
    }
    if let Some(portworx) = &spec.portworx_volume {
        return pair("pxd.portworx.com", &portworx.volume_id);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(spec: Value) -> PersistentVolume {
        serde_json::from_value(
            json!({"metadata": {"name": "pv", "labels": {"topology.kubernetes.io/zone": "r1-a__r1-b"}},
            "spec": spec}),
        )
        .expect("volume")
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
        assert!(names_attachment(&name));
        for foreign in ["e2e-va-1", "csi-1", "csi-", &name[1..]] {
            assert!(!names_attachment(foreign), "{foreign}");
        }
    }

    #[test]
    fn in_tree_kinds() {
        for (spec, want) in [
            (json!({"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-1"}}), Some("ebs.csi.aws.com^vol-1")),
            (
                json!({"gcePersistentDisk": {"pdName": "d"}}),
                Some("pd.csi.storage.gke.io^projects/UNSPECIFIED/regions/r1/disks/d"),
            ),
            (json!({"cinder": {"volumeID": "c"}}), Some("cinder.csi.openstack.org^c")),
            (json!({"hostPath": {"path": "/x"}}), None),
        ] {
            let got = Attachable::of(&volume(spec.clone())).map(|a| format!("{}^{}", a.driver, a.handle));
            assert_eq!(got.as_deref(), want, "{spec}");
        }
    }
}
