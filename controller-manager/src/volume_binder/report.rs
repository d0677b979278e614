//! Number of volumes and claims, as upstream's `pv_collector_*` metrics count them.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use super::matching::claim_class;
use crate::engine::metrics;
use crate::engine::object;

/// Metric and its label values, with the count.
pub type Counts = BTreeMap<(&'static str, Vec<String>), usize>;

/// The name of the plugin that a volume belongs to.
fn plugin(volume: &PersistentVolume) -> String {
    let Some(spec) = volume.spec.as_ref() else { return "N/A".into() };
    match spec {
        s if s.csi.is_some() => {
            format!("kubernetes.io/csi:{}", s.csi.as_ref().map(|c| c.driver.as_str()).unwrap_or_default())
        }
        s if s.host_path.is_some() => "kubernetes.io/host-path".into(),
        s if s.nfs.is_some() => "kubernetes.io/nfs".into(),
        s if s.local.is_some() => "kubernetes.io/local-volume".into(),
        s if s.iscsi.is_some() => "kubernetes.io/iscsi".into(),
        s if s.fc.is_some() => "kubernetes.io/fc".into(),
        _ => "N/A".into(),
    }
}

/// Count.
#[must_use]
pub fn counts(volumes: &[Arc<PersistentVolume>], claims: &[Arc<PersistentVolumeClaim>]) -> Counts {
    let mut out = Counts::new();
    let mut add = |metric, labels| *out.entry((metric, labels)).or_default() += 1;
    for v in volumes {
        let spec = v.spec.as_ref();
        let class = spec.and_then(|s| s.storage_class_name.clone()).unwrap_or_default();
        let bound = v.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
        add(if bound { "pv_collector_bound_pv_count" } else { "pv_collector_unbound_pv_count" }, vec![class]);
        let mode = spec.and_then(|s| s.volume_mode.clone()).unwrap_or_else(|| "Filesystem".into());
        add("pv_collector_total_pv_count", vec![plugin(v), mode]);
    }
    for c in claims {
        let bound = c.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
        let attributes = c.spec.as_ref().and_then(|s| s.volume_attributes_class_name.clone()).unwrap_or_default();
        let labels = vec![object::namespace(&c.metadata).to_owned(), claim_class(c).to_owned(), attributes];
        add(if bound { "pv_collector_bound_pvc_count" } else { "pv_collector_unbound_pvc_count" }, labels);
    }
    out
}

/// Say them; what was said `before` and is no more is nothing.
pub fn tell(new: &Counts, before: &Counts) {
    let gone = before.keys().filter(|key| !new.contains_key(*key)).map(|key| (key, &0));
    for ((metric, labels), count) in new.iter().chain(gone) {
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        metrics::set(metric, &labels, metrics::float(*count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn volumes_and_claims_are_counted_by_what_they_are() {
        let volume = |phase: &str| {
            let v = json!({"metadata": {"name": "v"}, "status": {"phase": phase},
                "spec": {"storageClassName": "fast", "csi": {"driver": "d", "volumeHandle": "h"}}});
            Arc::new(serde_json::from_value::<PersistentVolume>(v).expect("volume"))
        };
        let claim = json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {"storageClassName": "fast"}});
        let claim = Arc::new(serde_json::from_value::<PersistentVolumeClaim>(claim).expect("claim"));
        let got = counts(&[volume("Bound"), volume("Available"), volume("Bound")], &[claim]);
        let of = |metric, labels: &[&str]| got[&(metric, labels.iter().map(|l| (*l).to_owned()).collect())];
        assert_eq!(of("pv_collector_bound_pv_count", &["fast"]), 2);
        assert_eq!(of("pv_collector_unbound_pv_count", &["fast"]), 1);
        assert_eq!(of("pv_collector_total_pv_count", &["kubernetes.io/csi:d", "Filesystem"]), 3);
        assert_eq!(of("pv_collector_unbound_pvc_count", &["ns", "fast", ""]), 1);
    }
}
