//! TLS bootstrap: a bootstrap credential is exchanged for a client certificate through a CertificateSigningRequest,
//! and a kubeconfig that uses it is written.

use crate::config::Config;
use anyhow::{Context, bail};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use shared::run::Shutdown;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// How often the request is looked at.
const POLL: Duration = Duration::from_secs(1);
/// The longest wait for an approval.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// A certificate with less than this left is asked for anew.
const LEAST_LEFT_SECONDS: i64 = 300;

/// Writes a file that only its owner may read.
pub(super) fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("failed to write {}", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("failed to write {}", path.display()))
}

/// The file that always holds the newest certificate and key.
fn current(config: &Config) -> PathBuf {
    config.command_line.cert_dir.join("kubelet-client-current.pem")
}

/// Whether a certificate is good for a while yet.
fn is_valid(pem: &[u8], now: i64) -> bool {
    let Ok(chain) = shared::cert::certificates(pem) else { return false };
    let Some(leaf) = chain.first() else { return false };
    match x509_parser::parse_x509_certificate(leaf) {
        Ok((_, certificate)) => certificate.validity().not_after.timestamp() > now + LEAST_LEFT_SECONDS,
        Err(_) => false,
    }
}

/// Makes sure that the kubeconfig is there and its certificate valid.
pub(super) async fn ensure(config: &Config, shutdown: &Shutdown) -> anyhow::Result<()> {
    let flags = &config.command_line;
    let now = jiff::Timestamp::now().as_second();
    if Path::new(&flags.kubeconfig).exists() {
        let bootstrapped = current(config);
        let uses_it =
            std::fs::read_to_string(&flags.kubeconfig).is_ok_and(|text| text.contains("kubelet-client-current.pem"));
        if !uses_it || std::fs::read(&bootstrapped).is_ok_and(|pem| is_valid(&pem, now)) {
            return Ok(());
        }
        tracing::info!("The client certificate has ended, using the bootstrap kubeconfig again");
    }
    tracing::info!("Using bootstrap kubeconfig to generate TLS client cert, key and kubeconfig file");
    let node = config.node_name();
    let client =
        super::connect(config, &flags.bootstrap_kubeconfig).await.context("unable to load bootstrap kubeconfig")?;
    let request = shared::cert::signing_request(&format!("system:node:{node}"), &["system:nodes"], &[], &[])?;
    let certificate = tokio::select! {
        () = shutdown.wait() => bail!("shut down while waiting for the client certificate"),
        answered = tokio::time::timeout(PATIENCE, sign(&client, &request.request)) => {
            answered.context("timed out waiting for the certificate signing request to be approved")??
        }
    };
    std::fs::create_dir_all(&flags.cert_dir)
        .with_context(|| format!("failed to create {}", flags.cert_dir.display()))?;
    let stamp = jiff::Timestamp::now().strftime("%Y-%m-%d-%H-%M-%S").to_string();
    let pair = flags.cert_dir.join(format!("kubelet-client-{stamp}.pem"));
    write_private(&pair, &format!("{certificate}{}", request.key))?;
    let link = current(config);
    let fresh = link.with_extension("tmp");
    std::fs::remove_file(&fresh).ok();
    std::os::unix::fs::symlink(&pair, &fresh)?;
    std::fs::rename(&fresh, &link)?;
    let text = std::fs::read_to_string(&flags.bootstrap_kubeconfig)?;
    write_private(Path::new(&flags.kubeconfig), &kubeconfig(&text, &link)?)
}

async fn sign(client: &kube::Client, request: &str) -> anyhow::Result<String> {
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let wanted = CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some("csr-".to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.as_bytes().to_vec()),
            signer_name: SIGNER.to_owned(),
            usages: Some(vec!["digital signature".to_owned(), "client auth".to_owned()]),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let made =
        api.create(&PostParams::default(), &wanted).await.context("cannot create certificate signing request")?;
    let name = made.metadata.name.unwrap_or_default();
    loop {
        tokio::time::sleep(POLL).await;
        let found = match api.get(&name).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "Could not look at the certificate signing request");
                continue;
            }
        };
        let status = found.status.unwrap_or_default();
        for condition in status.conditions.iter().flatten() {
            if matches!(condition.type_.as_str(), "Denied" | "Failed") {
                let (reason, message) =
                    (condition.reason.clone().unwrap_or_default(), condition.message.clone().unwrap_or_default());
                bail!(
                    "certificate signing request {name} is {}, reason: {reason}, message: {message}",
                    condition.type_.to_lowercase()
                );
            }
        }
        if let Some(certificate) = status.certificate {
            return String::from_utf8(certificate.0).context("the issued certificate is not PEM");
        }
    }
}

/// The bootstrap kubeconfig's cluster with the new credential.
fn kubeconfig(bootstrap: &str, pair: &Path) -> anyhow::Result<String> {
    let source: serde_json::Value = serde_norway::from_str(bootstrap).context("unable to load bootstrap kubeconfig")?;
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

    #[test]
    fn validity() {
        let pair = shared::cert::self_signed("n", &[], &[]).expect("pair");
        let now = jiff::Timestamp::now().as_second();
        assert!(is_valid(pair.certificate.as_bytes(), now));
        assert!(!is_valid(pair.certificate.as_bytes(), now + 800 * 86_400));
        assert!(!is_valid(b"nonsense", now));
    }
}
