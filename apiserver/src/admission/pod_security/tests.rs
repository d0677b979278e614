//! Levels and pods, and what namespaces make of them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::PodSecurity;
use super::checks::{describe, evaluate};
use super::level::{Level, LevelVersion, Policy, PolicyVersion};
use crate::admission::testing::{Fixed, Write};

fn says(level: Level, minor: Option<u32>, pod: &Value) -> String {
    let (metadata, spec) = super::parts(pod);
    describe(&evaluate(LevelVersion { level, version: PolicyVersion(minor) }, metadata, spec))
}

fn privileged() -> Policy {
    Policy::of_configuration(&Value::Null).expect("the defaults")
}

fn with(container: Value) -> Value {
    json!({"spec": {"containers": [container]}})
}

#[test]
fn baseline_table() {
    let table: &[(Value, &str)] = &[
        (with(json!({"name": "c"})), ""),
        (
            json!({"spec": {"hostNetwork": true, "hostPID": true, "containers": []}}),
            "host namespaces (hostNetwork=true, hostPID=true)",
        ),
        (
            with(json!({"name": "c", "securityContext": {"privileged": true}})),
            "privileged (container \"c\" must not set securityContext.privileged=true)",
        ),
        (
            with(json!({"name": "c", "securityContext": {"capabilities": {"add": ["SYS_ADMIN", "CHOWN", "NET_RAW"]}}})),
            "non-default capabilities (container \"c\" must not include \"NET_RAW\", \"SYS_ADMIN\" in securityContext.capabilities.add)",
        ),
        (
            json!({"spec": {"volumes": [{"name": "a", "hostPath": {}}, {"name": "b", "hostPath": {}}]}}),
            "hostPath volumes (volumes \"a\", \"b\")",
        ),
        (
            with(json!({"name": "c", "ports": [{"hostPort": 80}, {"hostPort": 0}]})),
            "hostPort (container \"c\" uses hostPort 80)",
        ),
        (
            with(json!({"name": "c", "livenessProbe": {"httpGet": {"host": "x"}}})),
            "probe or lifecycle host (container \"c\" uses probe or lifecycle host \"x\")",
        ),
        (
            json!({"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}}),
            "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
        (
            json!({"spec": {"securityContext": {"sysctls": [{"name": "kernel.msgmax"}, {"name": "net.ipv4.tcp_rmem"}]}}}),
            "forbidden sysctls (kernel.msgmax)",
        ),
        (
            with(json!({"name": "c", "securityContext": {"seLinuxOptions": {"type": "spc_t", "user": "u"}}})),
            "seLinuxOptions (container \"c\" set forbidden securityContext.seLinuxOptions: type \"spc_t\"; user may not be set)",
        ),
        (
            with(json!({"name": "c", "securityContext": {"procMount": "Unmasked"}})),
            "procMount (container \"c\" must not set securityContext.procMount to \"Unmasked\")",
        ),
        (
            with(json!({"name": "c", "securityContext": {"windowsOptions": {"hostProcess": true}}})),
            "hostProcess (container \"c\" must not set securityContext.windowsOptions.hostProcess=true)",
        ),
        (
            with(json!({"name": "c", "securityContext": {"appArmorProfile": {"type": "Unconfined"}}})),
            "forbidden AppArmor profile (container \"c\" must not set AppArmor profile type to \"Unconfined\")",
        ),
    ];
    for (pod, wanted) in table {
        assert_eq!(&says(Level::Baseline, None, pod), wanted);
        assert_eq!(says(Level::Privileged, None, pod), "");
    }
}

#[test]
fn restricted_level_matches_upstream() {
    let bare = with(json!({"name": "c", "image": "i"}));
    assert_eq!(
        says(Level::Restricted, None, &bare),
        "allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false), \
         unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"]), \
         runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true), \
         seccompProfile (pod or container \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
    );
    let good = json!({"spec": {"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": "e", "emptyDir": {}}],
        "containers": [{"name": "c", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}}]}});
    assert_eq!(says(Level::Restricted, None, &good), "");
    let volumes = json!({"spec": {"volumes": [{"name": "v", "hostPath": {}}, {"name": "n", "nfs": {}}]}});
    assert_eq!(
        says(Level::Restricted, None, &volumes),
        "restricted volume types (volumes \"v\", \"n\" use restricted volume types \"hostPath\", \"nfs\")"
    );
}

#[test]
fn older_versions_ask_less() {
    let root = with(json!({"name": "c", "securityContext": {"runAsUser": 0, "runAsNonRoot": true,
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "Localhost"}}}));
    assert_eq!(says(Level::Restricted, Some(22), &root), "");
    assert_eq!(says(Level::Restricted, Some(23), &root), "runAsUser=0 (container \"c\" must not set runAsUser=0)");
    let probe = with(json!({"name": "c", "livenessProbe": {"httpGet": {"host": "x"}}}));
    assert_eq!(says(Level::Baseline, Some(33), &probe), "");
    let caps = with(
        json!({"name": "c", "securityContext": {"capabilities": {"add": ["NET_RAW"]}, "allowPrivilegeEscalation": false, "runAsNonRoot": true}}),
    );
    assert!(says(Level::Restricted, Some(18), &caps).contains("non-default capabilities"));
}

#[test]
fn labels_set_the_policy() {
    let namespace = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline",
        "pod-security.kubernetes.io/enforce-version": "v1.30"}}});
    let (policy, errors) = Policy::of_namespace(&namespace, &privileged());
    assert!(errors.is_empty());
    assert_eq!(policy.enforce.to_string(), "baseline:v1.30");
    assert_eq!(policy.warn.to_string(), "baseline:v1.30");
    assert_eq!(policy.audit.to_string(), "privileged:latest");
    let bad = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "nope"}}});
    let (_, errors) = Policy::of_namespace(&bad, &privileged());
    assert_eq!(errors[0].2, "must be one of privileged, baseline, restricted");
}

#[tokio::test]
async fn labels_without_sense_stand_for_the_strictest_and_are_noted() {
    let reader = Arc::new(Fixed::default());
    let labels = json!({"pod-security.kubernetes.io/warn": "nonsense"});
    reader.put("", "namespaces", json!({"metadata": {"name": "n", "labels": labels}}));
    let plugin = PodSecurity::new(reader.clone(), reader.api(), &json!({})).expect("a plugin");
    let pod = || json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let (warnings, notes) = Write::create("", "pods", "n", pod()).judged(&plugin).await.expect("let through");
    assert!(warnings[0].starts_with("would violate PodSecurity \"restricted:latest\""), "{warnings:?}");
    let why = "Failed to parse policy: metadata.labels[pod-security.kubernetes.io/warn]: Invalid value: \"nonsense\": ";
    assert!(notes["pod-security.kubernetes.io/error"].starts_with(why), "{notes:?}");
    assert_eq!(plugin.meters.errors.with_label_values(&["false", "create", "pod", ""]).get(), 1.0);
}

#[tokio::test]
async fn unknown_namespace_rejects_pods() {
    let reader = Arc::new(Fixed::default());
    let plugin = PodSecurity::new(reader.clone(), reader.api(), &json!({})).expect("a plugin");
    let pod = || json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let refused = Write::create("", "pods", "soon", pod()).judged(&plugin).await.expect_err("refused");
    assert_eq!(
        (refused.code, &*refused.message),
        (500, "Internal error occurred: failed to lookup namespace \"soon\"")
    );
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"template": pod()}});
    let (_, notes) =
        Write::create("apps", "deployments", "soon", deployment).judged(&plugin).await.expect("let through");
    assert!(
        notes["pod-security.kubernetes.io/error"].starts_with("failed to lookup namespace \"soon\": "),
        "{notes:?}"
    );
}
