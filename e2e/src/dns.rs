//! Cluster DNS: CoreDNS from `manifests/addons`, and what a node's own resolver file is.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::layout::{DNS_SERVICE, Layout};
use crate::shell;

const MANIFEST: &str = include_str!("../../manifests/addons/coredns.yaml");
/// Resolver file with the servers that systemd-resolved itself asks.
const BEHIND_THE_STUB: &str = "/run/systemd/resolve/resolv.conf";

/// The archive of the image, at a path that stays valid from any folder.
///
/// # Errors
/// When there is none.
pub fn archive(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path).with_context(|| format!("no archive {}; use: DNS=coredns make up", path.display()))
}

/// Creates the add-on, or brings it up to date, and waits until it answers.
///
/// # Errors
/// When it is refused or not there in time.
pub fn install(layout: &Layout) -> Result<()> {
    let file = layout.root.join("coredns.yaml");
    fs::write(&file, MANIFEST.replace(DNS_SERVICE, &layout.dns_service()))
        .with_context(|| format!("cannot write {}", file.display()))?;
    shell::kubectl(layout, &["apply", "-f", &file.display().to_string()])?;
    let limit = format!("--timeout={}s", shell::READY_LIMIT.as_secs());
    shell::kubectl(layout, &["rollout", "status", "deployment/coredns", "--namespace=kube-system", &limit])?;
    Ok(())
}

/// The resolver file that pods are given, and that CoreDNS sends on to. A server on loopback would be the pod itself.
#[must_use]
pub fn resolver_file() -> &'static str {
    let stub = fs::read_to_string("/etc/resolv.conf").is_ok_and(|text| names_loopback(&text));
    if stub && Path::new(BEHIND_THE_STUB).exists() { BEHIND_THE_STUB } else { "/etc/resolv.conf" }
}

fn names_loopback(text: &str) -> bool {
    let servers = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    servers.map(str::trim).any(|server| server.starts_with("127.") || server == "::1")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The address that kubelets tell pods is the one that the Service asks for.
    #[test]
    fn the_manifest_asks_for_the_address_that_pods_are_told() {
        let documents: Vec<serde_json::Value> = MANIFEST
            .split("\n---\n")
            .map(|document| proto::yaml::decode_any(document.as_bytes()).expect("a manifest is YAML"))
            .collect();
        let service = documents.iter().find(|d| d["kind"] == "Service").expect("a Service");
        assert_eq!(service["spec"]["clusterIP"], DNS_SERVICE);
    }

    #[test]
    fn a_server_on_loopback_is_found() {
        for (text, found) in [
            ("nameserver 127.0.0.53\noptions edns0\n", true),
            ("search example.org\nnameserver ::1\n", true),
            ("nameserver 10.0.0.2\n# nameserver 127.0.0.1\n", false),
            ("", false),
        ] {
            assert_eq!(names_loopback(text), found, "{text}");
        }
    }
}
