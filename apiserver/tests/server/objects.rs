//! Objects of several kinds in every format; what deletes and applies leave behind.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::workspace;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn template(app: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

/// Path below the namespace's, and a body.
fn kinds(ns: &str) -> Vec<(String, Value)> {
    let core = format!("/api/v1/namespaces/{ns}");
    let group = |g: &str| format!("/apis/{g}/namespaces/{ns}");
    let selector = json!({"matchLabels": {"app": "a"}});
    vec![
        (format!("{core}/configmaps"), json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}})),
        (format!("{core}/secrets"), json!({"apiVersion": "v1", "kind": "Secret", "data": {"a": "Yg=="}})),
        (format!("{core}/pods"), json!({"apiVersion": "v1", "kind": "Pod", "spec": template("a")["spec"]})),
        (
            format!("{core}/services"),
            json!({"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}], "selector": {"app": "a"}}}),
        ),
        (
            format!("{core}/replicationcontrollers"),
            json!({"apiVersion": "v1", "kind": "ReplicationController", "spec": {"replicas": 0, "selector": {"app": "a"}, "template": template("a")}}),
        ),
        (
            format!("{}/deployments", group("apps/v1")),
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 0, "selector": selector, "template": template("a")}}),
        ),
        (
            format!("{}/daemonsets", group("apps/v1")),
            json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": {"selector": selector, "template": template("a")}}),
        ),
        (
            format!("{}/leases", group("coordination.k8s.io/v1")),
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": "x", "renewTime": "2026-01-01T00:00:00.000000Z"}}),
        ),
        (
            format!("{}/roles", group("rbac.authorization.k8s.io/v1")),
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
        ),
        (
            format!("{}/endpointslices", group("discovery.k8s.io/v1")),
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": [{"addresses": ["10.1.2.3"]}]}),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_format_says_the_same() {
    let Some((c, _)) = workspace("formats").await else { return };
    for (path, mut body) in kinds("formats") {
        body["metadata"] = json!({"name": "j", "labels": {"made": "json"}});
        let j = c.post(&path, body.clone()).await.ok();
        body["metadata"] = json!({"name": "y"});
        let yaml = proto::yaml::encode_any(&body).expect("yaml");
        let y = c
            .call(
                "POST",
                &path,
                &[("Content-Type", "application/yaml"), ("Accept", "application/yaml")],
                Some(Bytes::from(yaml)),
            )
            .await;
        assert_eq!((y.code, y.header("content-type")), (201, "application/yaml"), "{path}: {}", y.text());
        let y = proto::yaml::decode_any(&y.bytes).expect("yaml");
        assert_eq!(y, c.get(&format!("{path}/y")).await.ok(), "{path}: YAML is what JSON is");

        // What protobuf carries comes back as the same object.
        let p = c.send("GET", &format!("{path}/j"), PROTOBUF, None).await;
        assert_eq!((p.code, p.header("content-type")), (200, PROTOBUF), "{path}");
        let again = c
            .call(
                "PUT",
                &format!("{path}/j"),
                &[("Content-Type", PROTOBUF), ("Accept", PROTOBUF)],
                Some(p.bytes.clone()),
            )
            .await;
        assert_eq!((again.code, &again.bytes), (200, &p.bytes), "{path}: nothing changed");
        assert_eq!(c.get(&format!("{path}/j")).await.ok(), j, "{path}");
        let list = c.send("GET", &path, PROTOBUF, None).await;
        assert!(list.bytes.starts_with(b"k8s\0"), "{path}");

        let meta =
            c.send("GET", &path, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", None).await.ok();
        assert_eq!(
            (&meta["kind"], &meta["apiVersion"]),
            (&json!("PartialObjectMetadataList"), &json!("meta.k8s.io/v1")),
            "{path}"
        );
        assert!(meta["items"][0].get("spec").is_none() && meta["items"][0]["metadata"]["name"] == "j", "{path}");
        let one = c
            .send("GET", &format!("{path}/j"), "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", None)
            .await
            .ok();
        assert_eq!(
            (&one["kind"], &one["metadata"]["uid"]),
            (&json!("PartialObjectMetadata"), &j["metadata"]["uid"]),
            "{path}"
        );
        let table = c.send("GET", &path, "application/json;as=Table;v=v1;g=meta.k8s.io", None).await.ok();
        assert_eq!((&table["kind"], table["rows"].as_array().map(Vec::len)), (&json!("Table"), Some(2)), "{path}");
        assert_eq!(
            table["columnDefinitions"].as_array().map(Vec::len),
            table["rows"][0]["cells"].as_array().map(Vec::len),
            "{path}"
        );

        assert_eq!(
            c.get(&format!("{path}?labelSelector=made%3Djson")).await.ok()["items"].as_array().map(Vec::len),
            Some(1),
            "{path}"
        );
        let gone = c
            .delete(&format!("{path}?labelSelector=made%3Djson&propagationPolicy=Background&gracePeriodSeconds=0"))
            .await
            .ok();
        assert!(gone["kind"].as_str().is_some_and(|k| k.ends_with("List")), "{path}");
        let rest = c.get(&path).await.ok();
        assert_eq!(
            (rest["items"].as_array().map(Vec::len), &rest["items"][0]["metadata"]["name"]),
            (Some(1), &json!("y")),
            "{path}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_names_and_dry_runs() {
    let Some((c, ns)) = workspace("generated").await else { return };
    let maps = format!("{ns}/configmaps");
    let a = c.post(&maps, json!({"metadata": {"generateName": "g-"}})).await.ok();
    let b = c.post(&maps, json!({"metadata": {"generateName": "g-"}})).await.ok();
    let name = |o: &Value| o["metadata"]["name"].as_str().expect("a name").to_owned();
    assert!(name(&a) != name(&b) && name(&a).len() == 7 && name(&a).starts_with("g-"), "{} {}", name(&a), name(&b));
    let long = c.post(&format!("{maps}?dryRun=All"), json!({"metadata": {"generateName": "x".repeat(200)}})).await.ok();
    assert_eq!(name(&long).len(), 63);

    let path = format!("{maps}/{}", name(&a));
    let before = c.get(&path).await.ok();
    let changed = c.patch(&format!("{path}?dryRun=All"), "merge-patch+json", json!({"data": {"k": "v"}})).await.ok();
    assert_eq!(changed["data"], json!({"k": "v"}));
    let mut full = before.clone();
    full["data"] = json!({"k": "w"});
    assert_eq!(c.put(&format!("{path}?dryRun=All"), &full).await.ok()["data"], json!({"k": "w"}));
    c.delete(&format!("{path}?dryRun=All")).await.ok();
    c.delete_with(&path, json!({"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]})).await.ok();
    c.delete(&format!("{maps}?dryRun=All")).await.ok();
    assert_eq!(c.get(&path).await.ok(), before);
    assert_eq!(c.get(&maps).await.ok()["items"].as_array().map(Vec::len), Some(2));
    // Only storage minds the revision of what is new: a dry run does not get there, nor does what is not valid.
    let mut again = before.clone();
    again["metadata"]["name"] = json!("again");
    let dry = c.post(&format!("{maps}?dryRun=All"), again.clone()).await.ok();
    assert_eq!(dry["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
    let refused = c.post(&maps, again.clone()).await.failure();
    assert_eq!((refused.0, &*refused.2), (500, "resourceVersion should not be set on objects to be created"));
    again["metadata"]["name"] = json!("Not A Name");
    assert_eq!(c.post(&maps, again.clone()).await.code, 422);
    again["metadata"] = json!({"name": "odd", "resourceVersion": "no number"});
    assert_ne!(c.post(&maps, again).await.ok()["metadata"]["resourceVersion"], "no number");
    c.delete(&format!("{maps}/odd")).await.ok();
    // An address that a dry run was shown is not taken.
    let service = json!({"metadata": {"name": "s"}, "spec": {"clusterIP": "10.97.1.1", "ports": [{"port": 80}]}});
    c.post(&format!("{ns}/services?dryRun=All"), service.clone()).await.ok();
    c.post(&format!("{ns}/services"), service).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn deletes_keep_to_their_conditions() {
    let Some((c, ns)) = workspace("deletes").await else { return };
    let maps = format!("{ns}/configmaps");
    let a = c.post(&maps, json!({"metadata": {"name": "a"}})).await.ok();
    let path = format!("{maps}/a");
    let uid = a["metadata"]["uid"].as_str().expect("uid");
    let other = "22222222-2222-2222-2222-222222222222";
    c.delete_with(&path, json!({"preconditions": {"uid": other}})).await.fails(
        409,
        "Conflict",
        &format!("Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition ({other}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"),
    );
    let revision = a["metadata"]["resourceVersion"].as_str().expect("revision");
    c.delete_with(&path, json!({"preconditions": {"resourceVersion": "1"}})).await.fails(
        409,
        "Conflict",
        &format!("Operation cannot be fulfilled on ConfigMap \"a\": the ResourceVersion in the precondition (1) does not match the ResourceVersion in record ({revision}). The object might have been modified"),
    );
    let gone = c.delete_with(&path, json!({"preconditions": {"uid": uid, "resourceVersion": revision}})).await.ok();
    assert_eq!(
        (&gone["status"], &gone["details"]),
        (&json!("Success"), &json!({"name": "a", "kind": "configmaps", "uid": uid}))
    );

    // Policies are finalizers for the garbage collector.
    for (policy, finalizer) in [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")] {
        c.post(&maps, json!({"metadata": {"name": "p"}})).await.ok();
        let path = format!("{maps}/p");
        let held = c.delete(&format!("{path}?propagationPolicy={policy}")).await.ok();
        assert_eq!(held["metadata"]["finalizers"], json!([finalizer]), "{policy}");
        assert!(held["metadata"]["deletionTimestamp"].is_string(), "{policy}");
        // What is being deleted takes no new finalizers, and stays what it is.
        let late =
            c.patch(&path, "merge-patch+json", json!({"metadata": {"finalizers": [finalizer, "a.b/new"]}})).await;
        assert_eq!((late.code, late.failure().1.as_str()), (422, "Invalid"), "{policy}: {}", late.text());
        assert_eq!(c.patch(&path, "merge-patch+json", json!({"metadata": {"finalizers": []}})).await.code, 200);
        c.get(&path).await.fails(404, "NotFound", r#"configmaps "p" not found"#);
    }
    c.post(&maps, json!({"metadata": {"name": "p"}})).await.ok();
    c.delete(&format!("{maps}/p?propagationPolicy=Background")).await.ok();
    assert_eq!(c.get(&format!("{maps}/p")).await.code, 404);
}

fn managers(o: &Value) -> Vec<(String, String)> {
    let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
    o["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|m| (text(&m["manager"]), text(&m["operation"])))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn applied_fields_have_owners() {
    let Some((c, ns)) = workspace("apply").await else { return };
    let path = format!("{ns}/configmaps/a");
    let apply = async |manager: &str, data: Value| {
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data});
        c.patch(&format!("{path}?{manager}"), "apply-patch+yaml", body).await
    };
    let made = apply("fieldManager=m1", json!({"a": "1", "b": "1"})).await;
    assert_eq!(
        (made.code, managers(&made.json())),
        (201, vec![("m1".to_owned(), "Apply".to_owned())]),
        "{}",
        made.text()
    );
    assert_eq!(made.json()["metadata"]["managedFields"][0]["fieldsV1"], json!({"f:data": {"f:a": {}, "f:b": {}}}));

    apply("fieldManager=m2", json!({"a": "2"})).await.fails(
        409,
        "Conflict",
        r#"Apply failed with 1 conflict: conflict with "m1": .data.a"#,
    );
    apply("fieldManager=m2", json!({"a": "2", "b": "2"})).await.fails(
        409,
        "Conflict",
        "Apply failed with 2 conflicts: conflicts with \"m1\":\n- .data.a\n- .data.b",
    );
    // The same value is shared; what one gives up stays as long as the other has it.
    apply("fieldManager=m2", json!({"a": "1"})).await.ok();
    let left = apply("fieldManager=m1", json!({"b": "1"})).await.ok();
    assert_eq!(left["data"], json!({"a": "1", "b": "1"}));
    let left = apply("fieldManager=m2", json!({"c": "1"})).await.ok();
    assert_eq!(left["data"], json!({"b": "1", "c": "1"}), "nobody has a");
    // By force, the owner changes.
    let forced = apply("fieldManager=m2&force=true", json!({"b": "2"})).await.ok();
    assert_eq!(forced["data"], json!({"b": "2"}));
    let entry = |o: &Value, manager: &str| {
        o["metadata"]["managedFields"].as_array().into_iter().flatten().find(|m| m["manager"] == manager).cloned()
    };
    assert_eq!(entry(&forced, "m2").expect("m2")["fieldsV1"], json!({"f:data": {"f:b": {}}}));
    assert!(entry(&forced, "m1").is_none_or(|m| m["fieldsV1"].pointer("/f:data/f:b").is_none()), "{forced}");

    // An update takes what it changes.
    let updated = c.patch(&path, "merge-patch+json", json!({"data": {"b": "3", "d": "1"}})).await.ok();
    assert!(managers(&updated).contains(&("test".to_owned(), "Update".to_owned())));
    apply("fieldManager=m2", json!({"b": "2"})).await.fails(
        409,
        "Conflict",
        r#"Apply failed with 1 conflict: conflict with "test" using v1: .data.b"#,
    );
    // Nothing new, nothing written.
    let same = apply("fieldManager=m2&force=true", json!({"b": "4"})).await.ok();
    let again = apply("fieldManager=m2", json!({"b": "4"})).await.ok();
    assert_eq!(same["metadata"]["resourceVersion"], again["metadata"]["resourceVersion"]);
    // Lists with keys merge by key.
    let pods = format!("{ns}/pods/p");
    let pod = |containers: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}});
    let made = c
        .patch(
            &format!("{pods}?fieldManager=m1"),
            "apply-patch+yaml",
            pod(json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}])),
        )
        .await;
    assert_eq!(made.code, 201, "{}", made.text());
    let merged = c
        .patch(
            &format!("{pods}?fieldManager=m2&force=true"),
            "apply-patch+yaml",
            pod(json!([{"name": "b", "image": "j"}])),
        )
        .await
        .ok();
    let images: Vec<&Value> =
        merged["spec"]["containers"].as_array().into_iter().flatten().map(|c| &c["image"]).collect();
    assert_eq!(images, [&json!("i"), &json!("j")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_and_specs_are_apart() {
    let Some((c, ns)) = workspace("statuses").await else { return };
    let path = "/apis/apps/v1/namespaces/statuses/deployments".to_owned();
    let body = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template("a")}, "status": {"replicas": 9}});
    let d = c.post(&path, body).await.ok();
    assert_eq!(
        (&d["status"], &d["metadata"]["generation"], &d["spec"]["replicas"]),
        (&json!({}), &json!(1), &json!(1))
    );
    let path = format!("{path}/d");
    let s = c
        .patch(
            &format!("{path}/status"),
            "merge-patch+json",
            json!({"spec": {"replicas": 7}, "status": {"replicas": 2, "observedGeneration": 1}}),
        )
        .await
        .ok();
    assert_eq!(
        (&s["spec"]["replicas"], &s["status"]["replicas"], &s["metadata"]["generation"]),
        (&json!(1), &json!(2), &json!(1))
    );
    let m = c.patch(&path, "merge-patch+json", json!({"spec": {"replicas": 3}, "status": {"replicas": 8}})).await.ok();
    assert_eq!(
        (&m["spec"]["replicas"], &m["status"]["replicas"], &m["metadata"]["generation"]),
        (&json!(3), &json!(2), &json!(2))
    );
    let sub: Vec<&Value> = m["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|f| f["subresource"] == "status")
        .collect();
    assert_eq!(sub.len(), 1, "{m}");

    let scale = c.get(&format!("{path}/scale")).await.ok();
    assert_eq!(
        (&scale["apiVersion"], &scale["spec"]["replicas"], &scale["status"]),
        (&json!("autoscaling/v1"), &json!(3), &json!({"replicas": 2, "selector": "app=a"}))
    );
    let mut scale = scale;
    scale["spec"]["replicas"] = json!(5);
    assert_eq!(c.put(&format!("{path}/scale"), &scale).await.ok()["spec"]["replicas"], 5);
    c.put(&format!("{path}/scale"), &scale).await.fails(
        409,
        "Conflict",
        r#"Operation cannot be fulfilled on deployments.apps "d": the object has been modified; please apply your changes to the latest version and try again"#,
    );
    assert_eq!(c.get(&path).await.ok()["spec"]["replicas"], 5);
    let _ = ns;
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_deletion_waits_for_its_content() {
    let Some((c, ns)) = workspace("ending").await else { return };
    let maps = format!("{ns}/configmaps");
    c.post(&maps, json!({"metadata": {"name": "a"}})).await.ok();
    c.post("/api/v1/namespaces/nowhere/configmaps", json!({"metadata": {"name": "a"}})).await.fails(
        404,
        "NotFound",
        r#"namespaces "nowhere" not found"#,
    );
    assert_eq!(c.delete(&ns).await.ok()["status"]["phase"], "Terminating");
    c.post(&maps, json!({"metadata": {"name": "late"}})).await.fails(
        403,
        "Forbidden",
        r#"configmaps "late" is forbidden: unable to create new content in namespace ending because it is being terminated"#,
    );
    c.patch(&format!("{maps}/a"), "merge-patch+json", json!({"data": {"z": "z"}})).await.ok();
    for kept in ["default", "kube-system"] {
        let message = format!("namespaces \"{kept}\" is forbidden: this namespace may not be deleted");
        c.delete(&format!("/api/v1/namespaces/{kept}")).await.fails(403, "Forbidden", &message);
    }
}
