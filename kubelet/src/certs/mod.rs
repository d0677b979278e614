//! The kubelet's own certificates: the client certificate that a bootstrap credential is exchanged for and that is
//! renewed before it ends, and the serving pair.

mod bootstrap;

use crate::config::Config;
use anyhow::Context;
use shared::authn::X509;
use shared::cert::ReloadingKey;
use shared::run::Shutdown;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often the client CA file is looked at.
const CA_PERIOD: Duration = Duration::from_secs(60);

/// A client for the API server, if the kubelet is to have one.
///
/// # Errors
/// The kubeconfig is not usable.
pub async fn client(config: &Config, shutdown: &Shutdown) -> anyhow::Result<Option<kube::Client>> {
    let flags = &config.command_line;
    if flags.kubeconfig.is_empty() {
        return Ok(None);
    }
    if !flags.bootstrap_kubeconfig.is_empty() {
        bootstrap::ensure(config, shutdown).await?;
    }
    if !Path::new(&flags.kubeconfig).exists() {
        anyhow::bail!("invalid kubeconfig: stat {}: no such file or directory", flags.kubeconfig);
    }
    Ok(Some(connect(config, &flags.kubeconfig).await.context("invalid kubeconfig")?))
}

async fn connect(config: &Config, kubeconfig: &str) -> anyhow::Result<kube::Client> {
    let (qps, burst) = (config.kubelet.kube_api_qps, config.kubelet.kube_api_burst);
    let options = shared::client::Options {
        kubeconfig: kubeconfig.to_owned(),
        #[allow(clippy::cast_precision_loss)]
        qps: qps.max(0) as f32,
        burst: u32::try_from(burst).unwrap_or(0),
        user_agent: shared::client::user_agent("kubelet"),
        ..shared::client::Options::default()
    };
    shared::client::new(&options).await
}

/// The serving pair: the configured files, or a self-signed one that is kept in `--cert-dir`.
///
/// # Errors
/// Files cannot be read or written.
pub fn serving_key(config: &Config, name: &str, addresses: &[String]) -> anyhow::Result<Arc<ReloadingKey>> {
    let kubelet = &config.kubelet;
    if !kubelet.tls_cert_file.is_empty() && !kubelet.tls_private_key_file.is_empty() {
        return Ok(Arc::new(ReloadingKey::from_files(&kubelet.tls_cert_file, &kubelet.tls_private_key_file)?));
    }
    let folder = &config.command_line.cert_dir;
    let (certificate, key) = (folder.join("kubelet.crt"), folder.join("kubelet.key"));
    if !certificate.exists() || !key.exists() {
        std::fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
        let addresses: Vec<IpAddr> = addresses.iter().filter_map(|text| text.parse().ok()).collect();
        let pair = shared::cert::self_signed(name, &addresses, &[])?;
        bootstrap::write_private(&key, &pair.key)?;
        std::fs::write(&certificate, &pair.certificate)
            .with_context(|| format!("failed to write {}", certificate.display()))?;
    }
    Ok(Arc::new(ReloadingKey::from_files(certificate, key)?))
}

/// Takes over a changed client CA file until shutdown; a bad one leaves the old one in force.
pub async fn follow_client_ca(path: String, mut known: Vec<u8>, authenticator: Arc<X509>, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(CA_PERIOD) => {}
        }
        let Ok(pem) = tokio::fs::read(&path).await else { continue };
        if pem == known {
            continue;
        }
        match authenticator.replace(&pem) {
            Ok(()) => tracing::info!(path, "Client CA file changed, using the new one"),
            Err(error) => tracing::error!(path, %error, "Client CA file changed and is not usable"),
        }
        known = pem;
    }
}
