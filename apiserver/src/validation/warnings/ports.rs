//! Ports that containers of one pod have in common.

use proto::Value;
use shared::status::go_quote;

use crate::rules::options::Warnings;
use crate::rules::tree::{int, list, text};

struct Port<'a> {
    path: String,
    name: &'a str,
    container: i64,
    host: i64,
    protocol: &'a str,
    host_ip: &'a str,
}

/// Looks at the ports of all containers, and at the names of those that are there at one time.
pub(super) fn of(spec: &Value, path: &str, out: &mut Warnings) {
    let (mut seen, mut lasting) = (Vec::new(), Vec::new());
    for key in ["initContainers", "containers"] {
        for (i, container) in list(spec, key).iter().enumerate() {
            let lasts = key == "containers" || text(container, "restartPolicy") == "Always";
            for (j, port) in list(container, "ports").iter().enumerate() {
                let port = read(port, format!("{path}.{key}[{i}].ports[{j}]"));
                judge(&port, &seen, out);
                lasting.extend(lasts.then_some(seen.len()));
                seen.push(port);
            }
        }
    }
    let named: Vec<&Port<'_>> = lasting.into_iter().map(|at| &seen[at]).filter(|port| !port.name.is_empty()).collect();
    for (i, port) in named.iter().enumerate() {
        if let Some(first) = named[..i].iter().find(|other| other.name == port.name) {
            let (path, name, first) = (&port.path, go_quote(port.name), &first.path);
            out.push(format!(
                "{path}: duplicate port name {name} with {first}, services and probes that select ports by name will use {first}"
            ));
        }
    }
}

fn read(port: &Value, path: String) -> Port<'_> {
    Port {
        path,
        name: text(port, "name"),
        container: int(port, "containerPort").unwrap_or(0),
        host: int(port, "hostPort").unwrap_or(0),
        protocol: text(port, "protocol"),
        host_ip: text(port, "hostIP"),
    }
}

fn judge(port: &Port<'_>, seen: &[Port<'_>], out: &mut Warnings) {
    let path = &port.path;
    if port.host == 0 && !port.host_ip.is_empty() {
        let Port { name, host, container, protocol, host_ip, .. } = port;
        out.push(format!(
            "{path}: hostIP set without hostPort: {{Name:{name} HostPort:{host} ContainerPort:{container} Protocol:{protocol} HostIP:{host_ip}}}"
        ));
    }
    for other in seen.iter().filter(|other| (other.container, other.protocol) == (port.container, port.protocol)) {
        let what = if (other.host, other.host_ip) == (port.host, port.host_ip) {
            "duplicate"
        } else if other.host == 0 || port.host == 0 {
            "overlapping"
        } else if other.host == port.host && (other.host_ip.is_empty() || port.host_ip.is_empty()) {
            "dangerously ambiguous"
        } else {
            continue;
        };
        out.push(format!("{path}: {what} port definition with {}", other.path));
    }
}
