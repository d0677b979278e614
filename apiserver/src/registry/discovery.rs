//! The discovery group: slices of endpoints. Answers for upstream's `pkg/registry/discovery`.

pub(crate) mod endpoint_slice;

use proto::Value;

use super::strategy::StrategyCx;

/// The label that once said on which node an endpoint is.
const NODE: &str = "kubernetes.io/hostname";

/// Clients of `v1` cannot set what an earlier version had for the topology.
pub(super) fn prepare_create(new: &mut Value, _: &mut StrategyCx<'_>) {
    endpoints(new).for_each(drop_topology);
}

/// Prepares an update of a slice. Unchanged endpoints keep the deprecated topology; others keep the `nodeName` it
/// named, so that a client that sends only a part of what it read loses nothing.
pub(super) fn prepare_update(new: &mut Value, old: &Value) {
    if new.get("endpoints") == old.get("endpoints") {
        return;
    }
    let old = old.get("endpoints").and_then(Value::as_array).into_iter().flatten();
    let nodes: Vec<&str> = old.filter_map(node).collect();
    for endpoint in endpoints(new) {
        if endpoint.get("nodeName").is_none()
            && let Some(node) = node(endpoint).filter(|node| nodes.contains(node)).map(Value::from)
        {
            endpoint["nodeName"] = node;
        }
        drop_topology(endpoint);
    }
}

fn endpoints(slice: &mut Value) -> impl Iterator<Item = &mut Value> {
    slice.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten()
}

fn node(endpoint: &Value) -> Option<&str> {
    endpoint.get("deprecatedTopology")?.get(NODE)?.as_str().filter(|node| !node.is_empty())
}

fn drop_topology(endpoint: &mut Value) {
    if let Some(endpoint) = endpoint.as_object_mut() {
        endpoint.remove("deprecatedTopology");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_old_topology_is_read_but_not_written() {
        let slice = |endpoints: Value| json!({"endpoints": endpoints});
        let old = slice(json!([{"addresses": ["10.0.0.1"], "deprecatedTopology": {NODE: "n1", "zone": "z"}}]));
        for (sent, stored) in [
            (old["endpoints"].clone(), old["endpoints"].clone()),
            (
                json!([{"addresses": ["10.0.0.2"], "deprecatedTopology": {NODE: "n1"}}]),
                json!([{"addresses": ["10.0.0.2"], "nodeName": "n1"}]),
            ),
            (json!([{"deprecatedTopology": {NODE: "n2"}}]), json!([{}])),
            (json!([{"deprecatedTopology": {NODE: "n1"}, "nodeName": "n3"}]), json!([{"nodeName": "n3"}])),
        ] {
            let mut new = slice(sent.clone());
            prepare_update(&mut new, &old);
            assert_eq!(new["endpoints"], stored, "{sent}");
        }
    }
}
