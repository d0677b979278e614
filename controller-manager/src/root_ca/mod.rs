//! Publishes the cluster's CA bundle to every namespace as the config map kube-root-ca.crt. Answers for upstream's
//! `pkg/controller/certificates/rootcacertpublisher`.
//!
//! In: namespaces, the config maps of that name, the bundle of `--root-ca-file`. Out: the config map, made and
//! repaired.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use shared::informer::{Event, Scope, Store};
use shared::workqueue::Queue;

use crate::engine::action::Action;
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::owned;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};
use crate::service_account::active;

const NAME: &str = "kube-root-ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";
const TEXT: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

struct Publisher {
    executor: Executor,
    namespaces: Store<Namespace>,
    maps: Store<ConfigMap>,
    bundle: String,
}

/// Wire the root CA publisher.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let file = &cx.settings().root_ca_file;
        let bundle = if file.is_empty() {
            String::new()
        } else {
            tokio::fs::read_to_string(file)
                .await
                .map_err(|e| RestError::other(format!("error reading root-ca-file at {file}: {e}")))?
        };
        let namespaces = cx.informer::<Namespace>();
        let maps =
            cx.informer_in::<ConfigMap>(Scope { fields: Some(format!("metadata.name={NAME}")), ..Scope::default() });
        let queue: Queue<Key> = Queue::new("root_ca_cert_publisher");
        let this = Arc::new(Publisher {
            executor: cx.executor("root-ca-cert-publisher", "root-ca-cert-publisher"),
            namespaces: namespaces.store(),
            maps: maps.store(),
            bundle,
        });
        owned::watch(&namespaces, &queue);
        let wake = queue.clone();
        maps.add_handler(move |event: &Event<ConfigMap>| {
            if !matches!(event, Event::Added(_)) {
                wake.add(Key::new("", object::namespace(&event.object().metadata)));
            }
        });
        worker::run(cx, "root-ca-certificate-publisher", 1, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

/// The write that publishes the bundle in a namespace, if it is not there already.
#[must_use]
pub fn plan(namespace: &str, current: Option<&ConfigMap>, bundle: &str) -> Option<Action> {
    let data = BTreeMap::from([("ca.crt".to_owned(), bundle.to_owned())]);
    let Some(current) = current else {
        return Some(Action::create(&ConfigMap {
            metadata: ObjectMeta {
                name: Some(NAME.into()),
                namespace: Some(namespace.to_owned()),
                annotations: Some(BTreeMap::from([(DESCRIPTION.to_owned(), TEXT.to_owned())])),
                ..ObjectMeta::default()
            },
            data: Some(data),
            ..ConfigMap::default()
        }));
    };
    let described = object::annotation(&current.metadata, DESCRIPTION).is_some_and(|d| !d.is_empty());
    if current.data.as_ref() == Some(&data) && described {
        return None;
    }
    let mut copy = current.clone();
    copy.data = Some(data);
    copy.metadata.annotations.get_or_insert_default().insert(DESCRIPTION.to_owned(), TEXT.to_owned());
    Some(Action::update(&copy))
}

/// Returns the result of a sync as the metrics name it.
fn code(done: &Result<(), RestError>) -> String {
    match done {
        Ok(()) => "200".to_owned(),
        Err(RestError::Api { code, .. }) => code.to_string(),
        Err(RestError::Transport(_)) => "500".to_owned(),
    }
}

impl Publisher {
    async fn sync(&self, key: &Key) -> Synced {
        if !self.namespaces.get("", &key.name).is_some_and(|n| active(&n)) {
            return Ok(None);
        }
        let started = clock::instant();
        let done = self.publish(&key.name).await;
        let code = code(&done);
        let took = clock::instant().saturating_duration_since(started).as_secs_f64();
        metrics::count("root_ca_cert_publisher_sync_total", &[&code]);
        metrics::observe("root_ca_cert_publisher_sync_duration_seconds", &[&code], took);
        done.map(|()| None)
    }

    async fn publish(&self, namespace: &str) -> Result<(), RestError> {
        let current = self.maps.get(namespace, NAME);
        let Some(action) = plan(namespace, current.as_deref(), &self.bundle) else { return Ok(()) };
        match self.executor.one(action).await {
            // The namespace is gone, or going.
            Err(e) if current.is_none() && (e.not_found() || e.namespace_terminating()) => Ok(()),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes() {
        let refused = RestError::Api { code: 403, reason: String::new(), message: String::new(), causes: Vec::new() };
        for (done, want) in [(Ok(()), "200"), (Err(refused), "403"), (Err(RestError::other("x")), "500")] {
            assert_eq!(code(&done), want);
        }
    }

    #[test]
    fn published_and_repaired() {
        let Some(Action::Create { path, body }) = plan("ns", None, "PEM") else { panic!("no creation") };
        assert_eq!(path, "/api/v1/namespaces/ns/configmaps");
        let made: ConfigMap = serde_json::from_value(body).expect("map");
        assert_eq!(plan("ns", Some(&made), "PEM"), None);
        assert!(matches!(plan("ns", Some(&made), "OTHER"), Some(Action::Update { .. })));
        let mut edited = made.clone();
        edited.metadata.annotations = None;
        assert!(matches!(plan("ns", Some(&edited), "PEM"), Some(Action::Update { .. })));
    }
}
