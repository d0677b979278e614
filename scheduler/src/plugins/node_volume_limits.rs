//! NodeVolumeLimits: a CSI driver attaches only so many volumes to a node.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::Value;
use shared::csi;

use super::uses_claim;
use crate::framework::plugin::{Context, Filter, Plugin, PreFilter, PreFiltered, Requeue};
use crate::framework::{Change, ClusterEvent, ConfigError, CycleState, Hint, Status};
use crate::model::{NodeInfo, PodInfo};

/// Upstream's name.
pub const NAME: &str = "NodeVolumeLimits";

struct NodeVolumeLimits;

/// Builds the plugin.
///
/// # Errors
/// None; takes no arguments.
pub fn build(_: &Value) -> Result<Plugin, ConfigError> {
    let it = Arc::new(NodeVolumeLimits);
    Ok(Plugin::new(NAME).pre_filter(&it).filter(&it).requeue(&it))
}

/// The pod's volumes: driver and handle.
#[derive(Clone, Debug)]
struct Notes(HashSet<(String, String)>);

/// CSI volumes behind a pod's claims. A claim that has no volume yet counts by its own name for the driver that will
/// make it.
fn volumes(cx: Context<'_>, pod: &PodInfo) -> HashSet<(String, String)> {
    pod.claims()
        .filter_map(|(name, _)| {
            let claim = cx.listers.claim(&pod.namespace, name)?;
            let spec = claim.spec.as_ref()?;
            if let Some(volume) =
                spec.volume_name.as_deref().filter(|v| !v.is_empty()).and_then(|v| cx.listers.volume(v))
            {
                return handle(&volume);
            }
            let class = cx.listers.storage_class(spec.storage_class_name.as_deref()?)?;
            Some((driver(&class.provisioner).to_owned(), format!("{}/{name}", pod.namespace)))
        })
        .collect()
}

fn driver(provisioner: &str) -> &str {
    csi::driver(provisioner).unwrap_or(provisioner)
}

/// The driver of a volume and the volume's handle; volumes of old kinds count for the drivers that took over.
fn handle(volume: &PersistentVolume) -> Option<(String, String)> {
    csi::known(volume).ok().flatten().map(|known| (known.driver, known.handle))
}

/// Volumes that are attached to a node, whether or not a pod there still uses them.
fn attached(cx: Context<'_>, node: &str) -> Vec<(String, String)> {
    let names = cx.listers.attachments(node).into_iter().filter_map(|a| a.spec.source.persistent_volume_name.clone());
    names.filter_map(|name| handle(&*cx.listers.volume(&name)?)).collect()
}

impl PreFilter for NodeVolumeLimits {
    fn pre_filter(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo) -> Result<PreFiltered, Status> {
        if pod.volumes.is_empty() {
            return Err(Status::SKIP);
        }
        let mine = volumes(cx, pod);
        if mine.is_empty() {
            return Err(Status::SKIP);
        }
        state.put(Notes(mine));
        Ok(PreFiltered::All)
    }
}

impl Filter for NodeVolumeLimits {
    fn filter(&self, cx: Context<'_>, state: &CycleState, _: &PodInfo, node: &NodeInfo) -> Status {
        let Some(mine) = state.get::<Notes>() else { return Status::SUCCESS };
        let Some(csi_node) = cx.listers.csi_node(node.name()) else { return Status::SUCCESS };
        let limits: HashMap<&str, usize> = csi_node
            .spec
            .drivers
            .iter()
            .filter_map(|d| Some((d.name.as_str(), usize::try_from(d.allocatable.as_ref()?.count?).ok()?)))
            .collect();
        if !mine.0.iter().any(|(driver, _)| limits.contains_key(driver.as_str())) {
            return Status::SUCCESS;
        }
        let mut attached: HashSet<(String, String)> = node.pods.iter().flat_map(|p| volumes(cx, p)).collect();
        attached.extend(self::attached(cx, node.name()));
        for (driver, limit) in limits {
            let of_driver = |v: &&(String, String)| v.0 == driver;
            let new = mine.0.iter().filter(of_driver).filter(|v| !attached.contains(*v)).count();
            if new > 0 && attached.iter().filter(of_driver).count() + new > limit {
                return Status::unschedulable("node(s) exceed max volume count");
            }
        }
        Status::SUCCESS
    }
}

impl Requeue for NodeVolumeLimits {
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent) -> Hint {
        match event {
            ClusterEvent::AssignedPod { old: Some(old), new: None } => (!old.volumes.is_empty()).into(),
            ClusterEvent::Object(Change::CsiNode(d)) => d.now().is_some().into(),
            ClusterEvent::Object(Change::PersistentVolumeClaim(d)) => {
                (d.before().is_none() && d.now().is_some_and(|c| uses_claim(pod, c))).into()
            }
            ClusterEvent::Object(Change::VolumeAttachment(d)) => d.now().is_none().into(),
            ClusterEvent::Node { old: None, .. } => (!pod.volumes.is_empty()).into(),
            _ => Hint::Skip,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{check::Check, node, pod};
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn limits() {
        let mut check = Check::of(super::build, json!(null));
        for i in 0..3 {
            let claim = json!({"metadata": {"name": format!("c{i}")}, "spec": {"volumeName": format!("v{i}")}});
            let volume = json!({"metadata": {"name": format!("v{i}")}, "spec": {"csi": {"driver": "d", "volumeHandle": format!("h{i}")}}});
            check
                .listers
                .claims
                .insert(("default".into(), format!("c{i}")), Arc::new(serde_json::from_value(claim).expect("claim")));
            check.listers.volumes.insert(format!("v{i}"), Arc::new(serde_json::from_value(volume).expect("volume")));
        }
        let csi = json!({"metadata": {"name": "n"}, "spec": {"drivers": [{"name": "d", "nodeID": "n", "allocatable": {"count": 2}}]}});
        check.listers.csi_nodes.insert("n".into(), Arc::new(serde_json::from_value(csi).expect("csi node")));
        let using = |name: &str, claim: &str| {
            pod(name)
                .set("/spec", "volumes", json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]))
                .info()
        };
        let full = node("n").with(&[using("a", "c0"), using("b", "c1")]);
        assert_eq!(check.filter(&using("p", "c2"), &full), "node(s) exceed max volume count");
        assert_eq!(check.filter(&using("p", "c1"), &full), "", "attached already");
        assert_eq!(check.filter(&using("p", "c2"), &node("n").with(&[using("a", "c0")])), "");
        let left_behind = json!({"metadata": {"name": "x"}, "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v1"}}});
        check.listers.attachments.push(Arc::new(serde_json::from_value(left_behind).expect("attachment")));
        let one = node("n").with(&[using("a", "c0")]);
        assert_eq!(check.filter(&using("p", "c2"), &one), "node(s) exceed max volume count", "still attached");
        check.listers.attachments.clear();
        assert_eq!(check.filter(&using("p", "c2"), &node("other").with(&[using("a", "c0"), using("b", "c1")])), "");
    }
}
