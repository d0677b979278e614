//! AppArmor profiles of containers: which one a container has, and whether the node can hold it to it. Answers for upstream's
//! `pkg/security/apparmor` and its `NewAppArmorAdmitHandler`. Whether a profile is loaded is the runtime's to say when the
//! container is made.

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, EphemeralContainer, Pod, SecurityContext};
use std::fs;
use std::path::Path;

/// Annotation of a container's profile, which static pods may have instead of the field.
const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Profile that an annotation names; none where it says nothing usable.
fn annotated(pod: &Pod, container: &str) -> Option<AppArmorProfile> {
    let value = pod.metadata.annotations.as_ref()?.get(&format!("{ANNOTATION}{container}"))?;
    let of = |kind: &str, name: Option<&str>| AppArmorProfile {
        type_: kind.to_owned(),
        localhost_profile: name.map(str::to_owned),
    };
    match value.as_str() {
        "runtime/default" => Some(of("RuntimeDefault", None)),
        "unconfined" => Some(of("Unconfined", None)),
        other => other.strip_prefix("localhost/").map(|name| of("Localhost", Some(name))),
    }
}

fn chosen(pod: &Pod, name: &str, context: Option<&SecurityContext>) -> Option<AppArmorProfile> {
    let whole = || pod.spec.as_ref()?.security_context.as_ref()?.app_armor_profile.clone();
    let own = context.and_then(|context| context.app_armor_profile.clone());
    own.or_else(|| annotated(pod, name)).or_else(whole)
}

/// Returns the profile of a container: its own, its annotation's, or the pod's. Answers for `GetProfile`.
pub fn profile(pod: &Pod, container: &Container) -> Option<AppArmorProfile> {
    chosen(pod, &container.name, container.security_context.as_ref())
}

/// Reports whether the kernel enforces profiles. Asked once, as the kernel does not change.
pub fn is_enabled(root: &Path) -> bool {
    let enabled = fs::read(root.join("sys/module/apparmor/parameters/enabled"));
    root.join("sys/kernel/security/apparmor").exists()
        && enabled.is_ok_and(|enabled| enabled.len() > 1 && enabled[0] == b'Y')
}

/// Returns why a pod cannot be held to its profiles, if it cannot.
pub fn refuse(pod: &Pod, is_enabled: bool) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let init = spec.init_containers.iter().flatten();
    let containers = init.chain(&spec.containers).filter_map(|container| profile(pod, container));
    let ephemeral = |c: &EphemeralContainer| chosen(pod, &c.name, c.security_context.as_ref());
    let ephemeral = spec.ephemeral_containers.iter().flatten().filter_map(ephemeral);
    let profiles: Vec<AppArmorProfile> = containers.chain(ephemeral).collect();
    if !profiles.iter().any(|profile| profile.type_ != "Unconfined") {
        return None;
    }
    let begun = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending") != "Pending";
    // A pod that runs already was looked at before.
    if begun {
        return None;
    }
    let why = if is_enabled {
        let is_nameless = |profile: &&AppArmorProfile| {
            profile.type_ == "Localhost" && profile.localhost_profile.as_deref().unwrap_or_default().trim().is_empty()
        };
        let name = profiles.iter().find(is_nameless)?.localhost_profile.clone().unwrap_or_default();
        format!("invalid empty AppArmor profile name: {name:?}")
    } else {
        "AppArmor is not enabled on the host".to_owned()
    };
    Some(format!("Cannot enforce AppArmor: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(annotation: Option<&str>, whole: Value, own: Value) -> Pod {
        let annotations = annotation.map(|value| json!({format!("{ANNOTATION}c"): value}));
        serde_json::from_value(json!({"metadata": {"annotations": annotations}, "spec": {
            "securityContext": {"appArmorProfile": whole},
            "containers": [{"name": "c", "securityContext": {"appArmorProfile": own}}]}}))
        .expect("pod")
    }

    #[test]
    fn a_containers_own_profile_goes_before_annotation_and_pod() {
        let of = |kind: &str| json!({"type": kind});
        for (annotation, whole, own, expected) in [
            (None, Value::Null, Value::Null, None),
            (None, of("RuntimeDefault"), Value::Null, Some(("RuntimeDefault", None))),
            (Some("unconfined"), of("RuntimeDefault"), Value::Null, Some(("Unconfined", None))),
            (Some("localhost/x"), of("RuntimeDefault"), Value::Null, Some(("Localhost", Some("x")))),
            (Some("runtime/default"), Value::Null, of("Unconfined"), Some(("Unconfined", None))),
            (Some("nonsense"), of("RuntimeDefault"), Value::Null, Some(("RuntimeDefault", None))),
        ] {
            let pod = pod(annotation, whole, own);
            let found = profile(&pod, &pod.spec.as_ref().expect("spec").containers[0]);
            let told = found.as_ref().map(|found| (found.type_.as_str(), found.localhost_profile.as_deref()));
            assert_eq!(told, expected);
        }
    }

    #[test]
    fn pods_with_profiles_need_a_node_that_enforces_them() {
        let default = || pod(None, Value::Null, json!({"type": "RuntimeDefault"}));
        let off = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
        assert_eq!(refuse(&default(), false).as_deref(), Some(off));
        assert_eq!(refuse(&default(), true), None);
        assert_eq!(refuse(&pod(None, Value::Null, json!({"type": "Unconfined"})), false), None);
        assert_eq!(refuse(&pod(None, Value::Null, Value::Null), false), None);
        let nameless = pod(Some("localhost/ "), Value::Null, Value::Null);
        let text = "Cannot enforce AppArmor: invalid empty AppArmor profile name: \" \"";
        assert_eq!(refuse(&nameless, true).as_deref(), Some(text));
        let mut running = default();
        running.status.get_or_insert_default().phase = Some("Running".to_owned());
        assert_eq!(refuse(&running, false), None);
    }

    #[test]
    fn kernels_say_whether_they_enforce_profiles() {
        let root = tempfile::tempdir().expect("folder");
        let parameters = root.path().join("sys/module/apparmor/parameters");
        fs::create_dir_all(&parameters).expect("folder");
        fs::write(parameters.join("enabled"), "Y\n").expect("file");
        assert!(!is_enabled(root.path()), "no securityfs");
        fs::create_dir_all(root.path().join("sys/kernel/security/apparmor")).expect("folder");
        assert!(is_enabled(root.path()));
        fs::write(parameters.join("enabled"), "N\n").expect("file");
        assert!(!is_enabled(root.path()));
    }
}
