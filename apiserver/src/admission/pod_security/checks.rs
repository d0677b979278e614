//! Checks of the Pod Security Standards, with upstream's texts. Answers for upstream's
//! `k8s.io/pod-security-admission/policy`.
//!
//! Pure: a pod's metadata and spec in, violations out.

use std::collections::BTreeSet;

use serde_json::Value;

use super::level::{Level, LevelVersion};
use crate::machinery::tree::{flag, has, int, list, map, maybe_flag, text};
use crate::validation::pod_annotations::{self, APP_ARMOR, SECCOMP_POD};

/// A forbidden thing: the reason, and the detail in brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Violation {
    reason: String,
    detail: String,
}

impl Violation {
    /// Forbidden feature, without the detail.
    pub(super) fn reason(&self) -> &str {
        &self.reason
    }
}

fn violation(reason: impl Into<String>, detail: impl Into<String>) -> Option<Violation> {
    Some(Violation { reason: reason.into(), detail: detail.into() })
}

/// Parts of a pod that the checks read.
struct Pod<'a> {
    metadata: &'a Value,
    spec: &'a Value,
    minor: u32,
}

type Check = fn(&Pod<'_>) -> Option<Violation>;

const NEVER: u32 = u32::MAX;

/// Sorted by upstream's check name; with the first minor version the check holds for, and the one from which
/// a check of the restricted level replaces it there.
const BASELINE: &[(Check, u32, u32)] = &[
    (app_armor, 0, NEVER),
    (capabilities_baseline, 0, 22),
    (host_namespaces, 0, NEVER),
    (host_path_volumes, 0, 0),
    (host_ports, 0, NEVER),
    (host_probes, 34, NEVER),
    (privileged, 0, NEVER),
    (proc_mount, 0, NEVER),
    (selinux, 0, NEVER),
    (seccomp_baseline, 0, 19),
    (sysctls, 0, NEVER),
    (windows_host_process, 0, NEVER),
];

const RESTRICTED: &[(Check, u32)] = &[
    (allow_privilege_escalation, 8),
    (capabilities_restricted, 22),
    (restricted_volumes, 0),
    (run_as_non_root, 0),
    (run_as_user, 23),
    (seccomp_restricted, 19),
];

/// All violations of a policy, in upstream's order.
pub(super) fn evaluate(policy: LevelVersion, metadata: &Value, spec: &Value) -> Vec<Violation> {
    let minor = policy.version.minor();
    let pod = Pod { metadata, spec, minor };
    let restricted = policy.level == Level::Restricted;
    let mut found = Vec::new();
    if policy.level == Level::Privileged {
        return found;
    }
    for (check, since, replaced) in BASELINE {
        if minor >= *since && !(restricted && minor >= *replaced && *replaced != NEVER) {
            found.extend(check(&pod));
        }
    }
    if restricted {
        for (check, since) in RESTRICTED {
            if minor >= *since {
                found.extend(check(&pod));
            }
        }
    }
    found
}

/// `reason (detail), reason (detail)`.
pub(super) fn describe(violations: &[Violation]) -> String {
    let parts: Vec<String> = violations
        .iter()
        .map(|v| if v.detail.is_empty() { v.reason.clone() } else { format!("{} ({})", v.reason, v.detail) })
        .collect();
    parts.join(", ")
}

fn quote<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let names: Vec<S> = names.into_iter().collect();
    let names: Vec<&str> = names.iter().map(S::as_ref).collect();
    format!("\"{}\"", names.join("\", \""))
}

fn plural<'a>(one: &'a str, many: &'a str, count: usize) -> &'a str {
    if count == 1 { one } else { many }
}

fn named(one: &str, many: &str, names: &[&str]) -> String {
    format!("{} {}", plural(one, many, names.len()), quote(names))
}

fn containers_named(names: &[&str]) -> String {
    named("container", "containers", names)
}

impl<'a> Pod<'a> {
    fn containers(&self) -> impl Iterator<Item = &'a Value> {
        ["/initContainers", "/containers", "/ephemeralContainers"].into_iter().flat_map(|l| list(self.spec, l))
    }

    fn where_container(&self, bad: impl Fn(&Value) -> bool) -> Vec<&'a str> {
        self.containers().filter(|c| bad(c)).map(|c| text(c, "/name")).collect()
    }

    /// `pod` and `container "x"` parts for a field that may stand at both levels.
    fn setters(&self, bad: impl Fn(&Value) -> bool) -> Vec<String> {
        let mut setters = Vec::new();
        if bad(self.spec) {
            setters.push("pod".to_owned());
        }
        let containers = self.where_container(bad);
        if !containers.is_empty() {
            setters.push(containers_named(&containers));
        }
        setters
    }

    fn is_windows(&self) -> bool {
        self.minor >= 25 && text(self.spec, "/os/name") == "windows"
    }

    /// Pods in a user namespace may do more inside it, from 1.35 on.
    fn relaxed(&self) -> bool {
        self.minor >= 35 && maybe_flag(self.spec, "/hostUsers") == Some(false)
    }

    fn annotations(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        map(self.metadata, "/annotations").into_iter().flatten().map(|(k, v)| (k.as_str(), v.as_str().unwrap_or("")))
    }
}

fn app_armor(pod: &Pod<'_>) -> Option<Violation> {
    const KEY: &str = "/securityContext/appArmorProfile/type";
    let bad = |o: &Value| {
        has(o, "/securityContext/appArmorProfile") && !matches!(text(o, KEY), "RuntimeDefault" | "Localhost")
    };
    let mut setters = pod.setters(bad);
    let mut values: Vec<String> = std::iter::once(pod.spec)
        .chain(pod.containers())
        .filter(|o| bad(o))
        .map(|o| text(o, KEY).to_owned())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let mut annotations: Vec<String> = pod
        .annotations()
        .filter(|(k, v)| {
            k.starts_with(APP_ARMOR) && !(v.is_empty() || *v == "runtime/default" || v.starts_with("localhost/"))
        })
        .map(|(k, v)| format!("{k}={v:?}"))
        .collect();
    annotations.sort();
    if !annotations.is_empty() {
        setters.push(plural("annotation", "annotations", annotations.len()).to_owned());
        values.extend(annotations);
    }
    if setters.is_empty() {
        return None;
    }
    violation(
        plural("forbidden AppArmor profile", "forbidden AppArmor profiles", values.len()),
        format!("{} must not set AppArmor profile type to {}", setters.join(" and "), quote(&values)),
    )
}

const DEFAULT_CAPABILITIES: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

fn added<'a>(container: &'a Value, allowed: &'a [&str]) -> impl Iterator<Item = &'a str> {
    list(container, "/securityContext/capabilities/add")
        .iter()
        .filter_map(Value::as_str)
        .filter(move |c| !allowed.contains(c))
}

fn capabilities_baseline(pod: &Pod<'_>) -> Option<Violation> {
    let names = pod.where_container(|c| added(c, DEFAULT_CAPABILITIES).next().is_some());
    if names.is_empty() {
        return None;
    }
    let caps: BTreeSet<&str> = pod.containers().flat_map(|c| added(c, DEFAULT_CAPABILITIES)).collect();
    violation(
        "non-default capabilities",
        format!("{} must not include {} in securityContext.capabilities.add", containers_named(&names), quote(&caps)),
    )
}

fn host_namespaces(pod: &Pod<'_>) -> Option<Violation> {
    let set: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .iter()
        .filter(|f| flag(pod.spec, &format!("/{f}")))
        .map(|f| format!("{f}=true"))
        .collect();
    if set.is_empty() { None } else { violation("host namespaces", set.join(", ")) }
}

fn host_path_volumes(pod: &Pod<'_>) -> Option<Violation> {
    let names: Vec<&str> =
        list(pod.spec, "/volumes").iter().filter(|v| has(v, "/hostPath")).map(|v| text(v, "/name")).collect();
    if names.is_empty() { None } else { violation("hostPath volumes", named("volume", "volumes", &names)) }
}

fn host_ports(pod: &Pod<'_>) -> Option<Violation> {
    let of = |c: &Value| -> Vec<i64> {
        list(c, "/ports").iter().filter_map(|p| int(p, "/hostPort")).filter(|p| *p != 0).collect()
    };
    let names = pod.where_container(|c| !of(c).is_empty());
    if names.is_empty() {
        return None;
    }
    let ports: BTreeSet<String> = pod.containers().flat_map(of).map(|p| p.to_string()).collect();
    violation(
        "hostPort",
        format!(
            "{} {} {} {}",
            containers_named(&names),
            plural("uses", "use", names.len()),
            plural("hostPort", "hostPorts", ports.len()),
            ports.into_iter().collect::<Vec<_>>().join(", ")
        ),
    )
}

fn host_probes(pod: &Pod<'_>) -> Option<Violation> {
    fn hosts(container: &Value) -> Vec<&str> {
        ["/livenessProbe", "/readinessProbe", "/startupProbe", "/lifecycle/postStart", "/lifecycle/preStop"]
            .iter()
            .flat_map(|h| [format!("{h}/httpGet/host"), format!("{h}/tcpSocket/host")])
            .map(|p| text(container, &p))
            .filter(|h| !h.is_empty())
            .collect()
    }
    let names: BTreeSet<&str> = pod.where_container(|c| !hosts(c).is_empty()).into_iter().collect();
    if names.is_empty() {
        return None;
    }
    let bad: BTreeSet<&str> = pod.containers().flat_map(hosts).collect();
    violation(
        "probe or lifecycle host",
        format!(
            "{} {} {} {} {}",
            plural("container", "containers", names.len()),
            quote(&names),
            plural("uses", "use", names.len()),
            plural("probe or lifecycle host", "probe or lifecycle hosts", bad.len()),
            quote(&bad)
        ),
    )
}

fn privileged(pod: &Pod<'_>) -> Option<Violation> {
    let names = pod.where_container(|c| flag(c, "/securityContext/privileged"));
    if names.is_empty() {
        return None;
    }
    violation("privileged", format!("{} must not set securityContext.privileged=true", containers_named(&names)))
}

fn proc_mount(pod: &Pod<'_>) -> Option<Violation> {
    if pod.relaxed() {
        return None;
    }
    let of = |c: &Value| text(c, "/securityContext/procMount").to_owned();
    let bad = |c: &Value| !matches!(of(c).as_str(), "" | "Default");
    let names = pod.where_container(bad);
    if names.is_empty() {
        return None;
    }
    let kinds: BTreeSet<String> = pod.containers().map(of).filter(|m| !matches!(m.as_str(), "" | "Default")).collect();
    violation(
        "procMount",
        format!("{} must not set securityContext.procMount to {}", containers_named(&names), quote(&kinds)),
    )
}

fn selinux(pod: &Pod<'_>) -> Option<Violation> {
    const AT: &str = "/securityContext/seLinuxOptions";
    let minor = pod.minor;
    let bad_type = |o: &Value| {
        let kind = text(o, &format!("{AT}/type"));
        let allowed = matches!(kind, "" | "container_t" | "container_init_t" | "container_kvm_t")
            || (kind == "container_engine_t" && minor >= 31);
        !allowed
    };
    let sets = |o: &Value, field: &str| !text(o, &format!("{AT}/{field}")).is_empty();
    let setters = pod.setters(|o| bad_type(o) || sets(o, "user") || sets(o, "role"));
    if setters.is_empty() {
        return None;
    }
    let everyone = || std::iter::once(pod.spec).chain(pod.containers());
    let kinds: BTreeSet<&str> =
        everyone().filter(|o| bad_type(o)).map(|o| text(o, "/securityContext/seLinuxOptions/type")).collect();
    let mut data = Vec::new();
    if !kinds.is_empty() {
        data.push(format!("{} {}", plural("type", "types", kinds.len()), quote(&kinds)));
    }
    if everyone().any(|o| sets(o, "user")) {
        data.push("user may not be set".to_owned());
    }
    if everyone().any(|o| sets(o, "role")) {
        data.push("role may not be set".to_owned());
    }
    violation(
        "seLinuxOptions",
        format!("{} set forbidden securityContext.seLinuxOptions: {}", setters.join(" and "), data.join("; ")),
    )
}

const SECCOMP: &str = "/securityContext/seccompProfile";

fn seccomp_kind(object: &Value) -> Option<&str> {
    has(object, SECCOMP).then(|| text(object, "/securityContext/seccompProfile/type"))
}

fn bad_seccomp(object: &Value) -> bool {
    seccomp_kind(object).is_some_and(|k| !matches!(k, "RuntimeDefault" | "Localhost"))
}

fn explicit_bad_seccomp(pod: &Pod<'_>) -> Option<Violation> {
    let setters = pod.setters(bad_seccomp);
    if setters.is_empty() {
        return None;
    }
    let values: BTreeSet<&str> =
        std::iter::once(pod.spec).chain(pod.containers()).filter(|o| bad_seccomp(o)).filter_map(seccomp_kind).collect();
    violation(
        "seccompProfile",
        format!("{} must not set securityContext.seccompProfile.type to {}", setters.join(" and "), quote(&values)),
    )
}

fn seccomp_baseline(pod: &Pod<'_>) -> Option<Violation> {
    if pod.minor >= 19 {
        return explicit_bad_seccomp(pod);
    }
    let names: BTreeSet<&str> = pod.containers().map(|c| text(c, "/name")).collect();
    let bad: BTreeSet<String> = pod
        .annotations()
        .filter(|(k, _)| {
            *k == SECCOMP_POD || k.strip_prefix(pod_annotations::SECCOMP).is_some_and(|n| names.contains(n))
        })
        .filter(|(_, v)| !(matches!(*v, "runtime/default" | "docker/default") || v.starts_with("localhost/")))
        .map(|(k, v)| format!("{k}={v:?}"))
        .collect();
    if bad.is_empty() {
        return None;
    }
    let list = bad.iter().cloned().collect::<Vec<_>>().join(", ");
    violation("seccompProfile", format!("forbidden {} {list}", plural("annotation", "annotations", bad.len())))
}

fn sysctls(pod: &Pod<'_>) -> Option<Violation> {
    const ALLOWED: &[(&str, u32)] = &[
        ("kernel.shm_rmid_forced", 0),
        ("net.ipv4.ip_local_port_range", 0),
        ("net.ipv4.tcp_syncookies", 0),
        ("net.ipv4.ping_group_range", 0),
        ("net.ipv4.ip_unprivileged_port_start", 0),
        ("net.ipv4.ip_local_reserved_ports", 27),
        ("net.ipv4.tcp_keepalive_time", 29),
        ("net.ipv4.tcp_fin_timeout", 29),
        ("net.ipv4.tcp_keepalive_intvl", 29),
        ("net.ipv4.tcp_keepalive_probes", 29),
        ("net.ipv4.tcp_rmem", 32),
        ("net.ipv4.tcp_wmem", 32),
    ];
    let bad: Vec<&str> = list(pod.spec, "/securityContext/sysctls")
        .iter()
        .map(|s| text(s, "/name"))
        .filter(|n| !ALLOWED.iter().any(|(name, since)| name == n && pod.minor >= *since))
        .collect();
    if bad.is_empty() { None } else { violation("forbidden sysctls", bad.join(", ")) }
}

fn windows_host_process(pod: &Pod<'_>) -> Option<Violation> {
    let setters = pod.setters(|o| flag(o, "/securityContext/windowsOptions/hostProcess"));
    if setters.is_empty() {
        return None;
    }
    violation(
        "hostProcess",
        format!("{} must not set securityContext.windowsOptions.hostProcess=true", setters.join(" and ")),
    )
}

fn allow_privilege_escalation(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_windows() {
        return None;
    }
    let names = pod.where_container(|c| maybe_flag(c, "/securityContext/allowPrivilegeEscalation") != Some(false));
    if names.is_empty() {
        return None;
    }
    violation(
        "allowPrivilegeEscalation != false",
        format!("{} must set securityContext.allowPrivilegeEscalation=false", containers_named(&names)),
    )
}

fn capabilities_restricted(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_windows() {
        return None;
    }
    let drops_all = |c: &Value| list(c, "/securityContext/capabilities/drop").iter().any(|d| d.as_str() == Some("ALL"));
    let keep = &["NET_BIND_SERVICE"];
    let keeping = pod.where_container(|c| !drops_all(c));
    let adding = pod.where_container(|c| added(c, keep).next().is_some());
    let caps: BTreeSet<&str> = pod.containers().flat_map(|c| added(c, keep)).collect();
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", containers_named(&keeping)));
    }
    if !adding.is_empty() {
        details.push(format!(
            "{} must not include {} in securityContext.capabilities.add",
            containers_named(&adding),
            quote(&caps)
        ));
    }
    if details.is_empty() { None } else { violation("unrestricted capabilities", details.join("; ")) }
}

fn restricted_volumes(pod: &Pod<'_>) -> Option<Violation> {
    const FINE: &[&str] =
        &["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"];
    let (mut names, mut kinds) = (Vec::new(), BTreeSet::new());
    for volume in list(pod.spec, "/volumes") {
        let sources = || volume.as_object().into_iter().flatten().filter(|(k, v)| *k != "name" && !v.is_null());
        if sources().any(|(k, _)| FINE.contains(&k.as_str())) {
            continue;
        }
        names.push(text(volume, "/name"));
        kinds.insert(sources().next().map_or("unknown", |(k, _)| k.as_str()));
    }
    if names.is_empty() {
        return None;
    }
    violation(
        "restricted volume types",
        format!(
            "{} {} {} {}",
            named("volume", "volumes", &names),
            plural("uses", "use", names.len()),
            plural("restricted volume type", "restricted volume types", kinds.len()),
            quote(&kinds)
        ),
    )
}

fn run_as_non_root(pod: &Pod<'_>) -> Option<Violation> {
    const AT: &str = "/securityContext/runAsNonRoot";
    if pod.relaxed() {
        return None;
    }
    let setters = pod.setters(|o| maybe_flag(o, AT) == Some(false));
    if !setters.is_empty() {
        return violation(
            "runAsNonRoot != true",
            format!("{} must not set securityContext.runAsNonRoot=false", setters.join(" and ")),
        );
    }
    let covered = maybe_flag(pod.spec, AT) == Some(true);
    let open = pod.where_container(|c| !covered && maybe_flag(c, AT).is_none());
    if open.is_empty() {
        return None;
    }
    violation(
        "runAsNonRoot != true",
        format!("pod or {} must set securityContext.runAsNonRoot=true", containers_named(&open)),
    )
}

fn run_as_user(pod: &Pod<'_>) -> Option<Violation> {
    if pod.relaxed() {
        return None;
    }
    let setters = pod.setters(|o| int(o, "/securityContext/runAsUser") == Some(0));
    if setters.is_empty() {
        return None;
    }
    violation("runAsUser=0", format!("{} must not set runAsUser=0", setters.join(" and ")))
}

fn seccomp_restricted(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_windows() {
        return None;
    }
    if let Some(bad) = explicit_bad_seccomp(pod) {
        return Some(bad);
    }
    let covered = seccomp_kind(pod.spec).is_some();
    let open = pod.where_container(|c| !covered && seccomp_kind(c).is_none());
    if open.is_empty() {
        return None;
    }
    violation(
        "seccompProfile",
        format!(
            "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
            containers_named(&open)
        ),
    )
}
