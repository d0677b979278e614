//! Kernel settings that a pod may ask for: those that stay within its namespaces and harm nobody, and those that the
//! node's administrator allows. Pure. Answers for upstream's `pkg/kubelet/sysctl`.

use crate::pods;
use k8s_openapi::api::core::v1::Pod;

/// Settings that are safe on any node.
const SAFE: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// The namespace that keeps a setting to a pod.
fn namespace(name: &str) -> Option<&'static str> {
    let ipc = name == "kernel.sem" || ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|p| name.starts_with(p));
    if ipc { Some("IPC") } else { name.starts_with("net.").then_some("Net") }
}

/// With dots between its parts: `net/ipv4/conf/eth0.1/x` is `net.ipv4.conf.eth0/1.x`.
fn dotted(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(first) if name.as_bytes()[first] == b'/' => name
            .chars()
            .map(|c| {
                if c == '/' {
                    '.'
                } else if c == '.' {
                    '/'
                } else {
                    c
                }
            })
            .collect(),
        _ => name.to_owned(),
    }
}

/// Returns why a pod's settings are refused; `allowed` are names, or prefixes that end in `*`.
pub(super) fn forbidden(pod: &Pod, allowed: &[String]) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let asked = spec.security_context.as_ref()?.sysctls.as_ref()?;
    asked.iter().find_map(|sysctl| {
        let name = dotted(&sysctl.name);
        let matches = |pattern: &String| {
            let pattern = dotted(pattern);
            pattern.strip_suffix('*').map_or(name == pattern, |prefix| name.starts_with(prefix))
        };
        let namespace = namespace(&name).filter(|_| SAFE.contains(&name.as_str()) || allowed.iter().any(matches));
        match namespace {
            None => Some(format!("{:?} not allowlisted", name)),
            Some("IPC") if spec.host_ipc.unwrap_or(false) => {
                Some(format!("{name:?} not allowed with host IPC enabled"))
            }
            Some("Net") if pods::host_network(pod) => Some(format!("{name:?} not allowed with host Net enabled")),
            Some(_) => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_safe_and_allowed_settings_of_own_namespaces_pass() {
        let allowed = ["kernel.msg*".to_owned(), "net.core.somaxconn".to_owned(), "vm.*".to_owned()];
        let refused = |why: &str| Some(why.to_owned());
        for (name, spec, expected) in [
            ("kernel.shm_rmid_forced", json!({}), None),
            ("kernel/shm_rmid_forced", json!({}), None),
            ("kernel.shmmax", json!({}), refused("\"kernel.shmmax\" not allowlisted")),
            ("kernel.msgmax", json!({}), None),
            ("net/core/somaxconn", json!({}), None),
            ("net.ipv4.conf.eth0/1.x", json!({}), refused("\"net.ipv4.conf.eth0/1.x\" not allowlisted")),
            ("vm.swappiness", json!({}), refused("\"vm.swappiness\" not allowlisted")),
            ("kernel.msgmax", json!({"hostIPC": true}), refused("\"kernel.msgmax\" not allowed with host IPC enabled")),
            (
                "net.ipv4.tcp_rmem",
                json!({"hostNetwork": true}),
                refused("\"net.ipv4.tcp_rmem\" not allowed with host Net enabled"),
            ),
        ] {
            let mut spec = spec;
            spec["containers"] = json!([]);
            spec["securityContext"] = json!({"sysctls": [{"name": name, "value": "1"}]});
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).expect("pod");
            assert_eq!(forbidden(&pod, &allowed), expected, "{name}");
        }
    }
}
