//! NodeVolumeLimits: a CSI driver attaches only so many volumes to a node. Answers for upstream's
//! `pkg/scheduler/framework/plugins/nodevolumelimits` (`CSILimits`).

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver};
use serde_json::Value;
use shared::csi;

use super::uses_claim;
use super::volume_binding::class_of;
use crate::framework::plugin::{Context, Filter, Plugin, PreFilter, PreFiltered, Requeue};
use crate::framework::{ClusterEvent, CycleState, ExternalChange, Features, Hint, ProfileError, Status};
use crate::model::{NodeInfo, PodInfo, VolumeUse};

/// Upstream's name.
pub const NAME: &str = "NodeVolumeLimits";

struct NodeVolumeLimits {
    /// Nodes without a driver of the pod's volumes are turned down (VolumeLimitScaling).
    needs_drivers: bool,
}

/// Builds the plugin.
///
/// # Errors
/// None; takes no arguments.
pub fn build(_: &Value, features: Features) -> Result<Plugin, ProfileError> {
    let it = Arc::new(NodeVolumeLimits { needs_drivers: features.volume_limit_scaling });
    Ok(Plugin::new(NAME).pre_filter(&it).filter(&it).requeue(&it))
}

/// Driver and handle.
type Known = (String, String);

/// A volume that a driver attaches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Attached {
    known: Known,
    /// The plugin of old whose volume it is, where nodes have to say that they leave it to the driver.
    asks: Option<&'static str>,
    /// Of a plugin of old.
    moved: bool,
}

impl Attached {
    fn of(driver: &str, handle: String, plugin: Option<&'static str>) -> Self {
        let asks = plugin.filter(|p| csi::asks_nodes(p));
        Self { known: (driver.to_owned(), handle), asks, moved: plugin.is_some() }
    }

    fn on(&self, node: &CSINode) -> Option<&Known> {
        self.asks.is_none_or(|plugin| csi::moved_on(node, plugin)).then_some(&self.known)
    }
}

/// The pod's volumes.
#[derive(Clone, Debug)]
struct PodVolumes(HashSet<Attached>);

impl PodVolumes {
    /// Returns a driver of these volumes that a node lacks. One that nobody has registered as a driver may be none.
    fn missing_driver(&self, cx: Context<'_>, node: Option<&CSINode>) -> Option<&str> {
        let known = |volume: &'_ Attached| match node {
            Some(node) => volume.on(node).is_some(),
            None => !volume.moved,
        };
        let installed = |driver: &str| node.is_some_and(|node| node.spec.drivers.iter().any(|d| d.name == driver));
        let drivers = self.0.iter().filter(|v| known(v)).map(|v| v.known.0.as_str());
        drivers.filter(|driver| !installed(driver) && cx.listers.csi_driver(driver).is_some()).min()
    }
}

/// Plugins of old whose volumes upstream does not count for the drivers that took over.
const UNCOUNTED: [&str; 2] = ["kubernetes.io/vsphere-volume", "kubernetes.io/azure-file"];

/// CSI volumes of a pod, behind claims or not. A claim that has no volume yet counts by its own name for the driver that
/// will make it.
fn volumes(cx: Context<'_>, pod: &PodInfo) -> HashSet<Attached> {
    let of = |volume: &VolumeUse| match volume {
        VolumeUse::Claim { name, .. } => claimed(cx, &pod.namespace, name),
        VolumeUse::Moved { plugin, driver, handle } => Some(Attached::of(driver, handle.clone(), Some(plugin))),
        VolumeUse::Disk { .. } => None,
    };
    pod.volumes.iter().filter_map(of).collect()
}

fn claimed(cx: Context<'_>, namespace: &str, name: &str) -> Option<Attached> {
    let claim = cx.listers.claim(namespace, name)?;
    let bound = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|v| !v.is_empty());
    if let Some(volume) = bound.and_then(|v| cx.listers.volume(v)) {
        return attachable(&volume);
    }
    let class = cx.listers.storage_class(class_of(&claim))?;
    let provisioner = class.provisioner.as_str();
    let old = csi::moved_plugin(provisioner);
    let driver = csi::driver(provisioner).unwrap_or(provisioner);
    (!UNCOUNTED.contains(&provisioner)).then(|| Attached::of(driver, format!("{namespace}/{name}"), old))
}

/// A volume as it is attached; volumes of old kinds count for the drivers that took over.
fn attachable(volume: &PersistentVolume) -> Option<Attached> {
    let old = volume.spec.as_ref().and_then(csi::plugin);
    let counted = old.is_none_or(|plugin| !UNCOUNTED.contains(&plugin));
    let known = csi::known(volume).ok().flatten().filter(|_| counted)?;
    Some(Attached::of(&known.driver, known.handle, old))
}

/// Volumes that are attached to a node, whether or not a pod there still uses them.
fn attached(cx: Context<'_>, node: &str) -> Vec<Attached> {
    let names = cx.listers.attachments(node).into_iter().filter_map(|a| a.spec.source.persistent_volume_name.clone());
    names.filter_map(|name| attachable(&*cx.listers.volume(&name)?)).collect()
}

impl PreFilter for NodeVolumeLimits {
    fn pre_filter(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo) -> Result<PreFiltered, Status> {
        if !pod.attaches() {
            return Err(Status::SKIP);
        }
        let mine = volumes(cx, pod);
        if mine.is_empty() {
            return Err(Status::SKIP);
        }
        state.put(PodVolumes(mine));
        Ok(PreFiltered::All)
    }
}

impl Filter for NodeVolumeLimits {
    fn filter(&self, cx: Context<'_>, state: &CycleState, _: &PodInfo, node: &NodeInfo) -> Status {
        let Some(mine) = state.get::<PodVolumes>() else { return Status::SUCCESS };
        let csi_node = cx.listers.csi_node(node.name());
        if self.needs_drivers
            && let Some(driver) = mine.missing_driver(cx, csi_node.as_deref())
        {
            return Status::unschedulable(format!("{driver} CSI driver is not installed on the node"));
        }
        let Some(csi_node) = csi_node else { return Status::SUCCESS };
        // Most nodes say nothing of the pod's drivers: that is found out without a set of anything.
        let limits = || {
            let drivers = csi_node.spec.drivers.iter();
            drivers.filter_map(|d| Some((d.name.as_str(), usize::try_from(d.allocatable.as_ref()?.count?).ok()?)))
        };
        let mine = || mine.0.iter().filter_map(|v| v.on(&csi_node));
        if !mine().any(|(driver, _)| limits().any(|(limited, _)| limited == driver)) {
            return Status::SUCCESS;
        }
        let mine: HashSet<&Known> = mine().collect();
        let there: Vec<Attached> =
            node.pods.iter().flat_map(|p| volumes(cx, p)).chain(attached(cx, node.name())).collect();
        let attached: HashSet<&Known> = there.iter().filter_map(|v| v.on(&csi_node)).collect();
        for (driver, limit) in limits() {
            let of_driver = |v: &&&Known| v.0 == driver;
            let new = mine.iter().filter(of_driver).filter(|v| !attached.contains(**v)).count();
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
            ClusterEvent::AssignedPod { old: Some(old), new: None } => old.attaches().into(),
            ClusterEvent::Object(ExternalChange::CsiNode(d)) => match (d.before(), d.now()) {
                (Some(old), Some(new)) => limits_grew(old, new).into(),
                (_, new) => new.is_some().into(),
            },
            ClusterEvent::Object(ExternalChange::PersistentVolumeClaim(d)) => {
                (d.before().is_none() && d.now().is_some_and(|c| uses_claim(pod, c))).into()
            }
            ClusterEvent::Object(ExternalChange::VolumeAttachment(d)) => match (&d.old, d.now()) {
                (Some(gone), None) => uses_driver(pod, &gone.spec.attacher).into(),
                _ => Hint::Skip,
            },
            ClusterEvent::Node { old: None, .. } => pod.attaches().into(),
            _ => Hint::Skip,
        }
    }
}

/// Reports whether a node takes more volumes of any driver than before.
fn limits_grew(old: &CSINode, new: &CSINode) -> bool {
    let limit = |driver: &CSINodeDriver| driver.allocatable.as_ref().and_then(|a| a.count).unwrap_or(0);
    let before = |name: &str| old.spec.drivers.iter().find(|d| d.name == name).map_or(0, limit);
    new.spec.drivers.iter().any(|driver| limit(driver) > before(&driver.name))
}

/// Reports whether a pod may have volumes that a driver attaches. Volumes behind claims are not looked up here.
fn uses_driver(pod: &PodInfo, attacher: &str) -> bool {
    pod.volumes.iter().any(|volume| match volume {
        VolumeUse::Claim { .. } => true,
        VolumeUse::Moved { driver, .. } => driver == attacher,
        VolumeUse::Disk { .. } => false,
    })
}

#[cfg(test)]
mod tests {
    use crate::framework::Features;
    use crate::testing::{check::Check, node, pod};
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn limits() {
        let mut check = Check::of(|args| super::build(args, Features::default()), json!(null));
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

    #[test]
    fn drivers_have_to_be_there_behind_their_gate() {
        let missing = "d CSI driver is not installed on the node";
        let csi = |drivers: &[&str]| {
            let drivers: Vec<_> = drivers.iter().map(|name| json!({"name": name, "nodeID": "n"})).collect();
            Some(json!({"metadata": {"name": "n"}, "spec": {"drivers": drivers}}))
        };
        let registered = || Some(json!({"metadata": {"name": "d"}, "spec": {}}));
        for (what, on, node_says, driver, want) in [
            ("the driver is there", true, csi(&["d"]), registered(), ""),
            ("another driver is there", true, csi(&["e"]), registered(), missing),
            ("nothing is known of the node", true, None, registered(), missing),
            ("nobody registered the driver", true, csi(&[]), None, ""),
            ("without the gate", false, csi(&[]), registered(), ""),
        ] {
            let features = Features { volume_limit_scaling: on, ..Features::default() };
            let mut check = Check::of(|args| super::build(args, Features::default()), json!(null));
            check.replace(super::build(&json!(null), features).expect("plugin"));
            let claim = json!({"metadata": {"name": "c"}, "spec": {"volumeName": "v"}});
            let volume = json!({"metadata": {"name": "v"}, "spec": {"csi": {"driver": "d", "volumeHandle": "h"}}});
            let listers = &mut check.listers;
            let key = ("default".into(), "c".to_owned());
            listers.claims.insert(key, Arc::new(serde_json::from_value(claim).expect("claim")));
            listers.volumes.insert("v".into(), Arc::new(serde_json::from_value(volume).expect("volume")));
            if let Some(csi) = node_says {
                listers.csi_nodes.insert("n".into(), Arc::new(serde_json::from_value(csi).expect("csi node")));
            }
            if let Some(driver) = driver {
                listers.csi_drivers.insert("d".into(), Arc::new(serde_json::from_value(driver).expect("driver")));
            }
            let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
            let user = pod("p").set("/spec", "volumes", volumes).info();
            assert_eq!(check.filter(&user, &node("n").with(&[])), want, "{what}");
        }
    }

    #[test]
    fn portworx_counts_where_the_node_says_so() {
        let using = |id: &str| {
            let volume = json!({"name": "v", "portworxVolume": {"volumeID": id}});
            pod("p").set("/spec", "volumes", json!([volume])).info()
        };
        let full = "node(s) exceed max volume count";
        for (plugins, want) in
            [("kubernetes.io/cinder", ""), ("kubernetes.io/cinder,kubernetes.io/portworx-volume", full)]
        {
            let mut check = Check::of(|args| super::build(args, Features::default()), json!(null));
            let drivers = json!([{"name": "pxd.portworx.com", "nodeID": "n", "allocatable": {"count": 1}}]);
            let annotations = json!({"storage.alpha.kubernetes.io/migrated-plugins": plugins});
            let csi = json!({"metadata": {"name": "n", "annotations": annotations}, "spec": {"drivers": drivers}});
            check.listers.csi_nodes.insert("n".into(), Arc::new(serde_json::from_value(csi).expect("csi node")));
            assert_eq!(check.filter(&using("b"), &node("n").with(&[using("a")])), want, "{plugins}");
        }
    }

    #[test]
    fn disks_of_old_plugins() {
        let mut check = Check::of(|args| super::build(args, Features::default()), json!(null));
        let drivers = ["ebs.csi.aws.com", "csi.vsphere.vmware.com"]
            .map(|name| json!({"name": name, "nodeID": "n", "allocatable": {"count": 1}}));
        let csi = json!({"metadata": {"name": "n"}, "spec": {"drivers": drivers}});
        check.listers.csi_nodes.insert("n".into(), Arc::new(serde_json::from_value(csi).expect("csi node")));
        for (name, source) in [
            ("c", json!({"awsElasticBlockStore": {"volumeID": "aws://z/vol-1"}})),
            ("v", json!({"vsphereVolume": {"volumePath": "a"}})),
        ] {
            let claim = json!({"metadata": {"name": name}, "spec": {"volumeName": name}});
            let volume = json!({"metadata": {"name": name}, "spec": source});
            let key = ("default".into(), name.to_owned());
            check.listers.claims.insert(key, Arc::new(serde_json::from_value(claim).expect("claim")));
            check.listers.volumes.insert(name.to_owned(), Arc::new(serde_json::from_value(volume).expect("volume")));
        }
        let using = |mut source: serde_json::Value| {
            source["name"] = json!("v");
            pod("p").set("/spec", "volumes", json!([source])).info()
        };
        let ebs = |id: &str| using(json!({"awsElasticBlockStore": {"volumeID": id}}));
        let vsphere = |path: &str| using(json!({"vsphereVolume": {"volumePath": path}}));
        let claim = |name: &str| using(json!({"persistentVolumeClaim": {"claimName": name}}));
        let full = "node(s) exceed max volume count";
        for (new, there, want) in [
            (ebs("vol-2"), ebs("vol-1"), full),
            (ebs("vol-2"), claim("c"), full),
            (ebs("vol-1"), claim("c"), ""),
            (claim("c"), ebs("vol-2"), full),
            (vsphere("b"), vsphere("a"), ""),
            (vsphere("b"), claim("v"), ""),
            (claim("v"), vsphere("b"), ""),
        ] {
            assert_eq!(check.filter(&new, &node("n").with(std::slice::from_ref(&there))), want, "{new:?} {there:?}");
        }
    }
}
