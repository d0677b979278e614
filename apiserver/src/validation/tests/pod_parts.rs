//! Parts of pods: restart rules, environment, labels of others, users, resources of the whole, annotations.

use serde_json::{Value, json};

use super::Valid;

fn pod() -> Valid {
    let spec = json!({
        "containers": [{"name": "c", "image": "i"}],
        "initContainers": [{"name": "i", "image": "i"}],
        "volumes": [{"name": "e", "emptyDir": {}}, {"name": "p", "persistentVolumeClaim": {"claimName": "p"}}],
    });
    Valid::new("/api/v1/namespaces/n/pods", json!({"spec": spec}))
}

#[test]
fn restart_rules() {
    let rules = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]);
    let at = "/spec/initContainers/0/restartPolicyRules";
    let policy = |p: &str| ("/spec/initContainers/0/restartPolicy", json!(p));
    pod().create(&[
        (
            &[(at, rules.clone())],
            &["spec.initContainers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used"],
        ),
        // Rules that cannot count are not looked at, unlike those of other containers.
        (&[(at, json!([{"action": "Stop"}]))], &[
            "spec.initContainers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used",
        ]),
        (
            &[(at, json!([{"action": "", "exitCodes": {"operator": "", "values": vec![1; 256]}}])), policy("Never")],
            &[
                r#"spec.initContainers[0].restartPolicyRules[0].action: Unsupported value: "": supported values: "Restart""#,
                r#"spec.initContainers[0].restartPolicyRules[0].exitCodes.operator: Unsupported value: "": supported values: "In", "NotIn""#,
                "spec.initContainers[0].restartPolicyRules[0].exitCodes.values: Too long: may not be more than 255 bytes",
            ],
        ),
        (&[(at, rules.clone()), policy("Never")], &[]),
        (&[(at, rules.clone()), policy("Always")], &[
            "spec.initContainers[0].restartPolicyRules: Forbidden: restartPolicyRules are not allowed for init containers with restart policy Always",
        ]),
        (&[policy("Sometimes")], &[
            r#"spec.initContainers[0].restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "Never", "OnFailure""#,
        ]),
        (&[("/spec/containers/0/restartPolicyRules", rules)], &[
            "spec.containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used",
        ]),
    ]);
}

#[test]
fn init_containers_resize_policy() {
    let policy = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    pod().create(&[(&[("/spec/initContainers/0/resizePolicy", policy)], &[])]);
}

#[test]
fn signals_that_stop_containers() {
    let at = "/spec/containers/0/lifecycle";
    let stop = |signal: &str| (at, json!({"stopSignal": signal}));
    pod().create(&[
        (&[stop("SIGTERM")], &[
            "spec.containers[0].lifecycle.stopSignal: Forbidden: may not be set for containers with empty `spec.os.name`",
        ]),
        (&[stop("SIGRTMIN+3"), ("/spec/os", json!({"name": "linux"}))], &[]),
        (&[stop("SIGHUP"), ("/spec/os", json!({"name": "windows"}))], &[
            r#"spec.containers[0].lifecycle.stopSignal: Unsupported value: "SIGHUP": supported values: "SIGKILL", "SIGTERM""#,
        ]),
    ]);
}

#[test]
fn pods_of_workloads() {
    let of = |workload| [("/spec/workloadRef", workload)];
    let wrong = of(json!({"name": "W", "podGroup": "a.b", "podGroupReplicaKey": "-"}));
    pod().create(&[(&of(json!({"name": "a.b", "podGroup": "g"})), &[])]);
    let errors = super::validate_create(pod().row, pod().row, &pod().with(&wrong));
    let fields: Vec<&str> = errors.iter().map(|e| e.field.as_str()).collect();
    assert_eq!(fields, ["spec.workloadRef.name", "spec.workloadRef.podGroup", "spec.workloadRef.podGroupReplicaKey"]);
}

#[test]
fn environment() {
    let file = |volume: &str, path: &str| {
        let from = json!({"fileKeyRef": {"key": "K", "volumeName": volume, "path": path}});
        [("/spec/initContainers/0/env", json!([{"name": "A", "valueFrom": from}]))]
    };
    let base = "spec.initContainers[0].env[0].valueFrom.fileKeyRef";
    let kind = format!(r#"{base}.volumeName: Invalid value: "p": referenced volume must be of type emptyDir"#);
    pod().create(&[
        (&file("e", "..a"), &[]),
        (&file("p", "a"), &[&kind]),
        (
            &file("", "a"),
            &[&format!("{base}.volumeName: Required value"), &format!(r#"{base}.volumeName: Not found: """#)],
        ),
        (
            &[("/spec/containers/0/envFrom", json!([{"configMapRef": {"name": ""}}]))],
            &["spec.containers[0].envFrom[0].configMapRef.name: Required value"],
        ),
        (&[("/spec/containers/0/envFrom", json!([{"secretRef": {"name": "a-"}}]))], &[]),
    ]);
}

#[test]
fn mounts() {
    pod().create(&[
        (
            &[
                ("/spec/volumes/2", json!({"name": "i", "image": {"reference": "r", "pullPolicy": "Always"}})),
                ("/spec/containers/0/volumeMounts", json!([{"name": "i", "mountPath": "/m", "subPath": "x"}])),
            ],
            &[],
        ),
        (&[("/spec/imagePullSecrets", json!([{"name": ""}]))], &[]),
        // Of a volume that is mounted twice, the last place counts.
        (
            &[
                ("/spec/containers/0/volumeMounts", json!([{"name": "e", "mountPath": "/a"}, {"name": "e", "mountPath": "/b"}])),
                ("/spec/containers/0/volumeDevices", json!([{"name": "p", "devicePath": "/a"}])),
            ],
            &["spec.containers[0].volumeMounts[0].mountPath: Invalid value: \"/a\": must not already exist as a path in volumeDevices"],
        ),
    ]);
}

#[test]
fn labels_of_others() {
    let term = |selector: Value, same: Value, other: Value| {
        let term =
            json!({"topologyKey": "t", "labelSelector": selector, "matchLabelKeys": same, "mismatchLabelKeys": other});
        [("/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution", json!([term]))]
    };
    let base = "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]";
    let unset = "Forbidden: must not be specified when labelSelector is not set";
    let both = "exists in both matchLabelKeys and labelSelector";
    let merged =
        json!({"matchLabels": {"b": "x"}, "matchExpressions": [{"key": "b", "operator": "In", "values": ["x"]}]});
    pod().create(&[
        (&term(Value::Null, json!(["a b"]), json!([])), &[&format!("{base}.matchLabelKeys: {unset}")]),
        (&term(merged, json!(["a", "b"]), json!([])), &[&format!(r#"{base}[1]: Invalid value: "b": {both}"#)]),
        (
            &term(json!({}), json!(["a"]), json!(["a"])),
            &[&format!(
                r#"{base}.matchLabelKeys[0]: Invalid value: "a": exists in both matchLabelKeys and mismatchLabelKeys"#
            )],
        ),
    ]);
}

#[test]
fn own_users() {
    let apart = ("/spec/hostUsers", json!(false));
    pod().create(&[
        (&[apart.clone(), ("/spec/hostPID", json!(true))], &["spec.HostPID: Forbidden: when `hostUsers` is false"]),
        (&[apart, ("/spec/containers/0/volumeDevices", json!([{"name": "p", "devicePath": "/d"}]))], &[
            "spec.containers[0].volumeDevices: Forbidden: when `hostUsers` is false",
        ]),
        (&[("/spec/os", json!({"name": "windows"})), ("/spec/shareProcessNamespace", json!(true))], &[
            "spec.shareProcessNamespace: Forbidden: cannot be set for a windows pod",
        ]),
        (&[("/spec/os", json!({"name": ""}))], &["spec.os.name: Required value"]),
        (
            &[("/spec/securityContext/sysctls", json!([{"name": "a.b", "value": "1"}, {"name": "a/b", "value": "2"}]))],
            &[],
        ),
        (&[("/spec/securityContext/windowsOptions", json!({"runAsUserName": format!("{}\\", "a".repeat(256))}))], &[
            &format!(r#"spec.securityContext.windowsOptions.runAsUserName: Invalid value: "{}\\": runAsUserName's Domain length must be under 256 characters"#, "a".repeat(256)),
            &format!(r#"spec.securityContext.windowsOptions.runAsUserName: Invalid value: "{}\\": runAsUserName's Domain doesn't match the NetBios nor the DNS format"#, "a".repeat(256)),
            &format!(r#"spec.securityContext.windowsOptions.runAsUserName: Invalid value: "{}\\": runAsUserName's User cannot be empty"#, "a".repeat(256)),
        ]),
    ]);
}

#[test]
fn resources_of_the_whole() {
    pod().create(&[
        (&[("/spec/os", json!({"name": "windows"})), ("/spec/resources", json!({"requests": {"x": "1"}}))], &[
            "spec.resources: Forbidden: may not be set for a windows pod",
        ]),
        (&[("/spec/resources", json!({"limits": {"ephemeral-storage": "1"}}))], &[
            r#"spec.resources.limits[ephemeral-storage]: Unsupported value: "ephemeral-storage": supported values: "cpu", "hugepages-", "memory""#,
        ]),
        (&[("/spec/resources", json!({"claims": [{"name": "r"}]}))], &[
            "spec.resources.claims: Forbidden: claims may not be set for Resources at pod-level",
            r#"spec.resources.claims[0]: Not found: "r": must be one of the names in pod.spec.resourceClaims which is empty"#,
        ]),
        (
            &[
                ("/spec/resources", json!({"limits": {"cpu": "1", "hugepages-2Mi": "2Mi"}, "requests": {"cpu": "1", "hugepages-2Mi": "2Mi"}})),
                ("/spec/containers/0/resources", json!({"limits": {"cpu": "1", "hugepages-2Mi": "4Mi"}, "requests": {"cpu": "1", "hugepages-2Mi": "4Mi"}})),
            ],
            &[
                r#"spec.resources.requests[hugepages-2Mi]: Invalid value: "2Mi": must be greater than or equal to aggregate container requests of 4Mi"#,
                r#"spec.resources.limits[hugepages-2Mi]: Invalid value: "2Mi": must be greater than or equal to aggregate container limits of 4Mi"#,
                r#"spec.resources.containers[0][hugepages-2Mi].limits: Invalid value: "4Mi": must be less than or equal to pod limits of 2Mi"#,
            ],
        ),
    ]);
}

#[test]
fn annotations() {
    const ARMOR: &str = "/metadata/annotations/container.apparmor.security.beta.kubernetes.io~1c";
    let armor = |kind: &str| ("/spec/securityContext/appArmorProfile", json!({"type": kind}));
    let why = "spec.containers[0].securityContext.appArmorProfile.type: Forbidden: apparmor type in annotation and field must match";
    let mirror = ("/metadata/annotations/kubernetes.io~1config.mirror", json!("m"));
    pod().create(&[
        (&[(ARMOR, json!("unconfined")), armor("Unconfined")], &[]),
        (&[(ARMOR, json!("unconfined")), armor("RuntimeDefault")], &[why]),
        (
            &[
                mirror,
                ("/spec/nodeName", json!("n")),
                ("/spec/resourceClaims", json!([{"name": "r", "resourceClaimName": "r"}])),
            ],
            &["[]: Forbidden: static pods do not support resource claims"],
        ),
    ]);
    let template = json!({"metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    Valid::new("/api/v1/namespaces/n/podtemplates", json!({"template": template})).create(&[(
        &[("/template/spec/securityContext/seccompProfile", json!({"type": "RuntimeDefault"}))],
        &["template.spec.securityContext.seccompProfile.type: Forbidden: seccomp type in annotation and field must match"],
    )]);
}
