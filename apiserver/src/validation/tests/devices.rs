//! Dynamic resources: claims, templates, classes, slices, what allocation writes.

use serde_json::json;

use super::Valid;

const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/n/resourceclaims";

fn claim() -> Valid {
    Valid::new(CLAIMS, json!({"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}}))
}

#[test]
fn claims() {
    claim().create(&[
        (&[("/spec/devices/requests/0", json!({"name": "r"}))], &[
            "spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required",
        ]),
        (
            &[(
                "/spec/devices/requests/1",
                json!({"name": "r", "exactly": {"deviceClassName": "", "allocationMode": "ExactCount", "count": 1}}),
            )],
            &[
                "spec.devices.requests[1].exactly.deviceClassName: Required value",
                r#"spec.devices.requests[1]: Duplicate value: "r""#,
            ],
        ),
        (&[("/spec/devices/requests/0/exactly/count", json!(0))], &[
            "spec.devices.requests[0].exactly.count: Invalid value: 0: must be greater than zero",
        ]),
        (
            &[
                ("/spec/devices/requests/0/exactly/allocationMode", json!("All")),
                ("/spec/devices/requests/0/exactly/count", json!(1)),
            ],
            &[
                "spec.devices.requests[0].exactly.count: Invalid value: 1: must not be specified when allocationMode is 'All'",
            ],
        ),
        (&[("/spec/devices/requests/0/exactly/allocationMode", json!("Some"))], &[
            r#"spec.devices.requests[0].exactly.allocationMode: Unsupported value: "Some": supported values: "All", "ExactCount""#,
        ]),
        (&[("/spec/devices/requests/0/exactly/selectors", json!([{}]))], &[
            "spec.devices.requests[0].exactly.selectors[0].cel: Required value",
        ]),
        (&[("/spec/devices/constraints", json!([{"requests": ["x"], "matchAttribute": "a"}]))], &[
            r#"spec.devices.constraints[0].requests[0]: Invalid value: "x": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"#,
            r#"spec.devices.constraints[0].matchAttribute: Invalid value: "a": a fully qualified name must be a domain and a name separated by a slash"#,
        ]),
        (&[("/spec/devices/constraints", json!([{"requests": ["r"]}]))], &[
            "spec.devices.constraints[0].matchAttribute: Required value",
        ]),
        (&[("/spec/devices/config", json!([{}]))], &["spec.devices.config[0].opaque: Required value"]),
    ]);
    let got = claim();
    let changed = got.with(&[("/spec/devices/requests/0/name", json!("s"))]);
    let errors = super::validate_update(got.row, got.row, &changed, &got.object);
    assert!(errors.iter().all(|e| e.field == "spec" && e.detail == "field is immutable"), "{errors:?}");
    assert_eq!(errors.len(), 1);
}

#[test]
fn allocations() {
    let result = json!({"request": "r", "driver": "d", "pool": "p", "device": "x"});
    let allocated = |result| ("/status/allocation", json!({"devices": {"results": [result]}}));
    claim().sub("status", &[
        (&[allocated(result.clone())], &[]),
        (&[allocated(json!({"request": "q", "driver": "d", "pool": "", "device": "x"}))], &[
            r#"status.allocation.devices.results[0].request: Invalid value: "q": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"#,
            "status.allocation.devices.results[0].pool: Required value",
        ]),
        (&[("/status/reservedFor", json!([{"resource": "pods", "name": "p", "uid": "u"}]))], &[
            "status.reservedFor: Forbidden: may not be specified when `allocated` is not set",
        ]),
        (&[("/status/devices", json!([{"driver": "d", "pool": "p", "device": "x"}]))], &[
            "status.devices[0]: Invalid value: d/p/x: must be an allocated device in the claim",
        ]),
        (
            &[
                allocated(result),
                (
                    "/status/devices",
                    json!([{"driver": "d", "pool": "p", "device": "x", "networkData": {"ips": ["10.0.0.1", "2001:DB8::1/64"]}}]),
                ),
            ],
            &[
                r#"status.devices[0].networkData.ips[0]: Invalid value: "10.0.0.1": must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)"#,
                r#"status.devices[0].networkData.ips[1]: Invalid value: "2001:DB8::1/64": must be in canonical form ("2001:db8::1/64")"#,
            ],
        ),
    ]);
}

#[test]
fn classes_and_templates() {
    Valid::new("/apis/resource.k8s.io/v1/deviceclasses", json!({"spec": {}})).create(&[
        (&[("/spec/selectors", json!([{"cel": {"expression": "device.driver =="}}]))], &[
            "spec.selectors[0].cel.expression: Invalid value: \"device.driver ==\": compilation failed: ERROR: <input>:1:17: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}\n | device.driver ==\n | ................^",
        ]),
        (&[("/spec/extendedResourceName", json!("cpu"))], &[
            r#"spec.extendedResourceName: Invalid value: "cpu": must be a valid extended resource name"#,
        ]),
    ]);
    let template = json!({"spec": {"spec": {"devices": {"requests": [
        {"name": "r", "firstAvailable": [{"name": "a", "deviceClassName": "c"}]}]}}}});
    Valid::new("/apis/resource.k8s.io/v1/namespaces/n/resourceclaimtemplates", template).create(&[
        (&[("/spec/metadata", json!({"name": "x"}))], &["spec.metadata.name: Forbidden: cannot be set"]),
        (&[("/spec/spec/devices/requests/0/firstAvailable/0/name", json!("A"))], &[
            "spec.spec.devices.requests[0].firstAvailable[0].name: Invalid value: \"A\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
        ]),
    ]);
}

#[test]
fn slices() {
    let slice = json!({"spec": {"driver": "d", "nodeName": "n", "pool": {"name": "p", "resourceSliceCount": 1},
        "devices": [{"name": "x", "attributes": {"a": {"int": 1}}}]}});
    let slice = Valid::new("/apis/resource.k8s.io/v1/resourceslices", slice);
    let short = format!("/{}...{}", "x".repeat(46), "x".repeat(46));
    let label = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
    slice.create(&[
        (&[("/spec/nodeName", json!(null))], &[
            "spec: Required value: exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required",
        ]),
        (&[("/spec/allNodes", json!(true))], &[
            r#"spec: Invalid value: "{`nodeName`, `allNodes`}": exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required, but multiple fields are set"#,
        ]),
        (&[("/spec/pool/resourceSliceCount", json!(0))], &[
            "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero",
        ]),
        (&[("/spec/devices/0/attributes", json!({"a": {}, "b": {"version": "1.2"}}))], &[
            r#"spec.devices[0].attributes[a]: Invalid value: "": exactly one value must be specified"#,
            r#"spec.devices[0].attributes[b].version: Invalid value: "1.2": must be a string compatible with semver.org spec 2.0.0"#,
        ]),
        (&[("/spec/devices/0/attributes", json!({"a.example/": {"int": 1}}))], &[
            r#"spec.devices[0].attributes[a.example/]: Invalid value: "": the name must not be empty"#,
        ]),
        (&[("/spec/devices/0/capacity", json!({format!("/{}", "x".repeat(100)): {"value": "1"}}))], &[
            &format!(r#"spec.devices[0].capacity[{short}]: Invalid value: "": the domain must not be empty"#),
            &format!("spec.devices[0].capacity[{short}]: Too long: may not be more than 32 bytes"),
        ]),
        (&[("/spec/devices/0/consumesCounters", json!([{"counterSet": "s", "counters": {"": {"value": "1"}}}]))], &[
            &format!(r#"spec.devices[0].consumesCounters[0].counters[]: Invalid value: "": {label}"#),
        ]),
        (&[("/spec/devices/1", json!({"name": "x"}))], &[r#"spec.devices[1]: Duplicate value: "x""#]),
        (&[("/spec/devices/0/taints", json!([{"key": "k", "effect": "Nope"}]))], &[
            r#"spec.devices[0].taints[0].effect: Unsupported value: "Nope": supported values: "NoExecute", "NoSchedule", "None""#,
        ]),
    ]);
    slice.update(&[
        (&[("/spec/driver", json!("e"))], &[r#"spec.driver: Invalid value: "e": field is immutable"#]),
        (&[("/spec/devices", json!([]))], &[]),
    ]);
}
