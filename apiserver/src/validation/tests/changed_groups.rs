//! Tests of updates: which checks run, how often and in which order; rules of the groups of policies and flow control.

use serde_json::{Value, json};

use super::{Valid, lines, pod_spec, validate_create, validate_update};

const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1/";

fn workload(kind: &str) -> Valid {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod_spec()});
    let body = json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    Valid::new(&format!("/apis/apps/v1/namespaces/n/{kind}"), body)
}

/// A selector that is none picks nothing, and what it would pick of is not looked at, but for daemon sets.
#[test]
fn selectors_that_are_none() {
    let broken = [
        ("/spec/selector", json!({"matchExpressions": [{"key": "a", "operator": "X"}]})),
        ("/spec/template/spec/containers/0/image", json!("")),
    ];
    let operator =
        r#"spec.selector.matchExpressions[0].operator: Invalid value: "X": not a valid selector operator"#.to_owned();
    let selector = r#"spec.selector: Invalid value: {"matchExpressions":[{"key":"a","operator":"X","values":null}]}"#;
    let image = "spec.template.spec.containers[0].image: Required value".to_owned();
    for (kind, more) in [
        ("deployments", format!("{selector}: invalid label selector")),
        ("replicasets", format!("{selector}: invalid label selector")),
        ("statefulsets", selector.to_owned()),
        ("daemonsets", image),
    ] {
        let valid = workload(kind);
        let got = lines(valid.row, validate_create(valid.row, valid.row, &valid.with(&broken)));
        assert_eq!(got.len(), 2, "{kind}: {got:?}");
        assert_eq!(got[0], operator, "{kind}");
        assert_eq!(got[1].replace(r#","values":null"#, ""), more.replace(r#","values":null"#, ""), "{kind}");
    }
}

#[test]
fn update_validation_of_groups() {
    let replicas = ("/spec/replicas", json!(-1));
    let negative = "spec.replicas: Invalid value: -1: must be greater than or equal to 0";
    let selector = r#"spec.selector: Invalid value: {"matchLabels":{"a":"b","c":"d"}}: field is immutable"#;
    let other =
        [replicas, ("/spec/selector/matchLabels/c", json!("d")), ("/spec/template/metadata/labels/c", json!("d"))];
    workload("deployments").update(&[(&other, &[negative, selector])]);
    workload("replicasets").update(&[(&other, &[negative, selector])]);

    let class = json!({"handler": "h", "overhead": {"podFixed": {"cpu": "1"}}});
    Valid::new("/apis/node.k8s.io/v1/runtimeclasses", class).update(&[(
        &[("/overhead/podFixed/cpu", json!("-1"))],
        &[r#"overhead.limits[cpu]: Invalid value: "-1": must be greater than or equal to 0"#],
    )]);
    let capacity = json!({"storageClassName": "c", "capacity": "1Gi", "maximumVolumeSize": "-1"});
    Valid::new("/apis/storage.k8s.io/v1/namespaces/n/csistoragecapacities", capacity).update(&[(
        &[("/capacity", json!("-1"))],
        &[r#"capacity: Invalid value: "-1": must be greater than or equal to 0"#],
    )]);
    let expression = json!({"key": "k", "values": ["a"]});
    let term = json!({"matchLabelExpressions": [expression]});
    let class = json!({"provisioner": "p", "allowedTopologies": [term]});
    Valid::new("/apis/storage.k8s.io/v1/storageclasses", class).update(&[
        (
            &[("/allowedTopologies/1", term.clone())],
            &[r#"allowedTopologies[1].matchLabelExpressions: Duplicate value: """#],
        ),
        // One without expressions is never allowed.
        (
            &[("/allowedTopologies", json!([{}]))],
            &[r#"allowedTopologies[0].matchLabelExpressions: Duplicate value: """#],
        ),
    ]);
    // A budget's own rules leave its metadata to what judges that of all kinds, which looks at it alone and beside what
    // it was.
    let budget = Valid::new("/apis/policy/v1/namespaces/n/poddisruptionbudgets", json!({"spec": {"minAvailable": 1}}));
    let label = r#"metadata.labels: Invalid value: "-": a valid label must be an empty string"#;
    let labelled = budget.with(&[("/metadata/labels", json!({"a": "-"}))]);
    let got = lines(budget.row, validate_update(budget.row, budget.row, &labelled, &budget.object));
    assert!(got.len() == 2 && got.iter().all(|told| told.starts_with(label)), "{got:?}");
    let long = "x".repeat(64);
    let too_long = format!(r#"metadata.finalizers: Invalid value: "{long}": name part must be no more than 63 bytes"#);
    budget.update(&[(&[("/metadata/finalizers", json!(["mine"]))], &[])]);
    budget.create(&[(&[("/metadata/finalizers", json!(["a.b/c", long]))], &[too_long.as_str()])]);
}

#[test]
fn jobs_and_schedules() {
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let jobs = Valid::new("/apis/batch/v1/namespaces/n/jobs", json!({"spec": {"template": template}}));
    jobs.create(&[
        (&[("/spec/manualSelector", json!(true)), ("/spec/selector", Value::Null)], &[
            "spec.selector: Required value",
            r#"spec.template.metadata.labels: Invalid value: {"batch.kubernetes.io/controller-uid":"u","batch.kubernetes.io/job-name":"x","controller-uid":"u","job-name":"x"}: `selector` does not match template `labels`"#,
        ]),
        (&[("/spec/completionMode", json!("Indexed")), ("/spec/completions", Value::Null), ("/spec/parallelism", json!(100_001))], &[
            "spec.completions: Required value: when completion mode is Indexed",
            "spec.parallelism: Invalid value: 100001: must be less than or equal to 100000 when completion mode is Indexed",
        ]),
        (&[
            ("/spec/podFailurePolicy", json!({"rules": []})),
            ("/spec/podReplacementPolicy", json!("Failed")),
            ("/spec/template/spec/restartPolicy", json!("Always")),
        ], &[
            r#"spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never""#,
        ]),
    ]);
    let cron = json!({"spec": {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": template}}}});
    let cron = Valid::new("/apis/batch/v1/namespaces/n/cronjobs", cron);
    let zone = |zone: &'static str| [("/spec/timeZone", json!(zone))];
    cron.create(&[
        (&zone("a/../b"), &[r#"spec.timeZone: Invalid value: "a/../b": unknown time zone a/../b"#]),
        (&zone("Not/There"), &[r#"spec.timeZone: Invalid value: "Not/There": unknown time zone Not/There"#]),
    ]);
    cron.update(&[(&[("/spec/schedule", json!("TZ=UTC 0 0 * * *")), ("/spec/timeZone", json!("UTC"))], &[
        r#"spec.schedule: Invalid value: "TZ=UTC 0 0 * * *": cannot use TZ or CRON_TZ in schedule, use timeZone field instead"#,
    ])]);
}

#[test]
fn flows() {
    const FLOW: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/";
    let rule = json!({
        "subjects": [{"kind": "ServiceAccount", "serviceAccount": {"namespace": "n", "name": "*"}}],
        "resourceRules": [{"verbs": ["get"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}],
    });
    let body = json!({"spec": {"priorityLevelConfiguration": {"name": "l"}, "matchingPrecedence": 2, "rules": [rule]}});
    let schemas = Valid::new(&format!("{FLOW}flowschemas"), body.clone());
    let label = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
    let (namespace, listed) = (
        format!(r#"spec.rules[0].subjects[0].serviceAccount.namespace: Invalid value: "N": {label}"#),
        format!(
            r#"spec.rules[0].resourceRules[0].namespaces[0]: Invalid value: "N": each member of this list must be '*' or a DNS-1123 label; {label}"#
        ),
    );
    schemas.create(&[
        (&[("/spec/rules/0/subjects/0/serviceAccount/namespace", json!("N"))], &[&namespace]),
        (&[("/spec/rules/0/subjects/0/user", json!({"name": "u"})), ("/spec/rules/0/subjects/0/serviceAccount/name", json!(""))], &[
            "spec.rules[0].subjects[0].serviceAccount.name: Required value",
            "spec.rules[0].subjects[0].user: Forbidden: user is forbidden when subject kind is not 'User'",
        ]),
        (&[("/spec/rules/0/resourceRules/0/namespaces", json!(["N"]))], &[&listed]),
        (&[("/spec/rules/0/resourceRules/0/namespaces", json!(["N", "*"]))], &[
            r#"spec.rules[0].resourceRules[0].namespaces: Invalid value: ["N","*"]: if '*' is present, must not specify other namespaces"#,
        ]),
        (&[("/spec/rules/0/resourceRules/0/verbs", json!(["see"]))], &[
            r#"spec.rules[0].resourceRules[0].verbs: Unsupported value: ["see"]: supported values: "create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch""#,
        ]),
        (&[("/spec/distinguisherMethod", json!({"type": "No"}))], &[
            r#"spec.distinguisherMethod.type: Unsupported value: {"Type":"No"}: supported values: "ByNamespace", "ByUser""#,
        ]),
    ]);
    schemas.sub(
        "status",
        &[(
            &[("/status/conditions", json!([{"type": "a"}, {"type": "a"}, {"status": "True"}]))],
            &[
                r#"status.conditions[1].type: Duplicate value: "a""#,
                "status.conditions[2].type: Required value: must not be empty",
            ],
        )],
    );
    let levels = json!({"spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}}});
    let levels = Valid::new(&format!("{FLOW}prioritylevelconfigurations"), levels);
    levels.create(&[(
        &[(
            "/spec/limited",
            json!({"lendablePercent": -1, "borrowingLimitPercent": -1, "limitResponse": {"type": "No"}}),
        )],
        &[
            r#"spec.limited.limitResponse.type: Unsupported value: "No": supported values: "Queue", "Reject""#,
            "spec.limited.lendablePercent: Invalid value: -1: must be between 0 and 100, inclusive",
            "spec.limited.borrowingLimitPercent: Invalid value: -1: if specified, must be a non-negative integer",
        ],
    )]);
}

/// The objects without which nothing would be let through stay as they are.
#[test]
fn mandatory_flows() {
    for (plural, all) in crate::bootstrap::flow_control() {
        let fixed = |name: &str| matches!(name, "exempt" | "catch-all");
        let named = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        for object in all.iter().filter(|object| fixed(&named(object))) {
            let (name, level) = (named(object), plural != "flowschemas");
            let valid = Valid::new(&format!("/apis/flowcontrol.apiserver.k8s.io/v1/{plural}"), object.clone());
            let judged = |changes: &[super::Change]| {
                let changed = valid.with(changes);
                lines(valid.row, validate_update(valid.row, valid.row, &changed, &valid.object))
            };
            assert_eq!(judged(&[("/metadata/annotations/a", json!("b"))]), [""; 0]);
            let (change, but) = match (&*name, level) {
                ("exempt", true) => {
                    (("/spec/limited", json!({"lendablePercent": 1})), " except the 'spec.exempt' field")
                }
                (_, true) => (("/spec/limited/nominalConcurrencyShares", json!(6)), ""),
                _ => (("/spec/rules", json!([])), ""),
            };
            let got = judged(&[change]);
            let want = format!("spec of '{name}'{but} must equal the fixed value");
            assert!(got.last().is_some_and(|last| last.ends_with(&want)), "{plural} {name}: {got:?}");
            if level && name == "exempt" {
                assert_eq!(judged(&[("/spec/exempt/lendablePercent", json!(5))]), [""; 0]);
            }
        }
    }
}

fn hook(rules: Value) -> Value {
    json!({"webhooks": [{"name": "a.b.c", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://a.b/c"}, "rules": rules}]})
}

#[test]
fn webhooks() {
    let rule = json!({"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
    let hooks = Valid::new(&format!("{ADMISSION}mutatingwebhookconfigurations"), hook(json!([rule])));
    let resources = |all: Value| [("/webhooks/0/rules/0/resources", all)];
    let at = "webhooks[0].rules[0].resources";
    let lines = [
        format!(r#"{at}[1]: Invalid value: "pods/log": if 'pods/*' is present, must not specify pods/log"#),
        format!(r#"{at}[1]: Invalid value: "pods/log": if '*/log' is present, must not specify pods/log"#),
        format!(r#"{at}: Invalid value: ["*/*","pods"]: if '*/*' is present, must not specify other resources"#),
        format!(
            r#"{at}: Invalid value: ["*","pods"]: if '*' is present, must not specify other resources without subresources"#
        ),
    ];
    hooks.create(&[
        (&resources(json!(["pods/log", "pods/*"])), &[]),
        (&resources(json!(["pods/*", "pods/log"])), &[&lines[0]]),
        (&resources(json!(["*/log", "pods/log"])), &[&lines[1]]),
        (&resources(json!(["*/*", "pods"])), &[&lines[2]]),
        (&resources(json!(["*", "pods"])), &[&lines[3]]),
        (&resources(json!(["*", "pods/log"])), &[]),
        (
            &[
                ("/webhooks/0/reinvocationPolicy", json!("No")),
                ("/webhooks/0/clientConfig", json!({})),
                ("/webhooks/0/matchConditions", json!([{"name": "", "expression": "true"}])),
                ("/webhooks/0/matchPolicy", json!("No")),
                ("/webhooks/0/admissionReviewVersions", json!(["v1", "v1"])),
            ],
            &[
                r#"webhooks[0].matchPolicy: Unsupported value: "No": supported values: "Equivalent", "Exact""#,
                r#"webhooks[0].reinvocationPolicy: Unsupported value: "No": supported values: "IfNeeded", "Never""#,
                "webhooks[0].clientConfig: Required value: exactly one of url or service is required",
                "webhooks[0].matchConditions[0].name: Required value",
                r#"webhooks[0].admissionReviewVersions[1]: Invalid value: "v1": duplicate version"#,
            ],
        ),
    ]);
}

#[test]
fn policies() {
    let rule = json!({"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
    let body =
        json!({"spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "true"}]}});
    let policies = Valid::new(&format!("{ADMISSION}validatingadmissionpolicies"), body);
    let annotations: Vec<Value> = (0..21).map(|i| json!({"key": format!("k{i}"), "valueExpression": "'v'"})).collect();
    policies.create(&[
        // A message may end with a line, and an expression may have several without one.
        (&[("/spec/validations/0", json!({"expression": "true ||\n false", "message": "no\n"}))], &[]),
        (&[("/spec/validations/0", json!({"expression": "true ||\n false"}))], &[]),
        (&[("/spec/validations/0/message", json!("a\nb"))], &[
            r#"spec.validations[0].message: Invalid value: "a\nb": message must not contain line breaks"#,
        ]),
        (&[("/spec/validations/0/reason", json!("Unauthorized"))], &[
            r#"spec.validations[0].reason: Unsupported value: "Unauthorized": supported values: "Forbidden", "Invalid", "RequestEntityTooLarge""#,
        ]),
        (&[("/spec/validations/0/expression", json!("authorizer.path('/x').check('get').allowed()"))], &[]),
        (&[("/spec/variables", json!([{"name": "a", "expression": "1"}, {"name": "a", "expression": "2"}]))], &[]),
        (&[("/spec/validations", json!([]))], &[
            "spec.validations: Required value: validations or auditAnnotations must contain at least one item",
            "spec.auditAnnotations: Required value: validations or auditAnnotations must contain at least one item",
        ]),
        (&[("/spec/auditAnnotations", json!([{"key": "k", "valueExpression": "x".repeat(5121)}]))], &[
            "spec.auditAnnotations[0].valueExpression: Required value: must not exceed 5120 bytes in length",
        ]),
        (&[("/spec/paramKind", json!({"apiVersion": "v1/", "kind": "A.b"}))], &[
            r#"spec.paramKind.apiVersion: Invalid value: "v1/": version must be specified"#,
            r#"spec.paramKind.kind: Invalid value: "A.b": may have mixed case, but should otherwise match: a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"#,
        ]),
    ]);
    let judged = |changes: &[super::Change]| {
        lines(policies.row, validate_create(policies.row, policies.row, &policies.with(changes)))
    };
    let got = judged(&[("/spec/auditAnnotations", Value::from(annotations))]);
    assert!(got.len() == 1 && got[0].ends_with("must not have more than 20 auditAnnotations"), "{got:?}");
    let asks = "authorizer.path('/x').check('get').reason()";
    let got = judged(&[("/spec/validations/0/messageExpression", json!(asks))]);
    assert!(got.len() == 1 && got[0].contains("undeclared reference to 'authorizer'"), "{got:?}");
    policies.sub(
        "status",
        &[(
            &[("/status/typeChecking", json!({"expressionWarnings": [{"fieldRef": " ", "warning": ""}]}))],
            &[
                "status.typeChecking.expressionWarnings[0].warning: Required value",
                "status.typeChecking.expressionWarnings[0].fieldRef: Required value",
            ],
        )],
    );

    let binding = json!({"spec": {"policyName": "p", "validationActions": ["Deny"]}});
    Valid::new(&format!("{ADMISSION}validatingadmissionpolicybindings"), binding).create(&[
        (
            &[("/spec/validationActions", json!([]))],
            &["spec.validationActions: Required value: at least one validation action is required"],
        ),
        (
            &[("/spec/paramRef", json!({"name": "a/b", "selector": {}, "parameterNotFoundAction": "Deny"}))],
            &[
                r#"spec.paramRef.name: Invalid value: "a/b": may not contain '/'"#,
                "spec.paramRef.name: Forbidden: name and selector are mutually exclusive",
                "spec.paramRef.selector: Forbidden: name and selector are mutually exclusive",
            ],
        ),
    ]);
}

#[test]
fn roles_classes_and_ways_in() {
    const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/";
    let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
    let missing = "rules[0].verbs: Required value: verbs must contain at least one value";
    for (roles, times) in [("namespaces/n/roles", 1), ("clusterroles", 2)] {
        let roles = Valid::new(&format!("{RBAC}{roles}"), json!({"rules": [rule]}));
        roles.update(&[(&[("/rules/0/verbs", json!([]))], &vec![missing; times])]);
    }
    Valid::new(&format!("{RBAC}namespaces/n/roles"), json!({"rules": [rule]})).create(&[(
        &[("/rules/0/nonResourceURLs", json!(["/x"]))],
        &[
            r#"rules[0].nonResourceURLs: Invalid value: ["/x"]: namespaced rules cannot apply to non-resource URLs"#,
            r#"rules[0].nonResourceURLs: Invalid value: ["/x"]: rules cannot apply to both regular resources and non-resource URLs"#,
        ],
    )]);
    let binding = json!({"roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}]});
    Valid::new(&format!("{RBAC}clusterrolebindings"), binding).create(&[
        (
            &[("/subjects/0/name", json!(""))],
            &["subjects[0].name: Required value", r#"subjects[0].name: Invalid value: "": user name cannot be empty"#],
        ),
        (
            &[("/subjects/0", json!({"kind": "ServiceAccount", "name": "s", "namespace": ""}))],
            &["subjects[0].namespace: Required value"],
        ),
    ]);
    let class = json!({"metadata": {"name": "system-node-critical"}, "value": 2_000_001_000});
    Valid::new("/apis/scheduling.k8s.io/v1/priorityclasses", class).create(&[(&[("/globalDefault", json!(true))], &[
        "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: globalDefault of system-node-critical PriorityClass must be false",
    ])]);
    let driver = json!({"spec": {}});
    Valid::new("/apis/storage.k8s.io/v1/csidrivers", driver).create(&[(&[("/spec/serviceAccountTokenInSecrets", json!(true))], &[
        "spec.serviceAccountTokenInSecrets: Invalid value: true: serviceAccountTokenInSecrets is set but no tokenRequests are specified",
    ])]);
    let path = json!({"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"number": 1}}}});
    let ingress = json!({"spec": {"rules": [{"host": "a.b", "http": {"paths": [path]}}]}});
    let long = format!("*.{}", "a".repeat(252));
    let too_long = format!(r#"spec.rules[0].host: Invalid value: "{long}": must be no more than 253 characters"#);
    Valid::new("/apis/networking.k8s.io/v1/namespaces/n/ingresses", ingress).create(&[
        (
            &[("/spec/rules/0/http/paths/0", json!({"backend": {}}))],
            &["spec.rules[0].http.paths[0].pathType: Required value: pathType must be specified"],
        ),
        (
            &[("/spec/rules/0/host", json!("010.0.0.1"))],
            &[r#"spec.rules[0].host: Invalid value: "010.0.0.1": must be a DNS name, not an IP address"#],
        ),
        (&[("/spec/rules/0/host", json!(long))], &[too_long.as_str()]),
    ]);
    let port = json!({"port": "http", "endPort": 0});
    let policy = json!({"spec": {"podSelector": {}}});
    Valid::new("/apis/networking.k8s.io/v1/namespaces/n/networkpolicies", policy).create(&[(
        &[("/spec/ingress", json!([{"ports": [port]}]))],
        &["spec.ingress[0].ports[0].endPort: Invalid value: 0: may not be specified when `port` is non-numeric"],
    )]);
}
