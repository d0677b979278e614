//! Claims and what they keep, quotas, secrets: what changed with time upstream.

use serde_json::{Value, json};

use super::Valid;

fn claim() -> Valid {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    Valid::new("/api/v1/namespaces/n/persistentvolumeclaims", json!({"spec": spec}))
}

#[test]
fn claims() {
    claim().create(&[
        (
            &[("/spec/resources/requests/storage", json!("-1"))],
            &[r#"spec.resources[storage]: Invalid value: "-1": must be greater than zero"#],
        ),
        (&[("/spec/accessModes", json!(["ReadWriteOncePod", "ReadWriteOncePod"]))], &[]),
    ]);
    let mut attributed = claim();
    attributed.object["spec"]["volumeAttributesClassName"] = json!("a");
    attributed.object["status"]["phase"] = json!("Bound");
    let class = "/spec/volumeAttributesClassName";
    // Until it was applied, it may be taken back.
    attributed.update(&[(&[(class, Value::Null)], &[]), (&[(class, json!(""))], &[])]);
    attributed.object["status"]["currentVolumeAttributesClassName"] = json!("a");
    attributed.update(&[
        (&[(class, json!("b"))], &[]),
        (&[(class, Value::Null)], &[
            "spec.volumeAttributesClassName: Forbidden: update to nil is forbidden when status.currentVolumeAttributesClassName is not nil",
        ]),
        (&[(class, json!(""))], &[
            "spec.volumeAttributesClassName: Forbidden: update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil",
        ]),
    ]);
}

#[test]
fn annotated_classes() {
    const ANNOTATION: &str = "/metadata/annotations/volume.beta.kubernetes.io~1storage-class";
    let mut old = claim();
    old.object["metadata"]["annotations"] = json!({"volume.beta.kubernetes.io/storage-class": "fast"});
    let stays =
        r#"metadata.annotations.volume.beta.kubernetes.io/storage-class: Invalid value: "": field is immutable"#;
    old.update(&[
        (&[(ANNOTATION, Value::Null)], &[stays]),
        (&[(ANNOTATION, Value::Null), ("/spec/storageClassName", json!("fast"))], &[]),
    ]);
}

#[test]
fn claim_status() {
    let of = |key: &str, value: Value| {
        [(if key == "s" { "/status/allocatedResourceStatuses" } else { "/status/allocatedResources" }, value)]
    };
    claim().sub("status", &[
        (&of("s", json!({"storage": "NodeResizePending", "cpu": "x"})), &[
            r#"status.allocatedResourceStatuses: Unsupported value: "cpu": supported values: "storage""#,
            r#"status.allocatedResourceStatuses: Unsupported value: "cpu": supported values: "ControllerResizeInProgress", "ControllerResizeInfeasible", "NodeResizeInProgress", "NodeResizeInfeasible", "NodeResizePending""#,
        ]),
        (&of("r", json!({"cpu": "-1"})), &[
            r#"status.allocatedResources: Unsupported value: "cpu": supported values: "storage""#,
        ]),
        (&of("r", json!({"storage": "-1"})), &[
            r#"status.allocatedResources[storage]: Invalid value: -1: must be a valid resource quantity"#,
        ]),
    ]);
}

#[test]
fn attachments() {
    let spec = json!({"attacher": "a.b", "nodeName": "n", "source": {"persistentVolumeName": "v"}});
    let attachment = Valid::new("/apis/storage.k8s.io/v1/volumeattachments", json!({"spec": spec}));
    let object = attachment.with(&[("/spec/attacher", json!("A_"))]);
    let got = super::lines(attachment.row, super::validate_create(attachment.row, attachment.row, &object));
    assert_eq!(got.len(), 1, "{got:?}");
    let object = attachment.with(&[("/spec/attacher", json!(""))]);
    let got = super::lines(attachment.row, super::validate_create(attachment.row, attachment.row, &object));
    // Upstream asks for it twice, and for its form.
    assert_eq!(got[..2], ["spec.attacher: Required value", "spec.attacher: Required value"]);
    assert_eq!(got.len(), 3, "{got:?}");
    let inline = json!({"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"], "claimRef": {"name": "c"}, "capacity": {"storage": "1"},
        "persistentVolumeReclaimPolicy": "Delete", "nodeAffinity": {}, "storageClassName": "s", "volumeMode": "Block", "nfs": {"server": "s", "path": "/"}}});
    let object = attachment.with(&[("/spec/source", inline)]);
    let got = super::lines(attachment.row, super::validate_create(attachment.row, attachment.row, &object));
    let fields: Vec<&str> = got.iter().filter_map(|line| line.split(':').next()?.rsplit('.').next()).collect();
    // In the order of the parts of a volume.
    assert_eq!(
        fields,
        [
            "claimRef",
            "capacity",
            "csi",
            "persistentVolumeReclaimPolicy",
            "nodeAffinity",
            "storageClassName",
            "volumeMode"
        ]
    );
    let object = attachment.with(&[("/spec/source/persistentVolumeName", json!(""))]);
    let got = super::lines(attachment.row, super::validate_create(attachment.row, attachment.row, &object));
    assert_eq!(got[0], "spec.source.persistentVolumeName: Required value: must specify non empty persistentVolumeName");
    assert!(
        got[1].starts_with(r#"spec.source.persistentVolumeName: Invalid value: "": a lowercase RFC 1123"#),
        "{got:?}"
    );
}

#[test]
fn quotas() {
    let selector = |name: &str| json!({"matchExpressions": [{"scopeName": name, "operator": "Exists"}]});
    let spec = json!({"hard": {"pods": "1"}, "scopeSelector": selector("BestEffort")});
    let quota = Valid::new("/api/v1/namespaces/n/resourcequotas", json!({"spec": spec}));
    quota.update(&[(&[("/spec/scopeSelector", selector("NotBestEffort"))], &[])]);
    let both = json!([{"scopeName": "BestEffort", "operator": "Exists"}, {"scopeName": "NotBestEffort", "operator": "Exists"}]);
    quota.create(&[(
        &[("/spec/scopeSelector/matchExpressions", both)],
        &["spec.scopeSelector.matchExpressions: Invalid value: null: conflicting scopes"],
    )]);
    let ranges = json!(["10.1.0.0/24", "10.1.0.0/24"]);
    Valid::new("/api/v1/nodes", json!({})).create(&[(&[("/spec/podCIDRs", ranges)], &[
        r#"spec.podCIDRs: Invalid value: ["10.1.0.0/24","10.1.0.0/24"]: may specify no more than one CIDR for each IP family"#,
    ])]);
    let range = Valid::new("/api/v1/namespaces/n/limitranges", json!({"spec": {"limits": []}}));
    let name = "requests.x.io/y";
    let got = super::lines(
        range.row,
        super::validate_create(
            range.row,
            range.row,
            &range.with(&[("/spec/limits", json!([{"type": "Container", "max": {name: "1"}}]))]),
        ),
    );
    assert_eq!(
        got,
        [format!(
            r#"spec.limits[0].max[{name}]: Invalid value: "{name}": doesn't follow extended resource name standard"#
        )]
    );
}

#[test]
fn configurations() {
    use base64::Engine as _;
    let encoded = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let secret =
        |text: &str| [("/type", json!("kubernetes.io/dockercfg")), ("/data", json!({".dockercfg": encoded(text)}))];
    let at = r#"data[.dockercfg]: Invalid value: "<secret contents redacted>""#;
    let into = "into Go value of type map[string]interface {}";
    Valid::new("/api/v1/namespaces/n/secrets", json!({"type": "Opaque"})).create(&[
        (&secret(r#"{"a":"#), &[&format!("{at}: unexpected end of JSON input")]),
        (&secret("[]"), &[&format!("{at}: json: cannot unmarshal array {into}")]),
        (&secret("x"), &[&format!("{at}: invalid character 'x' looking for beginning of value")]),
        (&secret("null"), &[]),
    ]);
    Valid::new("/api/v1/namespaces/n/configmaps", json!({})).create(&[(
        &[("/data", json!({"a": "b"})), ("/binaryData", json!({"a": "Yg=="}))],
        &[r#"data[a]: Invalid value: "a": duplicate of key present in binaryData"#],
    )]);
}
