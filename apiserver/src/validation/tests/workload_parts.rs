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

fn conditions(all: &[(&str, &str)]) -> Value {
    all.iter().map(|(kind, status)| json!({"type": kind, "status": status})).collect()
}

/// A job with a status.
fn job(spec: Value, status: Value) -> Valid {
    let mut whole =
        json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}});
    proto::merge::merge_patch::apply(&mut whole, spec);
    let mut job = Valid::new("/apis/batch/v1/namespaces/n/jobs", json!({"spec": whole}));
    job.object["status"] = status;
    job
}

#[test]
fn jobs_that_end() {
    const CONDITIONS: &str = "/status/conditions";
    let over = json!({"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:01Z",
        "conditions": conditions(&[("SuccessCriteriaMet", "True"), ("Complete", "True")])});
    let done = ("/status/completionTime", json!("2026-01-01T00:00:01Z"));
    let complete = (CONDITIONS, conditions(&[("SuccessCriteriaMet", "True"), ("Complete", "True")]));
    let running = job(json!({}), json!({"startTime": "2026-01-01T00:00:00Z", "active": 1}));
    running.sub("status", &[
        (&[done.clone(), complete.clone(), ("/status/active", json!(0))], &[]),
        (std::slice::from_ref(&done), &[
            r#"status.completionTime: Invalid value: "2026-01-01T00:00:01Z": cannot set completionTime when there is no Complete=True condition"#,
        ]),
        (std::slice::from_ref(&complete), &[
            "status.completionTime: Required value: completionTime is required for Complete jobs",
            "status.active: Invalid value: 1: active>0 is invalid for finished job",
        ]),
        (&[done.clone(), (CONDITIONS, conditions(&[("Complete", "True")])), ("/status/active", json!(0))], &[
            "status.conditions: Invalid value: cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
        ]),
        (&[(CONDITIONS, conditions(&[("Failed", "True")])), ("/status/active", json!(0))], &[
            "status.conditions: Invalid value: cannot set Failed=True condition without the FailureTarget=true condition",
        ]),
        (&[(CONDITIONS, conditions(&[("FailureTarget", "True"), ("SuccessCriteriaMet", "True")]))], &[
            "status.conditions: Invalid value: cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
        ]),
        (&[("/status/ready", json!(2))], &["status.ready: Invalid value: 2: cannot set more ready pods than active"]),
    ]);
    // Rules hold of what changes, also after the end.
    job(json!({}), over.clone()).sub("status", &[
        (&[("/status/succeeded", json!(1))], &[]),
        (&[("/status/active", json!(1))], &["status.active: Invalid value: 1: active>0 is invalid for finished job"]),
        (&[("/status/terminating", json!(1))], &[
            "status.terminating: Invalid value: 1: terminating>0 is invalid for finished job",
        ]),
        (&[("/status/uncountedTerminatedPods", json!({"failed": ["a"]}))], &[
            r#"status.uncountedTerminatedPods: Invalid value: {"Succeeded":null,"Failed":["a"]}: uncountedTerminatedPods needs to be empty for finished job"#,
        ]),
        (&[("/status/completionTime", json!("2026-01-01T00:00:02Z"))], &[
            r#"status.completionTime: Invalid value: "2026-01-01T00:00:02Z": completionTime cannot be mutated"#,
        ]),
        (&[("/status/completionTime", json!("2025-01-01T00:00:02Z"))], &[
            r#"status.completionTime: Invalid value: "2025-01-01T00:00:02Z": completionTime cannot be set before startTime"#,
            r#"status.completionTime: Invalid value: "2025-01-01T00:00:02Z": completionTime cannot be mutated"#,
        ]),
    ]);
    // What was wrong already is not complained of again, but for what always holds.
    let mut wrong = over;
    wrong["active"] = json!(1);
    wrong["conditions"] = conditions(&[("Complete", "True"), ("Failed", "True")]);
    job(json!({}), wrong.clone()).sub("status", &[(&[("/status/succeeded", json!(1))], &[])]);
    let policy =
        json!({"completionMode": "Indexed", "completions": 1, "successPolicy": {"rules": [{"succeededCount": 1}]}});
    job(policy, wrong).sub("status", &[(&[("/status/succeeded", json!(1))], &[
        "status.conditions: Invalid value: cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
    ])]);
    // Nothing to do, and not even begun.
    job(json!({"suspend": true, "completions": 0}), json!({})).sub("status", &[(&[done, complete], &[])]);
}

#[test]
fn resumed_jobs_reset_their_start_time() {
    let later = ("/status/startTime", json!("2026-01-02T00:00:00Z"));
    let of =
        |kind: &str| json!({"startTime": "2026-01-01T00:00:00Z", "conditions": conditions(&[("Suspended", kind)])});
    let kept = "status.startTime: Required value: startTime cannot be removed for unsuspended job";
    job(json!({}), of("True")).sub(
        "status",
        &[
            (&[later.clone(), ("/status/conditions/0/status", json!("False"))], &[]),
            (std::slice::from_ref(&later), &[kept]),
        ],
    );
    job(json!({}), of("False")).sub("status", &[(std::slice::from_ref(&later), &[kept])]);
    job(json!({"suspend": true}), of("True")).sub("status", &[(&[later], &[])]);
}

#[test]
fn indexes_of_jobs() {
    let indexed = json!({"completionMode": "Indexed", "completions": 5, "backoffLimitPerIndex": 1});
    job(indexed, json!({})).sub("status", &[
        (&[("/status/completedIndexes", json!("0,2-3"))], &[]),
        (&[("/status/completedIndexes", json!("5"))], &[
            r#"status.completedIndexes: Invalid value: "5": error parsing completedIndexes: too large index: "5""#,
        ]),
        (&[("/status/completedIndexes", json!("9,1")), ("/status/failedIndexes", json!("1"))], &[
            r#"status.completedIndexes: Invalid value: "9,1": error parsing completedIndexes: too large index: "9""#,
            r#"status.failedIndexes: Invalid value: "1": failedIndexes and completedIndexes overlap at index: 1"#,
        ]),
    ]);
    job(json!({"completions": 5}), json!({})).sub("status", &[
        (&[("/status/completedIndexes", json!("7"))], &[
            r#"status.completedIndexes: Invalid value: "7": error parsing completedIndexes: too large index: "7""#,
            r#"status.completedIndexes: Invalid value: "7": cannot set non-empty completedIndexes when non-indexed completion mode"#,
        ]),
        (&[("/status/failedIndexes", json!("1"))], &[
            r#"status.failedIndexes: Invalid value: "1": cannot set non-null failedIndexes when backoffLimitPerIndex is null"#,
        ]),
    ]);
}

#[test]
fn autoscalers() {
    let resource = json!({"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 1}});
    let scaler = Valid::new(
        "/apis/autoscaling/v2/namespaces/n/horizontalpodautoscalers",
        json!({"spec": {
        "maxReplicas": 2, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
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
