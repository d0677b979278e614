//! Bootstrap tokens: removes expired ones, and signs the public cluster information with the others. Answers for
//! upstream's `pkg/controller/bootstrap` (`Signer`, `TokenCleaner`).
//!
//! In: the secrets of bootstrap tokens, and the config map cluster-info. Out: expired secrets are deleted, the config
//! map holds one signature per token. [`plan`] reads tokens and signs; nothing else may see their secrets.

pub mod plan;

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use shared::informer::{Event, Informer, Scope, Store};
use shared::workqueue::Queue;

use crate::engine::action::Action;
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::object::Key;
use crate::engine::owned;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

const NAMESPACE: &str = "kube-system";
const PUBLIC: &str = "kube-public";
const INFO: &str = "cluster-info";

fn secrets(cx: &Context) -> Informer<Secret> {
    cx.informer_in(Scope {
        namespace: Some(NAMESPACE.into()),
        fields: Some(format!("type={}", plan::TYPE)),
        ..Scope::default()
    })
}

struct Cleaner {
    executor: Executor,
    secrets: Store<Secret>,
}

/// Wire the token cleaner.
pub fn start_cleaner(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let secrets = secrets(cx);
        let queue: Queue<Key> = Queue::new("token_cleaner");
        let this =
            Arc::new(Cleaner { executor: cx.executor("token-cleaner", "token-cleaner"), secrets: secrets.store() });
        owned::watch(&secrets, &queue);
        worker::run(cx, "token-cleaner", 1, &queue, &this, |s, key| async move {
            let Some(secret) = s.secrets.get(&key.namespace, &key.name) else { return Ok(None) };
            match plan::left(&secret, clock::now()) {
                None => Ok(None),
                Some(d) if d.is_zero() => {
                    s.executor.one(Action::delete::<Secret>(&secret.metadata)).await.map(|()| None)
                }
                Some(d) => Ok(Some(d)),
            }
        });
        Ok(Started::Yes)
    })
}

struct Signer {
    executor: Executor,
    secrets: Store<Secret>,
    maps: Store<ConfigMap>,
}

/// Wire the bootstrap signer.
pub fn start_signer(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let secrets = secrets(cx);
        let maps = cx.informer_in::<ConfigMap>(Scope {
            namespace: Some(PUBLIC.into()),
            fields: Some(format!("metadata.name={INFO}")),
            ..Scope::default()
        });
        let queue: Queue<Key> = Queue::new("bootstrap_signer_queue");
        let this = Arc::new(Signer {
            executor: cx.executor("bootstrap-signer", "bootstrap-signer"),
            secrets: secrets.store(),
            maps: maps.store(),
        });
        let wake = queue.clone();
        secrets.add_handler(move |_: &Event<Secret>| wake.add(Key::new(PUBLIC, INFO)));
        let wake = queue.clone();
        maps.add_handler(move |_: &Event<ConfigMap>| wake.add(Key::new(PUBLIC, INFO)));
        worker::run(cx, "bootstrap-signer", 1, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

impl Signer {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(map) = self.maps.get(&key.namespace, &key.name) else { return Ok(None) };
        match plan::sign(&map, &self.secrets.list(), clock::now()) {
            Some(action) => self.executor.one(action).await.map(|()| None),
            None => Ok(None),
        }
    }
}
