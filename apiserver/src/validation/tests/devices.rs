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
        // Tolerations were judged where they were asked for.
        (
            &[allocated(json!({"request": "r", "driver": "d", "pool": "p", "device": "x", "tolerations": [{"operator": "No"}]}))],
            &[],
        ),
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

#[test]
fn amounts_of_shared_capacity() {
    let policy = json!({"default": "2", "validRange": {"min": "2"}});
    let slice = json!({"spec": {"driver": "d", "nodeName": "n", "pool": {"name": "p", "resourceSliceCount": 1},
        "devices": [{"name": "x", "allowMultipleAllocations": true,
            "capacity": {"m": {"value": "10", "requestPolicy": policy}}}]}});
    let slice = Valid::new("/apis/resource.k8s.io/v1/resourceslices", slice);
    let of = |policy| [("/spec/devices/0/capacity/m/requestPolicy", policy)];
    let range = |range| of(json!({"default": "2", "validRange": range}));
    let at = |rest: &str| format!("spec.devices[0].capacity[m].requestPolicy{rest}");
    let values: Vec<String> = (1..=11).map(|i| i.to_string()).collect();
    slice.create(&[
        (&of(json!({})), &[]),
        (&of(json!({"default": "20"})), &[]),
        (&[("/spec/devices/0/allowMultipleAllocations", json!(false))], &[
            &at(": Forbidden: allowMultipleAllocations must be true"),
        ]),
        (&of(json!({"default": "1", "validValues": ["1"], "validRange": {"min": "1"}})), &[
            &at(r#": Forbidden: exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time"#),
        ]),
        (&of(json!({"validValues": ["1"]})), &[&at(".default: Required value: required when validValues is defined")]),
        (&of(json!({"validRange": {"min": "1"}})), &[&at(".default: Required value: required when validRange is defined")]),
        (&of(json!({"default": "1", "validValues": ["1", "5", "10"]})), &[]),
        (&of(json!({"default": "3", "validValues": ["2", "1", "11", "11"]})), &[
            &at(r#".validValues[1]: Invalid value: "1": values must be sorted in ascending order"#),
            &at(r#".validValues[2]: Invalid value: "11": option is larger than capacity value: 10"#),
            &at(r#".validValues[3]: Invalid value: "11": option is larger than capacity value: 10"#),
            &at(r#".validValues[3]: Duplicate value: "11""#),
            &at(r#".validValues: Invalid value: "3": default value is not valid according to the requestPolicy"#),
        ]),
        (&of(json!({"default": "1", "validValues": values})), &[
            &at(".validValues: Too many: 11: must have at most 10 items"),
            &at(r#".validValues: Invalid value: "1": default value is not valid according to the requestPolicy"#),
        ]),
        (&range(json!({"max": "5"})), &[&at(".validRange.min: Required value: required when validRange is defined")]),
        (&range(json!({"min": "11"})), &[
            &at(r#".validRange.min: Invalid value: "11": min is larger than capacity value: 10"#),
            &at(r#".validRange.min: Invalid value: "2": default is less than min: 11"#),
        ]),
        (&range(json!({"min": "1", "max": "11"})), &[
            &at(r#".validRange.max: Invalid value: "11": max is larger than capacity value: 10"#),
        ]),
        (&of(json!({"default": "6", "validRange": {"min": "5", "max": "4"}})), &[
            &at(r#".validRange.max: Invalid value: "5": min is larger than max: 4"#),
            &at(r#".validRange.max: Invalid value: "6": default is more than max: 4"#),
        ]),
        (&range(json!({"min": "2", "max": "8", "step": "3"})), &[]),
        (&range(json!({"min": "1", "max": "8", "step": "3"})), &[
            &at(r#".validRange.step: Invalid value: "2": value is not a multiple of a given step (3) from (1)"#),
            &at(r#".validRange.step: Invalid value: "8": value is not a multiple of a given step (3) from (1)"#),
        ]),
        (&range(json!({"min": "2", "step": "9"})), &[
            &at(r#".validRange.step: Invalid value: "9": one step 11 is larger than capacity value: 10"#),
        ]),
        (&range(json!({"min": "2", "step": "0"})), &[
            &at(r#".validRange.step: Invalid value: "2": value is not a multiple of a given step (0) from (2)"#),
        ]),
    ]);
}
