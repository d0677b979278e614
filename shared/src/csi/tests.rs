//! Comparison with upstream's library (v0.35) over the same volumes.

use super::*;
use serde_json::{Value, json};

fn of(labels: Value, spec: Value) -> Result<Option<Known>, Untranslatable> {
    let volume = json!({"metadata": {"name": "pv", "labels": labels}, "spec": spec});
    known(&serde_json::from_value(volume).expect("volume"))
}

fn shown(spec: Value) -> String {
    match of(json!({}), spec) {
        Ok(Some(k)) => format!("{} {} {}", k.driver, k.handle, k.modes.join(",")),
        Ok(None) => "none".to_owned(),
        Err(e) => e.to_string(),
    }
}

#[test]
fn volumes() {
    let ebs = |id: &str| json!({"awsElasticBlockStore": {"volumeID": id}, "accessModes": ["ReadWriteOnce"]});
    let pd = |modes: &[&str]| json!({"gcePersistentDisk": {"pdName": "d"}, "accessModes": modes});
    let disk = |kind: &str| json!({"azureDisk": {"diskName": "n", "diskURI": "u", "kind": kind}});
    let share = |extra: Value| {
        let mut share = json!({"secretName": "azure-storage-account-acc-secret", "shareName": "sh"});
        share.as_object_mut().expect("map").extend(extra.as_object().expect("map").clone());
        share
    };
    let unplaced = "pd.csi.storage.gke.io projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d";
    for (spec, want) in [
        (json!({"csi": {"driver": "d", "volumeHandle": "h"}, "accessModes": ["ReadWriteMany"]}), "d h ReadWriteMany"),
        (ebs("vol-1"), "ebs.csi.aws.com vol-1 ReadWriteOnce"),
        (ebs("aws://us-east-1a/vol-1"), "ebs.csi.aws.com vol-1 ReadWriteOnce"),
        (ebs("aws:///vol-1"), "ebs.csi.aws.com vol-1 ReadWriteOnce"),
        (ebs("us-east-1a/vol-1"), "ebs.csi.aws.com us-east-1a/vol-1 ReadWriteOnce"),
        (
            ebs("aws://us-east-1a/vol-1/x"),
            "failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws://us-east-1a/vol-1/x)",
        ),
        (pd(&["ReadWriteOnce", "ReadOnlyMany"]), &format!("{unplaced} ReadWriteOnce")),
        (pd(&["ReadWriteMany"]), &format!("{unplaced} ReadWriteOnce")),
        (pd(&["ReadOnlyMany"]), &format!("{unplaced} ReadOnlyMany")),
        (disk("Managed"), "disk.csi.azure.com u "),
        (disk("Shared"), "kind(Shared) is not supported in csi migration"),
        (json!({"azureFile": share(json!({"secretNamespace": "sn"}))}), "file.csi.azure.com #acc#sh#pv#sn "),
        (json!({"azureFile": share(json!({})), "claimRef": {"namespace": "cn"}}), "file.csi.azure.com #acc#sh#pv#cn "),
        (
            json!({"azureFile": share(json!({}))}),
            "could not find a secret namespace in PersistentVolumeSource or ClaimRef",
        ),
        (json!({"cinder": {"volumeID": "c"}}), "cinder.csi.openstack.org c "),
        (json!({"vsphereVolume": {"volumePath": "[ds] a/b.vmdk"}}), "csi.vsphere.vmware.com [ds] a/b.vmdk "),
        (json!({"portworxVolume": {"volumeID": "p"}}), "pxd.portworx.com p "),
        (json!({"hostPath": {"path": "/x"}}), "none"),
    ] {
        assert_eq!(shown(spec.clone()), want, "{spec}");
    }
}

#[test]
fn places_of_disks() {
    let [(new, _), (old, _)] = PLACES;
    for (labels, want) in [
        (json!({new: "us-central1-a"}), Ok("zones/us-central1-a")),
        (json!({new: "us-central1-a", old: "us-central1-b"}), Ok("zones/us-central1-b")),
        (json!({new: "us-central1-a", old: ""}), Ok("zones/us-central1-a")),
        (json!({new: "us-central1-a__us-central1-b"}), Ok("regions/us-central1")),
        (json!({new: "r1-a__r1-b"}), Err(Untranslatable::Zone("r1-a".into()))),
        (json!({new: "us-central1-a__us-west1-b"}), Err(Untranslatable::Regions("us-central1 us-west1".into()))),
    ] {
        let got = of(labels.clone(), json!({"gcePersistentDisk": {"pdName": "d"}}));
        let handle = got.map(|k| k.map(|k| k.handle).unwrap_or_default());
        assert_eq!(handle, want.map(|place| format!("projects/UNSPECIFIED/{place}/disks/d")), "{labels}");
    }
}

#[test]
fn volumes_in_pods() {
    let csi = |driver: &str, handle: &str, extra: Value, mode: &str| {
        let mut csi = json!({"driver": driver, "volumeHandle": handle});
        csi.as_object_mut().expect("map").extend(extra.as_object().expect("map").clone());
        json!({"csi": csi, "accessModes": [mode], "volumeMode": "Filesystem"})
    };
    let partition = |p: &str| json!({"volumeAttributes": {"partition": p}});
    for (source, name, want) in [
        (
            json!({"awsElasticBlockStore": {"volumeID": "vol-1", "fsType": "ext4", "partition": 2, "readOnly": true}}),
            "ebs.csi.aws.com-vol-1",
            csi(
                AWS_EBS,
                "vol-1",
                json!({"fsType": "ext4", "readOnly": true, "volumeAttributes": {"partition": "2"}}),
                ONE_WRITER,
            ),
        ),
        (
            json!({"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-1"}}),
            "ebs.csi.aws.com-vol-1",
            csi(AWS_EBS, "vol-1", partition("0"), ONE_WRITER),
        ),
        (
            json!({"gcePersistentDisk": {"pdName": "d"}}),
            "pd.csi.storage.gke.io-d",
            csi(GCE_PD, "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d", partition(""), ONE_WRITER),
        ),
        (
            json!({"gcePersistentDisk": {"pdName": "d", "readOnly": true}}),
            "pd.csi.storage.gke.io-d",
            csi(
                GCE_PD,
                "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
                json!({"readOnly": true, "volumeAttributes": {"partition": ""}}),
                READERS,
            ),
        ),
        (
            json!({"azureDisk": {"diskName": "n", "diskURI": "u", "cachingMode": "ReadOnly", "fsType": "ext4"}}),
            "u",
            csi(
                AZURE_DISK,
                "u",
                json!({"fsType": "ext4",
                    "volumeAttributes": {"cachingmode": "ReadOnly", "fstype": "ext4", "kind": "Managed"}}),
                ONE_WRITER,
            ),
        ),
        (
            json!({"azureFile": {"secretName": "s", "shareName": "sh", "readOnly": true}}),
            "#s#sh#v#ns",
            csi(
                AZURE_FILE,
                "#s#sh#v#ns",
                json!({"readOnly": true, "volumeAttributes": {"sharename": "sh"},
                    "nodeStageSecretRef": {"name": "s", "namespace": "ns"}}),
                WRITERS,
            ),
        ),
        (
            json!({"cinder": {"volumeID": "c", "fsType": "ext4", "readOnly": false}}),
            "cinder.csi.openstack.org-c",
            csi(CINDER, "c", json!({"fsType": "ext4"}), ONE_WRITER),
        ),
        (
            json!({"vsphereVolume": {"volumePath": "[ds] a/b.vmdk"}}),
            "csi.vsphere.vmware.com-[ds] a/b.vmdk",
            csi(VSPHERE, "[ds] a/b.vmdk", json!({}), ONE_WRITER),
        ),
        (
            json!({"portworxVolume": {"volumeID": "p", "readOnly": true}}),
            "pxd.portworx.com-p",
            csi(PORTWORX, "p", json!({}), READERS),
        ),
    ] {
        let mut whole = source.clone();
        whole["name"] = json!("v");
        let volume: Volume = serde_json::from_value(whole).expect("volume");
        assert!(plugin_of(&volume).is_some());
        let (named, spec) = inline(&volume, "ns").expect("translated").expect("one of old");
        assert_eq!((named.as_str(), serde_json::to_value(spec).expect("json")), (name, want), "{source}");
    }
    let other: Volume = serde_json::from_value(json!({"name": "v", "emptyDir": {}})).expect("volume");
    assert_eq!((plugin_of(&other), inline(&other, "ns")), (None, Ok(None)));
}

#[test]
fn who_took_over() {
    assert_eq!(driver("kubernetes.io/azure-file"), Some(AZURE_FILE));
    assert_eq!(driver("acme.io/p"), None);
    let spec: PersistentVolumeSpec = serde_json::from_value(json!({"cinder": {"volumeID": "c"}})).expect("spec");
    assert_eq!(plugin(&spec), Some("kubernetes.io/cinder"));
    assert_eq!(plugin(&PersistentVolumeSpec::default()), None);
}

#[test]
fn what_a_node_leaves_to_drivers() {
    let portworx = "kubernetes.io/portworx-volume";
    let node = |annotations| -> CSINode {
        serde_json::from_value(json!({"metadata": {"name": "n", "annotations": annotations}, "spec": {"drivers": []}}))
            .expect("node")
    };
    for (list, want) in [
        (None, false),
        (Some(""), false),
        (Some("kubernetes.io/cinder"), false),
        (Some("kubernetes.io/cinder,kubernetes.io/portworx-volume"), true),
    ] {
        let annotations = list.map_or(json!({}), |list| json!({"storage.alpha.kubernetes.io/migrated-plugins": list}));
        assert_eq!(moved_on(&node(annotations), portworx), want, "{list:?}");
    }
    assert_eq!((asks_nodes(portworx), asks_nodes("kubernetes.io/cinder")), (true, false));
}
