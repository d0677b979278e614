//! Volume plugins that were once part of Kubernetes.

/// Those plugins, and the drivers that took over.
const MIGRATED: [(&str, &str); 7] = [
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/azure-file", "file.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
];

/// The driver that took over from a plugin.
#[must_use]
pub fn driver(plugin: &str) -> Option<&'static str> {
    MIGRATED.iter().find(|(old, _)| *old == plugin).map(|(_, driver)| *driver)
}
