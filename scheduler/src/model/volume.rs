//! The volumes of a pod, as far as placement depends on them.

use k8s_openapi::api::core::v1 as core;
use shared::csi;
use shared::types::ephemeral_claim;

/// One volume whose placement matters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum VolumeUse {
    /// A claim, by name; `ephemeral` when the pod's own controller makes it.
    Claim {
        /// Name of the claim.
        name: String,
        /// Made for this pod alone.
        ephemeral: bool,
    },
    /// A disk that one node mounts at a time; read-only uses may share where `shared_read_only`.
    Disk {
        /// Identity of the disk, written so that equal disks have equal texts.
        id: String,
        /// Mounted read-only.
        read_only: bool,
        /// Two read-only mounts do not conflict.
        shared_read_only: bool,
    },
    /// A disk of a plugin that was once part of Kubernetes, for the driver that took over to attach.
    Moved {
        /// The plugin.
        plugin: &'static str,
        /// The driver.
        driver: String,
        /// The driver's name of the disk.
        handle: String,
    },
}

impl VolumeUse {
    /// Reads the volumes of a pod called `pod_name`.
    pub fn of(spec: &core::PodSpec, pod_name: &str) -> Vec<Self> {
        let volumes = spec.volumes.iter().flatten();
        volumes.flat_map(|v| Self::read(v, pod_name).into_iter().chain(Self::moved(v))).collect()
    }

    /// Upstream's scheduler does not count the volumes of the two plugins that are left out.
    fn moved(v: &core::Volume) -> Option<Self> {
        if v.vsphere_volume.is_some() || v.azure_file.is_some() {
            return None;
        }
        let csi = csi::inline(v, "").ok().flatten()?.1.csi?;
        Some(Self::Moved { plugin: csi::plugin_of(v)?, driver: csi.driver, handle: csi.volume_handle })
    }

    fn read(v: &core::Volume, pod_name: &str) -> Vec<Self> {
        let disk = |id: String, read_only: Option<bool>, shared_read_only: bool| {
            vec![Self::Disk { id, read_only: read_only.unwrap_or(false), shared_read_only }]
        };
        if let Some(claim) = &v.persistent_volume_claim {
            return vec![Self::Claim { name: claim.claim_name.clone(), ephemeral: false }];
        }
        if v.ephemeral.is_some() {
            return vec![Self::Claim { name: ephemeral_claim(pod_name, &v.name), ephemeral: true }];
        }
        if let Some(gce) = &v.gce_persistent_disk {
            return disk(format!("gce/{}", gce.pd_name), gce.read_only, true);
        }
        if let Some(ebs) = &v.aws_elastic_block_store {
            return disk(format!("ebs/{}", ebs.volume_id), Some(false), false);
        }
        if let Some(iscsi) = &v.iscsi {
            return disk(format!("iscsi/{}", iscsi.iqn), iscsi.read_only, true);
        }
        if let Some(rbd) = &v.rbd {
            let pool = rbd.pool.as_deref().unwrap_or("rbd");
            return rbd
                .monitors
                .iter()
                .flat_map(|m| disk(format!("rbd/{m}/{pool}/{}", rbd.image), rbd.read_only, true))
                .collect();
        }
        Vec::new()
    }

    /// Reports whether two pods with these volumes cannot share a node.
    pub fn conflicts(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Disk { id: a, read_only: ro_a, shared_read_only }, Self::Disk { id: b, read_only: ro_b, .. }) => {
                a == b && !(*shared_read_only && *ro_a && *ro_b)
            }
            _ => false,
        }
    }
}
