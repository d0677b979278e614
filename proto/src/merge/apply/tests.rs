//! Owners and fields, write by write.

use proptest::prelude::*;
use serde_json::{Map, json};

use super::*;
use crate::schema;

fn message(api_version: &str, kind: &str) -> &'static Message {
    schema::kind_of(api_version, kind).unwrap()
}

fn canonical(object: &Value) -> Value {
    let text = |f: &str| object[f].as_str().unwrap_or_default().to_owned();
    let bytes = serde_json::to_vec(object).unwrap();
    json::decode(message(&text("apiVersion"), &text("kind")), &bytes, Strictness::Ignore).unwrap().value
}

fn write<'a>(manager: &'a str, version: &'a str, now: &'a str, ownable: &'a Ownable) -> Write<'a> {
    Write { manager, api_version: version, subresource: "", now, ownable, versions: &One }
}

fn fields(object: &Value) -> Vec<(String, Value)> {
    let list = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    list.into_iter().map(|e| (e["manager"].as_str().unwrap_or_default().to_owned(), e["fieldsV1"].clone())).collect()
}

/// Objects as upstream's controllers made them own what upstream says.
#[test]
fn ownership_of_creates_is_upstreams() {
    let facts: Value = serde_json::from_str(include_str!("../../../testdata/managed-fields.json")).unwrap();
    let ownable = Ownable::Except(Set::of_fields(&[&["status"]]));
    for (name, api_version, kind) in [
        ("deployment default/d0", "apps/v1", "Deployment"),
        ("replicaset of d0", "apps/v1", "ReplicaSet"),
        ("job j", "batch/v1", "Job"),
    ] {
        let mut object = facts[name].clone();
        let want = object["metadata"]["managedFields"][0]["fieldsV1"].clone();
        object["apiVersion"] = api_version.into();
        object["kind"] = kind.into();
        strip(&mut object);
        let meta = object["metadata"].as_object_mut().unwrap();
        if kind == "Deployment" {
            meta.remove("annotations");
        }
        if kind == "Job" {
            // Set by the server after ownership is recorded.
            meta.remove("labels");
            object["spec"].as_object_mut().unwrap().remove("selector");
            object["spec"]["template"]["metadata"] = json!({});
        }
        object.as_object_mut().unwrap().remove("status");
        for owner in object["metadata"]["ownerReferences"].as_array_mut().into_iter().flatten() {
            owner["uid"] = "2a94696d-50f3-4250-9649-e2033917bdee".into();
        }
        let mut object = canonical(&object);
        update(message(api_version, kind), &Value::Null, &mut object, &write("m", api_version, "t", &ownable));
        assert_eq!(fields(&object), [("m".to_owned(), want)], "{name}");
    }
}

#[test]
fn updates_move_ownership() {
    let ownable = Ownable::Except(Set::new());
    let schema = message("v1", "ConfigMap");
    let cm = |data: Value| {
        canonical(
            &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "uid": "u"}, "data": data}),
        )
    };
    let mut first = cm(json!({"a": "1", "b": "1"}));
    update(schema, &Value::Null, &mut first, &write("m1", "v1", "2026-01-01T00:00:00Z", &ownable));
    let mut second = cm(json!({"a": "2", "b": "1", "c": "1"}));
    update(schema, &first, &mut second, &write("m2", "v1", "2026-01-01T00:00:01Z", &ownable));
    assert_eq!(
        fields(&second),
        [
            ("m1".to_owned(), json!({"f:data": {".": {}, "f:b": {}}})),
            ("m2".to_owned(), json!({"f:data": {"f:a": {}, "f:c": {}}})),
        ]
    );
    let mut third = cm(json!({"a": "2"}));
    update(schema, &second, &mut third, &write("m1", "v1", "2026-01-01T00:00:02Z", &ownable));
    assert_eq!(
        fields(&third),
        [("m1".to_owned(), json!({"f:data": {}})), ("m2".to_owned(), json!({"f:data": {"f:a": {}}}))]
    );
    // Without owners on a live object nothing is tracked; `[{}]` forgets all.
    let mut fourth = cm(json!({"z": "1"}));
    update(schema, &cm(json!({})), &mut fourth, &write("m1", "v1", "t", &ownable));
    assert!(fields(&fourth).is_empty());
    let mut forgotten = third.clone();
    forgotten["metadata"]["managedFields"] = json!([{}]);
    update(schema, &third, &mut forgotten, &write("m1", "v1", "t", &ownable));
    assert!(fields(&forgotten).is_empty());
}

fn run(live: &Value, config: Value, manager: &str, force: bool) -> Result<Applied, Error> {
    let ownable = Ownable::Except(Set::of_fields(&[&["status"]]));
    let version = config["apiVersion"].as_str().unwrap_or_default().to_owned();
    let schema = message(&version, config["kind"].as_str().unwrap_or_default());
    apply(schema, live, &config, &write(manager, &version, "2026-01-01T00:00:00Z", &ownable), force)
}

fn map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

#[test]
fn apply_owns_conflicts_and_prunes() {
    let one = run(&Value::Null, map(json!({"k": "1", "x": "1"})), "m1", false).unwrap();
    assert!(one.changed);
    assert_eq!(fields(&one.object), [("m1".to_owned(), json!({"f:data": {"f:k": {}, "f:x": {}}}))]);

    let conflict = run(&one.object, map(json!({"k": "2"})), "m2", false).unwrap_err();
    assert_eq!(conflict.to_string(), "Apply failed with 1 conflict: conflict with \"m1\": .data.k");
    let both = run(&one.object, map(json!({"k": "2", "x": "2"})), "m2", false).unwrap_err();
    assert_eq!(both.to_string(), "Apply failed with 2 conflicts: conflicts with \"m1\":\n- .data.k\n- .data.x");

    let forced = run(&one.object, map(json!({"k": "2"})), "m2", true).unwrap().object;
    assert_eq!(forced["data"], json!({"k": "2", "x": "1"}));
    assert_eq!(
        fields(&forced),
        [("m1".to_owned(), json!({"f:data": {"f:x": {}}})), ("m2".to_owned(), json!({"f:data": {"f:k": {}}}))]
    );

    // The same value may be owned by both; giving it up removes nothing then.
    let shared = run(&one.object, map(json!({"k": "1"})), "m2", false).unwrap();
    assert!(!shared.changed);
    let left = run(&shared.object, map(json!({"x": "1"})), "m1", false).unwrap().object;
    assert_eq!(left["data"], json!({"k": "1", "x": "1"}));
    let gone = run(&left, map(json!({})), "m2", false).unwrap().object;
    assert_eq!(gone["data"], json!({"x": "1"}));
}

#[test]
fn updates_conflict_with_version_and_subresource() {
    let ownable = Ownable::Except(Set::new());
    let mut live = canonical(
        &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "uid": "u"}, "spec": {"replicas": 1}}),
    );
    update(
        message("apps/v1", "Deployment"),
        &Value::Null,
        &mut live,
        &Write { subresource: "scale", ..write("x", "apps/v1", "t", &ownable) },
    );
    let config =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 3}});
    let error = run(&live, config, "m", false).unwrap_err().to_string();
    assert_eq!(
        error,
        "Apply failed with 1 conflict: conflict with \"x\" with subresource \"scale\" using apps/v1: .spec.replicas"
    );
}

#[test]
fn lists_merge_by_key_and_keep_order() {
    let pod = |containers: Value, finalizers: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "finalizers": finalizers}, "spec": {"containers": containers}});
    let a = run(
        &Value::Null,
        pod(
            json!([{"name": "a", "image": "1"}, {"name": "b", "image": "1", "ports": [{"containerPort": 80}]}]),
            json!(["x/a", "x/b"]),
        ),
        "m1",
        false,
    )
    .unwrap()
    .object;
    assert_eq!(a["spec"]["containers"][1]["ports"][0]["containerPort"], 80);
    let b =
        run(&a, pod(json!([{"name": "c", "image": "2"}, {"name": "a", "args": ["z"]}]), json!(["x/c"])), "m2", false)
            .unwrap()
            .object;
    let names: Vec<&str> =
        b["spec"]["containers"].as_array().unwrap().iter().filter_map(|c| c["name"].as_str()).collect();
    assert_eq!(names, ["c", "a", "b"]);
    assert_eq!(b["metadata"]["finalizers"], json!(["x/a", "x/b", "x/c"]));
    let owned = fields(&b)[1].1.clone();
    assert_eq!(owned["f:spec"]["f:containers"]["k:{\"name\":\"a\"}"], json!({".": {}, "f:args": {}, "f:name": {}}));
    // m1 drops container b and the finalizers: b goes, a stays because m2 owns it, m1's image goes.
    let c = run(&b, pod(json!([{"name": "a"}]), json!(null)), "m1", false).unwrap().object;
    let names: Vec<&str> =
        c["spec"]["containers"].as_array().unwrap().iter().filter_map(|c| c["name"].as_str()).collect();
    assert_eq!(names, ["c", "a"]);
    assert_eq!(c["spec"]["containers"][1].get("image"), None);
    assert_eq!(c["metadata"]["finalizers"], json!(["x/c"]));
}

#[test]
fn complaints() {
    let table = [
        (json!({"apiVersion": "v1", "kind": "Secret"}), "invalid object type: /v1, Kind=Secret"),
        (json!({"metadata": {"name": "ap"}}), "invalid object type: /, Kind="),
        (
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"managedFields": [{"manager": "x"}]}}),
            "metadata.managedFields must be nil",
        ),
        (
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ap"}, "zzz": 1}),
            "failed to create typed patch object (/ap; /v1, Kind=ConfigMap): .zzz: field not declared in schema",
        ),
    ];
    let ownable = Ownable::Except(Set::new());
    for (config, want) in table {
        let got = apply(message("v1", "ConfigMap"), &Value::Null, &config, &write("m", "v1", "t", &ownable), false);
        assert_eq!(got.unwrap_err().to_string(), want);
    }
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dup"}, "spec": {"containers": [{"name": "c", "image": "i"}, {"name": "c", "image": "j"}]}});
    let want = "failed to create typed patch object (/dup; /v1, Kind=Pod): .spec.containers: duplicate entries for key [name=\"c\"]";
    assert_eq!(run(&Value::Null, pod, "m", false).unwrap_err().to_string(), want);
}

#[test]
fn kubectl_takes_over_from_client_side_apply() {
    let sent = map(json!({"k": "1"}));
    let mut live = canonical(&sent);
    live["metadata"]["uid"] = "u".into();
    live["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": sent.to_string()});
    let ownable = Ownable::Except(Set::new());
    update(
        message("v1", "ConfigMap"),
        &Value::Null,
        &mut live,
        &write("kubectl-client-side-apply", "v1", "t", &ownable),
    );
    let other = run(&live, map(json!({"k": "2"})), "somebody", false).unwrap_err();
    assert_eq!(
        other.to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using v1: .data.k"
    );
    let done = run(&live, map(json!({"k": "2"})), "kubectl", false).unwrap().object;
    assert_eq!(done["data"]["k"], "2");
    let kept = done["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"].as_str().unwrap();
    assert!(kept.contains("\"k\":\"2\"") && kept.ends_with('\n'));
    // Changed by another since: no take-over.
    let mut edited = live.clone();
    edited["data"]["k"] = "3".into();
    update(message("v1", "ConfigMap"), &live, &mut edited, &write("editor", "v1", "t", &ownable));
    assert!(run(&edited, map(json!({"k": "2"})), "kubectl", false).is_err());
}

fn tree(depth: u32) -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::from)
    ];
    let key = prop_oneof![
        "[a-c]",
        Just("name".to_owned()),
        Just("metadata".to_owned()),
        Just("spec".to_owned()),
        Just("containers".to_owned()),
        Just("labels".to_owned()),
        Just("finalizers".to_owned()),
        Just("ports".to_owned()),
        Just("containerPort".to_owned()),
        Just("$patch".to_owned()),
        Just("$setElementOrder/containers".to_owned()),
        Just("$retainKeys".to_owned()),
        Just("image".to_owned())
    ];
    leaf.prop_recursive(depth, 24, 4, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(key.clone(), inner, 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn configs() -> impl Strategy<Value = Value> {
    let container =
        ("[a-c]", "[x-z]", proptest::collection::btree_set(1u16..4, 0..3)).prop_map(|(name, image, ports)| {
            let ports: Vec<Value> = ports.into_iter().map(|p| json!({"containerPort": p, "protocol": "TCP"})).collect();
            let mut container = json!({"name": name, "image": image});
            if !ports.is_empty() {
                container["ports"] = json!(ports);
            }
            container
        });
    let containers = proptest::collection::vec(container, 0..3).prop_map(|mut list| {
        list.sort_by_key(|c| c["name"].to_string());
        list.dedup_by_key(|c| c["name"].to_string());
        list
    });
    let labels = proptest::collection::btree_map("[a-c]", "[a-c]", 0..3);
    // Empty maps and lists are left out: applied, they differ from the absent ones that are stored.
    (containers, labels, proptest::collection::btree_set("[a-c]", 0..3)).prop_map(|(containers, labels, finalizers)| {
        let mut meta = json!({"name": "p"});
        if !labels.is_empty() {
            meta["labels"] = json!(labels);
        }
        if !finalizers.is_empty() {
            meta["finalizers"] = json!(finalizers);
        }
        let mut config = json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta});
        if !containers.is_empty() {
            config["spec"] = json!({"containers": containers});
        }
        config
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn merging_never_panics(a in tree(5), b in tree(5)) {
        let schema = message("v1", "Pod");
        let mut target = a.clone();
        let _ = super::super::strategic::apply(schema, &mut target, b.clone());
        super::super::merge_patch::apply(&mut a.clone(), b.clone());
        if let Ok(patch) = super::super::json_patch::Patch::decode(b.clone()) {
            let _ = patch.apply(&mut a.clone());
        }
        let ownable = Ownable::Except(Set::new());
        let mut named = b.clone();
        if let Some(map) = named.as_object_mut() {
            map.insert("apiVersion".into(), "v1".into());
            map.insert("kind".into(), "Pod".into());
        }
        let _ = apply(schema, &a, &named, &write("m", "v1", "t", &ownable), false);
        update(schema, &a, &mut named, &write("m", "v1", "t", &ownable));
        let kind = Type::Message(schema);
        let merged = typed::merge(kind, &a, &b);
        let _ = typed::remove(kind, &merged, &typed::to_set(kind, &b));
    }

    #[test]
    fn apply_is_idempotent(first in configs(), second in configs(), other in configs()) {
        let live = run(&Value::Null, first, "m1", false).unwrap().object;
        let live = run(&live, other, "m2", true).unwrap().object;
        let once = run(&live, second.clone(), "m1", true).unwrap().object;
        let twice = run(&once, second, "m1", false).unwrap().object;
        prop_assert_eq!(twice, once);
    }
}

/// Two versions of autoscaling, with one field that has two names.
struct Scalers;

impl Versions for Scalers {
    fn find(&self, api_version: &str) -> FieldsVersion<'_> {
        match api_version {
            "autoscaling/v1" | "autoscaling/v2" => {
                FieldsVersion::Other(message(api_version, "HorizontalPodAutoscaler"))
            }
            "autoscaling/v0" => FieldsVersion::Lost("no way to autoscaling/v0".to_owned()),
            _ => FieldsVersion::Gone,
        }
    }

    fn convert(&self, object: &Value, api_version: &str) -> Value {
        let mut object = object.clone();
        object["apiVersion"] = api_version.into();
        let Some(spec) = object["spec"].as_object_mut() else { return object };
        let cpu = "targetCPUUtilizationPercentage";
        if api_version == "autoscaling/v1" {
            if let Some(metrics) = spec.remove("metrics") {
                spec.insert(cpu.to_owned(), metrics[0]["resource"]["target"]["averageUtilization"].clone());
            }
        } else if let Some(percent) = spec.remove(cpu) {
            spec.insert("metrics".to_owned(), metrics(percent));
        }
        object
    }
}

fn metrics(percent: Value) -> Value {
    json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}}])
}

#[test]
fn owners_are_asked_in_their_version() {
    let ownable = Ownable::Except(Set::new());
    let scaler = |version: &str, extra: Value| {
        let mut spec = json!({"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d"}});
        spec.as_object_mut().unwrap().extend(extra.as_object().cloned().unwrap_or_default());
        json!({"apiVersion": version, "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"}, "spec": spec})
    };
    let v2 = message("autoscaling/v2", "HorizontalPodAutoscaler");
    let run = |live: &Value, config: Value, manager: &'static str, force| {
        let version = config["apiVersion"].as_str().unwrap_or_default().to_owned();
        let live = if live.is_null() { Value::Null } else { Scalers.convert(live, &version) };
        let schema = message(&version, "HorizontalPodAutoscaler");
        let write = Write { versions: &Scalers, ..write(manager, &version, "2026-01-01T00:00:00Z", &ownable) };
        apply(schema, &live, &config, &write, force).map(|a| Scalers.convert(&a.object, "autoscaling/v2"))
    };
    let first = scaler("autoscaling/v1", json!({"targetCPUUtilizationPercentage": 50}));
    let live = run(&Value::Null, first, "old", false).unwrap();
    assert_eq!(live["spec"]["metrics"], metrics(json!(50)));

    let other = scaler("autoscaling/v2", json!({"metrics": metrics(json!(80))}));
    let refused = run(&live, other.clone(), "new", false).unwrap_err();
    let want = "Apply failed with 1 conflict: conflict with \"old\": .spec.targetCPUUtilizationPercentage";
    assert_eq!(refused.to_string(), want);
    let taken = run(&live, other, "new", true).unwrap();
    let old = fields(&taken).into_iter().find(|(manager, _)| manager == "old").unwrap().1;
    assert_eq!(old["f:spec"].get("f:targetCPUUtilizationPercentage"), None);
    assert!(old["f:spec"].get("f:maxReplicas").is_some());

    // What is applied no more goes, also when it was applied in another version.
    let less = run(&live, scaler("autoscaling/v2", json!({})), "old", false).unwrap();
    assert_eq!(less["spec"].get("metrics"), None);

    // An update takes it from its owner as well; owners of a version that is gone are forgotten.
    let mut stale = live.clone();
    let entry = json!({"manager": "gone", "operation": "Update", "apiVersion": "autoscaling/v2beta1",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:minReplicas": {}}}});
    stale["metadata"]["uid"] = "u".into();
    stale["metadata"]["managedFields"].as_array_mut().unwrap().push(entry);
    let mut new = stale.clone();
    new["spec"]["metrics"] = metrics(json!(90));
    let write = Write { versions: &Scalers, ..write("updater", "autoscaling/v2", "2026-01-01T00:00:01Z", &ownable) };
    update(v2, &stale, &mut new, &write);
    let names: Vec<String> = fields(&new).into_iter().map(|(manager, _)| manager).collect();
    assert_eq!(names, ["old", "updater"]);
    assert_eq!(fields(&new)[0].1["f:spec"].get("f:targetCPUUtilizationPercentage"), None);
}

#[test]
fn who_cannot_be_told_is_in_the_way() {
    let ownable = Ownable::Except(Set::new());
    let v2 = message("autoscaling/v2", "HorizontalPodAutoscaler");
    let entry = |version: &str| {
        json!({"manager": "other", "operation": "Update", "apiVersion": version, "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:maxReplicas": {}}}})
    };
    let live = |version: &str, more: Value| {
        let mut spec = json!({"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d"}});
        spec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "a", "uid": "u", "managedFields": [entry(version)]}, "spec": spec})
    };
    let config = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"},
        "spec": {"minReplicas": 2}});
    let write = Write { versions: &Scalers, ..write("m", "autoscaling/v2", "2026-01-01T00:00:00Z", &ownable) };
    let plain = json!({});
    let unknown = json!({"behavior": {"scaleDown": {"stabilizationWindowSeconds": 1}}});
    for (version, more, why) in [
        ("autoscaling/v1", &plain, None),
        ("autoscaling/v2beta1", &plain, None),
        ("autoscaling/v0", &plain, Some("no way to autoscaling/v0")),
        ("autoscaling/v1", &unknown, Some(".spec.behavior: field not declared in schema")),
    ] {
        let live = live(version, more.clone());
        let applied = apply(v2, &live, &config, &write, false);
        assert_eq!(applied.err().map(|e| e.to_string()).as_deref(), why, "{version} {more}");
        let mut new = live.clone();
        new["spec"]["minReplicas"] = json!(2);
        update(v2, &live, &mut new, &write);
        assert_eq!(fields(&new).is_empty(), why.is_some(), "{version} {more}: who writes otherwise makes an end of it");
    }
}
