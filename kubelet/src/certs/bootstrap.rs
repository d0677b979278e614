//! TLS bootstrap: a bootstrap credential is exchanged for a client certificate, and a kubeconfig that uses it is
//! written.

use std::path::Path;

use anyhow::{Context as _, bail};
use shared::run::Shutdown;

use super::request::Wanted;
use super::store::{Store, write_private};
use crate::config::Config;

/// A certificate with less than this left is asked for anew.
const LEAST_LEFT_SECONDS: i64 = 300;

/// Makes sure that the kubeconfig is there and its certificate valid.
pub(super) async fn ensure(config: &Config, store: &Store, shutdown: &Shutdown) -> anyhow::Result<()> {
    let flags = &config.command_line;
    let now = jiff::Timestamp::now();
    if Path::new(&flags.kubeconfig).exists() {
        let current = store.current().display().to_string();
        let uses_it = std::fs::read_to_string(&flags.kubeconfig).is_ok_and(|text| text.contains(&current));
        if !uses_it || store.load().is_some_and(|leaf| leaf.not_after > now.as_second() + LEAST_LEFT_SECONDS) {
            return Ok(());
        }
        tracing::info!("The client certificate has ended, using the bootstrap kubeconfig again");
    }
    tracing::info!("Using bootstrap kubeconfig to generate TLS client cert, key and kubeconfig file");
    let client =
        super::connect(config, &flags.bootstrap_kubeconfig).await.context("unable to load bootstrap kubeconfig")?;
    let wanted = Wanted::client(&config.node_name());
    let (certificate, key) = tokio::select! {
        () = shutdown.wait() => bail!("shut down while waiting for the client certificate"),
        obtained = wanted.obtain(&client) => obtained?,
    };
    store.update(&certificate, &key, now)?;
    let text = std::fs::read_to_string(&flags.bootstrap_kubeconfig)?;
    write_private(Path::new(&flags.kubeconfig), &kubeconfig(&text, &store.current())?)
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
