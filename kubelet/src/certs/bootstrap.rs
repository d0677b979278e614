//! TLS bootstrap: a bootstrap credential is exchanged for a client certificate, and a kubeconfig that uses it is
//! written.
//! Answers for upstream's `pkg/kubelet/certificate/bootstrap` (`LoadClientCert`).

use std::path::Path;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use jiff::Timestamp;
use kube::config::AuthInfo;
use secrecy::ExposeSecret as _;
use shared::client::Options;
use shared::run::Shutdown;

use super::request::CertificateContents;
use super::store::{PRIVATE_FILE, Store, write_whole};
use crate::config::Config;

/// Tells whether the kubeconfig is there and every client certificate in it valid (`isClientConfigStillValid`).
pub(super) async fn is_valid(kubeconfig: &str, now: Timestamp) -> bool {
    if !Path::new(kubeconfig).exists() {
        return false;
    }
    let options = Options { kubeconfig: kubeconfig.to_owned(), ..Options::default() };
    let known = match shared::client::config(&options).await {
        Ok(config) => certificate(&config.auth_info).and_then(|pem| ends(&pem)),
        Err(error) => Err(error),
    };
    match known {
        Ok(ends) if ends.iter().all(|end| *end >= now.as_second()) => true,
        Ok(_) => {
            tracing::error!(kubeconfig, "Part of the existing bootstrap client certificate is expired");
            false
        }
        Err(error) => {
            let error = format!("{error:#}");
            tracing::error!(kubeconfig, error, "Unable to read the client certificate of the existing kubeconfig");
            false
        }
    }
}

/// The client certificate of a user, in PEM.
fn certificate(user: &AuthInfo) -> anyhow::Result<Vec<u8>> {
    match (&user.client_certificate_data, &user.client_certificate) {
        (Some(data), _) => decode(data),
        (None, Some(path)) => std::fs::read(path).with_context(|| format!("failed to read {path}")),
        (None, None) => bail!("the user has no client certificate"),
    }
}

fn decode(data: &str) -> anyhow::Result<Vec<u8>> {
    base64::engine::general_purpose::STANDARD.decode(data).context("illegal base64 data")
}

/// Ends of the certificates of a chain, in seconds since 1970.
fn ends(pem: &[u8]) -> anyhow::Result<Vec<i64>> {
    let chain = shared::cert::certificates(pem)?;
    if chain.is_empty() {
        bail!("data does not contain any valid RSA or ECDSA certificates");
    }
    let end = |der| Ok(x509_parser::parse_x509_certificate(der)?.1.validity().not_after.timestamp());
    chain.iter().map(|der| end(der.as_ref())).collect()
}

/// Puts a pair that the kubeconfig holds itself into an empty store, where it is rotated from. Tells whether it did.
pub(super) fn adopt(user: &AuthInfo, store: &Store, now: Timestamp) -> bool {
    let (Some(certificate), Some(key)) = (&user.client_certificate_data, &user.client_key_data) else { return false };
    if store.current().exists() {
        return false;
    }
    let text = |data: &str| anyhow::Ok(String::from_utf8(decode(data)?)?);
    let adopted = text(certificate)
        .and_then(|certificate| text(key.expose_secret()).map(|key| (certificate, key)))
        .and_then(|(certificate, key)| store.update(&certificate, &key, now));
    if let Err(error) = &adopted {
        let error = format!("{error:#}");
        tracing::error!(error, "Unable to set the cert/key pair to the bootstrap certificate");
    }
    adopted.is_ok()
}

/// Writes the kubeconfig that leads to the certificates of `store`, which need not be there yet.
pub(super) fn write(bootstrap: &str, target: &str, store: &Store) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(bootstrap).map_err(|error| {
        anyhow::anyhow!("unable to load bootstrap kubeconfig: stat {bootstrap}: {}", shared::os::explain(&error))
    })?;
    write_whole(Path::new(target), &kubeconfig(&text, &store.current())?, PRIVATE_FILE)
}

/// Makes sure that the kubeconfig is there and its certificate valid, and waits for that.
pub(super) async fn ensure(config: &Config, store: &Store, shutdown: &Shutdown) -> anyhow::Result<()> {
    let flags = &config.command_line;
    let now = Timestamp::now();
    if is_valid(&flags.kubeconfig, now).await {
        return Ok(());
    }
    tracing::info!("Using bootstrap kubeconfig to generate TLS client cert, key and kubeconfig file");
    let client =
        super::connect(config, &flags.bootstrap_kubeconfig).await.context("unable to load bootstrap kubeconfig")?;
    let wanted = CertificateContents::client(&config.node_name());
    let (certificate, key) = tokio::select! {
        () = shutdown.wait() => bail!("shut down while waiting for the client certificate"),
        obtained = wanted.obtain(&client) => obtained?,
    };
    store.update(&certificate, &key, now)?;
    write(&flags.bootstrap_kubeconfig, &flags.kubeconfig, store)
}

/// The bootstrap kubeconfig's cluster with the new credential.
fn kubeconfig(bootstrap: &str, pair: &Path) -> anyhow::Result<String> {
    let source = proto::yaml::decode_any(bootstrap.as_bytes()).context("unable to load bootstrap kubeconfig")?;
    let wanted = source["current-context"].as_str().unwrap_or_default();
    let contexts = source["contexts"].as_array().cloned().unwrap_or_default();
    let context = contexts
        .iter()
        .find(|context| context["name"] == wanted)
        .context("the bootstrap kubeconfig has no current context")?;
    let clusters = source["clusters"].as_array().cloned().unwrap_or_default();
    let cluster = clusters.into_iter().find(|cluster| cluster["name"] == context["context"]["cluster"]);
    let cluster = cluster.context("the bootstrap kubeconfig has no cluster")?;
    let path = pair.display().to_string();
    let document = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default-cluster", "cluster": cluster["cluster"]}],
        "users": [{"name": "default-auth", "user": {"client-certificate": path, "client-key": path}}],
        "contexts": [{"name": "default-context", "context": {"cluster": "default-cluster", "namespace": "default", "user": "default-auth"}}],
        "current-context": "default-context",
    });
    Ok(serde_json::to_string_pretty(&document)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_kubeconfig_keeps_the_cluster() {
        let bootstrap = "current-context: b\ncontexts: [{name: b, context: {cluster: c, user: u}}]\nclusters: [{name: c, cluster: {server: 'https://x'}}]\n";
        let text = kubeconfig(bootstrap, Path::new("/pki/current.pem")).expect("made");
        let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(document["clusters"][0]["cluster"]["server"], "https://x");
        assert_eq!(document["users"][0]["user"]["client-key"], "/pki/current.pem");
    }
}
