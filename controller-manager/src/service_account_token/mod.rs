//! Fills service account token secrets (the kind that is made by hand) and removes those of accounts that are gone.

pub mod jwt;
pub mod plan;

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use shared::informer::{Event, Scope, Store};
use shared::types::from_tree;
use shared::workqueue::Queue;

use self::jwt::TokenSigner;
use self::plan::{ACCOUNT, TYPE};
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::object::{self, Key};
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

struct Tokens {
    executor: Executor,
    accounts: Store<ServiceAccount>,
    secrets: Store<Secret>,
    signer: TokenSigner,
    root_ca: Option<Vec<u8>>,
}

/// Wire the service account token controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let settings = cx.settings();
        if settings.service_account_key.is_empty() {
            tracing::info!("Controller is disabled because there is no private key");
            return Ok(Started::Skipped);
        }
        let read = |path: &str| {
            let path = path.to_owned();
            async move { tokio::fs::read(&path).await.map_err(|e| RestError::other(format!("error reading {path}: {e}"))) }
        };
        let signer = TokenSigner::new(&read(&settings.service_account_key).await?).map_err(RestError::other)?;
        let root_ca = if settings.root_ca_file.is_empty() { None } else { Some(read(&settings.root_ca_file).await?) };
        let accounts = cx.informer::<ServiceAccount>();
        let secrets = cx.informer_in::<Secret>(Scope { fields: Some(format!("type={TYPE}")), ..Scope::default() });
        let queue: Queue<Key> = Queue::new("serviceaccount_tokens_secret");
        // The process's own identity: this controller makes what other identities need.
        let executor =
            Executor { rest: cx.own_rest(), ..cx.executor("token-controller", "serviceaccount-token-controller") };
        let this = Arc::new(Tokens { executor, accounts: accounts.store(), secrets: secrets.store(), signer, root_ca });
        let wake = queue.clone();
        secrets.add_handler(move |event: &Event<Secret>| wake.add(Key::of(&event.object().metadata)));
        let (wake, all) = (queue.clone(), secrets.store());
        accounts.add_handler(move |event: &Event<ServiceAccount>| {
            let account = event.object();
            if matches!(event, Event::Updated { .. }) {
                return;
            }
            for secret in all.list_namespace(object::namespace(&account.metadata)) {
                if object::annotation(&secret.metadata, ACCOUNT) == account.metadata.name.as_deref() {
                    wake.add(Key::of(&secret.metadata));
                }
            }
        });
        let workers = settings.workers.service_account_token;
        worker::run(cx, "serviceaccount-token", workers, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

impl Tokens {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(secret) = self.secrets.get(&key.namespace, &key.name) else { return Ok(None) };
        let Some(name) = object::annotation(&secret.metadata, ACCOUNT) else { return Ok(None) };
        let mut account = self.accounts.get(&key.namespace, name);
        if account.is_none() {
            // A secret must not be removed on the word of a cache.
            let path = format!("/api/v1/namespaces/{}/serviceaccounts/{name}", key.namespace);
            account = match self.executor.rest.get(&path).await {
                Ok(v) => Some(Arc::new(from_tree(&v).map_err(RestError::other)?)),
                Err(e) if e.not_found() => None,
                Err(e) => return Err(e),
            };
        }
        let Some(action) = plan::plan(&secret, account.as_deref(), self.root_ca.as_deref(), &self.signer) else {
            return Ok(None);
        };
        self.executor.one(action).await.map(|()| None)
    }
}
