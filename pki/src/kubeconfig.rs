//! Kubeconfigs of one cluster and one user, with their certificates inside.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};

use crate::authority::{Authority, Issued, Leaf};
use crate::files::{self, SECRET};
use crate::keys::Algorithm;

/// Name of the cluster in kubeconfigs: kubeadm's `clusterName` unless it is told otherwise.
const CLUSTER: &str = "kubernetes";

/// A user's credential of a certificate and its key.
#[must_use]
pub fn certificate(issued: &Issued) -> Value {
    json!({
        "client-certificate-data": BASE64_STANDARD.encode(&issued.certificate),
        "client-key-data": BASE64_STANDARD.encode(&issued.key),
    })
}

/// A kubeconfig for the cluster at `server`.
#[must_use]
pub fn build(ca_pem: &str, server: &str, user: &str, credential: &Value) -> Value {
    of_cluster(&cluster(ca_pem, server), user, credential)
}

/// A cluster as kubeconfigs have it, with its authority inside.
#[must_use]
pub fn cluster(ca_pem: &str, server: &str) -> Value {
    json!({"certificate-authority-data": BASE64_STANDARD.encode(ca_pem), "server": server})
}

/// A kubeconfig of one cluster and one user.
#[must_use]
pub fn of_cluster(cluster: &Value, user: &str, credential: &Value) -> Value {
    let context = format!("{user}@{CLUSTER}");
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CLUSTER, "cluster": cluster}],
        "contexts": [{"name": context, "context": {"cluster": CLUSTER, "user": user}}],
        "current-context": context,
        "users": [{"name": user, "user": credential}],
    })
}

/// Writes a kubeconfig as YAML that its owner alone can read.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path, config: &Value) -> Result<()> {
    let text = proto::yaml::encode_any(config).with_context(|| format!("cannot write {}", path.display()))?;
    files::write(path, &text, SECRET)
}

/// Reads a kubeconfig.
///
/// # Errors
/// When it is not there or not YAML.
pub fn read(path: &Path) -> Result<Value> {
    proto::yaml::decode_any(files::read(path)?.as_bytes()).with_context(|| path.display().to_string())
}

/// The certificate and key inside a kubeconfig's user; none where they are files or there is another credential.
///
/// # Errors
/// When they are no PEM in base 64.
pub fn embedded(config: &Value) -> Result<Option<Issued>> {
    let user = &current_user(config)["user"];
    let (Some(certificate), Some(key)) = (user["client-certificate-data"].as_str(), user["client-key-data"].as_str())
    else {
        return Ok(None);
    };
    let decoded = |text: &str| -> Result<String> { Ok(String::from_utf8(BASE64_STANDARD.decode(text)?)?) };
    Ok(Some(Issued { certificate: decoded(certificate)?, key: decoded(key)? }))
}

/// Puts another certificate and key into a kubeconfig's user.
pub fn replace(config: &mut Value, issued: &Issued) {
    let name = current_user(config)["name"].clone();
    let users = config["users"].as_array_mut().into_iter().flatten();
    for user in users.filter(|user| user["name"] == name) {
        if let (Some(old), Value::Object(new)) = (user["user"].as_object_mut(), certificate(issued)) {
            old.extend(new);
        }
    }
}

/// The user of the current context, as listed.
fn current_user(config: &Value) -> &Value {
    let listed = |list: &str, name: &Value| {
        config[list].as_array().into_iter().flatten().find(|entry| entry["name"] == *name).unwrap_or(&Value::Null)
    };
    listed("users", &listed("contexts", &config["current-context"])["context"]["user"])
}

/// Keeps the kubeconfig that is there, or makes it with a new certificate.
///
/// # Errors
/// When the one that is there is for another server or another authority, or has a certificate that the authority did not
/// sign or that has expired; when it cannot be read or written.
pub fn keep_or_issue(path: &Path, ca: &Authority, server: &str, demand: &Demand) -> Result<()> {
    if path.exists() {
        return check(path, ca, server).with_context(|| format!("{} cannot stay", path.display()));
    }
    let issued = ca.issue(demand.leaf.params()?, demand.algorithm, demand.validity)?;
    write(path, &build(&ca.certificate_pem, server, demand.user, &certificate(&issued)))
}

/// A user's certificate to be made.
pub struct Demand<'a> {
    /// Name of the user in the kubeconfig.
    pub user: &'a str,
    /// The certificate.
    pub leaf: Leaf,
    /// Kind of its key.
    pub algorithm: Algorithm,
    /// Lifetime of the certificate.
    pub validity: std::time::Duration,
}

fn check(path: &Path, ca: &Authority, server: &str) -> Result<()> {
    let config = read(path)?;
    let cluster = &config["clusters"][0]["cluster"];
    let there = cluster["server"].as_str().unwrap_or_default();
    ensure!(there == server, "it is for the server {there:?}, not {server:?}");
    if let Some(data) = cluster["certificate-authority-data"].as_str() {
        let pem = BASE64_STANDARD.decode(data).context("its certificate authority is not base 64")?;
        ensure!(pem.trim_ascii() == ca.certificate_pem.trim().as_bytes(), "it trusts another certificate authority");
    }
    embedded(&config)?.map_or(Ok(()), |issued| ca.verify(&issued.certificate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_certificates_leave_the_rest_of_a_kubeconfig_alone() {
        let issued = |text: &str| Issued { certificate: text.into(), key: format!("key of {text}") };
        let mut config = build("ca", "https://10.0.0.1:6443", "admin", &certificate(&issued("old")));
        config["users"][0]["user"]["as"] = json!("somebody");
        config["users"].as_array_mut().unwrap().push(json!({"name": "other", "user": {"token": "t"}}));
        let mut expected = config.clone();
        replace(&mut config, &issued("new"));
        expected["users"][0]["user"]["client-certificate-data"] = json!(BASE64_STANDARD.encode("new"));
        expected["users"][0]["user"]["client-key-data"] = json!(BASE64_STANDARD.encode("key of new"));
        assert_eq!(config, expected);
        assert_eq!(embedded(&config).unwrap().unwrap().certificate, "new");
    }

    #[test]
    fn certificates_in_files_are_not_embedded() {
        let config = build("ca", "https://a", "node", &json!({"client-certificate": "/x.pem", "client-key": "/x.pem"}));
        assert!(embedded(&config).unwrap().is_none());
        assert!(embedded(&json!({"users": "none"})).unwrap().is_none());
    }
}
