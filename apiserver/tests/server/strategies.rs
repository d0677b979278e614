//! Tests of strategies through HTTP: PUT, writes of `status`, approvals of certificates.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::harness::Client;
use crate::workspace;

/// A kind with its path and an object.
fn flow_schema(name: &str) -> (&'static str, Value) {
    let body = json!({"metadata": {"name": name}, "spec": {"priorityLevelConfiguration": {"name": "exempt"}}});
    ("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", body)
}

#[tokio::test(flavor = "multi_thread")]
async fn some_kinds_are_made_and_replaced_by_put() {
    let Some((c, ns)) = workspace("put-makes").await else { return };
    for (path, made) in [
        (ns.replace("/api/v1", "/apis/coordination.k8s.io/v1") + "/leases", json!({"spec": {"holderIdentity": "a"}})),
        ("/apis/node.k8s.io/v1/runtimeclasses".to_owned(), json!({"handler": "runc"})),
        (format!("{ns}/configmaps"), Value::Null),
    ] {
        let mut body = if made.is_null() { json!({}) } else { made.clone() };
        body["metadata"] = json!({"name": "put-makes"});
        let code = c.put(&format!("{path}/put-makes"), &body).await.code;
        assert_eq!(code, if made.is_null() { 404 } else { 201 }, "{path}");
        let refused = c.put(&format!("{path}/put-makes"), &body).await;
        let why = "metadata.resourceVersion: Invalid value: 0: must be specified for an update";
        assert!(made.is_null() || refused.text().contains(why), "{path}: {}", refused.text());
    }
    let (path, body) = flow_schema("put-replaces");
    c.post(path, body.clone()).await.ok();
    c.put(&format!("{path}/put-replaces"), &body).await.ok();
}

/// Writes metadata through `status`; returns what was written of it.
async fn labelled(c: &Client, path: &str, body: Value) -> (bool, bool) {
    let name = body["metadata"]["name"].as_str().expect("a name").to_owned();
    c.post(path, body).await.ok();
    let patch = json!({"metadata": {"labels": {"written": "x"}, "annotations": {"written": "x"}}});
    let object = c.patch(&format!("{path}/{name}/status"), "merge-patch+json", patch).await.ok();
    let has = |field: &str| object["metadata"][field].get("written").is_some();
    (has("labels"), has("annotations"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_of_status_may_leave_metadata_alone() {
    let Some((c, ns)) = workspace("status-meta").await else { return };
    let (path, body) = flow_schema("status-meta");
    assert_eq!(labelled(&c, path, body).await, (false, false));
    let cidr = json!({"metadata": {"name": "status-meta"}, "spec": {"cidrs": ["192.0.2.0/24"]}});
    assert_eq!(labelled(&c, "/apis/networking.k8s.io/v1/servicecidrs", cidr).await, (false, false));
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let deployments = ns.replace("/api/v1", "/apis/apps/v1") + "/deployments";
    assert_eq!(labelled(&c, &deployments, deployment).await, (false, true));
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}});
    assert_eq!(labelled(&c, &format!("{ns}/resourcequotas"), quota).await, (true, true));

    // What cannot be written is not owned.
    let (path, mut body) = flow_schema("status-meta");
    body["apiVersion"] = json!("flowcontrol.apiserver.k8s.io/v1");
    body["kind"] = json!("FlowSchema");
    body["metadata"]["labels"] = json!({"mine": "x"});
    body["status"] = json!({"conditions": [{"type": "Mine", "status": "True"}]});
    let status = format!("{path}/status-meta/status?fieldManager=status");
    let applied = c.patch(&status, "apply-patch+yaml", body).await.ok();
    let entries = applied["metadata"]["managedFields"].as_array().expect("entries");
    let own = &entries.iter().find(|e| e["manager"] == "status").expect("an entry")["fieldsV1"];
    assert_eq!(own.as_object().map(|fields| fields.keys().collect::<Vec<_>>()), Some(vec![&"f:status".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn some_kinds_are_less_strict() {
    let Some((c, ns)) = workspace("lax").await else { return };
    // Upstream takes the status of a range of services from whoever writes the range.
    let ranges = "/apis/networking.k8s.io/v1/servicecidrs";
    let range = |kind: &str| {
        json!({"metadata": {"name": "lax"}, "spec": {"cidrs": ["198.51.100.0/24"]},
            "status": {"conditions": [{"type": kind, "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
    };
    assert_eq!(types(&c.post(ranges, range("A")).await.ok()), ["A"]);
    assert_eq!(types(&c.put(&format!("{ranges}/lax"), &range("B")).await.ok()), ["B"]);
    c.delete(&format!("{ranges}/lax")).await;
    // What is called after an address is called nothing else.
    let address = json!({"metadata": {"generateName": "198.51.100.7"},
        "spec": {"parentRef": {"resource": "services", "namespace": "n", "name": "s"}}});
    let addresses = "/apis/networking.k8s.io/v1/ipaddresses";
    assert_eq!(c.post(addresses, address.clone()).await.ok()["metadata"]["name"], "198.51.100.7");
    let again = c.post(addresses, address).await;
    assert!(again.text().contains("the server was not able to generate a unique name for the object"));
    c.delete(&format!("{addresses}/198.51.100.7")).await;
    // Whether jobs are there or not, and how many.
    let jobs = ns.replace("/api/v1", "/apis/batch/v1") + "/jobs";
    for path in [jobs.clone(), format!("{jobs}/none")] {
        let answer = c.delete(&path).await;
        let warned = answer.warnings();
        assert!(warned.len() == 1 && warned[0].contains("child pods are preserved by default"), "{path}: {warned:?}");
        let quiet = c.delete(&format!("{path}?propagationPolicy=Background")).await;
        assert!(quiet.warnings().is_empty(), "{path}");
    }
}

fn types(object: &Value) -> Vec<&str> {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.map(|c| c["type"].as_str().unwrap_or("")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn approvers_write_every_condition_and_signers_leave_decisions_alone() {
    let Some((c, _)) = workspace("decisions").await else { return };
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let pem = include_str!("../../src/validation/tests/requests/rsa-1024-sha1.pem");
    let request = json!({"metadata": {"generateName": "decisions-"}, "spec": {"request": STANDARD.encode(pem),
        "signerName": "example.com/decisions", "usages": ["server auth"]}});
    let made = c.post(path, request).await.ok();
    let one = format!("{path}/{}", made["metadata"]["name"].as_str().expect("a name"));
    let (approval, status) = (format!("{one}/approval"), format!("{one}/status"));
    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "test"});
    let conditions = |all: &[Value]| json!({"status": {"conditions": all}});

    let own = conditions(&[condition("Own")]);
    let mut object = c.patch(&approval, "merge-patch+json", own).await.ok();
    assert_eq!(types(&object), ["Own"]);
    assert!(object["status"]["conditions"][0]["lastTransitionTime"].is_string(), "{object}");
    object["status"]["conditions"].as_array_mut().expect("conditions").push(condition("Approved"));
    object["status"]["certificate"] = json!(STANDARD.encode(pem));
    let object = c.put(&approval, &object).await.ok();
    assert_eq!((types(&object), &object["status"]["certificate"]), (vec!["Own", "Approved"], &Value::Null));

    let mut again = object.clone();
    again["status"]["conditions"][1]["message"] = json!("changed");
    again["status"]["conditions"].as_array_mut().expect("conditions").push(condition("Failed"));
    let signed = c.put(&status, &again).await.ok();
    assert_eq!(types(&signed), ["Own", "Approved", "Failed"]);
    assert_eq!(signed["status"]["conditions"][1], object["status"]["conditions"][1]);
    // Nobody owns what is asked, and who signs owns no decision.
    let owners = |object: &Value, subresource: &Value| -> Vec<Value> {
        let all = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        all.into_iter().filter(|o| o["subresource"] == *subresource).map(|o| o["fieldsV1"].clone()).collect()
    };
    assert_eq!(owners(&signed, &Value::Null), [json!({"f:metadata": {"f:generateName": {}}})]);
    assert_eq!(owners(&signed, &json!("approval")).len(), 1, "{signed}");
    assert!(owners(&signed, &json!("status")).is_empty(), "{signed}");
    for (path, all, why) in [
        (&status, vec![condition("Failed")], "updates may not remove a condition of type \"Approved\""),
        (
            &status,
            vec![condition("Approved"), condition("Failed"), condition("Denied")],
            "updates may not add a condition of type \"Denied\"",
        ),
        (&approval, vec![condition("Approved")], "updates may not remove a condition of type \"Failed\""),
    ] {
        let refused = c.patch(path, "merge-patch+json", conditions(&all)).await;
        assert!(
            refused.code == 422 && refused.json()["message"].to_string().contains(&why.replace('"', "\\\"")),
            "{why}: {}",
            refused.text()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strategies_normalize_objects() {
    let Some((c, ns)) = workspace("shapes").await else { return };
    let secrets = json!([{"name": "a", "namespace": "b", "kind": "Secret"}]);
    let account = json!({"metadata": {"name": "refers"}, "secrets": secrets});
    let account = c.post(&format!("{ns}/serviceaccounts"), account).await.ok();
    assert_eq!(account["secrets"], json!([{"name": "a"}]));
    let nameless = c.post(&format!("{ns}/limitranges"), json!({"spec": {"limits": [{"type": "Pod"}]}})).await.ok();
    assert_eq!(nameless["metadata"]["name"].as_str().map(str::len), Some(36));
    let node = json!({"metadata": {"name": "shapes"}, "spec": {"podCIDR": "10.250.0.0/24"}});
    let node = c.post("/api/v1/nodes", node).await.ok();
    assert_eq!(node["spec"]["podCIDRs"], json!(["10.250.0.0/24"]));
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    c.post(&format!("{ns}/pods"), pod).await.ok();
    let status = json!({"status": {"podIP": "10.250.0.1"}});
    let pod = c.patch(&format!("{ns}/pods/p/status"), "merge-patch+json", status).await.ok();
    assert_eq!(pod["status"]["podIPs"], json!([{"ip": "10.250.0.1"}]));
    let source = json!({"kind": "PersistentVolumeClaim", "name": "x"});
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"], "dataSource": source,
        "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = c.post(&format!("{ns}/persistentvolumeclaims"), claim).await.ok();
    assert_eq!(claim["spec"]["dataSourceRef"], claim["spec"]["dataSource"]);

    let generation = async |path: &str, made: Value, patch: Value| {
        let made = c.post(path, made).await.ok();
        let one = format!("{path}/{}", made["metadata"]["name"].as_str().expect("a name"));
        let changed = c.patch(&one, "merge-patch+json", patch).await.ok();
        (made["metadata"]["generation"].as_i64(), changed["metadata"]["generation"].as_i64())
    };
    let class = json!({"metadata": {"name": "shapes"}, "value": 1});
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    assert_eq!(generation(classes, class, json!({"description": "x"})).await, (Some(1), Some(1)));
    let driver = json!({"metadata": {"name": "shapes.example.com"}, "spec": {}});
    let drivers = "/apis/storage.k8s.io/v1/csidrivers";
    let patch = json!({"spec": {"requiresRepublish": true}});
    assert_eq!(generation(drivers, driver, patch).await, (None, Some(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn deprecated_fields_are_warned_of() {
    let Some((c, ns)) = crate::workspace("warned").await else { return };
    let annotations = json!({"container.apparmor.security.beta.kubernetes.io/c": "unconfined"});
    let template = json!({"metadata": {"annotations": annotations, "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let warning = |path: &str| {
        let field = format!("{path}metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]");
        vec![format!(r#"299 - "{field}: deprecated since v1.30; use the \"appArmorProfile\" field instead""#)]
    };

    let mut pod = template.clone();
    pod["metadata"]["name"] = "p".into();
    let made = c.post(&format!("{ns}/pods"), pod).await;
    assert_eq!(made.warnings(), warning(""), "the field is set from the annotation");
    let labels = json!({"metadata": {"labels": {"x": "y"}}});
    let labelled = c.patch(&format!("{ns}/pods/p"), "merge-patch+json", labels.clone()).await;
    assert_eq!((labelled.code, labelled.warnings().len()), (200, 0));

    let sets = ns.replace("/api/v1", "/apis/apps/v1") + "/replicasets";
    let set =
        json!({"metadata": {"name": "s"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    assert_eq!(c.post(&sets, set).await.warnings(), warning("spec.template."));
    let labelled = c.patch(&format!("{sets}/s"), "merge-patch+json", labels).await;
    assert_eq!((labelled.code, labelled.warnings().len()), (200, 0), "the specification is what it was");
    let scaled = c.patch(&format!("{sets}/s"), "merge-patch+json", json!({"spec": {"replicas": 2}})).await;
    assert_eq!(scaled.warnings(), warning("spec.template."));
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_are_named_once_and_addresses_in_any_spelling() {
    let Some((c, ns)) = crate::workspace("spelled").await else { return };
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u-1"});
    let map = json!({"metadata": {"name": "m", "ownerReferences": [owner, owner]}});
    let made = c.post(&format!("{ns}/configmaps"), map).await;
    assert_eq!(made.ok()["metadata"]["ownerReferences"], json!([owner]));
    let advice = "API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: u-1";
    let want = format!(r#"299 - ".metadata.ownerReferences contains duplicate entries; {advice}""#);
    assert_eq!(made.warnings(), [want]);
    let more = json!([{"op": "add", "path": "/metadata/ownerReferences/-", "value": owner}]);
    let patched = c.patch(&format!("{ns}/configmaps/m"), "json-patch+json", more).await;
    assert_eq!(patched.ok()["metadata"]["ownerReferences"], json!([owner]));
    let want = format!(
        r#"299 - ".metadata.ownerReferences contains duplicate entries after mutating admission happens; {advice}""#
    );
    assert_eq!(patched.warnings(), [want]);

    // An address that begins with zeros is the same address, and is given back when its service goes.
    let service =
        |name: &str, ip: &str| json!({"metadata": {"name": name}, "spec": {"clusterIP": ip, "ports": [{"port": 80}]}});
    let services = format!("{ns}/services");
    let probe = c.post(&services, json!({"metadata": {"name": "probe"}, "spec": {"ports": [{"port": 80}]}})).await.ok();
    let ip = probe["spec"]["clusterIP"].as_str().expect("an address").to_owned();
    let (head, last) = ip.rsplit_once('.').expect("octets");
    let odd = format!("{head}.0{last}");
    let taken = c.post(&services, service("other", &odd)).await;
    assert_eq!(taken.code, 422, "{}", taken.text());
    c.delete(&format!("{services}/probe")).await.ok();
    let made = c.post(&services, service("odd", &odd)).await;
    assert_eq!(made.ok()["spec"]["clusterIP"], odd.as_str());
    assert_eq!(made.warnings().len(), 1, "{:?}", made.warnings());
    c.delete(&format!("{services}/odd")).await.ok();
    c.post(&services, service("again", &ip)).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn evicted_pods_say_so_and_budgets_count_them() {
    let Some((c, ns)) = workspace("evictions").await else { return };
    let pods = format!("{ns}/pods");
    let budgets = ns.replace("/api/v1", "/apis/policy/v1") + "/poddisruptionbudgets";
    let spec = json!({"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}});
    c.post(&budgets, json!({"metadata": {"name": "b"}, "spec": spec})).await.ok();
    let status = json!({"disruptionsAllowed": 1, "observedGeneration": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2});
    let status = json!({"status": status});
    c.patch(&format!("{budgets}/b/status"), "merge-patch+json", status).await.ok();
    for name in ["p", "q"] {
        let spec = json!({"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]});
        c.post(&pods, json!({"metadata": {"name": name, "labels": {"a": "b"}}, "spec": spec})).await.ok();
        let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        c.patch(&format!("{pods}/{name}/status"), "merge-patch+json", status).await.ok();
    }
    let evict =
        async |name: &str| c.post(&format!("{pods}/{name}/eviction"), json!({"metadata": {"name": name}})).await;
    let unnamed = c.post(&format!("{pods}/p/eviction"), json!({})).await;
    unnamed.fails(400, "BadRequest", "name in URL does not match name in Eviction object");
    let unsafe_one = json!({"metadata": {"name": "p"},
        "deleteOptions": {"ignoreStoreReadErrorWithClusterBreakingPotential": true}});
    let unsafe_one = c.post(&format!("{pods}/p/eviction"), unsafe_one).await;
    assert!(unsafe_one.text().contains("can not be set for pod eviction"), "{}", unsafe_one.text());

    evict("p").await.ok();
    let pod = c.get(&format!("{pods}/p")).await.ok();
    assert!(pod["metadata"]["deletionTimestamp"].is_string());
    let told = pod["status"]["conditions"].as_array().expect("conditions").iter();
    let told: Vec<&Value> = told.filter(|c| c["type"] == "DisruptionTarget").map(|c| &c["reason"]).collect();
    assert_eq!(told, ["EvictionByEvictionAPI"]);
    let budget = c.get(&format!("{budgets}/b")).await.ok();
    assert_eq!(
        (&budget["status"]["disruptionsAllowed"], &budget["status"]["conditions"][0]["reason"]),
        (&json!(0), &json!("InsufficientPods"))
    );
    let written = budget["metadata"]["managedFields"].as_array().expect("managers").iter();
    assert!(written.clone().any(|m| m["manager"] == "kube-apiserver" && m["subresource"] == "status"));
    let refused = evict("q").await;
    assert_eq!(refused.code, 429);
    let cause = "The disruption budget b does not allow evicting pods currently";
    assert_eq!(refused.json()["details"]["causes"][0]["message"], cause);

    // A pod that is not ready goes while enough others are.
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    c.patch(&format!("{pods}/q/status"), "merge-patch+json", status).await.ok();
    evict("q").await.ok();
    c.post(&budgets, json!({"metadata": {"name": "c"}, "spec": {"selector": {}}})).await.ok();
    let spec = json!({"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]});
    c.post(&pods, json!({"metadata": {"name": "r", "labels": {"a": "b"}}, "spec": spec})).await.ok();
    c.patch(&format!("{pods}/r/status"), "merge-patch+json", json!({"status": {"phase": "Running"}})).await.ok();
    let several = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    evict("r").await.fails(500, "", several);
}

#[tokio::test(flavor = "multi_thread")]
async fn finalize_writes_metadata_and_namespaces_keep_their_label() {
    let Some((c, ns)) = workspace("finalized").await else { return };
    let mut namespace = c.get(&ns).await.ok();
    namespace["metadata"]["labels"] = json!({"x": "y"});
    namespace["spec"]["finalizers"] = json!(["kubernetes", "a.b/c"]);
    namespace["status"]["phase"] = json!("Terminating");
    let finalized = c.put(&format!("{ns}/finalize"), &namespace).await.ok();
    let labels = json!({"x": "y", "kubernetes.io/metadata.name": finalized["metadata"]["name"]});
    assert_eq!(
        (&finalized["metadata"]["labels"], &finalized["spec"]["finalizers"], &finalized["status"]["phase"]),
        (&labels, &namespace["spec"]["finalizers"], &json!("Active"))
    );
    let mut finalized = finalized;
    finalized["metadata"]["labels"] = json!({"x": "y"});
    assert_eq!(c.put(&format!("{ns}/status"), &finalized).await.ok()["metadata"]["labels"], labels);
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicate_names_and_exports_are_refused() {
    let Some((c, ns)) = workspace("taken").await else { return };
    let map = json!({"metadata": {"name": "a", "generateName": "a"}});
    c.post(&format!("{ns}/configmaps"), map.clone()).await.ok();
    let refused = c.post(&format!("{ns}/configmaps"), map).await;
    let why = "configmaps \"a\" already exists, the server was not able to generate a unique name for the object";
    refused.fails(409, "AlreadyExists", why);
    assert_eq!(refused.header("retry-after"), "1");
    let exported = c.get(&format!("{ns}/configmaps/a?export=true")).await;
    let why = "the export parameter, deprecated since v1.14, is no longer supported";
    exported.fails(400, "BadRequest", why);
    c.get(&format!("{ns}/configmaps/a?export=false")).await.ok();
}
