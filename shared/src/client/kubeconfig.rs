//! Reads a kubeconfig as client-go does: relative paths in it are relative to the file.
//!
//! `kube` can read files as well, with a YAML parser of its own; ours is in every binary already.

use std::path::Path;

use anyhow::Context;
use kube::config::{AuthInfo, Kubeconfig};

/// The kubeconfig at `path`.
///
/// # Errors
/// When it cannot be read, or is not a kubeconfig.
pub(super) fn read(path: &str) -> anyhow::Result<Kubeconfig> {
    let text = std::fs::read(path).with_context(|| format!("reading kubeconfig {path}"))?;
    parse(&text, Path::new(path).parent().unwrap_or(Path::new("")))
        .with_context(|| format!("reading kubeconfig {path}"))
}

fn parse(text: &[u8], folder: &Path) -> anyhow::Result<Kubeconfig> {
    let value = proto::yaml::decode_any(text)?;
    let mut config: Kubeconfig = if value.is_null() { Kubeconfig::default() } else { serde_json::from_value(value)? };
    for cluster in config.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        resolve(folder, &mut cluster.certificate_authority);
    }
    for user in config.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        resolve_user(folder, user);
    }
    Ok(config)
}

fn resolve_user(folder: &Path, user: &mut AuthInfo) {
    resolve(folder, &mut user.client_certificate);
    resolve(folder, &mut user.client_key);
    resolve(folder, &mut user.token_file);
    // A bare command is looked up in PATH.
    if let Some(exec) = user.exec.as_mut().filter(|exec| exec.command.as_ref().is_some_and(|c| c.contains('/'))) {
        resolve(folder, &mut exec.command);
    }
}

fn resolve(folder: &Path, path: &mut Option<String>) {
    let Some(relative) = path.as_ref().filter(|path| !path.is_empty() && Path::new(path).is_relative()) else { return };
    *path = Some(folder.join(relative).display().to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_file() {
        let text = b"
apiVersion: v1
kind: Config
current-context: here
clusters:
- name: here
  cluster: {server: 'https://127.0.0.1:6443', certificate-authority: pki/ca.crt}
users:
- name: me
  user: {client-certificate: /etc/me.crt, client-key: me.key, tokenFile: token}
- name: plugin
  user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: aws}}
- name: own
  user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: bin/login}}
contexts:
- name: here
  context: {cluster: here, user: me}
";
        let config = parse(text, Path::new("/conf")).expect("it is a kubeconfig");
        let cluster = config.clusters[0].cluster.as_ref().expect("a cluster");
        assert_eq!(cluster.certificate_authority.as_deref(), Some("/conf/pki/ca.crt"));
        let user = |index: usize| config.auth_infos[index].auth_info.as_ref().expect("a user");
        assert_eq!(user(0).client_certificate.as_deref(), Some("/etc/me.crt"));
        assert_eq!(user(0).client_key.as_deref(), Some("/conf/me.key"));
        assert_eq!(user(0).token_file.as_deref(), Some("/conf/token"));
        let command = |index: usize| user(index).exec.as_ref().and_then(|exec| exec.command.as_deref());
        assert_eq!((command(1), command(2)), (Some("aws"), Some("/conf/bin/login")));
    }

    #[test]
    fn what_is_not_a_kubeconfig_is_refused() {
        for text in [&b"clusters: 7"[..], b"{", b"- a"] {
            assert!(parse(text, Path::new("/")).is_err());
        }
    }
}
