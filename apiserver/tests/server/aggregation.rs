//! Groups that other servers answer, and the API services of those that this one does.

use base64::Engine as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::harness::{Client, Cluster, EXTENSION, Extension, Identity, etcd_is_missing, file};
use crate::lifecycle::{heard, say, stop_taking, unfinished};

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const NAME: &str = "v1.wardle.example.com";

/// A cluster whose front proxy calls itself alice.
async fn cluster() -> Cluster {
    cluster_with("--requestheader-extra-headers-prefix=X-Remote-Extra-").await
}

/// One with another flag, too.
async fn cluster_with(flag: &str) -> Cluster {
    Cluster::start_with(|dir, pki| {
        let (certificate, key) = pki.pair(&Identity::Alice).expect("a pair");
        let file = |name: &str, text: &str| file(dir, name, text);
        vec![
            format!("--proxy-client-cert-file={}", file("proxy.crt", certificate)),
            format!("--proxy-client-key-file={}", file("proxy.key", key)),
            format!("--requestheader-client-ca-file={}", file("front.crt", &pki.ca)),
            "--requestheader-allowed-names=alice".to_owned(),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            flag.to_owned(),
        ]
    })
    .await
}

fn service(ca: &str, port: u16) -> Value {
    json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": NAME},
        "spec": {"group": EXTENSION, "version": "v1", "groupPriorityMinimum": 1500, "versionPriority": 20,
            "caBundle": base64::engine::general_purpose::STANDARD.encode(ca),
            "service": {"namespace": "wardle", "name": "api", "port": port}}})
}

/// Waits until an API service's condition has a reason; its message.
async fn until_reason(c: &Client, name: &str, wanted: &str) -> Value {
    let path = format!("{SERVICES}?watch=1&timeoutSeconds=60&fieldSelector=metadata.name%3D{name}");
    let found = c.watch_until(&path, |o| o["status"]["conditions"][0]["reason"] == wanted).await;
    found["status"]["conditions"][0].clone()
}

/// Has the other server at a port answer its group.
async fn extended(c: &Cluster, port: u16) {
    c.post("/api/v1/namespaces", json!({"metadata": {"name": "wardle"}})).await.ok();
    let named = json!({"metadata": {"name": "api"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    c.post("/api/v1/namespaces/wardle/services", named).await.ok();
    c.post(SERVICES, service(&c.pki().ca, port)).await.ok();
    until_reason(c, NAME, "Passed").await;
}

/// Of a server that only has OpenAPI v2 there is v3, too.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_server_has_schemas_in_version_3() {
    if etcd_is_missing() {
        return;
    }
    let c = cluster().await;
    let other = Extension::start_old(c.pki()).await;
    extended(&c, other.port()).await;
    let index = c.get("/openapi/v3").await.ok();
    let address = index["paths"][format!("apis/{EXTENSION}/v1")]["serverRelativeURL"].as_str().expect("an address");
    let document = c.get(address).await;
    assert_eq!(document.header("cache-control"), "public, immutable");
    let document = document.ok();
    let answer = &document["paths"][format!("/apis/{EXTENSION}/v1/flunders")]["get"]["responses"]["200"];
    let kind = "com.example.wardle.v1.Flunder";
    assert_eq!(answer["content"]["application/json"]["schema"]["$ref"], format!("#/components/schemas/{kind}"));
    assert_eq!(document["components"]["schemas"][kind]["properties"]["spec"]["type"], "string");
}

/// Redirects of aggregated servers pass where they are allowed.
#[tokio::test(flavor = "multi_thread")]
async fn redirects_pass_behind_their_flag() {
    if etcd_is_missing() {
        return;
    }
    let c = cluster_with("--aggregator-reject-forwarding-redirect=false").await;
    let other = Extension::start(c.pki()).await;
    extended(&c, other.port()).await;
    let answer = c.get(&format!("/apis/{EXTENSION}/v1/elsewhere")).await;
    assert_eq!((answer.code, answer.header("location")), (302, "https://example.com/"));
}

/// A request that this server took is answered by the other one although this one takes no more.
#[tokio::test(flavor = "multi_thread")]
async fn another_server_answers_on_the_way_down() {
    if etcd_is_missing() {
        return;
    }
    let mut c = cluster().await;
    let other = Extension::start(c.pki()).await;
    extended(&c, other.port()).await;
    let mut busy = unfinished(&c, "POST", &format!("/apis/{EXTENSION}/v1/namespaces/default/flunders/a")).await;
    stop_taking(&c).await;
    say(&mut busy, "{}").await;
    let answer = heard(busy).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"length\":2"), "{answer}");
    tokio::task::block_in_place(|| c.stop_server());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_server_answers() {
    if etcd_is_missing() {
        return;
    }
    let c = cluster().await;
    let other = Extension::start(c.pki()).await;
    let root = format!("/apis/{EXTENSION}/v1");
    assert_eq!(c.get(&root).await.code, 404);

    // Not before there is a service.
    c.post("/api/v1/namespaces", json!({"metadata": {"name": "wardle"}})).await.ok();
    c.post(SERVICES, service(&c.pki().ca, other.port())).await.ok();
    let condition = until_reason(&c, NAME, "ServiceNotFound").await;
    assert_eq!(condition["message"], "service/api in \"wardle\" is not present");
    let refused = c.get(&root).await;
    assert_eq!((refused.code, refused.text().as_str()), (503, "service unavailable\n"));
    let stale = c.call("GET", "/apis", &[("Accept", AGGREGATED)], None).await.ok();
    assert_eq!(version(&stale)["freshness"], "Stale");

    let named = json!({"metadata": {"name": "api"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    c.post("/api/v1/namespaces/wardle/services", named).await.ok();
    let condition = until_reason(&c, NAME, "Passed").await;
    assert_eq!((&condition["status"], &condition["message"]), (&json!("True"), &json!("all checks passed")));

    // It is told who asks, by somebody it can trust, and nothing that the caller made up.
    let path = format!("{root}/namespaces/default/flunders/a?x=1%2F2");
    let forged = [
        ("X-Remote-User", "root"),
        ("X-Remote-Extra-Scopes", "all"),
        ("X-Custom", "kept"),
        ("Authorization", "Bearer x"),
    ];
    let seen = c.call("POST", &path, &forged, Some(bytes::Bytes::from(vec![b'x'; 300_000]))).await.ok();
    let header = |name: &str| seen["headers"][name].clone();
    assert_eq!((&seen["peer"], &seen["path"], &seen["length"]), (&json!("alice"), &json!(path), &json!(300_000)));
    assert_eq!(header("x-remote-user"), json!(["admin"]));
    assert_eq!(header("x-remote-group"), json!(["system:masters", "system:authenticated"]));
    assert_eq!((header("x-custom"), header("authorization")), (json!(["kept"]), Value::Null));
    assert_eq!((header("x-remote-extra-scopes"), header("x-forwarded-proto")), (Value::Null, json!(["https"])));
    // It is called by its own name, and hears what was asked for in one form, whatever the client's.
    let own = format!("localhost:{}", other.port());
    assert_eq!((header("x-forwarded-host"), header("accept-encoding")), (json!([own]), json!(["gzip"])));
    assert_eq!(header("x-forwarded-uri"), json!([path.split('?').next().expect("a path")]));
    let odd = c.get(&format!("{root}/namespaces/default//flunders/a%2fb?b=2&a=%2f+&b=1&c&d;e=1")).await.ok();
    assert_eq!(odd["path"], format!("{root}/namespaces/default//flunders/a/b?a=%2F+&b=2&b=1&c="));
    assert_eq!(odd["headers"]["x-forwarded-uri"], json!([format!("{root}/namespaces/default/flunders/a/b")]));

    // Whatever the method, no more is announced than comes: the rest would be taken from the next request.
    let odd = c.call("GET", &path, &[], Some(bytes::Bytes::from_static(b"GET /x HTTP/1.1\r\n\r\n"))).await.ok();
    assert_eq!((&odd["method"], &odd["length"]), (&json!("GET"), &json!(19)));
    let next = c.get(&path).await.ok();
    assert_eq!((&next["method"], &next["path"], &next["length"]), (&json!("GET"), &json!(path), &json!(0)));

    // Names of people are not ASCII alone.
    let named =
        c.call("GET", &path, &[("Impersonate-User", "m\u{fc}ller"), ("Impersonate-Group", "system:masters")], None);
    assert_eq!(named.await.ok()["headers"]["x-remote-user"], json!(["m\u{fc}ller"]));

    // Whoever may not is not let through.
    let alice = c.client(Identity::Alice);
    let message = "flunders.wardle.example.com \"a\" is forbidden: User \"alice\" cannot get resource \"flunders\" in API group \"wardle.example.com\" in the namespace \"default\"";
    alice.get(&path).await.fails(403, "Forbidden", message);

    // Watches flow, redirects do not, connections switch.
    let events = c.watch(&format!("{root}/flunders?watch=1"), 2).await;
    assert_eq!((&events[0]["type"], &events[1]["type"]), (&json!("ADDED"), &json!("MODIFIED")));
    let redirected = c.get(&format!("{root}/elsewhere")).await;
    assert_eq!(redirected.code, 502);
    let mut raw = c.connection().await;
    let head =
        format!("GET {root}/flunders/a/attach HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    raw.write_all(head.as_bytes()).await.expect("asked");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(raw.read_u8().await.expect("a head"));
    }
    assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
    raw.write_all(b"hello").await.expect("written");
    let mut back = [0; 5];
    raw.read_exact(&mut back).await.expect("five bytes");
    assert_eq!(&back, b"olleh");

    // Discovery knows it.
    let groups = c.get("/apis").await.ok();
    let names: Vec<&str> =
        groups["groups"].as_array().into_iter().flatten().filter_map(|g| g["name"].as_str()).collect();
    assert_eq!(names.last(), Some(&EXTENSION));
    assert_eq!(c.get(&format!("/apis/{EXTENSION}")).await.ok()["preferredVersion"]["version"], "v1");
    let list = c.call("GET", "/apis", &[("Accept", AGGREGATED)], None).await.ok();
    let found = version(&list);
    assert_eq!((&found["freshness"], &found["resources"][0]["resource"]), (&json!("Current"), &json!("flunders")));
    assert_eq!(c.get(&root).await.ok()["resources"][0]["kind"], "Flunder");

    // OpenAPI has its part of what the server says, and nothing else.
    let schemas = c.get("/openapi/v2").await.ok();
    let place = format!("/apis/{EXTENSION}/v1/flunders");
    assert!(schemas["paths"].get(&place).is_some() && schemas["paths"].get("/api/v1/pods").is_some());
    assert!(schemas["paths"].get("/apis/other.example.com/v1/things").is_none());
    assert_eq!(schemas["definitions"]["com.example.wardle.v1.Flunder"]["properties"]["spec"]["type"], "string");
    assert!(schemas["definitions"]["io.k8s.api.core.v1.Pod"]["properties"].get("spec").is_some());
    let index = c.get("/openapi/v3").await.ok();
    let address = index["paths"][format!("apis/{EXTENSION}/v1")]["serverRelativeURL"].as_str().expect("an address");
    let document = c.get(address).await;
    assert_eq!((document.header("etag"), document.header("cache-control")), ("\"ABC\"", "public, immutable"));
    assert!(document.ok()["components"]["schemas"].get("com.example.wardle.v1.Flunder").is_some());

    // It breaks, and is back.
    other.down(true);
    let touch = |n: i64| json!({"metadata": {"annotations": {"touched": n.to_string()}}});
    c.patch("/api/v1/namespaces/wardle/services/api", "merge-patch+json", touch(1)).await.ok();
    let condition = until_reason(&c, NAME, "FailedDiscoveryCheck").await;
    let at = format!("https://localhost:{}{root}", other.port());
    let message = format!("failing or missing response from {at}: bad status from {at}: 500");
    assert_eq!(condition["message"], message);
    assert_eq!(c.get(&root).await.code, 503);
    let list = c.call("GET", "/apis", &[("Accept", AGGREGATED)], None).await.ok();
    let found = version(&list);
    assert_eq!((&found["freshness"], &found["resources"][0]["resource"]), (&json!("Stale"), &json!("flunders")));
    let metrics = c.get("/metrics").await.text();
    assert!(metrics.contains(&format!("aggregator_unavailable_apiservice{{name=\"{NAME}\"}} 1")));
    assert!(metrics.contains("reason=\"FailedDiscoveryCheck\""));
    other.down(false);
    c.patch("/api/v1/namespaces/wardle/services/api", "merge-patch+json", touch(2)).await.ok();
    until_reason(&c, NAME, "Passed").await;
    c.delete(&format!("{SERVICES}/{NAME}")).await.ok();
    for _ in 0..200 {
        if c.get(&root).await.code == 404 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the group stays after its API service went");
}

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

fn version(list: &Value) -> Value {
    let items = list["items"].as_array().expect("groups");
    items.iter().find(|g| g["metadata"]["name"] == EXTENSION).expect("the group")["versions"][0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn local_api_services_are_reconciled() {
    if etcd_is_missing() {
        return;
    }
    let c = cluster().await;
    let local = until_reason(&c, "v1.apps", "Local").await;
    assert_eq!(
        (&local["status"], &local["message"]),
        (&json!("True"), &json!("Local APIServices are always available"))
    );

    // Those of custom resources come, stay as they are, and go.
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    let defined = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "boats.aggregated.example.com"}, "spec": {"group": "aggregated.example.com", "scope": "Namespaced",
            "names": {"plural": "boats", "kind": "Boat"}, "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    c.post(definitions, defined).await.ok();
    let name = "v1.aggregated.example.com";
    until_reason(&c, name, "Local").await;
    let path = format!("{SERVICES}/{name}");
    let made = c.get(&path).await.ok();
    assert_eq!(made["metadata"]["labels"], json!({"kube-aggregator.kubernetes.io/automanaged": "true"}));
    let spec = json!({"group": "aggregated.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 100});
    assert_eq!(made["spec"], spec);
    let changed = c.patch(&path, "merge-patch+json", json!({"spec": {"versionPriority": 7}})).await.ok();
    let since = changed["metadata"]["resourceVersion"].as_str().expect("a revision");
    let watch =
        format!("{SERVICES}?watch=1&timeoutSeconds=30&resourceVersion={since}&fieldSelector=metadata.name%3D{name}");
    assert_eq!(c.watch(&watch, 1).await[0]["object"]["spec"], spec, "what is kept comes back");
    c.delete(&format!("{definitions}/boats.aggregated.example.com")).await.ok();
    let seen = c.watch(&watch, 2).await;
    assert_eq!(seen.get(1).map(|e| e["type"].clone()), Some(json!("DELETED")));

    // Those of compiled-in groups are an administrator's until the next start.
    c.delete(&format!("{SERVICES}/v1.batch")).await.ok();
    let listed = |groups: &Value| groups["groups"].as_array().is_some_and(|l| l.iter().any(|g| g["name"] == "batch"));
    let mut patience = 200;
    while listed(&c.get("/apis").await.ok()) {
        patience -= 1;
        assert!(patience > 0, "the list of groups has what no API service says");
    }
    // The group is answered all the same, and says what there is.
    assert_eq!(c.get("/apis/batch").await.ok()["preferredVersion"]["version"], "v1");
    c.get("/apis/batch/v1").await.ok();
    let list = c.call("GET", "/apis", &[("Accept", AGGREGATED)], None).await.ok();
    assert!(list["items"].as_array().is_some_and(|l| l.iter().any(|g| g["metadata"]["name"] == "batch")));
    let mut c = c;
    c.stop_server();
    c.start_server().await;
    until_reason(&c, "v1.batch", "Local").await;
}

/// The server restores the `Available` condition of an API service, whoever changes it.
#[tokio::test(flavor = "multi_thread")]
async fn availability_condition_is_restored() {
    if etcd_is_missing() {
        return;
    }
    let c = cluster().await;
    // One that is answered here can be used from the start.
    let local = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.local.example.com"},
        "spec": {"group": "local.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10}});
    let made = c.post(SERVICES, local).await.ok();
    let condition = &made["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"], &condition["reason"]),
        (&json!("Available"), &json!("True"), &json!("Local"))
    );

    // Behind a service with addresses, none of which is ready.
    c.post("/api/v1/namespaces", json!({"metadata": {"name": "wardle"}})).await.ok();
    let ports = json!([{"name": "https", "port": 7443}]);
    c.post("/api/v1/namespaces/wardle/services", json!({"metadata": {"name": "api"}, "spec": {"ports": ports}}))
        .await
        .ok();
    let made = c.post(SERVICES, service(&c.pki().ca, 7443)).await.ok();
    assert_eq!(made["status"], json!({}));
    let found = until_reason(&c, NAME, "EndpointsNotFound").await;
    assert_eq!(found["message"], "cannot find endpointslices for service/api in \"wardle\"");
    let slice = json!({"metadata": {"name": "api-1", "labels": {"kubernetes.io/service-name": "api"}}, "addressType": "IPv4",
        "ports": ports, "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": false}}]});
    c.post("/apis/discovery.k8s.io/v1/namespaces/wardle/endpointslices", slice).await.ok();
    let found = until_reason(&c, NAME, "MissingEndpoints").await;
    let message = "endpointslices for service/api in \"wardle\" have no addresses with port name \"https\"";
    assert_eq!(found["message"], message);

    // Somebody says otherwise, beside something of his own, which stays.
    let conditions = json!([{"type": "Available", "status": "True", "reason": "Made", "message": "up"},
        {"type": "StatusUpdated", "status": "True", "reason": "E2E", "message": "Set from e2e test"}]);
    let path = format!("{SERVICES}/{NAME}");
    let body = json!({"status": {"conditions": conditions}});
    let patched = c.patch(&format!("{path}/status"), "merge-patch+json", body).await.ok();
    assert_eq!(patched["status"]["conditions"][0]["reason"], "Made");
    let since = patched["metadata"]["resourceVersion"].as_str().expect("a revision");
    let watch =
        format!("{SERVICES}?watch=1&timeoutSeconds=20&resourceVersion={since}&fieldSelector=metadata.name%3D{NAME}");
    let after = &c.watch(&watch, 1).await[0]["object"]["status"]["conditions"];
    assert_eq!((&after[0]["reason"], &after[1]["reason"]), (&json!("MissingEndpoints"), &json!("E2E")));
    assert_eq!(c.get(&format!("/apis/{EXTENSION}/v1")).await.code, 503);
}

/// A check accepts any server that responds; requests fail on the wrong certificate.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_server_certificate_fails_requests() {
    if etcd_is_missing() {
        return;
    }
    let c = cluster().await;
    let other = Extension::start(c.pki()).await;
    c.post("/api/v1/namespaces", json!({"metadata": {"name": "wardle"}})).await.ok();
    let named = json!({"metadata": {"name": "api"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    c.post("/api/v1/namespaces/wardle/services", named).await.ok();
    c.post(SERVICES, service(&c.pki().foreign_ca, other.port())).await.ok();
    until_reason(&c, NAME, "Passed").await;
    let refused = c.get(&format!("/apis/{EXTENSION}/v1/flunders")).await;
    assert_eq!(refused.code, 503);
    let text = refused.text();
    assert!(text.starts_with("error trying to reach service: tls: failed to verify certificate: x509:"), "{text}");
}
