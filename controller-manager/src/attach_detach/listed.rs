//! Volumes that nobody has to attach, and that a kubelet does not mount all the same until its node's status lists them:
//! those of Fibre Channel and iSCSI.

use k8s_openapi::api::core::v1::{PersistentVolume, Volume};

use super::volume::exclusive;
use crate::engine::object;

/// Prefixes of their names in a node's status.
const PREFIXES: [&str; 2] = [FC, ISCSI];
const FC: &str = "kubernetes.io/fc/";
const ISCSI: &str = "kubernetes.io/iscsi/";

/// One of these volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Name of the volume in events: the PersistentVolume, or the volume of the pod.
    pub volume: String,
    /// Name of the volume in `status.volumesAttached` and `status.volumesInUse`.
    pub unique_name: String,
    /// The volume can be attached to a single node only.
    pub exclusive: bool,
}

/// Key by which a controller remembers what it told of a volume that a node only has to list.
pub fn mark(node: &str, unique_name: &str) -> String {
    format!("{node} {unique_name}")
}

/// Reports whether an entry of a node's list is one of these volumes.
#[must_use]
pub fn is_listed(unique_name: &str) -> bool {
    PREFIXES.iter().any(|prefix| unique_name.starts_with(prefix))
}

impl Listed {
    /// None for any other volume.
    #[must_use]
    pub fn of(volume: &PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let unique_name = if let Some(fc) = &spec.fc {
            fibre(fc.target_wwns.as_deref(), fc.lun, fc.wwids.as_deref())?
        } else {
            let iscsi = spec.iscsi.as_ref()?;
            target(&iscsi.target_portal, &iscsi.iqn, iscsi.lun)
        };
        let volume = object::name(&volume.metadata).to_owned();
        let exclusive = exclusive(spec.access_modes.as_deref().unwrap_or_default());
        Some(Self { volume, unique_name, exclusive })
    }

    /// One that a pod names itself. Whether several nodes may have it is the pod's affair.
    #[must_use]
    pub fn of_disk(volume: &Volume) -> Option<Self> {
        let unique_name = if let Some(fc) = &volume.fc {
            fibre(fc.target_wwns.as_deref(), fc.lun, fc.wwids.as_deref())?
        } else {
            let iscsi = volume.iscsi.as_ref()?;
            target(&iscsi.target_portal, &iscsi.iqn, iscsi.lun)
        };
        Some(Self { volume: volume.name.clone(), unique_name, exclusive: false })
    }
}

fn fibre(targets: Option<&[String]>, lun: Option<i32>, ids: Option<&[String]>) -> Option<String> {
    let shown = |names: &[String]| format!("{FC}[{}]", names.join(" "));
    let targets = targets.filter(|t| !t.is_empty()).zip(lun).map(|(t, lun)| format!("{}:{lun}", shown(t)));
    targets.or_else(|| ids.filter(|ids| !ids.is_empty()).map(shown))
}

fn target(portal: &str, iqn: &str, lun: i32) -> String {
    format!("{ISCSI}{portal}:{iqn}:{lun}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn names() {
        let iqn = "iqn.2001-04.com.example:storage";
        for (source, want) in [
            (
                json!({"iscsi": {"targetPortal": "192.0.2.1:3260", "iqn": iqn, "lun": 2}}),
                Some("kubernetes.io/iscsi/192.0.2.1:3260:iqn.2001-04.com.example:storage:2"),
            ),
            (json!({"fc": {"targetWWNs": ["50a", "50b"], "lun": 1}}), Some("kubernetes.io/fc/[50a 50b]:1")),
            (json!({"fc": {"wwids": ["360"]}}), Some("kubernetes.io/fc/[360]")),
            (json!({"fc": {}}), None),
            (json!({"nfs": {"server": "s", "path": "/"}}), None),
        ] {
            let with = |key: &str, value: Value| {
                let mut all = source.clone();
                all[key] = value;
                all
            };
            let spec = with("accessModes", json!(["ReadWriteOnce"]));
            let pv: PersistentVolume =
                serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).expect("volume");
            let disk: Volume = serde_json::from_value(with("name", json!("v"))).expect("volume");
            let found = [Listed::of(&pv), Listed::of_disk(&disk)];
            let told = found.map(|l| l.map(|l| (l.volume, l.unique_name, l.exclusive)));
            let want = |volume: &str, alone| want.map(|name| (volume.to_owned(), name.to_owned(), alone));
            assert_eq!(told, [want("pv", true), want("v", false)], "{source}");
            assert!(told.iter().flatten().all(|(_, name, _)| is_listed(name)));
        }
        assert!(!is_listed("kubernetes.io/csi/d^h"));
    }
}
