//! Pods: their spec's rules, what may change, status, sub-resources.

use proto::Value;
use serde_json::json;

use super::Valid;

const C: &str = "/spec/containers/0";

fn pod() -> Valid {
    Valid::new(
        "/api/v1/namespaces/n/pods",
        json!({"spec": {
            "containers": [{"name": "c", "image": "i"}],
            "initContainers": [{"name": "s", "image": "i", "restartPolicy": "Always"}, {"name": "i", "image": "i"}],
            "volumes": [{"name": "e", "emptyDir": {}}, {"name": "m", "image": {"reference": "r"}}],
            "serviceAccountName": "default",
        }}),
    )
}

/// A field of the only regular container.
macro_rules! c {
    ($field:literal, $($json:tt)+) => {
        &[(concat!("/spec/containers/0/", $field), json!($($json)+))][..]
    };
}

/// A field of the spec.
macro_rules! s {
    ($field:literal, $($json:tt)+) => {
        &[(concat!("/spec/", $field), json!($($json)+))][..]
    };
}

#[test]
fn containers() {
    assert!(pod().object.pointer(C).is_some());
    pod().create(&[
        (c!("image", " i"), &[
            r#"spec.containers[0].image: Invalid value: " i": must not have leading or trailing whitespace"#,
        ]),
        (c!("restartPolicyRules", [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]), &[
            "spec.containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used",
        ]),
        (
            &[
                ("/spec/containers/0/restartPolicy", json!("Never")),
                ("/spec/containers/0/restartPolicyRules", json!([{"action": "Stop"}])),
            ],
            &[
                r#"spec.containers[0].restartPolicyRules[0].action: Unsupported value: "Stop": supported values: "Restart""#,
                "spec.containers[0].restartPolicyRules[0].exitCodes: Required value: must be specified",
            ],
        ),
        (
            &[
                ("/spec/containers/0/restartPolicy", json!("Never")),
                ("/spec/containers/0/restartPolicyRules", json!(vec![json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}); 21])),
            ],
            &["spec.containers[0].restartPolicyRules: Too long: may not be more than 20 bytes"],
        ),
        (c!("resizePolicy", [{"resourceName": "disk", "restartPolicy": "Never"}]), &[
            r#"spec.containers[0].resizePolicy: Unsupported value: "disk": supported values: "cpu", "memory""#,
            r#"spec.containers[0].resizePolicy: Unsupported value: "Never": supported values: "NotRequired", "RestartContainer""#,
        ]),
        (
            &[
                ("/spec/restartPolicy", json!("Never")),
                (
                    "/spec/containers/0/resizePolicy",
                    json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]),
                ),
            ],
            &[
                r#"spec.containers[0].resizePolicy: Invalid value: "RestartContainer": must be 'NotRequired' when `restartPolicy` is 'Never'"#,
            ],
        ),
        (s!("initContainers/1/readinessProbe", {"exec": {"command": ["x"]}}), &[
            "spec.initContainers[1].readinessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
        ]),
        (s!("initContainers/0/name", "c"), &[r#"spec.initContainers[0].name: Duplicate value: "c""#]),
        (s!("ephemeralContainers", [{"name": "d", "image": "i", "terminationMessagePolicy": "File",
            "imagePullPolicy": "Always", "ports": [{"containerPort": 1, "protocol": "TCP"}],
            "targetContainerName": "x"}]), &[
            r#"spec.ephemeralContainers[0].targetContainerName: Not found: "x""#,
            "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
            "spec.ephemeralContainers: Forbidden: cannot be set on create",
        ]),
        (c!("livenessProbe", {"httpGet": {"path": "/", "port": "x_y", "scheme": ""}, "successThreshold": 2}), &[
            r#"spec.containers[0].livenessProbe.httpGet.port: Invalid value: "x_y": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"#,
            r#"spec.containers[0].livenessProbe.httpGet.scheme: Unsupported value: "": supported values: "HTTP", "HTTPS""#,
            "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
        ]),
        (c!("lifecycle", {"preStop": {"sleep": {"seconds": 31}}}), &[
            "spec.containers[0].lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than terminationGracePeriodSeconds (30)",
        ]),
    ]);
}

#[test]
fn environment() {
    pod().create(&[
        (c!("env", [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "", "key": ""}}}]), &[
            "spec.containers[0].env[0].valueFrom.configMapKeyRef.name: Invalid value: \"\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            "spec.containers[0].env[0].valueFrom.configMapKeyRef.key: Required value",
        ]),
        (c!("env", [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}}}]), &[
            r#"spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor: Invalid value: "limits.cpu": only divisor's values 1m and 1 are supported with the cpu resource"#,
        ]),
        (c!("env", [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "K", "volumeName": "x", "path": "../a"}}}]), &[
            r#"spec.containers[0].env[0].valueFrom.fileKeyRef.path: Invalid value: "../a": must not contain '..'"#,
            r#"spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Not found: "x""#,
        ]),
        (c!("envFrom", [{"prefix": "P"}]), &[
            r#"spec.containers[0].envFrom: Invalid value: "": must specify one of: `configMapRef` or `secretRef`"#,
        ]),
    ]);
}

#[test]
fn mounts() {
    pod().create(&[
        (c!("volumeMounts", [{"name": "m", "mountPath": "/m", "subPath": "../x"}]), &[
            r#"spec.containers[0].volumeMounts.subPath: Invalid value: "../x": must not contain '..'"#,
        ]),
        (c!("volumeMounts", [{"name": "e", "mountPath": "/m", "mountPropagation": "Bidirectional"}]), &[
            "spec.containers[0].volumeMounts.mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers",
        ]),
        (c!("volumeDevices", [{"name": "e", "devicePath": "/d"}]), &[
            r#"spec.containers[0].volumeDevices[0].name: Invalid value: "e": can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"#,
        ]),
    ]);
}

#[test]
fn volumes() {
    pod().create(&[
        (s!("volumes/0", {"name": "e"}), &["spec.volumes[0]: Required value: must specify a volume type"]),
        (s!("volumes/0", {"name": "e", "hostPath": {"path": "a/../b"}}), &[
            r#"spec.volumes[0].hostPath.path: Invalid value: "a/../b": must not contain '..'"#,
        ]),
        (s!("volumes/0", {"name": "e", "nfs": {"server": "s", "path": "p"}}), &[
            r#"spec.volumes[0].nfs.path: Invalid value: "p": must be an absolute path"#,
        ]),
        (s!("volumes/0", {"name": "e", "csi": {"driver": ""}}), &[
            "spec.volumes[0].csi.driver: Required value",
            "spec.volumes[0].csi.driver: Invalid value: \"\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        ]),
        (s!("volumes/0", {"name": "e", "ephemeral": {}}), &[
            "spec.volumes[0].ephemeral.volumeClaimTemplate: Required value",
        ]),
        (s!("volumes/0", {"name": "e", "projected": {"defaultMode": 512, "sources": []}}), &[
            "spec.volumes[0].projected.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
        ]),
        (
            &[
                ("/spec/serviceAccountName", Value::Null),
                (
                    "/spec/volumes/0",
                    json!({"name": "e", "projected": {"defaultMode": 1, "sources": [
                        {"serviceAccountToken": {"path": "p", "expirationSeconds": 600}}]}}),
                ),
            ],
            &[
                "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: must not be specified when serviceAccountName is not set",
            ],
        ),
    ]);
}

#[test]
fn resources() {
    pod().create(&[
        (c!("resources/limits", {"cpu": "1", "hugepages-2Mi": "3Mi"}), &[
            r#"spec.containers[0].resources.limits[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of hugepages-2Mi"#,
        ]),
        (c!("resources/claims", [{"name": "a"}]), &[
            r#"spec.containers[0].resources.claims[0]: Not found: "a": must be one of the names in pod.spec.resourceClaims which is empty"#,
        ]),
        (
            &[
                ("/spec/resources", json!({"requests": {"cpu": "1", "disk": "1"}, "limits": {"memory": "1Mi"}})),
                (
                    "/spec/containers/0/resources",
                    json!({"requests": {"cpu": "2", "memory": "1Mi"}, "limits": {"memory": "2Mi"}}),
                ),
            ],
            &[
                r#"spec.resources.requests[disk]: Invalid value: "disk": must be a standard resource type or fully qualified"#,
                r#"spec.resources.requests[cpu]: Invalid value: "1": must be greater than or equal to aggregate container requests of 2"#,
                r#"spec.resources.containers[0][memory].limits: Invalid value: "2Mi": must be less than or equal to pod limits of 1Mi"#,
            ],
        ),
        (s!("overhead", {"cpu": "-1"}), &[
            r#"spec.overhead.limits[cpu]: Invalid value: "-1": must be greater than or equal to 0"#,
        ]),
        (s!("resourceClaims", [{"name": "r", "resourceClaimName": "A"}]), &[
            "spec.resourceClaims[0].resourceClaimName: Invalid value: \"A\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        ]),
    ]);
}

#[test]
fn security() {
    pod().create(&[
        (s!("securityContext", {"seccompProfile": {"type": "Localhost"}, "supplementalGroupsPolicy": "x"}), &[
            "spec.securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost",
            r#"spec.securityContext.supplementalGroupsPolicy: Unsupported value: "x": supported values: "Merge", "Strict""#,
        ]),
        (c!("securityContext", {"appArmorProfile": {"type": "Localhost", "localhostProfile": " p"}}), &[
            r#"spec.containers[0].securityContext.appArmorProfile.localhostProfile: Invalid value: " p": must not be padded with whitespace"#,
        ]),
        (c!("securityContext", {"procMount": "Unmasked"}), &[
            r#"spec.containers[0].securityContext.procMount: Invalid value: "Unmasked": `hostUsers` must be false to use `Unmasked`"#,
        ]),
        (c!("securityContext", {"windowsOptions": {"runAsUserName": "a\\b\\c"}}), &[
            r#"spec.containers[0].securityContext.windowsOptions.runAsUserName: Invalid value: "a\\b\\c": runAsUserName cannot contain more than one backslash"#,
        ]),
        (c!("securityContext", {"windowsOptions": {"hostProcess": true}}), &[
            r#"spec: Invalid value: "": If pod contains any hostProcess containers then all containers must be HostProcess containers"#,
            "spec.hostNetwork: Invalid value: false: hostNetwork must be true if pod contains any hostProcess containers",
        ]),
        (&[("/spec/hostUsers", json!(false)), ("/spec/hostPID", json!(true))], &[
            "spec.HostPID: Forbidden: when `hostUsers` is false",
        ]),
        (
            &[
                ("/spec/hostIPC", json!(true)),
                ("/spec/securityContext", json!({"sysctls": [{"name": "kernel/sem", "value": "1"}]})),
            ],
            &[
                r#"spec.securityContext.sysctls[0].name: Invalid value: "kernel/sem": may not be specified when 'hostIPC' is true"#,
            ],
        ),
        (
            &[("/spec/os", json!({"name": "windows"})), ("/spec/securityContext", json!({"fsGroup": 1}))],
            &["spec.securityContext.fsGroup: Forbidden: cannot be set for a windows pod"],
        ),
        (s!("os", {"name": "plan9"}), &[
            r#"spec.os: Unsupported value: "plan9": supported values: "linux", "windows""#,
        ]),
        (
            &[
                ("/spec/os", json!({"name": "linux"})),
                ("/spec/securityContext", json!({"windowsOptions": {"runAsUserName": "u"}})),
            ],
            &["spec.securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod"],
        ),
    ]);
}

#[test]
fn placement() {
    let term = json!({"topologyKey": "", "labelSelector": {}});
    let spread = json!({"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule"});
    pod().create(&[
        (&[("/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution", json!([term]))], &[
            "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Required value: can not be empty",
            "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Invalid value: \"\": name part must be non-empty",
            "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Invalid value: \"\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
        ]),
        (
            &[(
                "/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution",
                json!([{"topologyKey": "k", "matchLabelKeys": ["a"], "mismatchLabelKeys": ["a"]}]),
            )],
            &[
                "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].matchLabelKeys: Forbidden: must not be specified when labelSelector is not set",
                "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].mismatchLabelKeys: Forbidden: must not be specified when labelSelector is not set",
                r#"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].matchLabelKeys[0]: Invalid value: "a": exists in both matchLabelKeys and mismatchLabelKeys"#,
            ],
        ),
        (&[("/spec/topologySpreadConstraints", json!([spread, spread]))], &[
            r#"spec.topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}: Duplicate value: "{k, DoNotSchedule}""#,
        ]),
        (s!("tolerations", [{"key": "a", "operator": "Exists", "value": "b"}]), &[
            r#"spec.tolerations[0].operator: Invalid value: "b": value must be empty when `operator` is 'Exists'"#,
        ]),
        (&[("/spec/nodeName", json!("n")), ("/spec/schedulingGates", json!([{"name": "g"}]))], &[
            "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
        ]),
        (s!("dnsConfig", {"searches": ["a_b.", "A"]}), &[
            "spec.dnsConfig.searches[1]: Invalid value: \"A\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9_]([-_a-z0-9]*[a-z0-9])?(\\.[a-z0-9_]([-_a-z0-9]*[a-z0-9])?)*')",
        ]),
        (&[("/spec/hostNetwork", json!(true)), ("/spec/hostnameOverride", json!("h"))], &[
            "spec.hostnameOverride: Forbidden: may not be specified when hostNetwork is true",
        ]),
    ]);
}

#[test]
fn annotations() {
    let at = |key: &'static str, value: &'static str| [(key, json!(value))];
    let pod = pod();
    pod.create(&[
        (&at("/metadata/annotations/kubernetes.io~1config.mirror", "m"), &[
            r#"metadata.annotations[kubernetes.io/config.mirror]: Invalid value: "m": must set spec.nodeName if mirror pod annotation is set"#,
        ]),
        (&at("/metadata/annotations/controller.kubernetes.io~1pod-deletion-cost", "+1"), &[
            r#"metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: "+1": must be a 32bit integer"#,
        ]),
        (&at("/metadata/annotations/container.apparmor.security.beta.kubernetes.io~1x", "unconfined"), &[
            r#"metadata.annotations[container.apparmor.security.beta.kubernetes.io/x]: Invalid value: "x": container not found"#,
        ]),
    ]);
    let homeless = r#"metadata.annotations[kubernetes.io/config.mirror]: Invalid value: "m": must set spec.nodeName if mirror pod annotation is set"#;
    pod.update(&[(
        &at("/metadata/annotations/kubernetes.io~1config.mirror", "m"),
        &[
            homeless,
            "metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add mirror pod annotation",
            homeless,
        ],
    )]);
}

#[test]
fn changes() {
    let mut gated = pod();
    gated.object["spec"]["schedulingGates"] = json!([{"name": "g"}]);
    gated.object["spec"]["nodeSelector"] = json!({"a": "b"});
    gated.update(&[
        (s!("nodeSelector/a", "c"), &[
            r#"spec.nodeSelector: Invalid value: {"a":"c"}: only additions to spec.nodeSelector are allowed (no mutations or deletions)"#,
        ]),
        (s!("nodeSelector/c", "d"), &[]),
        (s!("schedulingGates", [{"name": "g"}, {"name": "h"}]), &[
            "spec.schedulingGates[1].name: Forbidden: only deletion is allowed, but found new scheduling gate 'h'",
        ]),
    ]);
    pod().update(&[
        (c!("image", "j"), &[]),
        (s!("activeDeadlineSeconds", 5), &[]),
        (
            s!("containers", [{"name": "d", "image": " i"}, {"name": "e"}]),
            &[
                r#"spec.containers[0].terminationMessagePolicy: Required value"#,
                r#"spec.containers[0].imagePullPolicy: Required value"#,
                r#"spec.containers[1].image: Required value"#,
                r#"spec.containers[1].terminationMessagePolicy: Required value"#,
                r#"spec.containers[1].imagePullPolicy: Required value"#,
                r#"spec.containers[0].image: Invalid value: " i": must not have leading or trailing whitespace"#,
                "spec.containers: Forbidden: pod updates may not add or remove containers",
            ],
        ),
    ]);
    let mut resized = Valid::new(
        "/api/v1/namespaces/n/pods",
        json!({"spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1", "memory": "1Mi"}}}]}}),
    );
    resized.object["status"]["qosClass"] = json!("Burstable");
    resized.sub(
        "resize",
        &[
            (c!("resources/requests/cpu", "2"), &[]),
            (
                c!("resources/requests/memory", null),
                &["spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed"],
            ),
            (
                c!("resources/limits", {"cpu": "1", "memory": "1Mi"}),
                &[r#"spec: Invalid value: "Burstable": Pod QOS Class may not change as a result of resizing"#],
            ),
            (c!("image", "j"), &["spec: Forbidden: only cpu and memory resources are mutable"]),
        ],
    );
}

#[test]
fn status() {
    pod().sub("status", &[
        (&[("/status/podIPs", json!([{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]))], &[
            r#"status.podIPs: Invalid value: [{"IP":"10.0.0.1"},{"IP":"10.0.0.2"}]: may specify no more than one IP for each IP family"#,
        ]),
        (&[("/status/hostIPs", json!([{"ip": "10.0.0.1"}]))], &[
            r#"status.hostIPs[0].ip: Invalid value: "10.0.0.1": must be equal to `hostIP`"#,
        ]),
        (&[("/status/resourceClaimStatuses", json!([{"name": "x"}]))], &[
            r#"status.resourceClaimStatuses[0].name: Invalid value: "x": must match the name of an entry in `spec.resourceClaims`"#,
        ]),
        (&[("/status/containerStatuses", json!([{"name": "c", "user": {"linux": {"uid": -1, "gid": 0}}}]))], &[
            "status.containerStatuses[0].user.linux.uid: Invalid value: -1: must be between 0 and 2147483647, inclusive",
        ]),
    ]);
}
