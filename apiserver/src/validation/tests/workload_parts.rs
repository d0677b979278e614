//! Stateful sets with claims, jobs with indexes, autoscalers with several sources, statuses.

use serde_json::{Value, json};

use super::{Valid, lines, validate_create};

const SETS: &str = "/apis/apps/v1/namespaces/n/statefulsets";

fn set(change: impl Fn(&mut Value)) -> Value {
    let mut body = json!({"spec": {
        "serviceName": "s",
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    }});
    change(&mut body["spec"]);
    body
}

#[test]
fn claims_of_stateful_sets_are_volumes() {
    let claim = json!({"metadata": {"name": "data"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let mut with_claims = Valid::new(
        SETS,
        set(|spec| {
            spec["volumeClaimTemplates"] = json!([claim]);
            spec["template"]["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/d"}]);
            // Another volume of that name gives way.
            spec["template"]["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
            // The controller says these.
            spec["template"]["spec"]["hostname"] = json!("A B");
        }),
    );
    with_claims.create(&[
        (&[("/spec/volumeClaimTemplates/0/spec/accessModes", Value::Null)], &[
            "spec.volumeClaimTemplates[0].spec.accessModes: Required value: at least 1 access mode is required",
        ]),
        (&[("/spec/volumeClaimTemplates", Value::Null), ("/spec/template/spec/volumes", Value::Null), ("/spec/template/spec/hostname", Value::Null)], &[
            r#"spec.template.spec.containers[0].volumeMounts[0].name: Not found: "data""#,
        ]),
        (&[("/spec/template/metadata/annotations/controller.kubernetes.io~1pod-deletion-cost", json!("x"))], &[
            r#"spec.template.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: "x": must be a 32bit integer"#,
            r#"spec.template.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: "x": must be a 32bit integer"#,
        ]),
    ]);
    let image = ("/spec/template/spec/containers/0/image", json!(""));
    with_claims.update(&[
        (&[("/spec/replicas", json!(3))], &[]),
        (std::slice::from_ref(&image), &["spec.template.spec.containers[0].image: Required value"]),
    ]);
    // What was wrong may stay.
    with_claims.object["spec"]["serviceName"] = json!("S_");
    with_claims.object["spec"]["volumeClaimTemplates"][0]["spec"]["accessModes"] = json!([]);
    with_claims.object["spec"]["template"]["spec"]["containers"][0]["name"] = json!("C_");
    with_claims.update(&[(&[("/spec/replicas", json!(3))], &[]), (&[image], &[])]);
}

#[test]
fn names_of_stateful_sets() {
    let set = Valid::new(SETS, set(|_| {}));
    let object = set.with(&[("/spec/serviceName", json!("a.b"))]);
    let got = lines(set.row, validate_create(set.row, set.row, &object));
    assert!(got[0].starts_with(r#"spec.serviceName: Invalid value: "a.b": must not contain dots"#), "{got:?}");
    let object = set.with(&[("/metadata/name", json!("a.b"))]);
    let got = lines(set.row, validate_create(set.row, set.row, &object));
    assert!(got[0].starts_with(r#"metadata.name: Invalid value: "a.b": must not contain dots"#), "{got:?}");
}

#[test]
fn revisions() {
    Valid::new("/apis/apps/v1/namespaces/n/controllerrevisions", json!({"data": {}})).create(&[
        (&[("/data", json!([]))], &["data: Required value: data must be a valid JSON object"]),
        (&[("/data", Value::Null)], &["data: Required value: data is mandatory"]),
    ]);
}

#[test]
fn jobs() {
    let spec = json!({"completions": 11, "parallelism": 1, "completionMode": "Indexed", "suspend": true,
        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}});
    let name = "j".repeat(60);
    let mut body = json!({"metadata": {"name": name}, "spec": spec});
    let path = "/apis/batch/v1/namespaces/n/jobs";
    let (row, namespace) = super::target(path);
    let object = super::prepared(row, &namespace, body.clone());
    let host = format!("{name}-10");
    assert_eq!(host.len(), 63);
    assert_eq!(lines(row, validate_create(row, row, &object)), [""; 0]);
    body["spec"]["completions"] = json!(101);
    let object = super::prepared(row, &namespace, body);
    assert_eq!(
        lines(row, validate_create(row, row, &object)),
        [format!(
            r#"metadata.name: Invalid value: "{name}": will not able to create pod with invalid DNS label: {name}-100"#
        )]
    );
    let waiting = Valid::new(path, json!({"spec": spec}));
    let affinity = "/spec/template/spec/affinity";
    let term = json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Exists"}]}]});
    let node = json!({"requiredDuringSchedulingIgnoredDuringExecution": term});
    waiting.update(&[(&[(affinity, json!({"nodeAffinity": node}))], &[])]);
    let pods = json!({"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "t"}]});
    let object = waiting.with(&[(affinity, json!({"podAffinity": pods}))]);
    let got = lines(row, super::validate_update(row, row, &object, &waiting.object));
    assert!(got.len() == 1 && got[0].ends_with("field is immutable"), "{got:?}");
}

#[test]
fn statuses() {
    let negative = "must be greater than or equal to 0";
    for (path, body) in [
        ("deployments", set(|spec| drop(spec.as_object_mut().map(|s| s.remove("serviceName"))))),
        ("replicasets", set(|spec| drop(spec.as_object_mut().map(|s| s.remove("serviceName"))))),
    ] {
        Valid::new(&format!("/apis/apps/v1/namespaces/n/{path}"), body).sub(
            "status",
            &[(
                &[("/status/terminatingReplicas", json!(-1))],
                &[&format!("status.terminatingReplicas: Invalid value: -1: {negative}")],
            )],
        );
    }
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let mut job = Valid::new("/apis/batch/v1/namespaces/n/jobs", json!({"spec": {"template": template}}));
    job.object["status"] = json!({"startTime": "2026-01-01T00:00:00Z"});
    job.sub(
        "status",
        &[(
            &[("/status/startTime", json!("2026-01-02T00:00:00Z"))],
            &["status.startTime: Required value: startTime cannot be removed for unsuspended job"],
        )],
    );
}

#[test]
fn autoscalers() {
    let resource = json!({"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 1}});
    let scaler = Valid::new(
        "/apis/autoscaling/v2/namespaces/n/horizontalpodautoscalers",
        json!({"spec": {
        "maxReplicas": 2, "scaleTargetRef": {"kind": "Deployment", "name": "d"},
        "metrics": [{"type": "Resource", "resource": resource}]}}),
    );
    let types =
        r#"Unsupported value: "X": supported values: "ContainerResource", "External", "Object", "Pods", "Resource""#;
    scaler.create(&[
        // Only the first source is looked into.
        (&[("/spec/metrics/0/pods", json!({}))], &[
            r#"spec.metrics[0].pods.metric.name: Required value: must specify a metric name"#,
            r#"spec.metrics[0].pods.target.type: Required value: must specify a metric target type"#,
            r#"spec.metrics[0].pods.target.type: Invalid value: "": must be either Utilization, Value, or AverageValue"#,
            r#"spec.metrics[0].pods.target.averageValue: Required value: must specify a positive target averageValue"#,
            "spec.metrics[0].pods: Forbidden: must populate the given metric source only",
        ]),
        (&[("/spec/metrics/0/containerResource", json!({}))], &[
            "spec.metrics[0].containerResource: Forbidden: must populate the given metric source only",
        ]),
        (&[("/spec/metrics/0/type", json!("X"))], &[&format!("spec.metrics[0].type: {types}"), &format!("spec.metrics[0].type: {types}")]),
        (&[("/spec/behavior/scaleUp", json!({"policies": [{"type": "Pods", "value": 1, "periodSeconds": 1}], "tolerance": "-1"}))], &[
            r#"spec.behavior.scaleUp.tolerance: Invalid value: "-1": must be greater than or equal to 0"#,
        ]),
    ]);
}
