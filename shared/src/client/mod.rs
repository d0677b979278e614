//! The connection of a component to the apiserver: kubeconfig or in-cluster configuration, user agent, and
//! client-side rate limiting and retries as client-go does them (`--kube-api-qps`, `--kube-api-burst`, `Retry-After`).

mod client_metrics;
mod coalescing;
mod connect_timeout;
mod connection;
mod credentials;
mod dial;
mod fence;
mod http1;
mod http2;
mod kubeconfig;
mod overload;
pub mod path;
mod peer;
mod plugin;
mod remote;
mod request_metrics;
mod retry;
mod throttle;
mod transport;
pub mod typed;

use anyhow::Context;
use http::header::USER_AGENT;
use http::{HeaderValue, Uri};
use kube::config::KubeConfigOptions;
use kube::{Client, Config};

pub use connection::{connect, connect_with, transport};
pub use credentials::TokenFile;
pub use dial::{BoxStream, Dialer, Line, Stream};
pub use fence::{Fence, Permission};
pub use remote::{Remote, RemoteError, Reply};
pub use retry::Once;
pub use throttle::Throttle;
pub use transport::{Sent, Transport, erased};

/// Connection to the API server, and its rate limits.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Path of a kubeconfig; empty means the service account of the pod we run in.
    pub kubeconfig: String,
    /// Overrides the server address of the kubeconfig when not empty (`--master`).
    pub master: String,
    /// Requests per second on average; 0 means no limit.
    pub qps: f32,
    /// Requests that may exceed the average for a moment.
    pub burst: u32,
    /// User agent, for example `kube-scheduler/v1.35.4 (linux/amd64) kubernetes/ironclad`.
    pub user_agent: String,
}

/// The user agent of a component in client-go's form.
pub fn user_agent(component: &str) -> String {
    format!("{component}/{} (linux/{}) kubernetes/ironclad", crate::version::git_version(), crate::version::ARCH)
}

/// Reads the configuration; token files in it are re-read by the client as they rotate.
///
/// # Errors
/// When the kubeconfig cannot be read, or names files that are missing.
pub async fn config(options: &Options) -> anyhow::Result<Config> {
    let master = Some(&options.master).filter(|master| !master.is_empty());
    let master = master.map(|master| master.parse::<Uri>().context("invalid --master")).transpose()?;
    let mut config = if options.kubeconfig.is_empty()
        && let Some(master) = &master
    {
        // Without credentials, as client-go's `BuildConfigFromFlags`.
        Config::new(master.clone())
    } else if options.kubeconfig.is_empty() {
        Config::incluster().context("no --kubeconfig given, and not running in a pod")?
    } else {
        let path = &options.kubeconfig;
        let resolved = Config::from_custom_kubeconfig(kubeconfig::read(path)?, &KubeConfigOptions::default()).await;
        resolved.with_context(|| format!("using kubeconfig {path}"))?
    };
    if let Some(master) = master {
        config.cluster_url = master;
    }
    if !options.user_agent.is_empty() {
        config.headers.push((USER_AGENT, HeaderValue::from_str(&options.user_agent).context("user agent")?));
    }
    // What is sent again, and when, is for `patience` to say.
    config.default_retry = false;
    Ok(config)
}

/// A client as `options` describe it.
///
/// # Errors
/// Those of [`config`], and unusable certificates.
pub async fn new(options: &Options) -> anyhow::Result<Client> {
    let config = config(options).await?;
    connect(&config, &Throttle::new(options.qps, options.burst)).context("client configuration")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_master_alone_is_enough() {
        let options = Options {
            kubeconfig: String::new(),
            master: "http://127.0.0.1:8080".to_owned(),
            qps: 0.0,
            burst: 0,
            user_agent: String::new(),
        };
        let found = config(&options).await.expect("a configuration");
        assert_eq!(found.cluster_url.to_string(), "http://127.0.0.1:8080/");
        assert!(config(&Options { master: "not an address".to_owned(), ..options }).await.is_err());
    }
}
