//! Tests of stored values that earlier releases allowed: kept on update, refused in new objects and in ones that had
//! none.

use serde_json::{Value, json};

use super::{Change, STRICT, Valid, lines, pod_spec};
use crate::registry::behavior;

/// Objects with changes that only stored ones may have, and how many causes there are against others.
fn judged(valid: &Valid, changes: &[Change]) {
    let judge = |new: &Value, old: Option<&Value>| {
        let errors = match old {
            Some(old) => behavior(valid.row).validate_update(
                STRICT.for_update(valid.row, old),
                (valid.row, valid.row),
                (new, old),
            ),
            None => behavior(valid.row).validate_create(STRICT, (valid.row, valid.row), new),
        };
        lines(valid.row, errors)
    };
    let odd = valid.with(changes);
    let refused = judge(&odd, None);
    assert_eq!(refused.len(), 1, "{changes:?}: {refused:?}");
    assert!(judge(&odd, Some(&valid.object)).contains(&refused[0]), "{changes:?}");
    let mut labelled = odd.clone();
    labelled["metadata"]["labels"] = json!({"l": "l"});
    assert_eq!(judge(&labelled, Some(&odd)), [""; 0], "{changes:?}");
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

fn expression() -> Value {
    json!({"key": "k", "operator": "In", "values": ["not a label"]})
}

fn nodes() -> Value {
    json!({"nodeSelectorTerms": [{"matchExpressions": [expression()]}]})
}

#[test]
fn pods() {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod_spec()});
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    let deployment = Valid::new("/apis/apps/v1/namespaces/n/deployments", json!({"spec": spec}));
    let template = "/spec/template";
    let at = |path: &str| -> &'static str { Box::leak(format!("{template}{path}").into_boxed_str()) };
    let term = json!({"topologyKey": "t", "labelSelector": {"matchExpressions": [expression()]}});
    let spread = json!([{"topologyKey": "t", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchExpressions": [expression()]}}]);
    let token = json!({"serviceAccountToken": {"path": "../t", "expirationSeconds": 600}});
    let token = json!([{"name": "v", "projected": {"defaultMode": 420, "sources": [token]}}]);
    let claim = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]);
    let pages = json!({"limits": {"hugepages-2Mi": "3Mi", "cpu": "1"}});
    let table: [Vec<Change>; 9] = [
        vec![(at("/metadata/annotations"), json!({"controller.kubernetes.io/pod-deletion-cost": "much"}))],
        vec![(at("/spec/overhead"), json!({"hugepages-2Mi": "3Mi", "cpu": "1"}))],
        vec![(at("/spec/containers/0/resources"), pages)],
        vec![(at("/spec/affinity"), json!({"podAntiAffinity": {REQUIRED: [term]}}))],
        vec![(at("/spec/affinity"), json!({"nodeAffinity": {REQUIRED: nodes()}}))],
        vec![(at("/spec/topologySpreadConstraints"), spread)],
        vec![(at("/spec/volumes"), token)],
        vec![
            (at("/spec/hostNetwork"), json!(true)),
            (at("/spec/securityContext"), json!({"sysctls": [{"name": "net.a", "value": "1"}]})),
        ],
        vec![
            (at("/spec/hostUsers"), json!(false)),
            (at("/spec/volumes"), claim),
            (at("/spec/containers/0/volumeDevices"), json!([{"name": "v", "devicePath": "/d"}])),
        ],
    ];
    for changes in table {
        judged(&deployment, &changes);
    }
}

#[test]
fn volumes_and_claims() {
    let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"}});
    let volume = Valid::new("/api/v1/persistentvolumes", json!({"spec": spec}));
    judged(&volume, &[("/spec/nodeAffinity", json!({"required": nodes()}))]);
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let claim = Valid::new("/api/v1/namespaces/n/persistentvolumeclaims", json!({"spec": spec}));
    judged(&claim, &[("/spec/selector", json!({"matchExpressions": [expression()]}))]);
    judged(&claim, &[("/spec/dataSourceRef", json!({"apiGroup": "NO_GROUP", "kind": "K", "name": "n"}))]);
}

#[test]
fn selectors() {
    let odd = || json!({"matchExpressions": [expression()]});
    let policy = Valid::new("/apis/networking.k8s.io/v1/namespaces/n/networkpolicies", json!({"spec": {}}));
    judged(&policy, &[("/spec/podSelector", odd())]);
    let budget = Valid::new("/apis/policy/v1/namespaces/n/poddisruptionbudgets", json!({"spec": {"minAvailable": 1}}));
    judged(&budget, &[("/spec/selector", odd())]);
    let capacity =
        Valid::new("/apis/storage.k8s.io/v1/namespaces/n/csistoragecapacities", json!({"storageClassName": "s"}));
    judged(&capacity, &[("/nodeTopology", odd())]);
    let role = json!({"aggregationRule": {"clusterRoleSelectors": [{}]}});
    let role = Valid::new("/apis/rbac.authorization.k8s.io/v1/clusterroles", role);
    judged(&role, &[("/aggregationRule/clusterRoleSelectors", json!([odd()]))]);
}

#[test]
fn ingresses() {
    let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
    let paths = |path: &str| json!([{"path": path, "pathType": "Prefix", "backend": backend}]);
    let rule = json!({"host": "*.a.b", "http": {"paths": paths("/")}});
    let spec = json!({"rules": [rule], "tls": [{"hosts": ["a.b"], "secretName": "s"}]});
    let ingress = Valid::new("/apis/networking.k8s.io/v1/namespaces/n/ingresses", json!({"spec": spec}));
    judged(&ingress, &[("/spec/tls/0/secretName", json!("No_Secret"))]);
    judged(&ingress, &[("/spec/rules/0/http/paths", paths("a"))]);
}

#[test]
fn webhooks() {
    let hook = json!({"name": "a.b.c", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://a.b/c"}});
    for plural in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}");
        let hooks = Valid::new(&path, json!({"webhooks": [hook]}));
        for change in [
            ("/webhooks/0/namespaceSelector", json!({"matchExpressions": [expression()]})),
            ("/webhooks/0/sideEffects", json!("Unknown")),
            ("/webhooks/0/admissionReviewVersions", json!(["v2"])),
            ("/webhooks/1", hook.clone()),
            ("/webhooks/0/matchConditions", odd_conditions()),
        ] {
            judged(&hooks, &[change]);
        }
    }
}

fn odd_conditions() -> Value {
    json!([{"name": "a", "expression": "object.("}])
}

/// Causes told of `new` in place of `old`.
fn causes(valid: &Valid, new: &Value, old: &Value) -> Vec<String> {
    lines(valid.row, behavior(valid.row).validate_update(STRICT, (valid.row, valid.row), (new, old)))
}

/// An update reports invalid fields that no gate and no earlier release allowed, whatever changes.
#[test]
fn pods_are_validated_as_a_whole_on_update() {
    let pods = Valid::new("/api/v1/namespaces/n/pods", json!({"spec": pod_spec()}));
    let stored = pods.with(&[("/spec/dnsPolicy", json!("No")), ("/spec/hostname", json!("No_Name"))]);
    let mut labelled = stored.clone();
    labelled["metadata"]["labels"] = json!({"l": "l"});
    let told = causes(&pods, &labelled, &stored);
    let paths: Vec<_> = told.iter().filter_map(|t| t.split(": ").next()).collect();
    assert_eq!(paths, ["spec.dnsPolicy", "spec.hostname"], "{told:?}");
}

#[test]
fn match_conditions_are_revalidated_when_one_changes() {
    let hook = |name: &str, conditions: Value| {
        json!({"name": name, "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://a.b/c"}, "matchConditions": conditions})
    };
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    let hooks = Valid::new(path, json!({"webhooks": [hook("a.b.c", json!([])), hook("d.e.f", json!([]))]}));
    let stored = hooks.with(&[("/webhooks/0/matchConditions", odd_conditions())]);
    let good = json!([{"name": "b", "expression": "true"}]);
    for (pointer, value, told) in [
        ("/webhooks/0/timeoutSeconds", json!(3), 0),
        ("/webhooks/1/matchConditions", good, 1),
        ("/webhooks/2", hook("g.h.i", json!([])), 1),
    ] {
        let mut changed = stored.clone();
        super::set(&mut changed, pointer, value);
        let causes = causes(&hooks, &changed, &stored);
        assert_eq!(causes.len(), told, "{pointer}: {causes:?}");
    }
    // What says no version does not let others say unknown ones.
    let without = hooks.with(&[("/webhooks/0/admissionReviewVersions", json!([]))]);
    let unknown = hooks.with(&[("/webhooks/0/admissionReviewVersions", json!(["v9"]))]);
    let told = causes(&hooks, &unknown, &without);
    assert!(told.iter().any(|t| t.ends_with("must include at least one of v1, v1beta1")), "{told:?}");
}

#[test]
fn policies() {
    let rule = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
    let patch = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'remove', path: '/a'}]"}});
    for (path, key, item) in [
        ("v1/validatingadmissionpolicies", "validations", json!({"expression": "true"})),
        ("v1beta1/mutatingadmissionpolicies", "mutations", patch),
    ] {
        let spec = json!({"failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": [rule]}, key: [item]});
        let policies = Valid::new(&format!("/apis/admissionregistration.k8s.io/{path}"), json!({"spec": spec}));
        judged(&policies, &[("/spec/matchConditions", odd_conditions())]);
        // Another kind of parameters is another set of names.
        let odd = policies.with(&[("/spec/matchConditions", odd_conditions())]);
        let mut other = odd.clone();
        other["spec"]["paramKind"] = json!({"apiVersion": "v1", "kind": "ConfigMap"});
        assert_eq!(causes(&policies, &other, &odd).len(), 1, "{path}");
    }
}

#[test]
fn endpoints() {
    let at = "subsets[0].addresses[0].ip: Invalid value";
    let endpoints = Valid::new("/api/v1/namespaces/n/endpoints", json!({}));
    let subset = |ip: &str| json!([{"addresses": [{"ip": ip}]}]);
    let twice = [
        &*format!(r#"{at}: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#),
        &*format!(r#"{at}: "x": must be a valid IP address"#),
    ];
    endpoints.create(&[(&[("/subsets", subset("x"))], &twice)]);
    let mut odd = Valid { row: endpoints.row, object: endpoints.with(&[("/subsets", subset("x"))]) };
    odd.object["metadata"]["labels"] = json!({"a": "b"});
    odd.update(&[
        (&[("/metadata/labels", json!({"a": "c"}))], &[]),
        (&[("/subsets", json!([{"addresses": [{"ip": "x"}], "notReadyAddresses": [{"ip": "10.0.0.1"}]}]))], &twice),
        (&[("/subsets", subset("10.0.0.1"))], &[]),
    ]);
}

#[test]
fn jobs_without_the_labels_of_newer_releases() {
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let mut old = Valid::new("/apis/batch/v1/namespaces/n/jobs", json!({"spec": {"template": template}}));
    let labels = json!({"controller-uid": "u", "job-name": "x"});
    let selector = json!({"matchLabels": {"controller-uid": "u"}});
    old.object = old.with(&[("/spec/template/metadata/labels", labels), ("/spec/selector", selector)]);
    let changed = old.with(&[("/metadata/labels", json!({"a": "b"}))]);
    let judge = |before: Option<&Value>| {
        let options = before.map_or(STRICT, |before| STRICT.for_update(old.row, before));
        lines(old.row, behavior(old.row).validate_update(options, (old.row, old.row), (&changed, &old.object)))
    };
    assert_eq!(judge(Some(&old.object)), [""; 0]);
    // New ones are to have both.
    assert_eq!(judge(None).len(), 2);
}
