//! Discovery in its aggregated form: what it comes in, and how it is kept by clients.

use proto::{protobuf, schema};
use serde_json::{Value, json};

use crate::custom::{define, definition};
use crate::harness::{Cluster, Identity, etcd_is_missing};

const FORM: &str = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

fn form(media: &str) -> String {
    format!("{media}{FORM}")
}

fn groups(document: &Value) -> Vec<&str> {
    document["items"].as_array().into_iter().flatten().filter_map(|g| g["metadata"]["name"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_is_cached_by_etag() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start().await;
    let json = form("application/json");
    let aggregations = async |c: &Cluster| {
        let text = c.get("/metrics").await.text();
        let line = text.lines().find_map(|line| line.strip_prefix("aggregator_discovery_aggregation_count_total "));
        line.and_then(|n| n.parse::<f64>().ok()).expect("a count")
    };
    for path in ["/api", "/apis"] {
        let first = c.call("GET", path, &[("Accept", &json)], None).await;
        assert_eq!((first.code, first.header("content-type")), (200, json.as_str()));
        assert_eq!((first.header("cache-control"), first.header("vary")), ("public", "Accept"));
        let tag = first.header("etag").to_owned();
        let hexadecimal = tag.trim_matches('"').bytes().all(|b| b.is_ascii_digit() || (b'A'..=b'F').contains(&b));
        assert!(tag.len() == 130 && hexadecimal, "{tag}");
        let again = c.call("GET", path, &[("Accept", &json), ("If-None-Match", &tag)], None).await;
        assert_eq!((again.code, again.header("etag"), again.header("content-type")), (304, tag.as_str(), ""));
        assert!(again.text().is_empty() && !again.header("audit-id").is_empty());
        let weak = format!("W/{tag}");
        for other in ["*", weak.as_str(), "\"other\""] {
            let whole = c.call("GET", path, &[("Accept", &json), ("If-None-Match", other)], None).await;
            assert_eq!((whole.code, whole.header("etag")), (200, tag.as_str()), "{other}");
        }
        // The tag is that of what is said, in whatever form.
        let text = c.call("GET", path, &[("Accept", &form("application/yaml"))], None).await;
        assert_eq!((text.code, text.header("etag")), (200, tag.as_str()));
        assert_eq!(text.header("content-type"), form("application/yaml"));
        assert!(text.text().starts_with("apiVersion: apidiscovery.k8s.io/v2\nitems:\n"));
        let media = form("application/vnd.kubernetes.protobuf");
        let bytes = c.call("GET", path, &[("Accept", &media)], None).await;
        assert_eq!(
            (bytes.code, bytes.header("etag"), bytes.header("content-type")),
            (200, tag.as_str(), media.as_str())
        );
        let message = schema::kind("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList").expect("a kind");
        let raw = protobuf::unwrap(&bytes.bytes).expect("an envelope").raw;
        assert_eq!(groups(&protobuf::decode(message, raw).expect("a list")), groups(&first.json()));
        let people = c.call("GET", &format!("{path}?pretty=1"), &[("Accept", &json)], None).await.text();
        assert!(people.starts_with("{\n  \"kind\": \"APIGroupDiscoveryList\",\n"), "{people:.60}");
    }
    // Discovery is put together when somebody asks and something changed.
    let all = c.call("GET", "/apis", &[("Accept", &json)], None).await;
    let before = aggregations(&c).await;
    let versions =
        json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]);
    define(&c, definition("tags.example.com", "tags", "Tag", versions)).await;
    let accept = [("Accept", json.as_str()), ("If-None-Match", all.header("etag"))];
    let news = c.call("GET", "/apis", &accept, None).await;
    assert!(news.code == 200 && groups(&news.json()).contains(&"tags.example.com"));
    assert!(aggregations(&c).await > before);
    // Who takes the plain form alone, or none that there is.
    assert_eq!(c.call("GET", "/apis", &[("Accept", "application/json")], None).await.ok()["kind"], "APIGroupList");
    let table = "application/json;as=Table;g=meta.k8s.io;v=v1".to_owned();
    for unknown in [form("application/cbor"), json.replace("v2", "v2beta1"), table] {
        assert_eq!(c.call("GET", "/apis", &[("Accept", &unknown)], None).await.code, 406, "{unknown}");
    }
    assert_eq!(c.client(Identity::Alice).call("GET", "/apis", &[("Accept", &json)], None).await.code, 200);
}
