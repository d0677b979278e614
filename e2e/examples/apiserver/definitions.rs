//! Custom resource definitions, one after another; discovery and OpenAPI are read after each.

use std::time::{Duration, Instant};

use anyhow::bail;
use bytes::Bytes;
use serde_json::{Value, json};

use testkit::figures::figure;
use testkit::http2::{Client, JSON};
use testkit::world::World;

/// Definitions that share a group.
const PER_GROUP: usize = 20;
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

fn group(number: usize) -> String {
    format!("group-{}.example.com", number / PER_GROUP)
}

/// A definition like those operators bring: nested settings, lists by key, a status with conditions.
fn definition(number: usize) -> Value {
    let text = |description: &str| json!({"type": "string", "description": description, "maxLength": 253});
    let setting = json!({"type": "object", "required": ["name"], "properties": {"name": text("Which one."),
        "value": text("What it is set to."), "weight": {"type": "integer", "format": "int32", "minimum": 0, "default": 1}}});
    let condition = json!({"type": "object", "required": ["type", "status"], "properties": {"type": text("Type."), "status": text("Status."),
        "reason": text("Reason."), "message": text("Message."), "lastTransitionTime": {"type": "string", "format": "date-time"}}});
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "replicas": {"type": "integer", "default": 1}, "image": text("Image to run."),
            "settings": {"type": "array", "items": setting, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
            "selector": {"type": "object", "additionalProperties": {"type": "string"}}}},
        "status": {"type": "object", "properties": {"conditions": {"type": "array", "items": condition}, "replicas": {"type": "integer"}}}}});
    let plural = format!("things{number}");
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [{"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"}]});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{}", group(number))},
        "spec": {"group": group(number), "scope": "Namespaced", "versions": [version],
            "names": {"plural": plural, "singular": format!("thing{number}"), "kind": format!("Thing{number}"), "listKind": format!("Thing{number}List")}}})
}

/// Reads what a client that has just made a definition reads, until the definition shows in it.
async fn read_back(client: &mut Client, number: usize) -> anyhow::Result<()> {
    let kind = format!("Thing{number}\"");
    let (discovery, openapi) =
        (format!("/apis/{}/v1", group(number)), format!("/openapi/v3/apis/{}/v1", group(number)));
    let give_up = Instant::now() + Duration::from_secs(10);
    for (path, accept) in [(discovery.as_str(), JSON), ("/apis", AGGREGATED), ("/openapi/v3", JSON), (&openapi, JSON)] {
        let listed = path != "/openapi/v3";
        loop {
            let body = client.get(path, accept).await;
            if body.is_ok_and(|b| !listed || b.windows(kind.len()).any(|w| w == kind.as_bytes())) {
                break;
            }
            if Instant::now() > give_up {
                bail!("{path} does not show definition {number}");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    Ok(())
}

/// All of it.
#[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
pub async fn all(world: &World, count: usize) -> anyhow::Result<()> {
    let mut client = world.client().await?;
    read_nothing(&mut client).await?;
    let (before, began) = (world.rss_mb(), Instant::now());
    let work = async {
        for number in 0..count {
            let body = Bytes::from(definition(number).to_string());
            client.call("POST", DEFINITIONS, &[("content-type", JSON)], body).await?;
            read_back(&mut client, number).await?;
        }
        Ok(())
    };
    let (_, cpu) = world.cpu_of(work).await?;
    let each = |sum: f64| sum / count as f64;
    figure(&format!("{count} definitions, discovery and OpenAPI read after each: CPU"), each(cpu), "ms", Some(10.0));
    figure("wall of each", each(began.elapsed().as_secs_f64() * 1e3), "ms", None);
    tokio::time::sleep(Duration::from_secs(1)).await;
    figure("memory of each definition", each((world.rss_mb() - before) * 1e3), "KB", Some(100.0));
    Ok(())
}

/// Reads nothing: what is made once is not a definition's cost.
async fn read_nothing(client: &mut Client) -> anyhow::Result<()> {
    client.get("/apis", AGGREGATED).await?;
    client.get("/openapi/v3", JSON).await.map(drop)
}
