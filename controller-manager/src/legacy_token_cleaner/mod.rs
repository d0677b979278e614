//! Marks and later deletes token secrets that were made for service accounts and are not used. Answers for
//! `legacy-serviceaccount-token-cleaner`.
//!
//! It looks once a day, so that it asks the server then and caches nothing.

pub mod plan;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use shared::informer::Store;
use shared::types::from_tree;

use self::plan::SecretAction;
use crate::engine::action::{Action, PatchKind};
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::object::{self, Key};
use crate::engine::paged::Pages;
use crate::engine::registry::Started;
use crate::engine::rest::{JSON, Rest, RestError};

const NAME: &str = "legacy-service-account-token-cleaner";
const EVERY: Duration = Duration::from_hours(24);
/// Config map in which the API server notes since when it tracks the use of tokens.
const TRACKING: &str = "/api/v1/namespaces/kube-system/configmaps/kube-apiserver-legacy-service-account-token-tracking";
const TOKENS: &str = "/api/v1/secrets?fieldSelector=type%3Dkubernetes.io%2Fservice-account-token";
const PODS: &str = "/api/v1/pods";

struct Cleaner {
    /// Reads; the role of the controller has only the writes.
    reads: Rest,
    executor: Executor,
    accounts: Store<ServiceAccount>,
    period: Duration,
}

/// Wire the cleaner of legacy tokens.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let this = Arc::new(Cleaner {
            reads: cx.own_rest(),
            executor: cx.executor(NAME, NAME),
            accounts: cx.informer::<ServiceAccount>().store(),
            period: cx.settings().legacy_token_period,
        });
        cx.every(NAME, EVERY, move || {
            let this = Arc::clone(&this);
            async move {
                if let Err(error) = this.look().await {
                    tracing::warn!(controller = NAME, %error, "cleaning failed, again tomorrow");
                }
            }
        });
        Ok(Started::Yes)
    })
}

impl Cleaner {
    async fn look(&self) -> Result<(), RestError> {
        let now = clock::now();
        let tracking = match self.executor.rest.get(TRACKING).await {
            Err(e) if e.not_found() => return Ok(()),
            other => other?,
        };
        let since = tracking["data"]["since"].as_str().unwrap_or_default();
        if !plan::tracked_long_enough(since, now, self.period) {
            return Ok(());
        }
        let mut candidates = Vec::new();
        self.each(TOKENS, |item| {
            let Ok(secret) = from_tree::<Secret>(&item) else { return };
            if self.verdict(&secret, false, now) != SecretAction::Keep {
                candidates.push(Secret { data: None, ..secret });
            }
        })
        .await?;
        if candidates.is_empty() {
            return Ok(());
        }
        let mut mounted: HashSet<Key> = HashSet::new();
        self.each(PODS, |pod| mounted.extend(secrets_of(&pod))).await?;
        for secret in candidates {
            let used = mounted.contains(&Key::of(&secret.metadata));
            self.carry_out(&secret, self.verdict(&secret, used, now), now).await;
        }
        Ok(())
    }

    /// Hands over every object of a list.
    async fn each(&self, path: &str, mut take: impl FnMut(Value)) -> Result<(), RestError> {
        let mut pages = Pages::of(&self.reads, path, JSON);
        while let Some(page) = pages.next().await? {
            page.items.into_iter().for_each(&mut take);
        }
        Ok(())
    }

    fn verdict(&self, secret: &Secret, mounted: bool, now: Timestamp) -> SecretAction {
        let name = object::annotation(&secret.metadata, "kubernetes.io/service-account.name").unwrap_or_default();
        let Some(account) = self.accounts.get(object::namespace(&secret.metadata), name) else {
            return SecretAction::Keep;
        };
        let uid = object::annotation(&secret.metadata, "kubernetes.io/service-account.uid");
        if uid.is_some() && uid != account.metadata.uid.as_deref() {
            return SecretAction::Keep;
        }
        plan::judge(secret, &account, mounted, now, self.period)
    }

    /// One secret that cannot be written does not keep the others.
    async fn carry_out(&self, secret: &Secret, verdict: SecretAction, now: Timestamp) {
        let meta = &secret.metadata;
        let action = match verdict {
            SecretAction::Keep => return,
            SecretAction::Invalidate => {
                let body = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version,
                    "labels": {plan::INVALID_SINCE: plan::day(now).to_string()}}});
                Action::patch::<Secret>(meta, PatchKind::Merge, body)
            }
            SecretAction::Delete => {
                let conditions = json!({"uid": meta.uid, "resourceVersion": meta.resource_version});
                Action::delete_with::<Secret>(meta, json!({"preconditions": conditions}))
            }
        };
        let key = Key::of(meta);
        match self.executor.one(action).await {
            Ok(()) => tracing::info!(controller = NAME, secret = %key, ?verdict, "unused token"),
            Err(e) if e.not_found() || e.conflict() => {}
            Err(error) => tracing::warn!(controller = NAME, secret = %key, %error, "unused token stays"),
        }
    }
}

/// The secrets a pod mounts or reads.
fn secrets_of(pod: &Value) -> Vec<Key> {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let spec = &pod["spec"];
    let mut names: Vec<Value> = list(&spec["imagePullSecrets"]).into_iter().map(|r| r["name"].clone()).collect();
    for volume in list(&spec["volumes"]) {
        // Drivers of all sorts are given secrets by reference.
        for source in volume.as_object().into_iter().flat_map(|v| v.values()) {
            names.extend(["secretRef", "nodePublishSecretRef"].map(|key| source[key]["name"].clone()));
            names.push(source["secretName"].clone());
        }
        names.extend(list(&volume["projected"]["sources"]).into_iter().map(|s| s["secret"]["name"].clone()));
    }
    for container in ["containers", "initContainers", "ephemeralContainers"].iter().flat_map(|k| list(&spec[*k])) {
        names.extend(list(&container["env"]).into_iter().map(|e| e["valueFrom"]["secretKeyRef"]["name"].clone()));
        names.extend(list(&container["envFrom"]).into_iter().map(|e| e["secretRef"]["name"].clone()));
    }
    names.iter().filter_map(Value::as_str).map(|n| Key::new(namespace, n)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_pods() {
        let pod = json!({"metadata": {"namespace": "ns"}, "spec": {
            "volumes": [{"name": "v", "secret": {"secretName": "a"}}, {"emptyDir": {}}, {"azureFile": {"secretName": "f"}},
                {"csi": {"driver": "d", "nodePublishSecretRef": {"name": "g"}}}, {"rbd": {"secretRef": {"name": "h"}}},
                {"projected": {"sources": [{"secret": {"name": "b"}}]}}],
            "imagePullSecrets": [{"name": "c"}],
            "containers": [{"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "d", "key": "k"}}}], "envFrom": [{"secretRef": {"name": "e"}}]}]}});
        let mut names: Vec<String> = secrets_of(&pod).into_iter().map(|k| k.to_string()).collect();
        names.sort();
        assert_eq!(names, ["ns/a", "ns/b", "ns/c", "ns/d", "ns/e", "ns/f", "ns/g", "ns/h"]);
    }
}
