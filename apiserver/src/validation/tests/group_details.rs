//! Rules of single fields and of how often metadata is judged, in the groups beside the core.

use serde_json::{Value, json};

use super::{Change, Valid, lines, patched, pod_spec, validate_subresource, validate_update};

const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1/";
const STORAGE: &str = "/apis/storage.k8s.io/v1/";
const NETWORKING: &str = "/apis/networking.k8s.io/v1/";

/// Kinds of other groups check metadata on update as often as upstream's do.
#[test]
fn metadata_is_validated_as_often_as_upstream_does() {
    let attachment = json!({"attacher": "a.b", "nodeName": "n", "source": {"persistentVolumeName": "v"}});
    let request = json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}});
    for (path, body, uids, labels) in [
        ("policy/v1/namespaces/n/poddisruptionbudgets", json!({"spec": {"minAvailable": 1}}), 1, 2),
        ("storage.k8s.io/v1/volumeattachments", json!({"spec": attachment}), 1, 3),
        ("storage.k8s.io/v1/csinodes", json!({"spec": {"drivers": []}}), 1, 4),
        ("storage.k8s.io/v1/volumeattributesclasses", json!({"driverName": "d", "parameters": {"a": "b"}}), 2, 4),
        ("networking.k8s.io/v1/servicecidrs", json!({"spec": {"cidrs": ["10.0.0.0/16"]}}), 2, 4),
        ("resource.k8s.io/v1/namespaces/n/resourceclaims", json!({"spec": request}), 2, 4),
        ("resource.k8s.io/v1/namespaces/n/resourceclaimtemplates", json!({"spec": {"spec": request}}), 2, 4),
        ("resource.k8s.io/v1/deviceclasses", json!({"spec": {}}), 2, 4),
    ] {
        let times = |patch: Value| patched(&format!("/apis/{path}"), body.clone(), patch).len();
        let uid = times(json!({"metadata": {"uid": "z"}}));
        let label = times(json!({"metadata": {"labels": {"k": "-"}}}));
        assert_eq!((uid, label), (uids, labels), "{path}");
    }
}

/// Custom objects' metadata is judged once more, beside what it was.
#[test]
fn metadata_of_changed_custom_objects() {
    let definition = json!({"metadata": {"name": "foos.ex.com"}, "spec": {"group": "ex.com", "scope": "Namespaced",
        "names": {"plural": "foos", "kind": "Foo"}, "versions": [{"name": "v1", "served": true, "storage": true}]},
        "status": {"acceptedNames": {"plural": "foos", "kind": "Foo"}}});
    let rows = crate::crd::rows(&definition);
    let old = json!({"apiVersion": "ex.com/v1", "kind": "Foo",
        "metadata": {"name": "x", "namespace": "n", "uid": "u", "resourceVersion": "1"}});
    for (key, value, times) in [("uid", json!("z"), 2), ("labels", json!({"k": "-"}), 3)] {
        let mut new = old.clone();
        new["metadata"][key] = value;
        assert_eq!(validate_update(&rows[0], &rows[0], &new, &old).len(), times, "{key}");
        assert_eq!(validate_subresource(&rows[0], "status", &new, &old).len(), times, "status: {key}");
    }
}

#[test]
fn prefixes_of_names() {
    let prefix = |prefix: &'static str| [("/metadata/generateName", json!(prefix))];
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod_spec()});
    let controller = json!({"spec": {"selector": {"a": "b"}, "template": template}});
    // These judge the whole name only.
    Valid::new("/api/v1/namespaces/n/replicationcontrollers", controller).create(&[(&prefix("A_"), &[])]);
    Valid::new("/apis/resource.k8s.io/v1/deviceclasses", json!({"spec": {}})).create(&[(&prefix("A_"), &[])]);
    // An address is one, and so is what it begins with.
    let parent = json!({"resource": "services", "name": "s", "namespace": "n"});
    let address = json!({"metadata": {"name": "10.0.0.1"}, "spec": {"parentRef": parent}});
    Valid::new(&format!("{NETWORKING}ipaddresses"), address).create(&[
        (&prefix("a"), &[
            r#"metadata.generateName: Invalid value: "a": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#,
        ]),
        (&[("/spec/parentRef/namespace", json!("A_"))], &[]),
        (&[("/spec/parentRef/namespace", json!("a/b"))], &[
            r#"spec.parentRef.namespace: Invalid value: "a/b": may not contain '/'"#,
        ]),
    ]);
}

#[test]
fn networks() {
    let policy = Valid::new(&format!("{NETWORKING}namespaces/n/networkpolicies"), json!({"spec": {"podSelector": {}}}));
    policy.create(&[(
        &[("/spec/ingress", json!([{"ports": [{"port": 80, "endPort": 79}]}]))],
        &["spec.ingress[0].ports[0].endPort: Invalid value: 80: must be greater than or equal to `port`"],
    )]);
    let ranges = Valid::new(&format!("{NETWORKING}servicecidrs"), json!({"spec": {"cidrs": ["10.0.0.0/16"]}}));
    let cidrs = |list: &[&str]| [("/spec/cidrs", json!(list))];
    ranges.create(&[
        (&cidrs(&["10.0.0.0/16", "2001:db8::/64", "10.1.0.0/16"]), &[
            r#"spec.cidrs: Invalid value: {"CIDRs":["10.0.0.0/16","2001:db8::/64","10.1.0.0/16"]}: may only hold up to 2 values"#,
        ]),
        // What is no range at all cannot be one of a pair.
        (&cidrs(&["10.0.0.0/16", "x"]), &[
            r#"spec.cidrs: Invalid value: {"CIDRs":["10.0.0.0/16","x"]}: may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"#,
        ]),
        (&cidrs(&["10.0.0.1/16"]), &[
            r#"spec.cidrs[0]: Invalid value: "10.0.0.1/16": must not have bits set beyond the prefix length"#,
        ]),
    ]);
    let slice = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": []});
    let slice = Valid::new("/apis/discovery.k8s.io/v1/namespaces/n/endpointslices", slice);
    let zones: Vec<Value> = (0..9).map(|i| json!({"name": format!("z{i}")})).collect();
    slice.create(&[(
        &[("/endpoints/0/hints", json!({"forZones": zones, "forNodes": [{"name": ""}]}))],
        &["endpoints[0].hints.forZones: Too many: 9: must have at most 8 items"],
    )]);
}

#[test]
fn storage() {
    let spec = json!({"attacher": "a.b", "nodeName": "n", "source": {"persistentVolumeName": "v"}});
    let mut attachment = Valid::new(&format!("{STORAGE}volumeattachments"), json!({"spec": spec}));
    // Stored ones may have names that new ones may not, and keep to the other rules through each way in.
    attachment.object = attachment.with(&[("/spec/attacher", json!("A_"))]);
    let nameless: &[Change] = &[("/spec/nodeName", json!("N"))];
    for through in ["", "status"] {
        let judge = |object: &Value| match through {
            "" => lines(attachment.row, validate_update(attachment.row, attachment.row, object, &attachment.object)),
            _ => lines(attachment.row, validate_subresource(attachment.row, through, object, &attachment.object)),
        };
        assert_eq!(judge(&attachment.with(&[("/metadata/labels", json!({"a": "b"}))])), [""; 0], "{through}");
        let told = judge(&attachment.with(nameless));
        let [form, stays] = &told[..] else { unreachable!("{through}: {told:?}") };
        assert!(form.starts_with(r#"spec.nodeName: Invalid value: "N": a lowercase RFC 1123"#), "{form}");
        assert!(stays.starts_with("spec: Invalid value: ") && stays.ends_with(": field is immutable"), "{stays}");
    }
    let driver = json!({"name": "d", "nodeID": "i", "topologyKeys": [], "allocatable": {"count": 1}});
    let node = Valid::new(&format!("{STORAGE}csinodes"), json!({"spec": {"drivers": [driver]}}));
    let negative = "spec.drivers[0].allocatable.count: Invalid value: -1: must be greater than or equal to 0";
    node.update(&[
        (&[("/spec/drivers/0/nodeID", json!("j"))], &[
            r#"spec.drivers: Invalid value: {"Name":"d","NodeID":"j","TopologyKeys":[],"Allocatable":null}: field is immutable"#,
        ]),
        (&[("/spec/drivers/0/allocatable/count", json!(-1))], &[negative, negative]),
    ]);
    // Nothing is not what is empty.
    let class = Valid::new(&format!("{STORAGE}storageclasses"), json!({"provisioner": "p"}));
    class.update(&[(&[("/parameters", json!({}))], &["parameters: Forbidden: updates to parameters are forbidden."])]);
}

#[test]
fn admission() {
    let rule = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
    let hook = json!({"name": "a.b.c", "sideEffects": "None", "admissionReviewVersions": ["v1"], "rules": [rule],
        "clientConfig": {"url": "https://a.b/c"}});
    let hooks = Valid::new(&format!("{ADMISSION}validatingwebhookconfigurations"), json!({"webhooks": [hook]}));
    let subdomain = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    let name = |name: &str| [("/webhooks/0/name", json!(name))];
    let at = "webhooks[0].name: Invalid value";
    hooks.create(&[
        (
            &name("a.b"),
            &[&format!(r#"{at}: "a.b": should be a domain with at least three segments separated by dots"#)],
        ),
        // What is no domain is not counted.
        (&name("A.b"), &[&format!(r#"{at}: "A.b": {subdomain}"#)]),
        (
            &name(&"A".repeat(254)),
            &[&format!(r#"{at}: "{}": must be no more than 253 characters,{subdomain}"#, "A".repeat(254))],
        ),
    ]);
    let binding = json!({"spec": {"policyName": "p", "validationActions": ["Deny"],
        "paramRef": {"name": "n", "parameterNotFoundAction": "Deny"}}});
    let binding = Valid::new(&format!("{ADMISSION}validatingadmissionpolicybindings"), binding);
    let at = "spec.paramRef";
    binding.create(&[(
        &[("/spec/paramRef/name", json!("a/b")), ("/spec/paramRef/selector", json!({"matchLabels": {"a": "-"}}))],
        &[
            &format!(r#"{at}.name: Invalid value: "a/b": may not contain '/'"#),
            &format!("{at}.name: Forbidden: name and selector are mutually exclusive"),
            &format!(
                r#"{at}.selector.matchLabels: Invalid value: "-": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"#
            ),
            &format!("{at}.selector: Forbidden: name and selector are mutually exclusive"),
        ],
    )]);
}

#[test]
fn choices_that_are_empty() {
    let class = Valid::new("/apis/scheduling.k8s.io/v1/priorityclasses", json!({"value": 1}));
    class.create(&[(&[("/preemptionPolicy", json!(""))], &["preemptionPolicy: Required value"])]);
    let metric =
        json!({"type": "External", "external": {"metric": {"name": "m"}, "target": {"type": "Value", "value": "1"}}});
    let policy = json!({"type": "Pods", "value": 1, "periodSeconds": 1});
    let spec = json!({"maxReplicas": 2, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"},
        "metrics": [metric], "behavior": {"scaleUp": {"selectPolicy": "Max", "policies": [policy]}}});
    let scaler = Valid::new("/apis/autoscaling/v2/namespaces/n/horizontalpodautoscalers", json!({"spec": spec}));
    scaler.create(&[
        (&[("/spec/behavior/scaleUp/selectPolicy", json!(""))], &[
            r#"spec.behavior.scaleUp.selectPolicy: Unsupported value: "": supported values: "Disabled", "Max", "Min""#,
        ]),
        // What picks metrics is for those who serve them.
        (&[("/spec/metrics/0/external/metric/selector", json!({"matchLabels": {"a": "-"}}))], &[]),
    ]);
}

#[test]
fn rolling_updates() {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod_spec()});
    let body = json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let rolling = |kind: &str, unavailable: Value, surge: Value| -> Change {
        let key = if kind == "daemonsets" { "/spec/updateStrategy" } else { "/spec/strategy" };
        (key, json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}}))
    };
    let at = "spec.updateStrategy.rollingUpdate";
    let both = format!("{at}.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero");
    let daemons = Valid::new("/apis/apps/v1/namespaces/n/daemonsets", body);
    daemons.create(&[
        (&[rolling("daemonsets", json!(-1), json!(1))], &[
            &format!("{at}.maxUnavailable: Invalid value: -1: must be greater than or equal to 0"),
            &both,
        ]),
        (&[rolling("daemonsets", json!("5"), json!(1))], &[
            &format!(
                r#"{at}.maxUnavailable: Invalid value: "5": a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"#
            ),
            &both,
        ]),
    ]);
}
