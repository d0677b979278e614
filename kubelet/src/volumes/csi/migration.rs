//! Volumes of plugins that were once part of Kubernetes, as the drivers that took over know them. Pure; answers for
//! upstream's `csimigration` and, with [`shared::csi`], for its `csi-translation-lib`.

use super::error::MigrationError;
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec, SecretReference, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use shared::csi::{Known, known};
use std::collections::BTreeMap;

const AUTH_NAME: &str = "openstorage.io/auth-secret-name";
const AUTH_NAMESPACE: &str = "openstorage.io/auth-secret-namespace";

fn attributes(all: &[(&str, Option<&str>)]) -> Option<BTreeMap<String, String>> {
    Some(all.iter().filter_map(|(key, value)| Some(((*key).to_owned(), (*value)?.to_owned()))).collect())
}

/// The secret that every call about a Portworx volume gets, if its annotations name one.
fn portworx_secret(volume: &PersistentVolume) -> Option<SecretReference> {
    let annotations = volume.metadata.annotations.as_ref()?;
    let (name, namespace) = (annotations.get(AUTH_NAME)?.clone(), annotations.get(AUTH_NAMESPACE)?.clone());
    Some(SecretReference { name: Some(name), namespace: Some(namespace) })
}

/// The source of a translated volume without its driver and handle; none for a volume that is of no plugin of old.
fn source(volume: &PersistentVolume, spec: &PersistentVolumeSpec) -> Option<CSIPersistentVolumeSource> {
    let plain = CSIPersistentVolumeSource::default();
    if let Some(ebs) = &spec.aws_elastic_block_store {
        let partition = ebs.partition.unwrap_or(0).to_string();
        let (read_only, fs_type) = (ebs.read_only, ebs.fs_type.clone());
        let volume_attributes = attributes(&[("partition", Some(&partition))]);
        return Some(CSIPersistentVolumeSource { read_only, fs_type, volume_attributes, ..plain });
    }
    if let Some(disk) = &spec.gce_persistent_disk {
        let partition = disk.partition.filter(|number| *number != 0).map(|number| number.to_string());
        let (read_only, fs_type) = (disk.read_only, disk.fs_type.clone());
        let volume_attributes = attributes(&[("partition", Some(&partition.unwrap_or_default()))]);
        return Some(CSIPersistentVolumeSource { read_only, fs_type, volume_attributes, ..plain });
    }
    if let Some(disk) = &spec.azure_disk {
        let (caching, fs_type) = (disk.caching_mode.as_deref(), disk.fs_type.as_deref());
        let volume_attributes = attributes(&[("cachingmode", caching), ("fstype", fs_type), ("kind", Some("Managed"))]);
        let (read_only, fs_type) = (disk.read_only, disk.fs_type.clone());
        return Some(CSIPersistentVolumeSource { read_only, fs_type, volume_attributes, ..plain });
    }
    if let Some(share) = &spec.azure_file {
        let claimed = spec.claim_ref.as_ref().and_then(|claim| claim.namespace.clone());
        let namespace = share.secret_namespace.clone().or(claimed);
        return Some(CSIPersistentVolumeSource {
            read_only: share.read_only,
            node_stage_secret_ref: Some(SecretReference { name: Some(share.secret_name.clone()), namespace }),
            volume_attributes: attributes(&[("sharename", Some(&share.share_name))]),
            ..plain
        });
    }
    if let Some(cinder) = &spec.cinder {
        let (read_only, fs_type) = (cinder.read_only, cinder.fs_type.clone());
        return Some(CSIPersistentVolumeSource { read_only, fs_type, ..plain });
    }
    if let Some(vsphere) = &spec.vsphere_volume {
        let policy = vsphere.storage_policy_name.as_deref().filter(|policy| !policy.is_empty());
        let volume_attributes = attributes(&[("storagepolicyname", policy)]);
        return Some(CSIPersistentVolumeSource { fs_type: vsphere.fs_type.clone(), volume_attributes, ..plain });
    }
    let portworx = spec.portworx_volume.as_ref()?;
    let secret = portworx_secret(volume);
    Some(CSIPersistentVolumeSource {
        fs_type: portworx.fs_type.clone(),
        node_stage_secret_ref: secret.clone(),
        node_publish_secret_ref: secret.clone(),
        node_expand_secret_ref: secret,
        ..plain
    })
}

/// A persistent volume of a plugin of old as its driver knows it; none for any other.
///
/// # Errors
/// It cannot be translated; upstream's text.
pub(crate) fn persistent(volume: &PersistentVolume) -> Result<Option<PersistentVolume>, MigrationError> {
    let Some(spec) = &volume.spec else { return Ok(None) };
    let Some(mut csi) = source(volume, spec) else { return Ok(None) };
    let Some(Known { driver, handle, modes }) = known(volume)? else {
        return Ok(None);
    };
    (csi.driver, csi.volume_handle) = (driver, handle);
    let mut translated = volume.clone();
    let spec = translated.spec.get_or_insert_default();
    (spec.csi, spec.access_modes) = (Some(csi), Some(modes));
    Ok(Some(translated))
}

/// The volume that stands for a pod's of a plugin of old; none for any other.
///
/// # Errors
/// It cannot be translated; upstream's text.
pub(crate) fn inline(volume: &Volume, namespace: &str) -> Result<Option<PersistentVolume>, MigrationError> {
    let translated = shared::csi::inline(volume, namespace)?;
    Ok(translated.map(|(name, spec)| PersistentVolume {
        metadata: ObjectMeta { name: Some(name), ..ObjectMeta::default() },
        spec: Some(spec),
        ..PersistentVolume::default()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Volumes with the sources that upstream's library makes of them, without what only controllers are told.
    fn cases() -> Vec<(Value, Value)> {
        let (name, namespace) = ("openstorage.io/auth-secret-name", "openstorage.io/auth-secret-namespace");
        let secret = json!({"name": "s", "namespace": "n"});
        vec![
            (
                json!({"spec": {"awsElasticBlockStore": {"volumeID": "aws:///vol-1", "fsType": "xfs", "partition": 3,
                    "readOnly": true}}}),
                json!({"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1", "fsType": "xfs", "readOnly": true,
                    "volumeAttributes": {"partition": "3"}}),
            ),
            (
                json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "us-central1-a"}},
                    "spec": {"gcePersistentDisk": {"pdName": "d"}}}),
                json!({"driver": "pd.csi.storage.gke.io", "volumeAttributes": {"partition": ""},
                    "volumeHandle": "projects/UNSPECIFIED/zones/us-central1-a/disks/d"}),
            ),
            (
                json!({"spec": {"azureDisk": {"diskName": "n", "diskURI": "u", "cachingMode": "None", "fsType": "ext4"}}}),
                json!({"driver": "disk.csi.azure.com", "volumeHandle": "u", "fsType": "ext4",
                    "volumeAttributes": {"cachingmode": "None", "fstype": "ext4", "kind": "Managed"}}),
            ),
            (
                json!({"metadata": {"name": "pv"}, "spec": {"claimRef": {"namespace": "n"},
                    "azureFile": {"secretName": "s", "shareName": "sh"}}}),
                json!({"driver": "file.csi.azure.com", "volumeHandle": "#s#sh#pv#n", "nodeStageSecretRef": secret,
                    "volumeAttributes": {"sharename": "sh"}}),
            ),
            (
                json!({"spec": {"cinder": {"volumeID": "v", "fsType": "ext3"}}}),
                json!({"driver": "cinder.csi.openstack.org", "volumeHandle": "v", "fsType": "ext3"}),
            ),
            (
                json!({"spec": {"vsphereVolume": {"volumePath": "[d] v", "storagePolicyName": "gold"}}}),
                json!({"driver": "csi.vsphere.vmware.com", "volumeHandle": "[d] v",
                    "volumeAttributes": {"storagepolicyname": "gold"}}),
            ),
            (
                json!({"metadata": {"annotations": {name: "s", namespace: "n"}},
                    "spec": {"portworxVolume": {"volumeID": "v"}}}),
                json!({"driver": "pxd.portworx.com", "volumeHandle": "v", "nodeStageSecretRef": secret,
                    "nodePublishSecretRef": secret, "nodeExpandSecretRef": secret}),
            ),
        ]
    }

    #[test]
    fn persistent_volumes_of_plugins_of_old_are_their_drivers() {
        for (volume, expected) in cases() {
            let volume: PersistentVolume = serde_json::from_value(volume).expect("a volume");
            let found = persistent(&volume).expect("translated").expect("a volume of old");
            let csi = serde_json::to_value(found.spec.and_then(|spec| spec.csi)).expect("a source");
            assert_eq!(csi, expected);
        }
        let other = json!({"spec": {"csi": {"driver": "d", "volumeHandle": "h"}}});
        assert_eq!(persistent(&serde_json::from_value(other).expect("a volume")), Ok(None));
        let odd = json!({"spec": {"awsElasticBlockStore": {"volumeID": "aws://zone/x"}}});
        let text = "failed to translate in-tree pv to CSI: failed to translate Kubernetes ID to EBS Volume ID Invalid format \
                    for AWS volume (aws://zone/x)";
        let refused = persistent(&serde_json::from_value(odd).expect("a volume")).expect_err("odd");
        assert_eq!(refused.to_string(), text);
    }

    #[test]
    fn volumes_of_pods_stand_for_persistent_ones() {
        let volume = json!({"name": "v", "awsElasticBlockStore": {"volumeID": "vol-1"}});
        let found = inline(&serde_json::from_value(volume).expect("a volume"), "n").expect("translated");
        let found = found.expect("a volume of old");
        assert_eq!(found.metadata.name.as_deref(), Some("ebs.csi.aws.com-vol-1"));
        let own = json!({"name": "v", "csi": {"driver": "d"}});
        assert_eq!(inline(&serde_json::from_value(own).expect("a volume"), "n"), Ok(None));
    }
}
