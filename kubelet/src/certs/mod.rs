//! The kubelet's own certificates: the client certificate that a bootstrap credential is exchanged for and the serving
//! pair, both renewed before they end.
//! Answers for upstream's `pkg/kubelet/certificate` (`NewKubeletServerCertificateManager`,
//! `NewKubeletClientCertificateManager`).

mod bootstrap;
mod request;
mod rotation;
mod store;
#[cfg(test)]
mod tests;

use crate::config::Config;
use anyhow::{Context, bail};
use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use shared::authn::X509;
use shared::cert::ReloadingKey;
use shared::run::{Shutdown, TaskGroup};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Interval at which the client CA file is looked at.
const CA_PERIOD: Duration = Duration::from_secs(60);

/// A client for the API server, if the kubelet is to have one. Where certificates are rotated nobody waits for the first:
/// static pods run without, and the API server that is to issue it may be one of them.
///
/// # Errors
/// The kubeconfig is not usable.
pub async fn client(config: &Config, tasks: &TaskGroup, shutdown: &Shutdown) -> anyhow::Result<Option<kube::Client>> {
    let flags = &config.command_line;
    if flags.kubeconfig.is_empty() {
        return Ok(None);
    }
    let store = Store::new(&flags.cert_dir, "kubelet-client");
    if config.kubelet.rotate_certificates {
        return rotated(config, store, tasks, shutdown).await.map(Some);
    }
    if !flags.bootstrap_kubeconfig.is_empty() {
        bootstrap::ensure(config, &store, shutdown).await?;
    }
    require(&flags.kubeconfig)?;
    connect(config, &flags.kubeconfig).await.context("invalid kubeconfig").map(Some)
}

fn require(kubeconfig: &str) -> anyhow::Result<()> {
    if std::path::Path::new(kubeconfig).exists() {
        return Ok(());
    }
    bail!("invalid kubeconfig: stat {kubeconfig}: no such file or directory")
}

/// A client that shows the newest certificate of `store`, whatever user the kubeconfig has: that one only asks for the
/// first certificate, unless there is a bootstrap kubeconfig to do so and the kubeconfig's own certificate has ended.
async fn rotated(
    config: &Config,
    store: Store,
    tasks: &TaskGroup,
    shutdown: &Shutdown,
) -> anyhow::Result<kube::Client> {
    let flags = &config.command_line;
    tracing::info!("Client rotation is on, will bootstrap in background");
    let mut initial = &flags.kubeconfig;
    if !flags.bootstrap_kubeconfig.is_empty() && !bootstrap::is_valid(&flags.kubeconfig, Timestamp::now()).await {
        initial = &flags.bootstrap_kubeconfig;
        bootstrap::write(initial, &flags.kubeconfig, &store)?;
    }
    require(&flags.kubeconfig)?;
    let initial = connect(config, initial).await.context("invalid kubeconfig")?;
    let options = options(config, &flags.kubeconfig);
    let target = shared::client::config(&options).await.context("invalid kubeconfig")?;
    let adopted = bootstrap::adopt(&target.auth_info, &store, Timestamp::now());
    let pair = Arc::new(ReloadingKey::awaited(store.current(), store.current()));
    let throttle = shared::client::Throttle::new(options.qps, options.burst);
    let client = shared::client::connect_with(&target, &throttle, pair).context("invalid kubeconfig")?;
    let own = client.clone();
    let clients = move |valid: bool| if valid { own.clone() } else { initial.clone() };
    let (_, wanted) = watch::channel(Some(request::CertificateContents::client(&config.node_name())));
    let rotation = rotation::Rotation { store, wanted, at_once: adopted };
    tasks.spawn("client-certificate", rotation.keep(clients, || {}, shutdown.token().clone()));
    Ok(client)
}

fn options(config: &Config, kubeconfig: &str) -> shared::client::Options {
    let (qps, burst) = (config.kubelet.kube_api_qps, config.kubelet.kube_api_burst);
    shared::client::Options {
        kubeconfig: kubeconfig.to_owned(),
        #[expect(clippy::cast_precision_loss, reason = "a rate is a float")]
        qps: qps.max(0) as f32,
        burst: u32::try_from(burst).unwrap_or(0),
        user_agent: shared::client::user_agent("kubelet"),
        ..shared::client::Options::default()
    }
}

/// Clients with connections of their own, which show what the kubelet's other client shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Events: their pace holds up nothing else (`eventRecordQPS`, `eventBurst`).
    Events,
    /// The node's lease and status, which wait for nothing. Upstream's `HeartbeatClient`.
    Heartbeats,
    /// Watches of what pods refer to: as many as pods like.
    Watches,
}

impl Purpose {
    /// Requests a second and at once.
    #[expect(clippy::cast_precision_loss, reason = "a rate is a float")]
    fn pace(self, config: &Config) -> (f32, u32) {
        let kubelet = &config.kubelet;
        let (qps, burst) = match self {
            Self::Events => (kubelet.event_record_qps, kubelet.event_burst),
            Self::Heartbeats => (0, 0),
            Self::Watches => (kubelet.kube_api_qps, kubelet.kube_api_burst),
        };
        (qps.max(0) as f32, u32::try_from(burst).unwrap_or(0))
    }

    fn failure(self) -> &'static str {
        match self {
            Self::Events => "failed to initialize kubelet event client",
            Self::Heartbeats => "failed to initialize kubelet heartbeat client",
            Self::Watches => "failed to initialize kubelet client",
        }
    }
}

/// A client for one purpose.
///
/// # Errors
/// The kubeconfig is not usable.
async fn client_for(purpose: Purpose, config: &Config) -> anyhow::Result<kube::Client> {
    let (flags, failed) = (&config.command_line, purpose.failure());
    let (qps, burst) = purpose.pace(config);
    let options = shared::client::Options { qps, burst, ..options(config, &flags.kubeconfig) };
    if !config.kubelet.rotate_certificates {
        return shared::client::new(&options).await.context(failed);
    }
    let store = Store::new(&flags.cert_dir, "kubelet-client");
    let target = shared::client::config(&options).await.context(failed)?;
    let pair = Arc::new(ReloadingKey::awaited(store.current(), store.current()));
    let throttle = shared::client::Throttle::new(options.qps, options.burst);
    shared::client::connect_with(&target, &throttle, pair).context(failed)
}

/// Clients beside the first one.
pub struct MoreClients {
    /// Client of events.
    pub events: kube::Client,
    /// Client of the node's lease and status.
    pub heartbeats: kube::Client,
    /// Client of watches of what pods refer to.
    pub watches: kube::Client,
}

impl MoreClients {
    /// All of them.
    ///
    /// # Errors
    /// The kubeconfig is not usable.
    pub async fn new(config: &Config) -> anyhow::Result<Self> {
        Ok(Self {
            events: client_for(Purpose::Events, config).await?,
            heartbeats: client_for(Purpose::Heartbeats, config).await?,
            watches: client_for(Purpose::Watches, config).await?,
        })
    }
}

async fn connect(config: &Config, kubeconfig: &str) -> anyhow::Result<kube::Client> {
    shared::client::new(&options(config, kubeconfig)).await
}

/// A serving pair that there may not be yet; nobody is served until there is.
#[derive(Debug, Default)]
struct Issued(ArcSwapOption<CertifiedKey>);

impl Issued {
    fn load(&self, store: &Store) {
        let Ok(pem) = std::fs::read(store.current()) else { return };
        match shared::cert::certified_key(&pem, &pem) {
            Ok(key) => self.0.store(Some(Arc::new(key))),
            Err(error) => {
                tracing::warn!(%error, file = %store.current().display(), "The serving certificate is not usable")
            }
        }
    }
}

impl ResolvesServerCert for Issued {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let key = self.0.load_full();
        if key.is_none() {
            tracing::warn!("No serving certificate available for the kubelet");
        }
        key
    }
}

/// Returns the certificate of the secure port: the configured files, a pair that the cluster issued
/// (`serverTLSBootstrap`), or a self-signed one that is kept in `--cert-dir`.
///
/// # Errors
/// Files cannot be read or written.
pub fn serving_key(
    config: &Config,
    addresses: watch::Receiver<Vec<IpAddr>>,
    client: Option<&kube::Client>,
    tasks: &TaskGroup,
    shutdown: &Shutdown,
) -> anyhow::Result<Arc<dyn ResolvesServerCert>> {
    let (kubelet, name) = (&config.kubelet, config.node_name());
    let name = name.as_str();
    let given = !kubelet.tls_cert_file.is_empty() && !kubelet.tls_private_key_file.is_empty();
    if kubelet.server_tls_bootstrap
        && !given
        && let Some(client) = client
    {
        let store = Store::new(&config.command_line.cert_dir, "kubelet-server");
        let issued = Arc::new(Issued::default());
        issued.load(&store);
        let (seen, pairs) = (Arc::clone(&issued), store.clone());
        let renewed = move || seen.load(&pairs);
        let client = client.clone();
        let (contents, wanted) = watch::channel(None);
        tasks.spawn("serving-names", follow_addresses(addresses, name.to_owned(), contents, shutdown.token().clone()));
        let rotation = rotation::Rotation { store, wanted, at_once: false };
        let keep = rotation.keep(move |_| client.clone(), renewed, shutdown.token().clone());
        tasks.spawn("serving-certificate", keep);
        return Ok(issued);
    }
    if !kubelet.tls_cert_file.is_empty() && !kubelet.tls_private_key_file.is_empty() {
        return Ok(Arc::new(ReloadingKey::from_files(&kubelet.tls_cert_file, &kubelet.tls_private_key_file)?));
    }
    let folder = &config.command_line.cert_dir;
    let (certificate, key) = (folder.join("kubelet.crt"), folder.join("kubelet.key"));
    if !certificate.exists() || !key.exists() {
        std::fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
        let addresses = addresses.borrow().clone();
        let pair = shared::cert::self_signed(name, &addresses, &[])?;
        store::write_whole(&key, &pair.key, store::PRIVATE_FILE)?;
        store::write_whole(&certificate, &pair.certificate, 0o644)?;
    }
    Ok(Arc::new(ReloadingKey::from_files(certificate, key)?))
}

/// Says what the serving certificate is to have, as the node's addresses change.
async fn follow_addresses(
    mut addresses: watch::Receiver<Vec<IpAddr>>,
    name: String,
    contents: watch::Sender<Option<request::CertificateContents>>,
    shutdown: CancellationToken,
) {
    loop {
        let wanted = request::CertificateContents::serving(&name, &name, &addresses.borrow_and_update());
        if wanted.is_none() {
            tracing::error!("The node has no address, so no serving certificate is asked for");
        }
        contents.send_replace(wanted);
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = addresses.changed() => if changed.is_err() { return },
        }
    }
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
