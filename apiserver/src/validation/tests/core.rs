//! Services, volumes and claims, namespaces, quotas, events.

use serde_json::json;

use super::Valid;

#[test]
fn services() {
    let service = Valid::new("/api/v1/namespaces/n/services", json!({"spec": {"ports": [{"port": 80}]}}));
    service.create(&[
        (&[("/spec/clusterIP", json!("None")), ("/spec/clusterIPs", json!(["None", "10.0.0.1"]))], &[
            r#"spec.clusterIPs: Invalid value: ["None","10.0.0.1"]: 'None' must be the first and only value"#,
        ]),
        // Only the first can be none.
        (&[("/spec/clusterIP", json!("10.0.0.1")), ("/spec/clusterIPs", json!(["10.0.0.1", "None"]))], &[
            r#"spec.clusterIPs[1]: Invalid value: "None": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#,
        ]),
        (
            &[
                ("/spec/clusterIP", json!("10.0.0.1")),
                ("/spec/clusterIPs", json!(["10.0.0.1", "10.0.0.2", "10.0.0.3"])),
            ],
            &[
                r#"spec.clusterIPs: Invalid value: ["10.0.0.1","10.0.0.2","10.0.0.3"]: may only hold up to 2 values"#,
                r#"spec.clusterIPs: Invalid value: ["10.0.0.1","10.0.0.2","10.0.0.3"]: may specify no more than one IP for each IP family"#,
            ],
        ),
        (&[("/spec/clusterIP", json!("10.0.0.1")), ("/spec/clusterIPs", json!(["10.0.0.1", "10.0.0.2"]))], &[
            r#"spec.clusterIPs: Invalid value: ["10.0.0.1","10.0.0.2"]: may specify no more than one IP for each IP family"#,
        ]),
        (
            &[
                ("/spec/clusterIP", json!("10.0.0.1")),
                ("/spec/clusterIPs", json!(["10.0.0.1"])),
                ("/spec/ipFamilies", json!(["IPv6"])),
            ],
            &[
                r#"spec.clusterIPs[0]: Invalid value: "10.0.0.1": expected an IPv6 value as indicated by `ipFamilies[0]`"#,
            ],
        ),
        (&[("/spec/type", json!("LoadBalancer")), ("/spec/loadBalancerClass", json!("a/b/c"))], &[
            "spec.loadBalancerClass: Invalid value: \"a/b/c\": a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
        ]),
        (&[("/spec/internalTrafficPolicy", json!(""))], &[
            r#"spec.internalTrafficPolicy: Unsupported value: "": supported values: "Cluster", "Local""#,
        ]),
        (&[("/spec/trafficDistribution", json!("Near"))], &[
            r#"spec.trafficDistribution: Unsupported value: "Near": supported values: "PreferClose", "PreferSameZone", "PreferSameNode""#,
        ]),
        (&[("/spec/externalIPs", json!(["127.0.0.1"]))], &[
            r#"spec.externalIPs[0]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)"#,
        ]),
        (
            &[
                ("/metadata/annotations/service.kubernetes.io~1topology-mode", json!("Auto")),
                ("/metadata/annotations/service.kubernetes.io~1topology-aware-hints", json!("Disabled")),
            ],
            &[
                r#"metadata.annotations[service.kubernetes.io/topology-mode]: Invalid value: "Auto": must match annotations[service.kubernetes.io/topology-aware-hints] when both are specified"#,
            ],
        ),
    ]);
    let mut balanced = Valid::new(
        "/api/v1/namespaces/n/services",
        json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 80}], "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]}}),
    );
    let entry = |e| [("/status/loadBalancer/ingress", json!([e]))];
    balanced.sub("status", &[
        (&entry(json!({"ip": "10.0.0.1"})), &[
            "status.loadBalancer.ingress[0].ipMode: Required value: must be specified when `ip` is set",
        ]),
        (&entry(json!({"ip": "10.0.0.1", "ipMode": "X"})), &[
            r#"status.loadBalancer.ingress[0].ipMode: Unsupported value: "X": supported values: "Proxy", "VIP""#,
        ]),
        (&entry(json!({"hostname": "10.0.0.1"})), &[
            r#"status.loadBalancer.ingress[0].hostname: Invalid value: "10.0.0.1": must be a DNS name, not an IP address"#,
        ]),
    ]);
    let of = |ip: &str| [("/status/loadBalancer/ingress", json!([{"ip": ip, "ipMode": "VIP"}]))];
    let invalid = |ip: &str| {
        format!(
            "status.loadBalancer.ingress[0].ip: Invalid value: {ip:?}: must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
        )
    };
    let kept = Valid { row: balanced.row, object: balanced.with(&of("x")) };
    kept.sub("status", &[(&[("/status/loadBalancer/x", json!(1))], &[]), (&of("y"), &[&invalid("y")])]);
    balanced.object["spec"]["healthCheckNodePort"] = json!(30000);
    balanced.object["spec"]["externalTrafficPolicy"] = json!("Local");
    // A class is looked at twice, but for its change.
    let of_balancers = "spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'";
    service.update(&[(&[("/spec/loadBalancerClass", json!("a/b"))], &[of_balancers, of_balancers])]);
    balanced.update(&[
        (
            &[("/spec/loadBalancerClass", json!("a/b"))],
            &[r#"spec.loadBalancerClass: Invalid value: "a/b": may not change once set"#],
        ),
        (&[("/spec/healthCheckNodePort", json!(30001))], &["spec.healthCheckNodePort: Forbidden: field is immutable"]),
        (
            &[("/spec/clusterIP", json!("10.0.0.2")), ("/spec/clusterIPs", json!(["10.0.0.2"]))],
            &[r#"spec.clusterIPs[0]: Invalid value: ["10.0.0.2"]: may not change once set"#],
        ),
    ]);
    let two = json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"],
        "ipFamilyPolicy": "RequireDualStack", "ports": [{"port": 80}]});
    let dual = Valid::new("/api/v1/namespaces/n/services", json!({"spec": two}));
    let released = |what: &str| {
        format!(
            r#"spec.ipFamilyPolicy: Invalid value: "PreferDualStack": must be set to 'SingleStack' when releasing the secondary {what}"#
        )
    };
    let (address, family) = (released("clusterIP"), released("ipFamily"));
    let (prefer, single) = (json!("PreferDualStack"), json!("SingleStack"));
    let (one_address, one_family) = (("/spec/clusterIPs", json!(["10.0.0.1"])), ("/spec/ipFamilies", json!(["IPv4"])));
    dual.update(&[
        (&[("/spec/ipFamilyPolicy", prefer.clone()), one_address.clone()], &[&address]),
        (&[("/spec/ipFamilyPolicy", prefer), one_address.clone(), one_family.clone()], &[&address, &family]),
        (&[("/spec/ipFamilyPolicy", single), one_address, one_family], &[]),
        (
            &[
                ("/spec/ipFamilies", json!(["IPv6", "IPv4"])),
                ("/spec/clusterIPs", json!(["fd00::1", "10.0.0.1"])),
                ("/spec/clusterIP", json!("fd00::1")),
            ],
            &[
                r#"spec.clusterIPs[0]: Invalid value: ["fd00::1","10.0.0.1"]: may not change once set"#,
                r#"spec.clusterIPs[1]: Invalid value: ["fd00::1","10.0.0.1"]: may not change once set"#,
                r#"spec.ipFamilies[0]: Invalid value: ["IPv6","IPv4"]: may not change once set"#,
                r#"spec.ipFamilies[0]: Invalid value: ["IPv6","IPv4"]: may not change once set"#,
            ],
        ),
    ]);
    service.sub(
        "status",
        &[(
            &entry(json!({"hostname": "a"})),
            &["status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is 'LoadBalancer'"],
        )],
    );
}

#[test]
fn volumes() {
    let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"}});
    let volume = Valid::new("/api/v1/persistentvolumes", json!({"spec": spec}));
    volume.create(&[
        (
            &[("/spec/nfs", json!({"server": "s", "path": "/"}))],
            &["spec.nfs: Forbidden: may not specify more than 1 volume type"],
        ),
        (
            &[("/spec/hostPath/path", json!("/./")), ("/spec/persistentVolumeReclaimPolicy", json!("Recycle"))],
            &["spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'"],
        ),
        (
            &[("/spec/hostPath", json!(null)), ("/spec/local", json!({"path": "/d"}))],
            &["spec.nodeAffinity: Required value: Local volume requires node affinity"],
        ),
        (
            &[("/spec/volumeAttributesClassName", json!(""))],
            &[
                "spec.volumeAttributesClassName: Required value: an empty string is disallowed",
                "spec.csi: Required value: has to be specified when using volumeAttributesClassName",
            ],
        ),
        (
            &[("/spec/capacity", json!({"disk": "0"}))],
            &[
                r#"spec.capacity: Unsupported value: {"disk":"0"}: supported values: "storage""#,
                r#"spec.capacity[disk]: Invalid value: "0": must be greater than zero"#,
            ],
        ),
    ]);
    volume.create(&[(
        &[("/spec/capacity", json!({"storage": "-1Ki"}))],
        &[
            "spec.capacity[storage]: Invalid value: -1024: must be a valid resource quantity",
            r#"spec.capacity[storage]: Invalid value: "-1Ki": must be greater than zero"#,
        ],
    )]);
    // The whole is judged before what changed, and with it once more.
    volume.update(&[(
        &[("/spec/volumeMode", json!("Tape"))],
        &[
            r#"spec.volumeMode: Unsupported value: "Tape": supported values: "Block", "Filesystem""#,
            r#"spec.volumeMode: Unsupported value: "Tape": supported values: "Block", "Filesystem""#,
            r#"volumeMode: Invalid value: "Tape": field is immutable"#,
        ],
    )]);
    volume.update(&[
        (&[("/spec/hostPath/path", json!("/b"))], &[
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n@@ -2,7 +2,7 @@\n  \"GCEPersistentDisk\": null,\n  \"AWSElasticBlockStore\": null,\n  \"HostPath\": {\n-  \"Path\": \"/a\",\n+  \"Path\": \"/b\",\n   \"Type\": \"\"\n  },\n  \"Glusterfs\": null,\n",
        ]),
        (&[("/spec/volumeMode", json!("Block"))], &[r#"volumeMode: Invalid value: "Block": field is immutable"#]),
    ]);
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let mut claim = Valid::new("/api/v1/namespaces/n/persistentvolumeclaims", json!({"spec": spec}));
    claim.create(&[
        (&[("/spec/dataSource", json!({"kind": "Pod", "name": ""}))], &[
            "spec.dataSource.name: Required value",
            r#"spec.dataSource: Invalid value: "Pod": must be 'PersistentVolumeClaim' when referencing the default apiGroup"#,
        ]),
        (
            &[
                ("/spec/dataSource", json!({"kind": "PersistentVolumeClaim", "name": "a"})),
                ("/spec/dataSourceRef", json!({"kind": "PersistentVolumeClaim", "name": "b"})),
            ],
            &["spec: Invalid value: spec.dataSource: must match dataSourceRef"],
        ),
        (&[("/spec/volumeMode", json!("Tape"))], &[
            r#"spec.volumeMode: Unsupported value: "Tape": supported values: "Block", "Filesystem""#,
        ]),
    ]);
    claim.sub("status", &[
        (&[("/status/allocatedResourceStatuses", json!({"storage": "Growing"}))], &[
            r#"status.allocatedResourceStatuses: Unsupported value: "storage": supported values: "ControllerResizeInProgress", "ControllerResizeInfeasible", "NodeResizeInProgress", "NodeResizeInfeasible", "NodeResizePending""#,
        ]),
        (&[("/status/capacity", json!({"storage": "-1"}))], &[
            r#"status.capacity[storage]: Invalid value: -1: must be a valid resource quantity"#,
        ]),
    ]);
    claim.object["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
    claim.object["spec"]["volumeAttributesClassName"] = json!("c");
    claim.update(&[
        (&[("/spec/resources/requests/storage", json!("2Gi"))], &[]),
        (
            &[("/spec/resources/requests/storage", json!("1Mi"))],
            &["spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"],
        ),
        (&[("/spec/volumeAttributesClassName", json!(null))], &[]),
    ]);
}

#[test]
fn small_kinds() {
    let mut namespace = Valid::new("/api/v1/namespaces", json!({}));
    namespace.object["status"]["phase"] = json!("Active");
    namespace.sub(
        "status",
        &[(
            &[("/status/phase", json!("Terminating"))],
            &[r#"status.Phase: Invalid value: "Terminating": may only be 'Active' if `deletionTimestamp` is empty"#],
        )],
    );
    namespace.sub("finalize", &[(&[("/spec/finalizers", json!(["x"]))], &[
        r#"spec.finalizers[0]: Invalid value: "x": name is neither a standard finalizer name nor is it fully qualified"#,
    ])]);
    let quota = Valid::new("/api/v1/namespaces/n/resourcequotas", json!({"spec": {"hard": {"pods": "1"}}}));
    quota.sub(
        "status",
        &[(
            &[("/status/used", json!({"pods": "500m", "nope": "1"}))],
            &[
                r#"status.used[nope]: Invalid value: "nope": must be a standard resource type or fully qualified"#,
                r#"status.used[nope]: Invalid value: "nope": must be a standard resource for quota"#,
                r#"status.used[pods]: Invalid value: "500m": must be an integer"#,
            ],
        )],
    );
}

#[test]
fn events() {
    let (stored, namespace) = super::target("/api/v1/namespaces/n/events");
    let (row, _) = super::target("/apis/events.k8s.io/v1/namespaces/n/events");
    let event = json!({"metadata": {"name": "x", "uid": "u"}, "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingComponent": "a/b", "reportingInstance": "i", "action": "a", "reason": "r", "type": "Normal",
        "involvedObject": {"namespace": "n"}});
    let event = Valid { row, object: super::prepared(stored, &namespace, event) };
    let long = "x".repeat(129);
    event.create(&[
        (&[("/reportingComponent", json!(null)), ("/action", json!(""))], &[
            "reportingController: Required value",
            "reportingController: Invalid value: \"\": name part must be non-empty",
            "reportingController: Invalid value: \"\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            "action: Required value",
        ]),
        (&[("/reason", json!(long)), ("/type", json!("Odd"))], &[
            r#"reason: Invalid value: "": can have at most 128 characters"#,
            r#"type: Invalid value: "": has invalid value: Odd"#,
        ]),
        (&[("/series", json!({"count": 1}))], &[
            r#"series.count: Invalid value: "": should be at least 2"#,
            "series.lastObservedTime: Required value",
        ]),
        (&[("/count", json!(1))], &[r#"count: Invalid value: "": needs to be unset"#]),
        // What has a time may be about something elsewhere, but not about nothing in particular.
        (&[("/involvedObject/namespace", json!("m"))], &[]),
        (&[("/involvedObject/namespace", json!(""))], &[
            r#"involvedObject.namespace: Invalid value: "": does not match event.namespace"#,
        ]),
    ]);
    let older = Valid { row: stored, object: event.object.clone() };
    older.create(&[
        (&[("/action", json!("")), ("/reportingComponent", json!("a/"))], &[
            "reportingComponent: Invalid value: \"a/\": name part must be non-empty",
            "reportingComponent: Invalid value: \"a/\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            "action: Required value",
        ]),
        (&[("/eventTime", json!(null)), ("/involvedObject/namespace", json!("m"))], &[
            r#"involvedObject.namespace: Invalid value: "m": does not match event.namespace"#,
        ]),
    ]);
    event.update(&[(&[("/action", json!("b"))], &[r#"action: Invalid value: "b": field is immutable"#])]);
}
