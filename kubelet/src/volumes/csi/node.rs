//! Drivers of the node in the API: its CSINode, and what the node's metadata says of them. Upstream's `nodeinfomanager`.

use super::v1::NodeGetInfoResponse;
use crate::calls::{ApiError, timely};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Annotation with the drivers' names of the node: a JSON object.
const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
/// Longest wait for the API server.
const DEADLINE: Duration = Duration::from_secs(10);
/// Attempts to change an object that others change, too.
const ATTEMPTS: usize = 5;

/// The node's objects in the API.
pub(super) struct NodeObjects {
    client: kube::Client,
    node: String,
}

/// Failures of telling the API server of a driver.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeError {
    /// The driver has no name for the node.
    #[error("error adding CSI driver node info: driver {0} has no node ID")]
    NoNodeId(String),
    /// The node is labelled as being somewhere else.
    #[error(
        "detected topology value collision: driver reported {key:?}:{reported:?} but existing label is {key:?}:{known:?}"
    )]
    Elsewhere {
        /// The label.
        key: String,
        /// Value that the driver reports.
        reported: String,
        /// Value that the node has.
        known: String,
    },
    /// The node cannot be changed.
    #[error("error updating node: {0}")]
    Node(ApiError),
    /// The CSINode cannot be changed.
    #[error("error updating CSINode: {0}")]
    CsiNode(ApiError),
    /// An object cannot be read.
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// Names of the node by the drivers that gave them.
fn node_ids(node: &Node) -> BTreeMap<String, String> {
    let text = node.metadata.annotations.as_ref().and_then(|annotations| annotations.get(NODE_IDS));
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

fn id_patch(ids: &BTreeMap<String, String>) -> Value {
    let text = if ids.is_empty() { Value::Null } else { json!(json!(ids).to_string()) };
    json!({"metadata": {"annotations": {NODE_IDS: text}}})
}

/// The patch of the node's metadata for a driver's answer; none when the node says all of it.
///
/// # Errors
/// The node is labelled as being somewhere else.
fn announce(node: &Node, driver: &str, info: &NodeGetInfoResponse) -> Result<Option<Value>, NodeError> {
    let mut ids = node_ids(node);
    let known = ids.insert(driver.to_owned(), info.node_id.clone());
    let mut patch = if known.as_ref() == Some(&info.node_id) { json!({"metadata": {}}) } else { id_patch(&ids) };
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let mut missing = BTreeMap::new();
    for (key, value) in info.accessible_topology.iter().flat_map(|topology| &topology.segments) {
        match labels.get(key) {
            Some(known) if known == value => {}
            Some(known) => {
                let (key, reported, known) = (key.clone(), value.clone(), known.clone());
                return Err(NodeError::Elsewhere { key, reported, known });
            }
            None => drop(missing.insert(key, value)),
        }
    }
    if !missing.is_empty() {
        patch["metadata"]["labels"] = json!(missing);
    }
    Ok((patch != json!({"metadata": {}})).then_some(patch))
}

/// The patch that removes a driver's name of the node; none when there is none.
fn retract(node: &Node, driver: &str) -> Option<Value> {
    let mut ids = node_ids(node);
    ids.remove(driver)?;
    Some(id_patch(&ids))
}

/// An entry of the CSINode.
fn entry(driver: &str, info: &NodeGetInfoResponse) -> CSINodeDriver {
    let segments = info.accessible_topology.iter().flat_map(|topology| topology.segments.keys());
    let keys: Vec<String> = segments.cloned().collect();
    let most = i32::try_from(info.max_volumes_per_node).unwrap_or(i32::MAX);
    CSINodeDriver {
        name: driver.to_owned(),
        node_id: info.node_id.clone(),
        topology_keys: (!keys.is_empty()).then_some(keys),
        allocatable: (most > 0).then_some(VolumeNodeResources { count: Some(most) }),
    }
}

/// The CSINode of a node without drivers, which tells that plugins of old are left to drivers.
fn empty(node: &Node) -> CSINode {
    let name = node.metadata.name.clone().unwrap_or_default();
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.clone(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    };
    let metadata = ObjectMeta { name: Some(name), owner_references: Some(vec![owner]), ..ObjectMeta::default() };
    marked(CSINode { metadata, spec: CSINodeSpec { drivers: Vec::new() } })
}

fn marked(mut node: CSINode) -> CSINode {
    let (key, plugins) = shared::csi::moved_mark();
    node.metadata.annotations.get_or_insert_default().insert(key.to_owned(), plugins);
    node
}

/// Puts an entry in the place of the driver's, or removes that.
fn replaced(mut node: CSINode, driver: &str, entry: Option<CSINodeDriver>) -> CSINode {
    let known = node.spec.drivers.iter().find(|known| known.name == driver);
    if known != entry.as_ref() {
        node.spec.drivers.retain(|known| known.name != driver);
        node.spec.drivers.extend(entry);
    }
    node
}

/// Puts an entry in the place of the driver's, if it has one.
fn updated(node: CSINode, entry: CSINodeDriver) -> CSINode {
    let name = entry.name.clone();
    let is_listed = node.spec.drivers.iter().any(|known| known.name == name);
    if is_listed { replaced(node, &name, Some(entry)) } else { node }
}

impl NodeObjects {
    pub(super) fn new(client: kube::Client, node: &str) -> Self {
        Self { client, node: node.to_owned() }
    }

    async fn node(&self) -> Result<Node, ApiError> {
        timely(DEADLINE, Api::<Node>::all(self.client.clone()).get(&self.node)).await
    }

    async fn patch(&self, patch: &Value) -> Result<(), ApiError> {
        let api: Api<Node> = Api::all(self.client.clone());
        timely(DEADLINE, api.patch(&self.node, &PatchParams::default(), &Patch::Strategic(patch))).await.map(drop)
    }

    /// Makes the CSINode, if it is not there, and changes it; a change that changes nothing is not written.
    async fn change(&self, change: impl Fn(CSINode) -> CSINode) -> Result<(), NodeError> {
        let api: Api<CSINode> = Api::all(self.client.clone());
        let mut attempts = 0;
        loop {
            let written = match timely(DEADLINE, api.get_opt(&self.node)).await? {
                None => {
                    let node = change(empty(&self.node().await?));
                    timely(DEADLINE, api.create(&PostParams::default(), &node)).await
                }
                Some(found) => {
                    let wanted = change(marked(found.clone()));
                    if wanted == found {
                        return Ok(());
                    }
                    timely(DEADLINE, api.replace(&self.node, &PostParams::default(), &wanted)).await
                }
            };
            attempts += 1;
            match written {
                Ok(_) => return Ok(()),
                Err(error) if attempts == ATTEMPTS => return Err(NodeError::CsiNode(error)),
                Err(_) => {}
            }
        }
    }

    /// Makes the CSINode of a node without drivers. Upstream's `InitializeCSINodeWithAnnotation`.
    pub(super) async fn initialize(&self) -> Result<(), NodeError> {
        self.change(|node| node).await
    }

    /// Tells of a driver. Upstream's `InstallCSIDriver`.
    pub(super) async fn install(&self, driver: &str, info: &NodeGetInfoResponse) -> Result<(), NodeError> {
        if info.node_id.is_empty() {
            return Err(NodeError::NoNodeId(driver.to_owned()));
        }
        if let Some(patch) = announce(&self.node().await?, driver, info)? {
            self.patch(&patch).await.map_err(NodeError::Node)?;
        }
        self.change(|node| replaced(node, driver, Some(entry(driver, info)))).await
    }

    /// Tells how many volumes a driver that is listed can have on the node by now. Upstream's `UpdateCSIDriver`.
    pub(super) async fn update(&self, driver: &str, info: &NodeGetInfoResponse) -> Result<(), NodeError> {
        self.change(|node| updated(node, entry(driver, info))).await
    }

    /// Tells that a driver is gone. Upstream's `UninstallCSIDriver`.
    pub(super) async fn uninstall(&self, driver: &str) -> Result<(), NodeError> {
        self.change(|node| replaced(node, driver, None)).await?;
        match retract(&self.node().await?, driver) {
            Some(patch) => self.patch(&patch).await.map_err(NodeError::Node),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::v1::Topology;
    use super::*;

    fn info(id: &str, most: i64, segments: &[(&str, &str)]) -> NodeGetInfoResponse {
        let segments = segments.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let topology = Topology { segments };
        NodeGetInfoResponse { node_id: id.to_owned(), max_volumes_per_node: most, accessible_topology: Some(topology) }
    }

    fn node(metadata: Value) -> Node {
        serde_json::from_value(json!({"metadata": metadata})).expect("a node")
    }

    #[test]
    fn the_node_says_what_drivers_call_it_and_where_it_is() {
        let ids = |text: &str| json!({"annotations": {NODE_IDS: text}, "labels": {"zone": "a"}});
        let text = |text: &str| json!({"metadata": {"annotations": {NODE_IDS: text}}});
        for (metadata, answer, expected) in [
            (json!({}), info("n1", 0, &[]), Ok(Some(text("{\"d\":\"n1\"}")))),
            (ids("{\"d\":\"n1\"}"), info("n1", 0, &[("zone", "a")]), Ok(None)),
            (ids("{\"e\":\"x\"}"), info("n1", 0, &[]), Ok(Some(text("{\"d\":\"n1\",\"e\":\"x\"}")))),
            // Somebody's text is no reason to fail.
            (ids("nonsense"), info("n1", 0, &[]), Ok(Some(text("{\"d\":\"n1\"}")))),
            (
                ids("{\"d\":\"n1\"}"),
                info("n1", 0, &[("rack", "7")]),
                Ok(Some(json!({"metadata": {"labels": {"rack": "7"}}}))),
            ),
            (
                ids("{}"),
                info("n1", 0, &[("zone", "b")]),
                Err("detected topology value collision: driver reported \"zone\":\"b\" but existing label is \
                     \"zone\":\"a\""
                    .to_owned()),
            ),
        ] {
            let patch = announce(&node(metadata.clone()), "d", &answer).map_err(|error| error.to_string());
            assert_eq!(patch, expected, "{metadata}");
        }
        assert_eq!(
            retract(&node(ids("{\"d\":\"n1\"}")), "d"),
            Some(json!({"metadata": {"annotations": {NODE_IDS: null}}}))
        );
        assert_eq!(retract(&node(json!({})), "d"), None);
    }

    #[test]
    fn the_csi_node_lists_each_driver_once() {
        let made = empty(&node(json!({"name": "n", "uid": "u"})));
        assert_eq!(made.metadata.owner_references.as_ref().map(|owners| owners[0].uid.as_str()), Some("u"));
        let one = replaced(made.clone(), "d", Some(entry("d", &info("n1", 3, &[("zone", "a"), ("rack", "7")]))));
        let expected =
            json!([{"name": "d", "nodeID": "n1", "topologyKeys": ["rack", "zone"], "allocatable": {"count": 3}}]);
        assert_eq!(serde_json::to_value(&one.spec.drivers).expect("drivers"), expected);
        let two = replaced(one, "d", Some(entry("d", &info("n2", 0, &[]))));
        assert_eq!(serde_json::to_value(&two.spec.drivers).expect("drivers"), json!([{"name": "d", "nodeID": "n2"}]));
        let limit =
            |count| updated(two.clone(), entry("d", &info("n2", count, &[]))).spec.drivers[0].allocatable.clone();
        assert_eq!(limit(4).and_then(|most| most.count), Some(4));
        assert_eq!(limit(0), None);
        assert_eq!(updated(made.clone(), entry("d", &info("n2", 4, &[]))), made, "it has not registered");
        assert_eq!(replaced(two, "d", None), made);
    }

    #[test]
    fn numbers_of_volumes_that_the_api_cannot_hold_are_the_largest_it_can() {
        assert_eq!(entry("d", &info("n", i64::MAX, &[])).allocatable.and_then(|most| most.count), Some(i32::MAX));
        assert_eq!(entry("d", &info("n", -1, &[])).allocatable, None);
    }
}
