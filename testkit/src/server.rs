//! Command lines of an API server under test and of its etcd.

use std::path::Path;
use std::process::Command;

/// Returns the command of an etcd of one member on ports of the loopback, with its data in the folder `etcd` of `dir`.
pub fn etcd(dir: &Path, port: u16, peer: u16) -> Command {
    let (c, p) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
    let mut command = Command::new("etcd");
    command
        .args(["--listen-client-urls", &c, "--advertise-client-urls", &c, "--listen-peer-urls", &p])
        .args(["--initial-advertise-peer-urls", &p, "--initial-cluster", &format!("default={p}")])
        .arg("--data-dir")
        .arg(dir.join("etcd"));
    command
}

/// Returns the flags of an API server on the loopback, whose certificates [`Pki`](crate::pki::Pki) has put into `dir`.
pub fn flags(dir: &Path, etcd_port: u16, port: u16) -> Vec<String> {
    let file = |name: &str| dir.join(name).display().to_string();
    vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=192.0.2.10".to_owned(),
        "--service-cluster-ip-range=10.96.0.0/12".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        format!("--client-ca-file={}", file("ca.crt")),
        format!("--tls-cert-file={}", file("server.crt")),
        format!("--tls-private-key-file={}", file("server.key")),
        "--service-account-issuer=https://test".to_owned(),
        format!("--service-account-key-file={}", file("sa.key")),
        format!("--service-account-signing-key-file={}", file("sa.key")),
    ]
}
