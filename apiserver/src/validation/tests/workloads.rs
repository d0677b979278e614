//! Workloads and jobs: specs, statuses, what stays.

use serde_json::{Value, json};

use super::{Change, Valid, pod_spec};

fn workload(kind: &str) -> Valid {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod_spec()});
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    Valid::new(&format!("/apis/apps/v1/namespaces/n/{kind}"), json!({"spec": spec}))
}

#[test]
fn statuses() {
    workload("replicasets").sub(
        "status",
        &[
            (
                &[("/status/replicas", json!(1)), ("/status/readyReplicas", json!(2))],
                &["status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas"],
            ),
            (
                &[("/status/replicas", json!(1)), ("/status/availableReplicas", json!(1))],
                &["status.availableReplicas: Invalid value: 1: cannot be greater than readyReplicas"],
            ),
        ],
    );
    let mut deployment = workload("deployments");
    deployment.object["status"]["collisionCount"] = json!(2);
    deployment.sub(
        "status",
        &[
            (
                &[("/status/collisionCount", json!(1))],
                &["status.collisionCount: Invalid value: 1: cannot be decremented"],
            ),
            (
                &[("/status/unavailableReplicas", json!(-1))],
                &["status.unavailableReplicas: Invalid value: -1: must be greater than or equal to 0"],
            ),
        ],
    );
    workload("statefulsets").sub(
        "status",
        &[(
            &[("/status/replicas", json!(1)), ("/status/availableReplicas", json!(1))],
            &["status.availableReplicas: Invalid value: 1: cannot be greater than status.readyReplicas"],
        )],
    );
    workload("daemonsets").sub(
        "status",
        &[(
            &[("/status/numberReady", json!(-1))],
            &["status.numberReady: Invalid value: -1: must be greater than or equal to 0"],
        )],
    );
}

#[test]
fn strategies() {
    workload("deployments").create(&[(&[("/spec/strategy", json!({"type": "Nope"}))], &[
        r#"spec.strategy: Unsupported value: {"Type":"Nope","RollingUpdate":null}: supported values: "Recreate", "RollingUpdate""#,
    ])]);
    workload("daemonsets").create(&[(&[("/spec/updateStrategy", json!({"type": "Nope"}))], &[
        r#"spec.updateStrategy: Unsupported value: {"Type":"Nope","RollingUpdate":null}: supported values: "RollingUpdate", "OnDelete""#,
    ])]);
}

fn job(more: &Value) -> Valid {
    let mut spec = json!({"template": {"spec": pod_spec()}});
    spec["template"]["spec"]["restartPolicy"] = "Never".into();
    for (k, v) in more.as_object().into_iter().flatten() {
        spec[k] = v.clone();
    }
    Valid::new("/apis/batch/v1/namespaces/n/jobs", json!({"spec": spec}))
}

#[test]
fn jobs() {
    job(&json!({})).create(&[
        (&[("/spec/template/metadata/labels/job-name", json!("other"))], &[
            r#"spec.template.metadata.labels[job-name]: Invalid value: {"batch.kubernetes.io/controller-uid":"u","batch.kubernetes.io/job-name":"x","controller-uid":"u","job-name":"other"}: must be 'x'"#,
        ]),
        (&[("/spec/template/metadata/labels/batch.kubernetes.io~1controller-uid", Value::Null)], &[
            "spec.template.metadata.labels[batch.kubernetes.io/controller-uid]: Required value: must be 'u'",
            r#"spec.template.metadata.labels: Invalid value: {"batch.kubernetes.io/job-name":"x","controller-uid":"u","job-name":"x"}: `selector` does not match template `labels`"#,
        ]),
        (&[("/spec/completionMode", json!(""))], &[
            r#"spec.completionMode: Unsupported value: "": supported values: "NonIndexed", "Indexed""#,
        ]),
        (&[("/spec/selector/matchLabels/app", json!("a")), ("/spec/template/metadata/labels/app", json!("a"))], &[
            r#"spec.selector: Invalid value: {"matchLabels":{"app":"a","batch.kubernetes.io/controller-uid":"u"}}: `selector` not auto-generated"#,
        ]),
        (&[("/spec/maxFailedIndexes", json!(1))], &[
            "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
            "spec.maxFailedIndexes: Invalid value: 1: requires indexed completion mode",
        ]),
        (&[("/spec/managedBy", json!("me"))], &[
            r#"spec.managedBy: Invalid value: "me": must be a domain-prefixed path (such as "acme.io/foo")"#,
        ]),
        (&[("/spec/managedBy", json!(""))], &["spec.managedBy: Required value"]),
        (&[("/spec/managedBy", json!("a.b/c@d"))], &[
            "spec.managedBy: Invalid value: \"c@d\": Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')",
        ]),
        (&[("/spec/successPolicy", json!({"rules": [{"succeededCount": 1}]}))], &[
            r#"spec.successPolicy: Invalid value: {"Rules":[{"SucceededIndexes":null,"SucceededCount":1}]}: requires indexed completion mode"#,
        ]),
        (&[("/spec/podFailurePolicy", json!({"rules": [{"action": "FailJob"}]}))], &[
            "spec.podFailurePolicy.rules[0]: Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
            r#"spec.podReplacementPolicy: Unsupported value: "TerminatingOrFailed": supported values: "Failed""#,
        ]),
        (
            &[
                ("/spec/podReplacementPolicy", json!("Failed")),
                (
                    "/spec/podFailurePolicy",
                    json!({"rules": [{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [2, 0, 2], "containerName": "x"}}]}),
                ),
            ],
            &[
                r#"spec.podFailurePolicy.rules[0].action: Invalid value: "FailIndex": requires the backoffLimitPerIndex to be set"#,
                r#"spec.podFailurePolicy.rules[0].onExitCodes.containerName: Invalid value: "x": must be one of the container or initContainer names in the pod template"#,
                "spec.podFailurePolicy.rules[0].onExitCodes.values[1]: Invalid value: 0: must not be 0 for the In operator",
                "spec.podFailurePolicy.rules[0].onExitCodes.values[2]: Duplicate value: 2",
                "spec.podFailurePolicy.rules[0].onExitCodes.values: Invalid value: [2,0,2]: must be ordered",
            ],
        ),
    ]);
    let indexed = job(&json!({"completionMode": "Indexed", "completions": 3, "parallelism": 2}));
    indexed.create(&[
        (&[("/spec/successPolicy", json!({"rules": [{"succeededIndexes": "0-5", "succeededCount": 9}]}))], &[
            r#"spec.successPolicy.rules[0].succeededIndexes: Invalid value: "0-5": error parsing succeededIndexes: too large index: "5""#,
            "spec.successPolicy.rules[0].succeededCount: Invalid value: 9: must be less than or equal to 3 (the number of specified completions)",
            "spec.successPolicy.rules[0].succeededCount: Invalid value: 9: must be less than or equal to 0 (the number of indexes in the specified succeededIndexes field)",
        ]),
        (&[("/spec/parallelism", json!(100_001))], &[
            "spec.parallelism: Invalid value: 100001: must be less than or equal to 100000 when completion mode is Indexed",
        ]),
    ]);
    indexed.update(&[(
        &[("/spec/completions", json!(4))],
        &["spec.completions: Invalid value: 4: can only be modified in tandem with spec.parallelism"],
    )]);
}

#[test]
fn job_statuses() {
    let condition = |kind: &str| json!({"type": kind, "status": "True"});
    let conditions =
        |kinds: &[&str]| -> Change { ("/status/conditions", kinds.iter().map(|k| condition(k)).collect()) };
    job(&json!({})).sub("status", &[
        (&[("/status/startTime", json!("2026-01-01T00:00:00Z")), conditions(&["Complete"])], &[
            "status.completionTime: Required value: completionTime is required for Complete jobs",
            "status.conditions: Invalid value: cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
        ]),
        (&[("/status/startTime", json!("2026-01-01T00:00:00Z")), conditions(&["Failed"])], &[
            "status.conditions: Invalid value: cannot set Failed=True condition without the FailureTarget=true condition",
        ]),
        (&[("/status/completedIndexes", json!("0"))], &[
            r#"status.completedIndexes: Invalid value: "0": cannot set non-empty completedIndexes when non-indexed completion mode"#,
        ]),
        (&[("/status/ready", json!(1))], &["status.ready: Invalid value: 1: cannot set more ready pods than active"]),
    ]);
}

#[test]
fn cron_jobs() {
    let mut spec = json!({"template": {"spec": pod_spec()}});
    spec["template"]["spec"]["restartPolicy"] = "Never".into();
    let spec = json!({"schedule": "* * * * *", "jobTemplate": {"spec": spec}});
    let mut cron = Valid::new("/apis/batch/v1/namespaces/n/cronjobs", json!({"spec": spec}));
    let long = "a".repeat(53);
    cron.create(&[
        (&[("/metadata/name", json!(long))], &[&format!(
            r#"metadata.name: Invalid value: "{long}": must be no more than 52 characters"#
        )]),
        (&[("/spec/schedule", json!("TZ=UTC * * * * *"))], &[
            r#"spec.schedule: Invalid value: "TZ=UTC * * * * *": cannot use TZ or CRON_TZ in schedule, use timeZone field instead"#,
        ]),
        (&[("/spec/timeZone", json!("Local"))], &[
            r#"spec.timeZone: Invalid value: "Local": timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"#,
        ]),
        (&[("/spec/jobTemplate/spec/manualSelector", json!(true))], &[
            r#"spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: "nil", "false""#,
        ]),
    ]);
    cron.object["spec"]["schedule"] = json!("TZ=UTC * * * * *");
    cron.update(&[
        (&[("/spec/suspend", json!(true))], &[]),
        (&[("/spec/timeZone", json!("UTC"))], &[
            r#"spec.schedule: Invalid value: "TZ=UTC * * * * *": cannot use both timeZone field and TZ or CRON_TZ in schedule"#,
        ]),
    ]);
}

#[test]
fn autoscalers() {
    let spec =
        json!({"maxReplicas": 2, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}});
    let scaler = Valid::new("/apis/autoscaling/v2/namespaces/n/horizontalpodautoscalers", json!({"spec": spec}));
    let metric = |m: Value| -> [Change; 1] { [("/spec/metrics", json!([m]))] };
    scaler.create(&[
        (&[("/spec/minReplicas", json!(0))], &[
            "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1",
            "spec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero replicas",
        ]),
        (&metric(json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}})), &[
            "spec.metrics[0].resource.target.averageUtilization: Required value: must set either a target raw value or a target utilization",
        ]),
        (&metric(json!({"type": "Pods", "external": {"metric": {"name": "m"},
            "target": {"type": "Value", "value": "1", "averageValue": "1"}}})), &[
            "spec.metrics[0].external.target.value: Forbidden: may not set both a target value for metric and a per-pod target",
            "spec.metrics[0].pods: Required value: must populate information for the given metric source",
        ]),
    ]);
    let pods = json!({"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "0"}}});
    scaler.create(&[(
        &metric(pods),
        &[r#"spec.metrics[0].pods.target.averageValue: Invalid value: "0": must be positive"#],
    )]);
    scaler.sub(
        "status",
        &[(
            &[("/status/desiredReplicas", json!(-1))],
            &["status.desiredReplicas: Invalid value: -1: must be greater than or equal to 0"],
        )],
    );
}

#[test]
fn scale_target_api_versions() {
    const PATH: &str = "/apis/autoscaling/v2/namespaces/n/horizontalpodautoscalers";
    let object = |version: &str| {
        json!({"type": "Object", "object": {"metric": {"name": "m"}, "target": {"type": "Value", "value": "1"},
            "describedObject": {"kind": "Service", "name": "s", "apiVersion": version}}})
    };
    let target = |version: &str, kind: &str| json!({"apiVersion": version, "kind": kind, "name": "d"});
    let spec = json!({"maxReplicas": 2, "scaleTargetRef": target("apps/v1", "Deployment"), "metrics": [object("v1")]});
    let mut scaler = Valid::new(PATH, json!({"spec": spec}));
    let of = |version: &str, kind: &str| [("/spec/scaleTargetRef", target(version, kind))];
    let why = |at: &str, version: &str, why: &str| format!("spec.{at}.apiVersion: Invalid value: {version:?}: {why}");
    let groupless = |version: &str| why("scaleTargetRef", version, "apiVersion must specify API group");
    let odd = |at: &str| why(at, "a/b/c", "unexpected GroupVersion string: a/b/c");
    let table: &[super::Row<'_>] = &[
        (&of("", "Deployment"), &[&groupless("")]),
        (&of("v1", "Deployment"), &[&groupless("v1")]),
        (&of("/v1", "Deployment"), &[&groupless("/v1")]),
        (&of("a/b/c", "Deployment"), &[&odd("scaleTargetRef")]),
        (&of("", "ReplicationController"), &[]),
        (&of("a/b/c", "ReplicationController"), &[&odd("scaleTargetRef")]),
        (&[("/spec/metrics/0", object(""))], &[]),
        (&[("/spec/metrics/0", object("a/b/c"))], &[&odd("metrics[0].object.describedObject")]),
    ];
    scaler.create(table);
    scaler.update(table);
    // What was let in before these were looked at.
    scaler.object["spec"]["scaleTargetRef"] = target("v1", "Deployment");
    scaler.object["spec"]["metrics"] = json!([object("a/b/c")]);
    scaler.update(&[
        (&[("/spec/maxReplicas", json!(3)), ("/spec/metrics/1", object("d/e/f"))], &[]),
        (&of("v2", "Deployment"), &[&groupless("v2")]),
        (&of("v1", "StatefulSet"), &[&groupless("v1")]),
    ]);
}
