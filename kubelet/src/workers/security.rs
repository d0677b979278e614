//! Security contexts in the runtime's words. Pure.
//! Answers for upstream's `security_context.go` of kuberuntime and `pkg/securitycontext`.

use crate::cri::v1;
use crate::images::ImageUser;
use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, SELinuxOptions, SeccompProfile, SecurityContext,
};

/// Paths that are read-only in containers.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

fn int(value: i64) -> v1::Int64Value {
    v1::Int64Value { value }
}

fn selinux(options: &SELinuxOptions) -> v1::SeLinuxOption {
    v1::SeLinuxOption {
        user: options.user.clone().unwrap_or_default(),
        role: options.role.clone().unwrap_or_default(),
        r#type: options.type_.clone().unwrap_or_default(),
        level: options.level.clone().unwrap_or_default(),
    }
}

fn profile(kind: v1::security_profile::ProfileType, localhost: String) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: kind.into(), localhost_ref: localhost }
}

fn seccomp(chosen: Option<&SeccompProfile>, seccomp_root: &str, runtime_default: bool) -> v1::SecurityProfile {
    use v1::security_profile::ProfileType::{Localhost, RuntimeDefault, Unconfined};
    match chosen.map(|p| p.type_.as_str()) {
        Some("RuntimeDefault") => profile(RuntimeDefault, String::new()),
        Some("Localhost") => {
            let name = chosen.and_then(|p| p.localhost_profile.clone()).unwrap_or_default();
            profile(Localhost, format!("{seccomp_root}/{name}"))
        }
        Some(_) => profile(Unconfined, String::new()),
        None if runtime_default => profile(RuntimeDefault, String::new()),
        None => profile(Unconfined, String::new()),
    }
}

fn apparmor(chosen: &AppArmorProfile) -> v1::SecurityProfile {
    use v1::security_profile::ProfileType::{Localhost, RuntimeDefault, Unconfined};
    match chosen.type_.as_str() {
        "RuntimeDefault" => profile(RuntimeDefault, String::new()),
        "Localhost" => profile(Localhost, chosen.localhost_profile.clone().unwrap_or_default()),
        _ => profile(Unconfined, String::new()),
    }
}

/// Namespaces of the pod; `users` is its user namespace. Answers for upstream's `NamespacesForPod`.
pub fn namespaces(pod: &Pod, users: Option<v1::UserNamespace>) -> v1::NamespaceOption {
    use v1::NamespaceMode::{Container, Node, Pod as PodMode};
    let spec = pod.spec.as_ref();
    let flag = |get: fn(&k8s_openapi::api::core::v1::PodSpec) -> Option<bool>| spec.and_then(get).unwrap_or(false);
    let node = |host: bool| if host { Node } else { PodMode };
    let pid = if flag(|s| s.host_pid) {
        Node
    } else if flag(|s| s.share_process_namespace) {
        PodMode
    } else {
        Container
    };
    v1::NamespaceOption {
        network: node(flag(|s| s.host_network)).into(),
        ipc: node(flag(|s| s.host_ipc)).into(),
        pid: pid.into(),
        userns_options: users,
        ..v1::NamespaceOption::default()
    }
}

/// Groups that the pod names for its volumes, and those that it names beside.
fn groups(context: Option<&PodSecurityContext>) -> [Vec<i64>; 2] {
    let Some(context) = context else { return Default::default() };
    [context.fs_group.into_iter().collect(), context.supplemental_groups.clone().unwrap_or_default()]
}

fn groups_policy(context: Option<&PodSecurityContext>) -> i32 {
    let strict = context.and_then(|c| c.supplemental_groups_policy.as_deref()) == Some("Strict");
    if strict { v1::SupplementalGroupsPolicy::Strict.into() } else { v1::SupplementalGroupsPolicy::Merge.into() }
}

/// The sandbox's security context; `of_volumes` are groups that its volumes ask for.
pub fn sandbox(pod: &Pod, users: Option<v1::UserNamespace>, of_volumes: &[i64]) -> v1::LinuxSandboxSecurityContext {
    let spec = pod.spec.as_ref();
    let context = spec.and_then(|s| s.security_context.as_ref());
    let privileged = spec.is_some_and(|s| {
        s.containers
            .iter()
            .chain(s.init_containers.iter().flatten())
            .any(|c| c.security_context.as_ref().and_then(|s| s.privileged).unwrap_or(false))
    });
    let [own, named] = groups(context);
    v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod, users)),
        privileged,
        seccomp: Some(profile(v1::security_profile::ProfileType::RuntimeDefault, String::new())),
        run_as_user: context.and_then(|c| c.run_as_user).map(int),
        run_as_group: context.and_then(|c| c.run_as_group).map(int),
        supplemental_groups: [own, of_volumes.to_vec(), named].concat(),
        supplemental_groups_policy: groups_policy(context),
        selinux_options: context.and_then(|c| c.se_linux_options.as_ref()).map(selinux),
        ..v1::LinuxSandboxSecurityContext::default()
    }
}

/// A container that must not run as root, and might; upstream's text.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{risk} (pod: \"{pod}\", container: {container})")]
pub struct NonRootError {
    #[source]
    risk: RootRisk,
    pod: String,
    container: String,
}

/// Reasons why a container might run as root.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum RootRisk {
    /// The pod says so.
    #[error("container's runAsUser breaks non-root policy")]
    User,
    /// The image has a user of this name.
    #[error("container has runAsNonRoot and image has non-numeric user ({0}), cannot verify user is non-root")]
    NamedUser(String),
    /// The image says so, or says nothing.
    #[error("container has runAsNonRoot and image will run as root")]
    Image,
}

/// Returns why a container that may not run as root might, if it might.
fn breaks_non_root(user: Option<i64>, image: &ImageUser) -> Option<RootRisk> {
    match (user, image.uid) {
        (Some(0), _) => Some(RootRisk::User),
        (Some(_), _) => None,
        (None, Some(uid)) if uid != 0 => None,
        (None, None) if !image.name.is_empty() => Some(RootRisk::NamedUser(image.name.clone())),
        (None, _) => Some(RootRisk::Image),
    }
}

/// A container's security context, with the groups that its pod's volumes ask for.
pub fn container(
    pod: &Pod,
    container: &Container,
    (image, users, of_volumes): (&ImageUser, Option<v1::UserNamespace>, Vec<i64>),
    seccomp_root: &str,
    seccomp_default: bool,
) -> Result<v1::LinuxContainerSecurityContext, NonRootError> {
    let none = SecurityContext::default();
    let own = container.security_context.as_ref().unwrap_or(&none);
    let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let user = own.run_as_user.or_else(|| context.and_then(|c| c.run_as_user));
    let group = own.run_as_group.or_else(|| context.and_then(|c| c.run_as_group));
    let non_root = own.run_as_non_root.or_else(|| context.and_then(|c| c.run_as_non_root)).unwrap_or(false);
    if non_root && let Some(risk) = breaks_non_root(user, image) {
        return Err(NonRootError { risk, pod: crate::pods::describe(pod), container: container.name.clone() });
    }
    let privileged = own.privileged.unwrap_or(false);
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked") || privileged;
    let no_new_privs = own.allow_privilege_escalation == Some(false);
    let chosen = own.seccomp_profile.as_ref().or_else(|| context.and_then(|c| c.seccomp_profile.as_ref()));
    let named_groups = groups(context).concat();
    let (run_as_user, run_as_username) = match (user, image.uid, image.name.is_empty()) {
        (Some(user), _, _) => (Some(int(user)), String::new()),
        (None, Some(uid), _) => (Some(int(uid)), String::new()),
        (None, None, false) => (None, image.name.clone()),
        (None, None, true) => (None, String::new()),
    };
    Ok(v1::LinuxContainerSecurityContext {
        capabilities: own.capabilities.as_ref().map(|c| v1::Capability {
            add_capabilities: c.add.clone().unwrap_or_default(),
            drop_capabilities: c.drop.clone().unwrap_or_default(),
            add_ambient_capabilities: Vec::new(),
        }),
        privileged,
        namespace_options: Some(namespaces(pod, users)),
        selinux_options: own
            .se_linux_options
            .as_ref()
            .or_else(|| context.and_then(|c| c.se_linux_options.as_ref()))
            .map(selinux),
        run_as_user,
        run_as_username,
        run_as_group: group.map(int),
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups: [named_groups, of_volumes].concat(),
        supplemental_groups_policy: groups_policy(context),
        no_new_privs,
        masked_paths: if unmasked { Vec::new() } else { super::masked::paths() },
        readonly_paths: if unmasked { Vec::new() } else { strings(&READ_ONLY) },
        seccomp: Some(seccomp(chosen, seccomp_root, seccomp_default)),
        apparmor: super::app_armor::profile(pod, container).as_ref().map(apparmor),
        ..v1::LinuxContainerSecurityContext::default()
    })
}
