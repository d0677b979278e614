//! By what names CSI drivers know volumes. Volumes of plugins that were once part of Kubernetes are translated into what
//! the drivers understand that took over; answers for upstream's `csi-translation-lib`. Pure, and nothing is asked of a
//! driver.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    AWSElasticBlockStoreVolumeSource, AzureDiskVolumeSource, CSIPersistentVolumeSource, NodeSelector,
    NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, PersistentVolumeSpec, SecretReference, Volume,
    VolumeNodeAffinity,
};
use k8s_openapi::api::storage::v1::CSINode;

const AWS_EBS: &str = "ebs.csi.aws.com";
const GCE_PD: &str = "pd.csi.storage.gke.io";
const AZURE_DISK: &str = "disk.csi.azure.com";
const AZURE_FILE: &str = "file.csi.azure.com";
const CINDER: &str = "cinder.csi.openstack.org";
const VSPHERE: &str = "csi.vsphere.vmware.com";
const PORTWORX: &str = "pxd.portworx.com";
const PORTWORX_PLUGIN: &str = "kubernetes.io/portworx-volume";

/// Plugins that were once part of Kubernetes, and the drivers that took over.
const MOVED: [(&str, &str); 7] = [
    ("kubernetes.io/aws-ebs", AWS_EBS),
    ("kubernetes.io/gce-pd", GCE_PD),
    ("kubernetes.io/azure-disk", AZURE_DISK),
    ("kubernetes.io/azure-file", AZURE_FILE),
    ("kubernetes.io/cinder", CINDER),
    ("kubernetes.io/vsphere-volume", VSPHERE),
    (PORTWORX_PLUGIN, PORTWORX),
];
/// Placeholder for an unknown zone of a disk.
const UNSPECIFIED: &str = "UNSPECIFIED";
const ONE_WRITER: &str = "ReadWriteOnce";
const READERS: &str = "ReadOnlyMany";
const WRITERS: &str = "ReadWriteMany";

/// A volume as a driver knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The driver.
    pub driver: String,
    /// The driver's name of the volume.
    pub handle: String,
    /// Access modes; empty when none were given.
    pub modes: Vec<String>,
}

/// Reasons for which an in-tree volume cannot be translated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untranslatable {
    /// The identity of the volume cannot be read.
    #[error("failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume ({0})")]
    Aws(String),
    /// The zone of the volume cannot be read.
    #[error(
        "failed to get region from zones: zone in unexpected format, expected: {{locale}}-{{region}}-{{zone}}, got: {0}"
    )]
    Zone(String),
    /// The zones are in more than one region.
    #[error("failed to get region from zones: multiple or no regions gotten from zones, got: {0}")]
    Regions(String),
    /// A disk of a kind that no driver has.
    #[error("kind({0}) is not supported in csi migration")]
    Kind(String),
    /// A share whose secret may be anywhere.
    #[error("could not find a secret namespace in PersistentVolumeSource or ClaimRef")]
    Namespace,
}

/// Annotation of a CSINode that lists in-tree plugins migrated on the node, separated by commas.
const MOVED_ON_NODE: &str = "storage.alpha.kubernetes.io/migrated-plugins";

/// Reports whether a plugin is migrated only on nodes that say so; all others are migrated everywhere.
pub fn asks_nodes(plugin: &str) -> bool {
    plugin == PORTWORX_PLUGIN
}

/// Reports whether an in-tree plugin is migrated on a node.
pub fn moved_on(node: &CSINode, plugin: &str) -> bool {
    let notes = node.metadata.annotations.as_ref().and_then(|notes| notes.get(MOVED_ON_NODE));
    notes.is_some_and(|plugins| plugins.split(',').any(|p| p == plugin))
}

/// The annotation of a node that leaves the volumes of all plugins of old to drivers: key and value.
pub fn moved_mark() -> (&'static str, String) {
    let mut plugins = MOVED.map(|(plugin, _)| plugin);
    plugins.sort_unstable();
    (MOVED_ON_NODE, plugins.join(","))
}

/// The driver that took over from a plugin.
pub fn driver(plugin: &str) -> Option<&'static str> {
    MOVED.iter().find(|(old, _)| *old == plugin).map(|(_, driver)| *driver)
}

/// A name that is one of a plugin of old.
pub fn moved_plugin(name: &str) -> Option<&'static str> {
    MOVED.iter().find(|(old, _)| *old == name).map(|(old, _)| *old)
}

/// The plugin of old that a volume is of.
pub fn plugin(spec: &PersistentVolumeSpec) -> Option<&'static str> {
    moved([
        spec.aws_elastic_block_store.is_some(),
        spec.gce_persistent_disk.is_some(),
        spec.azure_disk.is_some(),
        spec.azure_file.is_some(),
        spec.cinder.is_some(),
        spec.vsphere_volume.is_some(),
        spec.portworx_volume.is_some(),
    ])
}

/// The plugin of old that a pod's volume is of.
pub fn plugin_of(volume: &Volume) -> Option<&'static str> {
    moved([
        volume.aws_elastic_block_store.is_some(),
        volume.gce_persistent_disk.is_some(),
        volume.azure_disk.is_some(),
        volume.azure_file.is_some(),
        volume.cinder.is_some(),
        volume.vsphere_volume.is_some(),
        volume.portworx_volume.is_some(),
    ])
}

fn moved(is: [bool; 7]) -> Option<&'static str> {
    is.into_iter().zip(MOVED).find_map(|(is, (plugin, _))| is.then_some(plugin))
}

/// A volume as its driver knows it; none if it has no driver.
///
/// # Errors
/// It was once another plugin's, and cannot be translated.
pub fn known(volume: &PersistentVolume) -> Result<Option<Known>, Untranslatable> {
    let Some(spec) = &volume.spec else { return Ok(None) };
    let mut modes = spec.access_modes.clone().unwrap_or_default();
    let (driver, handle) = if let Some(csi) = &spec.csi {
        (csi.driver.as_str(), csi.volume_handle.clone())
    } else if let Some(ebs) = &spec.aws_elastic_block_store {
        (AWS_EBS, aws(ebs)?)
    } else if let Some(disk) = &spec.gce_persistent_disk {
        // That plugin never looked at the modes: a disk has one writer, or none.
        if modes.iter().any(|m| m != READERS) {
            modes = vec![ONE_WRITER.to_owned()];
        }
        (GCE_PD, gce(&place(volume)?, &disk.pd_name))
    } else if let Some(disk) = &spec.azure_disk {
        (AZURE_DISK, azure_disk(disk)?)
    } else if let Some(share) = &spec.azure_file {
        let claimed = spec.claim_ref.as_ref().and_then(|r| r.namespace.as_deref());
        let namespace = share.secret_namespace.as_deref().or(claimed).ok_or(Untranslatable::Namespace)?;
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        (AZURE_FILE, azure_file(&share.secret_name, &share.share_name, name, namespace))
    } else if let Some(cinder) = &spec.cinder {
        (CINDER, cinder.volume_id.clone())
    } else if let Some(vsphere) = &spec.vsphere_volume {
        (VSPHERE, vsphere.volume_path.clone())
    } else if let Some(portworx) = &spec.portworx_volume {
        (PORTWORX, portworx.volume_id.clone())
    } else {
        return Ok(None);
    };
    Ok(Some(Known { driver: driver.to_owned(), handle, modes }))
}

/// Labels of nodes by which drivers that took over tell zones; the others keep the affinity that a volume of old has.
const DRIVER_ZONES: [(&str, &str); 3] = [
    (AWS_EBS, "topology.ebs.csi.aws.com/zone"),
    (GCE_PD, "topology.gke.io/zone"),
    (CINDER, "topology.cinder.csi.openstack.org/zone"),
];
/// Zone and region labels, the newer ones first.
const PLACES: [(&str, &str); 2] = [
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/region"),
    ("failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"),
];

/// Node affinity of a volume as its driver states it: zones of a volume of old, by its affinity or else by its labels,
/// are those that the driver labels nodes with. Answers for the topology part of upstream's `TranslateInTreePVToCSI`.
///
/// # Errors
/// The volume was once another plugin's, and cannot be translated.
pub fn node_affinity(volume: &PersistentVolume) -> Result<Option<VolumeNodeAffinity>, Untranslatable> {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.clone());
    let is_old = volume.spec.as_ref().is_some_and(|spec| spec.csi.is_none() && plugin(spec).is_some());
    let Some(known) = (if is_old { known(volume)? } else { None }) else { return Ok(affinity) };
    let Some((_, key)) = DRIVER_ZONES.iter().find(|(driver, _)| *driver == known.driver) else { return Ok(affinity) };
    let mut terms = affinity.and_then(|affinity| affinity.required).unwrap_or_default().node_selector_terms;
    let labels = volume.metadata.labels.as_ref();
    let labelled = |label: &str| labels.and_then(|labels| labels.get(label));
    let (zone, region) = place_labels(&terms, |label| labelled(label).is_some());
    if has_key(&terms, zone) {
        rename(&mut terms, zone, key);
    } else if let Some(zones) = labelled(zone) {
        add_zones(&mut terms, key, zones);
    }
    // Nodes may bear the newer label alone.
    if region == PLACES[1].1 {
        rename(&mut terms, region, PLACES[0].1);
    }
    let required = (!terms.is_empty()).then_some(NodeSelector { node_selector_terms: terms });
    Ok(required.map(|required| VolumeNodeAffinity { required: Some(required) }))
}

fn requirements(terms: &[NodeSelectorTerm]) -> impl Iterator<Item = &NodeSelectorRequirement> {
    terms.iter().flat_map(|term| term.match_expressions.iter().flatten())
}

/// Reports whether any term speaks of a label's values.
fn has_key(terms: &[NodeSelectorTerm], key: &str) -> bool {
    requirements(terms).any(|r| r.key == key && r.values.as_ref().is_some_and(|values| !values.is_empty()))
}

/// The labels that tell a volume's zone and region: those of its affinity go before its own.
fn place_labels(terms: &[NodeSelectorTerm], labelled: impl Fn(&str) -> bool) -> (&'static str, &'static str) {
    let in_terms = |key: &str| requirements(terms).any(|r| r.key == key);
    let named = PLACES.iter().find(|(zone, _)| in_terms(zone));
    *named.or_else(|| PLACES.iter().find(|(zone, _)| labelled(zone))).unwrap_or(&PLACES[0])
}

fn rename(terms: &mut [NodeSelectorTerm], old: &str, new: &str) {
    for requirement in terms.iter_mut().flat_map(|term| term.match_expressions.iter_mut().flatten()) {
        if requirement.key == old {
            new.clone_into(&mut requirement.key);
        }
    }
}

/// Limits every term to the zones of a label, of which there may be several.
fn add_zones(terms: &mut Vec<NodeSelectorTerm>, key: &str, zones: &str) {
    let zones: BTreeSet<String> =
        zones.split("__").map(str::trim).filter(|zone| !zone.is_empty()).map(str::to_owned).collect();
    if zones.is_empty() {
        return;
    }
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    let values = Some(zones.into_iter().collect());
    let requirement = NodeSelectorRequirement { key: key.to_owned(), operator: "In".to_owned(), values };
    for term in terms {
        term.match_expressions.get_or_insert_default().push(requirement.clone());
    }
}

/// The volume that stands for one of old in a pod of `namespace`: its name and specification. None for any other.
///
/// # Errors
/// It cannot be translated.
pub fn inline(volume: &Volume, namespace: &str) -> Result<Option<(String, PersistentVolumeSpec)>, Untranslatable> {
    let attributes = |all: &[(&str, Option<String>)]| -> Option<BTreeMap<String, String>> {
        Some(all.iter().filter_map(|(k, v)| Some(((*k).to_owned(), v.clone()?))).collect())
    };
    let mut name = None;
    let (driver, volume_handle, mode, mut csi) = if let Some(ebs) = &volume.aws_elastic_block_store {
        let partition = ebs.partition.unwrap_or(0).to_string();
        let csi = CSIPersistentVolumeSource {
            read_only: ebs.read_only,
            fs_type: ebs.fs_type.clone(),
            volume_attributes: attributes(&[("partition", Some(partition))]),
            ..CSIPersistentVolumeSource::default()
        };
        (AWS_EBS, aws(ebs)?, ONE_WRITER, csi)
    } else if let Some(disk) = &volume.gce_persistent_disk {
        let partition = disk.partition.filter(|n| *n != 0).map(|n| n.to_string()).unwrap_or_default();
        let csi = CSIPersistentVolumeSource {
            read_only: disk.read_only,
            fs_type: disk.fs_type.clone(),
            volume_attributes: attributes(&[("partition", Some(partition))]),
            ..CSIPersistentVolumeSource::default()
        };
        name = Some(format!("{GCE_PD}-{}", disk.pd_name));
        let mode = if disk.read_only == Some(true) { READERS } else { ONE_WRITER };
        (GCE_PD, gce(&format!("zones/{UNSPECIFIED}"), &disk.pd_name), mode, csi)
    } else if let Some(disk) = &volume.azure_disk {
        let handle = azure_disk(disk)?;
        let csi = CSIPersistentVolumeSource {
            read_only: disk.read_only,
            fs_type: disk.fs_type.clone(),
            volume_attributes: attributes(&[
                ("cachingmode", disk.caching_mode.clone().filter(|m| !m.is_empty())),
                ("fstype", disk.fs_type.clone()),
                ("kind", Some(disk.kind.clone().unwrap_or_else(|| MANAGED.to_owned()))),
            ]),
            ..CSIPersistentVolumeSource::default()
        };
        name = Some(handle.clone());
        (AZURE_DISK, handle, ONE_WRITER, csi)
    } else if let Some(share) = &volume.azure_file {
        let secret = SecretReference { name: Some(share.secret_name.clone()), namespace: Some(namespace.to_owned()) };
        let csi = CSIPersistentVolumeSource {
            read_only: share.read_only,
            volume_attributes: attributes(&[("sharename", Some(share.share_name.clone()))]),
            node_stage_secret_ref: Some(secret),
            ..CSIPersistentVolumeSource::default()
        };
        let handle = azure_file(&share.secret_name, &share.share_name, &volume.name, namespace);
        name = Some(handle.clone());
        (AZURE_FILE, handle, WRITERS, csi)
    } else if let Some(cinder) = &volume.cinder {
        let csi = CSIPersistentVolumeSource {
            read_only: cinder.read_only,
            fs_type: cinder.fs_type.clone(),
            ..CSIPersistentVolumeSource::default()
        };
        (CINDER, cinder.volume_id.clone(), ONE_WRITER, csi)
    } else if let Some(vsphere) = &volume.vsphere_volume {
        let csi =
            CSIPersistentVolumeSource { fs_type: vsphere.fs_type.clone(), ..CSIPersistentVolumeSource::default() };
        (VSPHERE, vsphere.volume_path.clone(), ONE_WRITER, csi)
    } else if let Some(portworx) = &volume.portworx_volume {
        let csi =
            CSIPersistentVolumeSource { fs_type: portworx.fs_type.clone(), ..CSIPersistentVolumeSource::default() };
        let mode = if portworx.read_only == Some(true) { READERS } else { ONE_WRITER };
        (PORTWORX, portworx.volume_id.clone(), mode, csi)
    } else {
        return Ok(None);
    };
    let name = name.unwrap_or_else(|| format!("{driver}-{volume_handle}"));
    driver.clone_into(&mut csi.driver);
    csi.volume_handle = volume_handle;
    csi.read_only = csi.read_only.filter(|only| *only);
    let spec = PersistentVolumeSpec {
        csi: Some(csi),
        access_modes: Some(vec![mode.to_owned()]),
        volume_mode: Some("Filesystem".to_owned()),
        ..PersistentVolumeSpec::default()
    };
    Ok(Some((name, spec)))
}

/// A name like `aws://us-east-1a/vol-1` without its zone; any other is the cloud's own.
fn aws(ebs: &AWSElasticBlockStoreVolumeSource) -> Result<String, Untranslatable> {
    let Some(zoned) = ebs.volume_id.strip_prefix("aws://") else { return Ok(ebs.volume_id.clone()) };
    let id = zoned.split_once('/').map_or("", |(_, path)| path.trim_matches('/'));
    if id.starts_with("vol-") && !id.contains('/') {
        Ok(id.to_owned())
    } else {
        Err(Untranslatable::Aws(ebs.volume_id.clone()))
    }
}

fn gce(place: &str, name: &str) -> String {
    format!("projects/{UNSPECIFIED}/{place}/disks/{name}")
}

/// The zone of a disk; one that is in several belongs to their region.
fn place(volume: &PersistentVolume) -> Result<String, Untranslatable> {
    let labels = volume.metadata.labels.as_ref();
    let zones = PLACES.iter().rev().find_map(|(zone, _)| labels?.get(*zone).filter(|names| !names.is_empty()));
    let Some(zones) = zones else { return Ok(format!("zones/{UNSPECIFIED}")) };
    if !zones.contains("__") {
        return Ok(format!("zones/{zones}"));
    }
    let mut regions = BTreeSet::new();
    for zone in zones.split("__") {
        match zone.split('-').collect::<Vec<_>>().as_slice() {
            [locale, region, _] => regions.insert(format!("{locale}-{region}")),
            _ => return Err(Untranslatable::Zone(zone.to_owned())),
        };
    }
    let regions: Vec<String> = regions.into_iter().collect();
    match regions.as_slice() {
        [region] => Ok(format!("regions/{region}")),
        several => Err(Untranslatable::Regions(several.join(" "))),
    }
}

const MANAGED: &str = "Managed";

fn azure_disk(disk: &AzureDiskVolumeSource) -> Result<String, Untranslatable> {
    match disk.kind.as_deref() {
        Some(kind) if kind != MANAGED => Err(Untranslatable::Kind(kind.to_owned())),
        _ => Ok(disk.disk_uri.clone()),
    }
}

/// A share is known by its account, which a secret is named after.
fn azure_file(secret: &str, share: &str, volume: &str, namespace: &str) -> String {
    let account = secret.strip_prefix("azure-storage-account-").and_then(|s| s.strip_suffix("-secret"));
    format!("#{}#{share}#{volume}#{namespace}", account.unwrap_or(secret))
}
