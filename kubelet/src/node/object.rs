//! The node object as this kubelet wants it. Pure.
//! Answers for upstream's `initialNode`, `reconcileExtendedResource` and the setters of `pkg/kubelet/nodestatus`.

use crate::cri::v1;
use crate::devices::Count;
use crate::resources::MachineInfo;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeSpec, NodeStatus, NodeSwapStatus, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use shared::types::KUBELET_LABELS;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Names of one image that are told.
const MAX_NAMES: usize = 5;
/// The volumes of this node are attached by the controller manager.
const ATTACH_DETACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// The addresses that the kubelet was given, for the controller of a cloud.
const PROVIDED_IPS: &str = "alpha.kubernetes.io/provided-node-ip";

/// Facts that do not change while the kubelet runs.
#[derive(Clone, Debug, Default)]
pub struct NodeIdentity {
    /// Name of the node object.
    pub name: String,
    /// `--node-labels`.
    pub labels: BTreeMap<String, String>,
    /// `registerWithTaints`.
    pub taints: Vec<Taint>,
    /// `providerID`.
    pub provider_id: String,
    /// The kubelet's port.
    pub port: i32,
    /// `enableControllerAttachDetach`.
    pub attach_detach: bool,
    /// `--cloud-provider=external`: addresses that a cloud's controller has set stay.
    pub external_cloud: bool,
    /// Value of the annotation by which a cloud's controller learns `--node-ip`.
    pub provided_ips: Option<String>,
    /// The machine.
    pub machine: MachineInfo,
    /// `status.capacity`.
    pub capacity: BTreeMap<String, Quantity>,
    /// `status.allocatable`.
    pub allocatable: BTreeMap<String, Quantity>,
    /// Most images that are told.
    pub max_images: Option<usize>,
    /// `status.declaredFeatures`, where nodes declare any.
    pub declared_features: Option<Vec<String>>,
}

/// Last answers of the runtime.
#[derive(Clone, Debug, Default)]
pub struct Runtime {
    /// `containerd://1.6.20`.
    pub version: String,
    /// Images on the node.
    pub images: Vec<v1::Image>,
    /// Handlers of the runtime.
    pub handlers: Vec<v1::RuntimeHandler>,
    /// The runtime knows the supplemental groups policy; none when it does not say.
    pub supplemental_groups_policy: Option<bool>,
}

/// The labels of a new node: those that every node has, under `--node-labels`.
pub fn labels(identity: &NodeIdentity) -> BTreeMap<String, String> {
    let mut labels: BTreeMap<String, String> = [
        ("kubernetes.io/hostname", identity.name.as_str()),
        ("kubernetes.io/os", std::env::consts::OS),
        ("kubernetes.io/arch", shared::version::ARCH),
        ("beta.kubernetes.io/os", std::env::consts::OS),
        ("beta.kubernetes.io/arch", shared::version::ARCH),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    labels.extend(identity.labels.clone());
    labels
}

/// Tells a resource that the kubelet reports from one that others set on the node.
fn is_own(resource: &str) -> bool {
    !resource.contains('/')
}

/// Takes over the capacity that others set on the node, all of which pods may have. Answers for the part of upstream's
/// `MachineInfo` setter that derives allocatable from the capacity the node has.
pub fn keep_foreign_resources(status: &mut NodeStatus, found: &NodeStatus) {
    for (name, quantity) in found.capacity.iter().flatten().filter(|(name, _)| !is_own(name)) {
        status.capacity.get_or_insert_default().insert(name.clone(), quantity.clone());
        status.allocatable.get_or_insert_default().insert(name.clone(), quantity.clone());
    }
}

/// Leaves a node the addresses that the controller of its cloud has set.
pub fn keep_addresses(identity: &NodeIdentity, status: &mut NodeStatus, found: &NodeStatus) {
    let set = found.addresses.as_ref().filter(|addresses| identity.external_cloud && !addresses.is_empty());
    if let Some(addresses) = set {
        status.addresses = Some(addresses.clone());
    }
}

/// Counts the devices of plugins among the node's resources.
pub fn set_devices(status: &mut NodeStatus, counts: &BTreeMap<String, Count>) {
    for (name, count) in counts {
        let quantity = |number: usize| Quantity(number.to_string());
        status.capacity.get_or_insert_default().insert(name.clone(), quantity(count.capacity));
        status.allocatable.get_or_insert_default().insert(name.clone(), quantity(count.allocatable));
    }
}

/// The object to register.
pub fn node(identity: &NodeIdentity, status: NodeStatus) -> Node {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let attach = identity.attach_detach.then(|| (ATTACH_DETACH.to_owned(), "true".to_owned()));
    let provided = identity.provided_ips.clone().map(|ips| (PROVIDED_IPS.to_owned(), ips));
    let annotations: BTreeMap<String, String> = attach.into_iter().chain(provided).collect();
    Node {
        metadata: ObjectMeta {
            name: Some(identity.name.clone()),
            labels: Some(labels(identity)),
            annotations: (!annotations.is_empty()).then_some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: text(&identity.provider_id),
            taints: (!identity.taints.is_empty()).then(|| identity.taints.clone()),
            ..NodeSpec::default()
        }),
        status: Some(status),
    }
}

/// Labels and annotations of a node that is there already and lacks them; none when nothing is amiss.
pub fn reconcile(identity: &NodeIdentity, found: &Node) -> Option<serde_json::Value> {
    let own = labels(identity);
    let have = found.metadata.labels.clone().unwrap_or_default();
    let amiss =
        |(key, value): &(&String, &String)| KUBELET_LABELS.contains(&key.as_str()) && have.get(*key) != Some(value);
    let missing: BTreeMap<&String, &String> = own.iter().filter(amiss).collect();
    let marks = found.metadata.annotations.clone().unwrap_or_default();
    let attach = identity.attach_detach != marks.contains_key(ATTACH_DETACH);
    let mut metadata = serde_json::Map::new();
    if !missing.is_empty() {
        metadata.insert("labels".to_owned(), serde_json::json!(missing));
    }
    if attach {
        let mark = if identity.attach_detach { serde_json::json!("true") } else { serde_json::Value::Null };
        metadata.insert("annotations".to_owned(), serde_json::json!({ATTACH_DETACH: mark}));
    }
    (!metadata.is_empty()).then(|| serde_json::json!({"metadata": metadata}))
}

/// The status.
pub fn status(
    identity: &NodeIdentity,
    addresses: &[IpAddr],
    runtime: &Runtime,
    conditions: Vec<NodeCondition>,
) -> NodeStatus {
    let machine = &identity.machine;
    let address = |kind: &str, address: String| NodeAddress { type_: kind.to_owned(), address };
    let mut addresses: Vec<NodeAddress> = addresses.iter().map(|ip| address("InternalIP", ip.to_string())).collect();
    addresses.push(address("Hostname", identity.name.clone()));
    let swap = i64::try_from(machine.swap).unwrap_or(i64::MAX);
    NodeStatus {
        addresses: Some(addresses),
        capacity: Some(identity.capacity.clone()),
        allocatable: Some(identity.allocatable.clone()),
        conditions: Some(conditions),
        daemon_endpoints: Some(NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port: identity.port }) }),
        images: Some(images(&runtime.images, identity.max_images)).filter(|images| !images.is_empty()),
        node_info: Some(NodeSystemInfo {
            architecture: shared::version::ARCH.to_owned(),
            boot_id: machine.boot_id.clone(),
            container_runtime_version: runtime.version.clone(),
            kernel_version: machine.kernel_version.clone(),
            kube_proxy_version: String::new(),
            kubelet_version: version(),
            machine_id: machine.machine_id.clone(),
            operating_system: std::env::consts::OS.to_owned(),
            os_image: machine.os_image.clone(),
            swap: (swap > 0).then_some(NodeSwapStatus { capacity: Some(swap) }),
            system_uuid: machine.system_uuid.clone(),
        }),
        runtime_handlers: handlers(&runtime.handlers),
        declared_features: identity.declared_features.clone(),
        features: runtime
            .supplemental_groups_policy
            .map(|known| k8s_openapi::api::core::v1::NodeFeatures { supplemental_groups_policy: Some(known) }),
        ..NodeStatus::default()
    }
}

/// The version that the kubelet reports.
pub fn version() -> String {
    shared::version::git_version().to_owned()
}

fn handlers(handlers: &[v1::RuntimeHandler]) -> Option<Vec<NodeRuntimeHandler>> {
    let all = handlers.iter().map(|handler| NodeRuntimeHandler {
        name: Some(handler.name.clone()),
        features: handler.features.as_ref().map(|features| NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(features.recursive_read_only_mounts),
            user_namespaces: Some(features.user_namespaces),
        }),
    });
    let all: Vec<NodeRuntimeHandler> = all.collect();
    (!all.is_empty()).then_some(all)
}

/// The biggest images first.
fn images(images: &[v1::Image], most: Option<usize>) -> Vec<ContainerImage> {
    let mut sorted: Vec<&v1::Image> = images.iter().collect();
    sorted.sort_by(|a, b| (b.size, &a.id).cmp(&(a.size, &b.id)));
    let named = sorted.into_iter().map(|image| {
        let names = image.repo_digests.iter().chain(&image.repo_tags);
        let names: Vec<String> = names.filter(|name| !name.contains("<none>")).take(MAX_NAMES).cloned().collect();
        ContainerImage { names: Some(names), size_bytes: i64::try_from(image.size).ok() }
    });
    named.take(most.unwrap_or(usize::MAX)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_the_clouds_where_it_has_a_controller() {
        let status = |address: &str| NodeStatus {
            addresses: Some(vec![NodeAddress { type_: "InternalIP".into(), address: address.into() }]),
            ..NodeStatus::default()
        };
        for (external_cloud, found, expected) in [
            (false, status("1.1.1.1"), "2.2.2.2"),
            (true, status("1.1.1.1"), "1.1.1.1"),
            (true, NodeStatus::default(), "2.2.2.2"),
        ] {
            let identity = NodeIdentity { external_cloud, ..NodeIdentity::default() };
            let mut own = status("2.2.2.2");
            keep_addresses(&identity, &mut own, &found);
            assert_eq!(own.addresses.expect("addresses")[0].address, expected);
        }
        let provided_ips = Some("1.1.1.1".to_owned());
        let registered = node(&NodeIdentity { provided_ips, ..NodeIdentity::default() }, NodeStatus::default());
        assert_eq!(registered.metadata.annotations.expect("annotations")[PROVIDED_IPS], "1.1.1.1");
    }

    #[test]
    fn a_node_carries_its_labels_and_addresses() {
        let identity = NodeIdentity {
            name: "node-1".into(),
            labels: BTreeMap::from([("zone".into(), "a".into()), ("kubernetes.io/os".into(), "other".into())]),
            capacity: BTreeMap::from([("cpu".into(), Quantity("2".into()))]),
            allocatable: BTreeMap::from([("cpu".into(), Quantity("1".into()))]),
            port: 10250,
            attach_detach: true,
            ..NodeIdentity::default()
        };
        let node = node(
            &identity,
            status(&identity, &["10.0.0.1".parse().expect("address")], &Runtime::default(), Vec::new()),
        );
        let labels = node.metadata.labels.clone().expect("labels");
        assert_eq!(
            (labels["kubernetes.io/hostname"].as_str(), labels["kubernetes.io/os"].as_str(), labels["zone"].as_str()),
            ("node-1", "other", "a")
        );
        let addresses = node.status.as_ref().and_then(|s| s.addresses.clone()).expect("addresses");
        assert_eq!(addresses.iter().map(|a| a.type_.as_str()).collect::<Vec<_>>(), ["InternalIP", "Hostname"]);
        assert_eq!(reconcile(&identity, &node), None);
        let bare = Node::default();
        let patch = reconcile(&identity, &bare).expect("patch");
        assert_eq!(patch["metadata"]["annotations"][ATTACH_DETACH], "true");
        // A label that somebody took off again is not forced back, one that every node has is.
        assert_eq!(patch["metadata"]["labels"].get("zone"), None);
        assert_eq!(patch["metadata"]["labels"]["kubernetes.io/os"], "other");
    }

    #[test]
    fn resources_that_others_set_stay_and_may_be_used() {
        let amounts = |all: &[(&str, &str)]| -> Option<BTreeMap<String, Quantity>> {
            Some(all.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect())
        };
        let found = NodeStatus {
            capacity: amounts(&[("cpu", "4"), ("hugepages-2Mi", "1"), ("scheduling.k8s.io/foo", "5")]),
            allocatable: amounts(&[("cpu", "4"), ("gone.example.com/x", "1")]),
            ..NodeStatus::default()
        };
        let own = NodeStatus {
            capacity: amounts(&[("cpu", "2")]),
            allocatable: amounts(&[("cpu", "1")]),
            ..NodeStatus::default()
        };
        let mut status = own.clone();
        keep_foreign_resources(&mut status, &found);
        assert_eq!(status.capacity, amounts(&[("cpu", "2"), ("scheduling.k8s.io/foo", "5")]));
        assert_eq!(status.allocatable, amounts(&[("cpu", "1"), ("scheduling.k8s.io/foo", "5")]));
        let mut alone = own.clone();
        keep_foreign_resources(&mut alone, &NodeStatus::default());
        assert_eq!(alone, own);
    }

    #[test]
    fn images_are_sorted_by_size_and_cut() {
        let image = |id: &str, size: u64| v1::Image {
            id: id.into(),
            size,
            repo_tags: vec![format!("{id}:1"), "<none>:<none>".into()],
            ..v1::Image::default()
        };
        let all = images(&[image("a", 1), image("b", 3), image("c", 2)], Some(2));
        let names: Vec<_> = all.iter().map(|i| i.names.clone().unwrap_or_default()).collect();
        assert_eq!(names, [["b:1"], ["c:1"]]);
    }
}
