//! The namespaces that always exist. Answers for upstream's `pkg/controlplane/controller/systemnamespaces`.

use std::time::Duration;

use serde_json::json;
use shared::status::Status;

use crate::api::Api;
use crate::machinery::identity::server_user;
use crate::registry::core::namespace::NAMESPACES;

/// Names of the namespaces.
pub(crate) const NAMES: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", "default"];

/// Creates a namespace unless it exists.
pub(crate) async fn ensure(api: &Api, name: &str) -> Result<(), Status> {
    match api.get(NAMESPACES, "", name).await {
        Ok(_) => return Ok(()),
        Err(e) if e.is_not_found() => {}
        Err(e) => return Err(e),
    }
    match api.create(&server_user(), NAMESPACES, "", json!({"metadata": {"name": name}})).await {
        Err(e) if !e.is_already_exists() => Err(e),
        _ => Ok(()),
    }
}

/// Keeps them there; `done` is called when all were seen for the first time.
pub(crate) async fn run(api: Api, done: impl FnOnce() + Send) {
    const EVERY: Duration = Duration::from_secs(60);
    let mut done = Some(done);
    loop {
        let results = futures::future::join_all(NAMES.iter().map(|n| ensure(&api, n))).await;
        let failed = results.into_iter().find_map(Result::err);
        match (failed, done.take()) {
            (None, Some(f)) => f(),
            (None, None) => {}
            (Some(error), f) => {
                tracing::warn!(%error, "Unable to create required Kubernetes system namespace");
                done = f;
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}
