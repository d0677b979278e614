//! Upstream's answers (`testdata/validation.json`), the rules of updates, and any tree at all.

use proto::Value;
use proto::json::{self, Strictness};
use proto::resources::{Resource, find, optional as off};
use proto::{defaulting, schema};
use serde_json::{Map, json};
use shared::status::field::Error;

use super::{ValidationOptions, in_order};
use crate::registry::behavior;

mod certificates;
mod changed_groups;
mod changed_pods;
mod core;
mod core_changed;
mod core_new;
mod devices;
mod group_details;
mod groups;
mod nodes;
mod optional;
mod options;
mod pod_details;
mod pod_parts;
mod pods;
mod slices;
mod storage_parts;
mod stored;
mod warned;
mod workload_parts;
mod workloads;

/// Options that relax no rule.
const STRICT: ValidationOptions = ValidationOptions::none();

fn validate_create(served: &Resource, row: &Resource, object: &Value) -> Vec<Error> {
    behavior(row).validate_create(STRICT, (served, row), object)
}

fn validate_update(served: &Resource, row: &Resource, new: &Value, old: &Value) -> Vec<Error> {
    behavior(row).validate_update(STRICT, (served, row), (new, old))
}

fn validate_subresource(row: &Resource, subresource: &str, new: &Value, old: &Value) -> Vec<Error> {
    behavior(row).validate_subresource(STRICT, row, subresource, (new, old))
}

fn warnings(row: &Resource, subresource: &str, object: &Value, old: Option<&Value>) -> Vec<String> {
    behavior(row).warnings(STRICT, row, subresource, object, old)
}

/// Row and namespace of a collection's path.
fn target(path: &str) -> (&'static Resource, String) {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let (group, version, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => ("", "", &[][..]),
    };
    let (namespace, plural) = match rest {
        ["namespaces", namespace, plural, ..] => (*namespace, *plural),
        [plural, ..] => ("", *plural),
        [] => ("", ""),
    };
    let is_meant = |row: &&Resource| row.group == group && row.version == version && row.plural == plural;
    let row = find(group, version, plural).or_else(|| off().iter().find(is_meant));
    (row.unwrap(), namespace.to_owned())
}

fn prepared(row: &Resource, namespace: &str, mut body: Value) -> Value {
    body["apiVersion"] = row.api_version().into();
    body["kind"] = row.kind.to_string().into();
    let schema = schema::kind(&row.group, &row.version, &row.kind).unwrap();
    let bytes = serde_json::to_vec(&body).unwrap();
    let mut object = json::decode(schema, &bytes, Strictness::Ignore).unwrap().value;
    defaulting::apply(schema, &mut object);
    if row.namespaced {
        object["metadata"]["namespace"] = namespace.into();
    }
    // What the job strategy does before validation.
    if row.kind == "Job" && object["spec"].get("selector").is_none_or(Value::is_null) {
        object["metadata"]["uid"] = "u".into();
        let name = object["metadata"]["name"].clone();
        object["spec"]["selector"] = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}});
        let labels = &mut object["spec"]["template"]["metadata"]["labels"];
        for (key, value) in [("controller-uid", json!("u")), ("job-name", name)] {
            labels[key] = value.clone();
            labels[format!("batch.kubernetes.io/{key}")] = value;
        }
    }
    object
}

fn shown(errors: &[Error]) -> Vec<Value> {
    let cause = |e: &Error| json!({"field": e.field, "message": e.body(), "reason": e.kind.reason()});
    errors.iter().map(cause).collect()
}

/// JSON inside messages is compared by value: key order differs.
fn comparable(causes: &[Value]) -> Vec<(String, String, String)> {
    let text = |c: &Value, k: &str| c[k].as_str().unwrap_or_default().to_owned();
    let sorted = |message: String| {
        let Some(rest) = message.strip_prefix("Invalid value: ") else { return message };
        let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match stream.next() {
            Some(Ok(value)) => format!("Invalid value: {value}{}", &rest[stream.byte_offset()..]),
            _ => message,
        }
    };
    causes.iter().map(|c| (text(c, "field"), text(c, "reason"), sorted(text(c, "message")))).collect()
}

#[test]
fn creates_are_refused_as_upstream_does() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../../../testdata/validation.json")).unwrap();
    let mut wrong = Vec::new();
    for case in &cases {
        let (row, namespace) = target(case["path"].as_str().unwrap());
        let object = prepared(row, &namespace, case["body"].clone());
        let got = comparable(&shown(&validate_create(row, row, &object)));
        let want = comparable(case["causes"].as_array().unwrap());
        if got != want {
            wrong.push(format!("{}:\n got {got:#?}\n want {want:#?}", case["name"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Creates an object of the first body, merges the second into it and validates.
fn patched(path: &str, body: Value, patch: Value) -> Vec<(String, String)> {
    let (row, namespace) = target(path);
    let mut body = body;
    body["metadata"]["name"] = body["metadata"].get("name").cloned().unwrap_or_else(|| "x".into());
    let mut old = prepared(row, &namespace, body);
    old["metadata"]["uid"] = "u".into();
    let errors = validate_create(row, row, &old);
    assert!(errors.is_empty(), "{path}: {errors:?}");
    let mut new = old.clone();
    proto::merge::merge_patch::apply(&mut new, patch);
    let schema = schema::kind(&row.group, &row.version, &row.kind).unwrap();
    defaulting::apply(schema, &mut new);
    in_order(schema, validate_update(row, row, &new, &old)).iter().map(|e| (e.field.clone(), e.body())).collect()
}

/// A change to an object: path and new value (null removes it).
type Change = (&'static str, Value);
/// Changes, and the causes for which they are refused.
type Row<'a> = (&'a [Change], &'a [&'a str]);

/// An object with a value at a JSON pointer; what is missing on the way is made.
fn set(object: &mut Value, pointer: &str, value: Value) {
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    if object.pointer(parent).is_none_or(Value::is_null) {
        set(object, parent, if last.parse::<usize>().is_ok() { json!([]) } else { json!({}) });
    }
    let last = last.replace("~1", "/");
    match (object.pointer_mut(parent).unwrap(), value) {
        (Value::Object(map), Value::Null) => drop(map.remove(&last)),
        (Value::Object(map), value) => drop(map.insert(last, value)),
        (Value::Array(list), Value::Null) => drop(list.remove(last.parse().unwrap())),
        (Value::Array(list), value) => match list.get_mut(last.parse::<usize>().unwrap()) {
            Some(place) => *place = value,
            None => list.push(value),
        },
        (other, _) => unreachable!("{pointer} is in {other}"),
    }
}

fn lines(row: &Resource, errors: Vec<Error>) -> Vec<String> {
    let schema = schema::kind(&row.group, &row.version, &row.kind).unwrap();
    in_order(schema, errors).iter().map(ToString::to_string).collect()
}

/// A valid object of a collection.
struct Valid {
    row: &'static Resource,
    object: Value,
}

impl Valid {
    fn new(path: &str, body: Value) -> Self {
        let (row, namespace) = target(path);
        let mut body = body;
        if body["metadata"].get("name").is_none() {
            body["metadata"]["name"] = "x".into();
        }
        let mut object = prepared(row, &namespace, body);
        object["metadata"]["uid"] = "u".into();
        assert_eq!(lines(row, validate_create(row, row, &object)), [""; 0], "{path}");
        Self { row, object }
    }

    fn with(&self, changes: &[Change]) -> Value {
        let mut object = self.object.clone();
        for (pointer, value) in changes {
            set(&mut object, pointer, value.clone());
        }
        object
    }

    fn judge(&self, table: &[Row<'_>], errors: impl Fn(&Value) -> Vec<Error>) {
        let mut wrong = Vec::new();
        for (changes, want) in table {
            let got = lines(self.row, errors(&self.with(changes)));
            if got != *want {
                wrong.push(format!("{changes:?}\n  got {got:#?}\n want {want:#?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Each change of a new object is refused with these causes.
    fn create(&self, table: &[Row<'_>]) {
        self.judge(table, |object| validate_create(self.row, self.row, object));
    }

    /// Each change of a stored object is refused with these causes.
    fn update(&self, table: &[Row<'_>]) {
        self.judge(table, |object| validate_update(self.row, self.row, object, &self.object));
    }

    /// Validates a table of changes through a subresource.
    fn sub(&self, name: &str, table: &[Row<'_>]) {
        self.judge(table, |object| validate_subresource(self.row, name, object, &self.object));
    }
}

fn pod_spec() -> Value {
    json!({"containers": [{"name": "c", "image": "i"}]})
}

#[test]
fn immutable_fields() {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod_spec()});
    let workload = json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template, "serviceName": "s"}});
    let apps = "/apis/apps/v1/namespaces/n/";
    let table = [
        (
            "/api/v1/namespaces/n/configmaps".to_owned(),
            json!({"immutable": true, "data": {"a": "b"}}),
            json!({"data": {"a": "c"}}),
            "data",
            "Forbidden: field is immutable when `immutable` is set",
        ),
        (
            "/api/v1/namespaces/n/configmaps".to_owned(),
            json!({"immutable": true}),
            json!({"immutable": null}),
            "immutable",
            "Forbidden: field is immutable when `immutable` is set",
        ),
        (
            "/api/v1/namespaces/n/secrets".to_owned(),
            json!({}),
            json!({"type": "x"}),
            "type",
            "Invalid value: \"x\": field is immutable",
        ),
        (
            format!("{apps}deployments"),
            workload.clone(),
            json!({"spec": {"selector": {"matchLabels": {"z": "z"}}, "template": {"metadata": {"labels": {"z": "z"}}}}}),
            "spec.selector",
            "Invalid value: {\"matchLabels\":{\"a\":\"b\",\"z\":\"z\"}}: field is immutable",
        ),
        (
            format!("{apps}statefulsets"),
            workload,
            json!({"spec": {"serviceName": "z"}}),
            "spec",
            "Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        ),
        (
            "/apis/storage.k8s.io/v1/storageclasses".to_owned(),
            json!({"provisioner": "a"}),
            json!({"provisioner": "z"}),
            "provisioner",
            "Forbidden: updates to provisioner are forbidden.",
        ),
        (
            "/apis/scheduling.k8s.io/v1/priorityclasses".to_owned(),
            json!({"value": 1}),
            json!({"value": 9}),
            "value",
            "Forbidden: may not be changed in an update.",
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/n/endpointslices".to_owned(),
            json!({"addressType": "IPv4", "endpoints": []}),
            json!({"addressType": "IPv6"}),
            "addressType",
            "Invalid value: \"IPv6\": field is immutable",
        ),
        (
            "/apis/networking.k8s.io/v1/ingressclasses".to_owned(),
            json!({"spec": {"controller": "a.b/c"}}),
            json!({"spec": {"controller": "z.z/z"}}),
            "spec.controller",
            "Invalid value: \"z.z/z\": field is immutable",
        ),
        (
            "/api/v1/nodes".to_owned(),
            json!({"spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}}),
            json!({"spec": {"podCIDR": "10.7.0.0/24", "podCIDRs": ["10.7.0.0/24"]}}),
            "spec.podCIDRs",
            "Forbidden: node updates may not change podCIDR except from \"\" to valid",
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/namespaces/n/rolebindings".to_owned(),
            json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "a"}}),
            json!({"roleRef": {"name": "z"}}),
            "roleRef",
            "Invalid value: {\"APIGroup\":\"rbac.authorization.k8s.io\",\"Kind\":\"Role\",\"Name\":\"z\"}: cannot change roleRef",
        ),
        (
            "/api/v1/namespaces/n/services".to_owned(),
            json!({"spec": {"clusterIP": "10.96.1.1", "clusterIPs": ["10.96.1.1"], "ports": [{"port": 80}]}}),
            json!({"spec": {"clusterIP": "10.96.9.9", "clusterIPs": null}}),
            "spec.clusterIPs[0]",
            "Invalid value: [\"10.96.9.9\"]: may not change once set",
        ),
        (
            "/api/v1/namespaces/n/pods".to_owned(),
            json!({"spec": pod_spec()}),
            json!({"spec": {"restartPolicy": "Never"}}),
            "spec",
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
        ),
        (
            "/api/v1/namespaces/n/pods".to_owned(),
            json!({"spec": pod_spec()}),
            json!({"spec": {"containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "i"}]}}),
            "spec.containers",
            "Forbidden: pod updates may not add or remove containers",
        ),
    ];
    for (path, body, patch, field, message) in table {
        let got = patched(&path, body, patch);
        // What some show of the difference has tests of its own.
        let got: Vec<_> = got.iter().map(|(f, m)| (f.as_str(), m.split("\n@@").next().unwrap_or(m))).collect();
        assert_eq!(got, [(field, message)], "{path}");
    }
    let ranges = |list: Value| json!({"spec": {"podCIDRs": list}});
    let (old, new) = (ranges(json!(["10.1.0.0/24", "fd00::/64"])), ranges(json!(["10.7.0.0/24", "fd01::/64"])));
    assert_eq!(patched("/api/v1/nodes", old, new).len(), 2, "one complaint for each");
    let uid = patched("/api/v1/namespaces/n/configmaps", json!({}), json!({"metadata": {"uid": "x"}}));
    let cause = ("metadata.uid".to_owned(), "Invalid value: \"x\": field is immutable".to_owned());
    assert_eq!(uid, [cause.clone(), cause]);
}

#[test]
fn mutable_fields() {
    let pods = "/api/v1/namespaces/n/pods";
    let pod = json!({"spec": pod_spec()});
    for (path, body, patch) in [
        (pods, pod.clone(), json!({"metadata": {"labels": {"a": "b"}}})),
        (pods, pod.clone(), json!({"spec": {"activeDeadlineSeconds": 5}})),
        (pods, pod, json!({"spec": {"tolerations": [{"operator": "Exists"}]}})),
        (
            "/api/v1/namespaces/n/persistentvolumeclaims",
            json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
            json!({"spec": {"volumeName": "v"}}),
        ),
        (
            "/api/v1/namespaces/n/services",
            json!({"spec": {"ports": [{"port": 80}]}}),
            json!({"spec": {"ports": [{"port": 81, "protocol": "TCP", "targetPort": 81}]}}),
        ),
    ] {
        assert_eq!(patched(path, body, patch.clone()), [], "{path} {patch}");
    }
}

#[test]
fn subresources_of_pods() {
    let (row, namespace) = target("/api/v1/namespaces/n/pods");
    let old = prepared(
        row,
        &namespace,
        json!({"metadata": {"name": "p"}, "spec": pod_spec(), "status": {"qosClass": "BestEffort"}}),
    );
    let texts = |sub: &str, patch: Value| -> Vec<String> {
        let mut new = old.clone();
        proto::merge::merge_patch::apply(&mut new, patch);
        validate_subresource(row, sub, &new, &old).iter().map(ToString::to_string).collect()
    };
    let debug = |name: &str| json!({"name": name, "image": "i", "terminationMessagePolicy": "File", "imagePullPolicy": "Always"});
    assert_eq!(texts("ephemeralcontainers", json!({"spec": {"ephemeralContainers": [debug("d")]}})), [""; 0]);
    assert_eq!(
        texts("ephemeralcontainers", json!({"spec": {"ephemeralContainers": [debug("c")]}})),
        ["spec.ephemeralContainers[0].name: Duplicate value: \"c\""]
    );
    assert_eq!(texts("status", json!({"status": {"phase": "Running"}})), [""; 0]);
    let limits = json!({"spec": {"containers": [{"name": "c", "image": "i", "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "imagePullPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}]}});
    assert_eq!(
        texts("resize", limits),
        ["spec: Invalid value: \"BestEffort\": Pod QOS Class may not change as a result of resizing"]
    );
}

#[test]
fn complaints_about_pods() {
    let (row, namespace) = target("/api/v1/namespaces/n/pods");
    let table = [
        (
            json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}]}),
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
        ),
        (
            json!({"containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}),
            "spec.containers[0].volumeMounts[0].name: Not found: \"v\"",
        ),
        (
            json!({"containers": [{"name": "c", "image": "i", "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}]}]}),
            "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.x\": error converting fieldPath: field label not supported: spec.x",
        ),
        (
            json!({"containers": [{"name": "c", "image": "i", "livenessProbe": {}}]}),
            "spec.containers[0].livenessProbe: Required value: must specify a handler type",
        ),
        (
            json!({"containers": [{"name": "c", "image": "i"}], "tolerations": [{"key": "a", "operator": "Exists", "effect": "Nope"}]}),
            "spec.tolerations[0].effect: Unsupported value: \"Nope\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
        ),
        (
            json!({"containers": [{"name": "c", "image": "i"}], "volumes": [{"name": "v", "secret": {}}]}),
            "spec.volumes[0].secret.secretName: Required value",
        ),
        (
            json!({"containers": [{"name": "c", "image": "i"}], "dnsPolicy": "None"}),
            "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
        ),
        (
            json!({"containers": [{"name": "c", "image": "i"}], "initContainers": [{"name": "c", "image": "i"}]}),
            "spec.initContainers[0].name: Duplicate value: \"c\"",
        ),
    ];
    for (spec, want) in table {
        let pod = prepared(row, &namespace, json!({"metadata": {"name": "p"}, "spec": spec}));
        let got: Vec<String> = validate_create(row, row, &pod).iter().map(ToString::to_string).collect();
        assert_eq!(got, [want]);
    }
}

/// A tree of names that validation looks for, from a seed.
fn tree(seed: &mut u64, depth: u32) -> Value {
    const NAMES: &[&str] = &[
        "metadata",
        "name",
        "spec",
        "containers",
        "template",
        "labels",
        "ports",
        "resources",
        "limits",
        "selector",
        "volumes",
        "env",
        "rules",
        "subsets",
        "data",
        "status",
        "hard",
        "webhooks",
        "securityContext",
        "cpu",
        "schedule",
        "request",
        "matchExpressions",
        "ownerReferences",
        "conditions",
        "jobTemplate",
        "type",
        "clusterIPs",
        "finalizers",
    ];
    const TEXTS: &[&str] =
        &["", "-", "a", "é", "9-", "['", "metadata.labels['x']", "50%", "1x", "*/", "@", "https://", "1Gi", ".."];
    let mut roll = |n: usize| {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(*seed >> 33).unwrap_or_default() % n
    };
    match roll(if depth == 0 { 4 } else { 10 }) {
        0 => Value::Null,
        1 => Value::from(roll(3) == 0),
        2 => Value::from(i64::try_from(roll(1 << 20)).unwrap_or_default() - 1000),
        3 => Value::from(TEXTS[roll(TEXTS.len())]),
        4 | 5 => {
            let count = roll(4);
            (0..count).map(|_| tree(seed, depth - 1)).collect()
        }
        _ => {
            let keys: Vec<&str> = (0..1 + roll(6)).map(|_| NAMES[roll(NAMES.len())]).collect();
            Value::Object(keys.into_iter().map(|k| (k.to_owned(), tree(seed, depth - 1))).collect::<Map<_, _>>())
        }
    }
}

#[test]
fn any_tree_is_judged() {
    let mut seed = 7;
    for _ in 0..300 {
        let (a, b) = (tree(&mut seed, 7), tree(&mut seed, 7));
        for kind in crate::registry::kinds::all() {
            let row = proto::resources::all()
                .iter()
                .find(|r| r.group == kind.resource.group && r.plural == kind.resource.plural);
            let Some(row) = row else { continue };
            let _ = validate_create(row, row, &a);
            let _ = validate_update(row, row, &a, &b);
            let _ = warnings(row, "", &a, Some(&b));
            let _ = warnings(row, "status", &a, Some(&b));
            for subresource in ["status", "ephemeralcontainers", "resize", "finalize", "approval"] {
                let _ = validate_subresource(row, subresource, &a, &b);
            }
        }
    }
}
