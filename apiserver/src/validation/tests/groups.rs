//! Storage, networking, certificates, policy and other smaller groups.

use serde_json::json;

use super::Valid;

#[test]
fn storage() {
    let class = Valid::new("/apis/storage.k8s.io/v1/storageclasses", json!({"provisioner": "p"}));
    class.create(&[
        (&[("/parameters", json!({"": "x"}))], &[r#"parameters: Invalid value: "": field can not be empty."#]),
        (
            &[(
                "/allowedTopologies",
                json!([{"matchLabelExpressions": [{"key": "k", "values": ["a", "a"]}, {"key": "k", "values": []}]}]),
            )],
            &[
                r#"allowedTopologies[0].matchLabelExpressions[0].values[1]: Duplicate value: "a""#,
                "allowedTopologies[0].matchLabelExpressions[1].values: Required value",
                r#"allowedTopologies[0].matchLabelExpressions[1].key: Duplicate value: "k""#,
            ],
        ),
    ]);
    class.update(&[(
        &[("/provisioner", json!("q"))],
        &["provisioner: Forbidden: updates to provisioner are forbidden."],
    )]);
    let attributes = json!({"driverName": "d", "parameters": {"a": "b"}});
    let attributes = Valid::new("/apis/storage.k8s.io/v1/volumeattributesclasses", attributes);
    attributes.create(&[(
        &[("/parameters", json!({}))],
        &["parameters: Required value: must contain at least one key/value pair"],
    )]);
    attributes.update(&[(
        &[("/parameters/a", json!("c"))],
        &["parameters: Forbidden: updates to parameters are forbidden."],
    )]);
    let attachment = json!({"spec": {"attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": "v"}}});
    let attachment = Valid::new("/apis/storage.k8s.io/v1/volumeattachments", attachment);
    attachment.create(&[
        (&[("/spec/source", json!({}))], &[
            "spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName",
        ]),
        (
            &[(
                "/spec/source",
                json!({"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "c", "hostPath": {"path": "/"}}}),
            )],
            &[
                "spec.source.inlineVolumeSpec.csi: Required value: has to be specified in the context of inline volumes",
                "spec.source.inlineVolumeSpec.storageClassName: Forbidden: may not be specified in the context of inline volumes",
            ],
        ),
    ]);
    attachment.sub(
        "status",
        &[(
            &[("/status/attachError", json!({"errorCode": -1}))],
            &["status.attachError.errorCode: Invalid value: -1: must be between 0 and 2147483647, inclusive"],
        )],
    );
    let driver = Valid::new("/apis/storage.k8s.io/v1/csidrivers", json!({"spec": {}}));
    driver.create(&[
        (
            &[("/spec/tokenRequests", json!([{"audience": ""}, {"audience": "", "expirationSeconds": 1}]))],
            &[r#"spec.tokenRequests[1].audience: Duplicate value: """#],
        ),
        (
            &[("/spec/volumeLifecycleModes", json!(["Never"]))],
            &[r#"spec.volumeLifecycleModes: Unsupported value: "Never": supported values: "Persistent", "Ephemeral""#],
        ),
    ]);
    driver.update(&[(
        &[("/spec/attachRequired", json!(false))],
        &["spec.attachedRequired: Invalid value: false: field is immutable"],
    )]);
    let node = json!({"spec": {"drivers": [{"name": "d", "nodeID": "i", "topologyKeys": ["k"]}]}});
    let node = Valid::new("/apis/storage.k8s.io/v1/csinodes", node);
    node.create(&[(
        &[("/spec/drivers/1", json!({"name": "d", "nodeID": "", "topologyKeys": ["k", "k"]}))],
        &[
            "spec.drivers[1].nodeID: Required value",
            r#"spec.drivers[1].name: Duplicate value: "d""#,
            r#"spec.drivers[1]: Duplicate value: "k""#,
        ],
    )]);
    node.update(&[(&[("/spec/drivers/0/allocatable", json!({"count": 5}))], &[])]);
    let capacity = json!({"storageClassName": "c", "capacity": "1Gi"});
    let capacity = Valid::new("/apis/storage.k8s.io/v1/namespaces/n/csistoragecapacities", capacity);
    capacity.create(&[(
        &[("/capacity", json!("-1"))],
        &[r#"capacity: Invalid value: "-1": must be greater than or equal to 0"#],
    )]);
    capacity.update(&[(
        &[("/storageClassName", json!("d"))],
        &[r#"storageClassName: Invalid value: "d": field is immutable"#],
    )]);
}

#[test]
fn networking() {
    let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
    let ingress = json!({"spec": {"defaultBackend": backend, "ingressClassName": "c"}});
    let ingress = Valid::new("/apis/networking.k8s.io/v1/namespaces/n/ingresses", ingress);
    ingress.create(&[
        (&[("/spec/defaultBackend", json!(null))], &[
            "spec: Invalid value: null: either `defaultBackend` or `rules` must be specified",
        ]),
        (&[("/spec/defaultBackend", json!({"resource": {"kind": "", "name": "a/b"}}))], &[
            "spec.defaultBackend.resource.kind: Required value: kind is required",
            r#"spec.defaultBackend.resource.name: Invalid value: "a/b": may not contain '/'"#,
        ]),
        (&[("/metadata/annotations/kubernetes.io~1ingress.class", json!("d"))], &[
            r#"annotations.kubernetes.io/ingress.class: Invalid value: "d": must match `ingressClassName` when both are specified"#,
        ]),
    ]);
    ingress.sub("status", &[(&[("/status/loadBalancer/ingress", json!([{"ip": "x"}]))], &[
        r#"status.loadBalancer.ingress[0].ip: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#,
    ])]);
    let class = json!({"spec": {"controller": "a.b/c", "parameters": {"kind": "k", "name": "n", "scope": "Cluster"}}});
    Valid::new("/apis/networking.k8s.io/v1/ingressclasses", class).create(&[
        (
            &[("/spec/parameters/scope", json!("Namespace"))],
            &["spec.parameters.namespace: Required value: `parameters.scope` is set to 'Namespace'"],
        ),
        (
            &[("/spec/parameters/namespace", json!("n"))],
            &["spec.parameters.namespace: Forbidden: `parameters.scope` is set to 'Cluster'"],
        ),
    ]);
    let policies =
        Valid::new("/apis/networking.k8s.io/v1/namespaces/n/networkpolicies", json!({"spec": {"podSelector": {}}}));
    policies.create(&[
        (&[("/spec/ingress", json!([{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/8"]}}]}]))], &[
            r#"spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: "11.0.0.0/8": must be a strict subset of `cidr`"#,
        ]),
        (&[("/spec/policyTypes", json!(["Sideways"]))], &[
            r#"spec.policyTypes[0]: Unsupported value: "Sideways": supported values: "Ingress", "Egress""#,
        ]),
    ]);
    let parent = json!({"resource": "services", "name": "s", "namespace": "n"});
    let address = json!({"metadata": {"name": "10.0.0.1"}, "spec": {"parentRef": parent}});
    let address = Valid::new("/apis/networking.k8s.io/v1/ipaddresses", address);
    address.create(&[
        (
            &[("/metadata/name", json!("2001:DB8::1"))],
            &[r#"metadata.name: Invalid value: "2001:DB8::1": must be in canonical form ("2001:db8::1")"#],
        ),
        (&[("/spec/parentRef/resource", json!(""))], &["spec.parentRef.resource: Required value"]),
    ]);
    let ranges = Valid::new("/apis/networking.k8s.io/v1/servicecidrs", json!({"spec": {"cidrs": ["10.0.0.0/16"]}}));
    ranges.create(&[
        (&[("/spec/cidrs", json!([]))], &["spec.cidrs: Required value: at least one CIDR required"]),
        (&[("/spec/cidrs/1", json!("10.1.0.0/16"))], &[
            r#"spec.cidrs: Invalid value: {"CIDRs":["10.0.0.0/16","10.1.0.0/16"]}: may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"#,
        ]),
    ]);
    ranges.update(&[
        (&[("/spec/cidrs/1", json!("2001:db8::/64"))], &[]),
        (
            &[("/spec/cidrs/0", json!("10.1.0.0/16"))],
            &[r#"spec.cidrs[0]: Invalid value: "10.1.0.0/16": field is immutable"#],
        ),
    ]);
}

#[test]
fn endpoints() {
    let slice = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 1}]});
    let slice = Valid::new("/apis/discovery.k8s.io/v1/namespaces/n/endpointslices", slice);
    slice.create(&[
        (
            &[("/endpoints/0/hints", json!({"forZones": [{"name": "a"}, {"name": "a"}]}))],
            &[r#"endpoints[0].hints.forZones[1].name: Duplicate value: "a""#],
        ),
        (
            &[("/endpoints/0/addresses", json!(["0.0.0.0"]))],
            &[r#"endpoints[0].addresses[0]: Invalid value: "0.0.0.0": may not be unspecified (0.0.0.0)"#],
        ),
    ]);
    slice.update(&[(
        &[("/addressType", json!("FQDN")), ("/endpoints", json!([]))],
        &[r#"addressType: Invalid value: "FQDN": field is immutable"#],
    )]);
}

#[test]
fn limits() {
    let limit = |l| [("/spec/limits/0", l)];
    let ranges = json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}}]}});
    Valid::new("/api/v1/namespaces/n/limitranges", ranges).create(&[
        (&limit(json!({"type": "Pod", "max": {"cpu": "1"}, "min": {"cpu": "2"}, "default": {"cpu": "1"}})), &[
            "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
            r#"spec.limits[0].min[cpu]: Invalid value: "2": min value 2 is greater than max value 1"#,
        ]),
        (&limit(json!({"type": "Pod", "max": {"cpu": "2"}, "min": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "3"}})), &[
            r#"spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: "3": ratio 3 is greater than max/min = 2.000000"#,
        ]),
        (&limit(json!({"type": "Pod", "maxLimitRequestRatio": {"cpu": "999999u"}})), &[
            r#"spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: "999999u": ratio 999999u is less than 1"#,
        ]),
    ]);
    let quota = Valid::new("/api/v1/namespaces/n/resourcequotas", json!({"spec": {"hard": {"pods": "1"}}}));
    quota.create(&[
        (&[("/spec/hard/secrets", json!("1")), ("/spec/scopes", json!(["BestEffort"]))], &[
            r#"spec.scopes: Invalid value: ["BestEffort"]: unsupported scope applied to resource"#,
        ]),
        (&[("/spec/hard/hugepages-2Mi", json!("4Mi")), ("/spec/scopes", json!(["Terminating"]))], &[
            r#"spec.scopes: Invalid value: ["Terminating"]: unsupported scope applied to resource"#,
        ]),
        (&[("/spec/hard/requests.a.b~1gpu", json!("1")), ("/spec/scopes", json!(["Terminating"]))], &[]),
        (&[("/spec/scopeSelector", json!({"matchExpressions": [{"scopeName": "BestEffort", "operator": "DoesNotExist"}]}))], &[
            r#"spec.scopeSelector.matchExpressions.operator: Invalid value: "DoesNotExist": must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"#,
        ]),
    ]);
}

#[test]
fn smaller_groups() {
    let class = Valid::new("/apis/node.k8s.io/v1/runtimeclasses", json!({"handler": "h"}));
    class.create(&[(
        &[("/overhead", json!({"podFixed": {"cpu": "-1"}}))],
        &[r#"overhead.limits[cpu]: Invalid value: "-1": must be greater than or equal to 0"#],
    )]);
    class.update(&[(&[("/handler", json!("i"))], &[r#"handler: Invalid value: "i": field is immutable"#])]);
    let budget = Valid::new("/apis/policy/v1/namespaces/n/poddisruptionbudgets", json!({"spec": {"minAvailable": 1}}));
    budget.sub(
        "status",
        &[(
            &[("/status/expectedPods", json!(-1))],
            &["status.expectedPods: Invalid value: -1: must be greater than or equal to 0"],
        )],
    );
    let lease = Valid::new("/apis/coordination.k8s.io/v1/namespaces/n/leases", json!({"spec": {}}));
    lease.create(&[(
        &[("/spec/preferredHolder", json!("h")), ("/spec/leaseTransitions", json!(-1))],
        &[
            "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
            "spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined",
        ],
    )]);
    let served = json!({"metadata": {"name": "v1.a.b"}, "spec": {"group": "a.b", "version": "v1",
        "groupPriorityMinimum": 1, "versionPriority": 1, "service": {"name": "s", "namespace": "n"}}});
    let served = Valid::new("/apis/apiregistration.k8s.io/v1/apiservices", served);
    served.sub(
        "status",
        &[(
            &[("/status/conditions", json!([{"type": "Available", "status": "Yes"}]))],
            &[r#"status.conditions[0].status: Unsupported value: "Yes": supported values: "True", "False", "Unknown""#],
        )],
    );
    // A name is made of what is served, also one that is to be made.
    served.create(&[
        (&[("/metadata/name", json!("a/b"))], &[r#"metadata.name: Invalid value: "a/b": may not contain '/'"#]),
        (
            &[("/metadata/generateName", json!("v"))],
            &[r#"metadata.generateName: Invalid value: "v": must be `spec.version+"."+spec.group`: "v1.a.b""#],
        ),
    ]);
}
