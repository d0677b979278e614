//! Pods: rules that are easily overlooked, and the order in which upstream complains.

use serde_json::{Value, json};

use super::Valid;

fn pod() -> Valid {
    let spec = json!({
        "containers": [{"name": "c", "image": "i"}],
        "initContainers": [{"name": "i", "image": "i"}],
        "volumes": [{"name": "e", "emptyDir": {}}],
    });
    Valid::new("/api/v1/namespaces/n/pods", json!({"spec": spec}))
}

/// A field of the only regular container.
fn c(field: &str, value: Value) -> [super::Change; 1] {
    [(Box::leak(format!("/spec/containers/0/{field}").into_boxed_str()), value)]
}

/// A field of the spec.
fn s(field: &str, value: Value) -> [super::Change; 1] {
    [(Box::leak(format!("/spec/{field}").into_boxed_str()), value)]
}

#[test]
fn fields_of_the_pod() {
    let from = |version: &str, field: &str| {
        let reference = json!({"apiVersion": version, "fieldPath": field});
        c("env", json!([{"name": "A", "valueFrom": {"fieldRef": reference}}]))
    };
    let at = "spec.containers[0].env[0].valueFrom.fieldRef";
    let unknown = |field: &str, why: &str| {
        format!(r#"{at}.fieldPath: Invalid value: "{field}": error converting fieldPath: {why}"#)
    };
    pod().create(&[
        // The old name of the node.
        (&from("v1", "spec.host"), &[]),
        (&from("v1", "metadata.labels['a.b/c']"), &[]),
        (&from("v2", "metadata.name"), &[&unknown("metadata.name", "unsupported pod version: v2")]),
        (&from("v1", "spec.x['k']"), &[&unknown("spec.x['k']", "field label does not support subscript: spec.x['k']")]),
        (&from("v1", "['k']"), &[&unknown("['k']", "field label not supported: ['k']")]),
        (&from("v1", "spec.schedulerName"), &[&format!(
            r#"{at}.fieldPath: Unsupported value: "spec.schedulerName": supported values: "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs""#
        )]),
    ]);
}

#[test]
fn containers() {
    let policy = r#"spec.containers[0].terminationMessagePolicy: Unsupported value: "x": supported values: "File", "FallbackToLogsOnError""#;
    let nameless = json!({"name": "", "image": "i", "imagePullPolicy": "Always", "terminationMessagePolicy": "File"});
    let nameless = json!([nameless, nameless]);
    let doubled = json!([{"name": "i", "image": "i", "imagePullPolicy": "Always", "terminationMessagePolicy": "File",
        "ports": [{"containerPort": 1, "hostPort": 1, "protocol": "TCP"}, {"containerPort": 2, "hostPort": 1, "protocol": "TCP"}],
        "readinessProbe": {}}]);
    let later = json!([{"name": "d", "image": " i", "imagePullPolicy": "Always", "terminationMessagePolicy": "File",
        "restartPolicy": "Always", "lifecycle": {}, "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
        "restartPolicyRules": [{"action": "Restart"}]}]);
    let no = |field: &str| {
        format!("spec.ephemeralContainers[0].{field}: Forbidden: cannot be set for an Ephemeral Container")
    };
    pod().create(&[
        (&c("terminationMessagePolicy", json!("x")), &[policy]),
        // Two without a name are not two of one name.
        (&s("initContainers", nameless), &[
            "spec.initContainers[0].name: Required value",
            "spec.initContainers[1].name: Required value",
        ]),
        (&s("initContainers", doubled), &[
            r#"spec.initContainers[0].ports[1].hostPort: Duplicate value: "TCP//1""#,
            "spec.initContainers[0].readinessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
        ]),
        (&s("ephemeralContainers", later), &[
            r#"spec.ephemeralContainers[0].image: Invalid value: " i": must not have leading or trailing whitespace"#,
            &no("resizePolicy"),
            &no("restartPolicy"),
            &no("restartPolicyRules"),
            &no("lifecycle"),
            "spec.ephemeralContainers: Forbidden: cannot be set on create",
        ]),
    ]);
    // A node may be left over from the time before the gates.
    let mut gated = pod();
    gated.object["spec"]["nodeName"] = json!("n");
    gated.object["spec"]["schedulingGates"] = json!([{"name": "g"}]);
    gated.update(&[(&c("image", json!("j")), &[])]);
}

#[test]
fn mounts() {
    let mount = |field: &str, value: &str| {
        let mut mount = json!({"name": "e", "mountPath": "/m", "readOnly": true});
        mount[field] = json!(value);
        c("volumeMounts", json!([mount]))
    };
    let wrong = |field: &str, value: &str, known: &str| {
        format!(r#"spec.containers[0].volumeMounts.{field}: Unsupported value: "{value}": supported values: {known}"#)
    };
    let modes = r#""Bidirectional", "HostToContainer", "None""#;
    let depths = r#""Disabled", "Enabled", "IfPossible""#;
    pod().create(&[
        (&mount("mountPropagation", "None"), &[]),
        (&mount("mountPropagation", ""), &[&wrong("mountPropagation", "", modes)]),
        (&mount("recursiveReadOnly", "Enabled"), &[]),
        (&mount("recursiveReadOnly", ""), &[&wrong("recursiveReadOnly", "", depths)]),
        (&mount("recursiveReadOnly", "x"), &[&wrong("recursiveReadOnly", "x", depths)]),
    ]);
}

#[test]
fn resources() {
    let at = "spec.containers[0].resources";
    let pages = |name: &str, amount: &str| json!({"limits": {name: amount, "cpu": "1"}});
    let part = |name: &str, amount: &str| {
        format!(
            r#"{at}.limits[{name}]: Invalid value: "{amount}": {amount} is not positive integer multiple of {name}"#
        )
    };
    let (no_size, parts) = (part("hugepages-x", "1"), part("hugepages-2Mi", "3Mi"));
    pod().create(&[
        (&c("resources", pages("hugepages-2Mi", "4Mi")), &[]),
        (&c("resources", pages("hugepages-2Mi", "3Mi")), &[&parts]),
        (&c("resources", pages("hugepages-x", "1")), &[&no_size]),
        (&c("resources", pages("hugepages-2Mi", "-2Mi")), &[&format!(
            r#"{at}.limits[hugepages-2Mi]: Invalid value: "-2Mi": must be greater than or equal to 0"#
        )]),
        (&c("resources", json!({"requests": {"hugepages-2Mi": "3Mi", "cpu": "1"}})), &[
            &format!("{at}.limits: Required value: Limit must be set for non overcommitable resources"),
            &format!(
                r#"{at}.requests[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of hugepages-2Mi"#
            ),
        ]),
    ]);
}

#[test]
fn claims_of_containers() {
    let at = "spec.containers[0].resources.claims";
    let mut claiming = pod();
    claiming.object["spec"]["resourceClaims"] =
        json!([{"name": "z", "resourceClaimName": "z"}, {"name": "a", "resourceClaimName": "a"}]);
    let of = |claims: Value| c("resources", json!({"claims": claims}));
    let twice = |i: usize, what: &str| format!(r#"{at}[{i}]: Duplicate value: "{what}""#);
    claiming.create(&[
        (&of(json!([{"name": "a", "request": "r"}, {"name": "a", "request": "s"}, {"name": "z"}])), &[]),
        (&of(json!([{"name": "a", "request": "r"}, {"name": "a", "request": "r"}])), &[&twice(1, "a/r")]),
        (&of(json!([{"name": "a"}, {"name": "a", "request": "R"}])), &[&twice(1, "a")]),
        (
            &of(json!([{"name": "a", "request": "r"}, {"name": "a", "request": "s"}, {"name": "a"}])),
            &[&twice(2, "a"), &twice(2, "a")],
        ),
        (
            &of(json!([{"name": "x"}])),
            &[&format!(r#"{at}[0]: Not found: "x": must be one of the names in pod.spec.resourceClaims: a, z"#)],
        ),
    ]);
}

#[test]
fn security() {
    let sysctl = |field: &'static str, name: &str| {
        [(field, json!(true)), ("/spec/securityContext", json!({"sysctls": [{"name": name, "value": "1"}]}))]
    };
    let no = |name: &str, field: &str| {
        format!(
            r#"spec.securityContext.sysctls[0].name: Invalid value: "{name}": may not be specified when '{field}' is true"#
        )
    };
    pod().create(&[
        (&sysctl("/spec/hostIPC", "kernel.shmmax"), &[&no("kernel.shmmax", "hostIPC")]),
        (&sysctl("/spec/hostIPC", "fs/mqueue/msg_max"), &[&no("fs/mqueue/msg_max", "hostIPC")]),
        // Each is one of the host in any case.
        (&sysctl("/spec/hostIPC", "kernel.shm_next_id"), &[]),
        (&sysctl("/spec/hostIPC", "net.a"), &[]),
        (&sysctl("/spec/hostNetwork", "net/ipv4/conf/eno2.100/rp_filter"), &[
            &no("net/ipv4/conf/eno2.100/rp_filter", "hostNetwork"),
        ]),
        (&c("securityContext", json!({"seccompProfile": {"type": "RuntimeDefault", "localhostProfile": "p"}})), &[
            r#"spec.containers[0].securityContext.seccompProfile.localhostProfile: Invalid value: {"Type":"RuntimeDefault","LocalhostProfile":"p"}: can only be set when seccomp type is Localhost"#,
        ]),
    ]);
}

#[test]
fn annotations_in_order() {
    let all = json!({
        "container.apparmor.security.beta.kubernetes.io/x": "unconfined",
        "container.seccomp.security.alpha.kubernetes.io/c": "x",
        "controller.kubernetes.io/pod-deletion-cost": "08",
        "seccomp.security.alpha.kubernetes.io/pod": "x",
    });
    let profile = r#"Invalid value: "x": must be a valid seccomp profile"#;
    pod().create(&[
        (&[("/metadata/annotations", all)], &[
            r#"metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: "08": must be a 32bit integer"#,
            &format!("metadata.annotations.seccomp.security.alpha.kubernetes.io/pod: {profile}"),
            &format!("metadata.annotations.container.seccomp.security.alpha.kubernetes.io/c: {profile}"),
            r#"metadata.annotations[container.apparmor.security.beta.kubernetes.io/x]: Invalid value: "x": container not found"#,
        ]),
        (&[("/metadata/annotations/controller.kubernetes.io~1pod-deletion-cost", json!("-08"))], &[]),
    ]);
}

#[test]
fn volumes() {
    let bundle = |name: &str| {
        let source = json!({"clusterTrustBundle": {"name": name, "path": "p"}});
        s("volumes", json!([{"name": "e", "projected": {"sources": [source]}}]))
    };
    let at = "spec.volumes[0].projected.sources[0].clusterTrustBundle.name: Invalid value";
    let name = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    let long = "p".repeat(64);
    let portal = json!({"targetPortal": long, "iqn": "eui.0123456789abcdef", "initiatorName": "eui.0123456789abcdef"});
    let certificate =
        |of: Value| s("volumes", json!([{"name": "e", "projected": {"sources": [{"podCertificate": of}]}}]));
    let part = "spec.volumes[0].projected.sources[0].podCertificate";
    pod().create(&[
        (&certificate(json!({
            "signerName": "a.io/b", "keyType": "ED25519", "maxExpirationSeconds": 7_862_400, "credentialBundlePath": "c",
            "userAnnotations": {"a.io/b": "c"},
        })), &[]),
        (&certificate(json!({
            "keyType": "RSA", "maxExpirationSeconds": 3599, "keyPath": "/k", "userAnnotations": {"b": "c"},
        })), &[
            &format!("{part}.signerName: Required value"),
            &format!(r#"{part}.keyType: Unsupported value: "RSA": supported values: "RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519""#),
            &format!("{part}.maxExpirationSeconds: Invalid value: 3599: if provided, maxExpirationSeconds must be >= 3600"),
            &format!(r#"{part}.userAnnotations: Invalid value: "b": must be a domain-prefixed key (such as "acme.io/foo")"#),
            &format!(r#"{part}.keyPath: Invalid value: "/k": must be a relative path"#),
        ]),
        (&certificate(json!({
            "signerName": "a.kubernetes.io/b", "keyType": "RSA4096", "maxExpirationSeconds": 86_401, "keyPath": "k",
        })), &[
            &format!("{part}.maxExpirationSeconds: Invalid value: 86401: if provided, maxExpirationSeconds must be <= 86400"),
        ]),
        (&certificate(json!({"signerName": "a.io/b", "keyType": "RSA4096"})), &[
            &format!("{part}: Required value: specify at least one of credentialBundlePath, keyPath, and certificateChainPath"),
        ]),
        (&bundle("example.com:foo:bar"), &[]),
        // What goes before the last colon is a signer, whatever it is.
        (&bundle("example.com:Foo_x:bar"), &[]),
        (&bundle("example.com:foo:B"), &[&format!(
            r#"{at}: "example.com:foo:B": not a valid clustertrustbundlename: {name}"#
        )]),
        (&bundle(":b"), &[&format!(
            r#"{at}: ":b": not a valid clustertrustbundlename: ClusterTrustBundle without signer name must not have ":" in its name"#
        )]),
        (&s("volumes/0/iscsi", portal), &[
            "spec.volumes[0].iscsi: Forbidden: may not specify more than 1 volume type",
            r#"spec.volumes[0].name: Invalid value: "e": Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified."#,
        ]),
    ]);
}

#[test]
fn allocated_resources_status() {
    let resources = json!({"requests": {"x.io/gpu": "1"}, "limits": {"x.io/gpu": "1"},
        "claims": [{"name": "a", "request": "r"}, {"name": "b"}]});
    let claims = json!([{"name": "a", "resourceClaimName": "a"}, {"name": "b", "resourceClaimName": "b"}]);
    let spec = json!({"containers": [{"name": "c", "image": "i", "resources": resources}], "resourceClaims": claims});
    let given = |container: &str, name: &str, resources: Value| {
        let status = json!({"name": container, "allocatedResourcesStatus": [{"name": name, "resources": resources}]});
        [("/status/containerStatuses", json!([status]))]
    };
    let at = "status.containerStatuses[0].allocatedResourcesStatus[0]";
    let none = json!([]);
    let no_claim = |name: &str| {
        format!(
            "{at}.name: Invalid value: \"{name}\": must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty"
        )
    };
    Valid::new("/api/v1/namespaces/n/pods", json!({"spec": spec})).sub("status", &[
        (&given("c", "x.io/gpu", none.clone()), &[]),
        (&given("c", "claim:a/r", none.clone()), &[]),
        (&given("c", "claim:b", none.clone()), &[]),
        (&given("unknown", "cpu", none.clone()), &[]),
        (&given("c", "cpu", none.clone()), &[&format!(
            r#"{at}.name: Invalid value: "cpu": must match one of the container's resource requests"#
        )]),
        (&given("c", "claim:a", none.clone()), &[&no_claim("claim:a")]),
        (&given("c", "claim:b/r", none), &[&no_claim("claim:b/r")]),
        (
            &given("c", "x.io/gpu", json!([{"resourceID": "1", "health": "Healthy"}, {"resourceID": "1", "health": "Ill"}])),
            &[
                &format!(
                    r#"{at}.resources[1].health: Unsupported value: "Ill": supported values: "Healthy", "Unhealthy", "Unknown""#
                ),
                &format!(r#"{at}.resources[1].resourceID: Duplicate value: "1""#),
            ],
        ),
        (
            &[("/status/ephemeralContainerStatuses", json!([{"name": "e", "allocatedResourcesStatus": [{"name": "cpu"}]}]))],
            &[
                "status.ephemeralContainerStatuses[0].allocatedResourcesStatus: Forbidden: must not be specified in container status",
            ],
        ),
    ]);
}
