//! Fills service account token secrets (the kind that is made by hand), removes those of accounts that are gone, and the
//! references of accounts to secrets that are gone. Answers for upstream's `TokensController`.

pub mod jwt;
pub mod plan;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use shared::client::path;
use shared::informer::{Event, Scope, Store};
use shared::metrics::Passage;
use shared::types::from_tree;
use shared::workqueue::Queue;

use self::jwt::TokenSigner;
use self::plan::{ACCOUNT, ACCOUNT_UID, TYPE};
use crate::engine::action::Action;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::object::{self, Key};
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

/// Attempts to remove a reference from an account that somebody else writes to.
const REMOVALS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// A secret and the account it is for, so that both are known when it is gone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct TokenKey {
    secret: Key,
    uid: String,
    account: String,
    /// Empty when the secret does not say.
    account_uid: String,
}

impl TokenKey {
    /// Of a secret that names an account.
    fn of(secret: &Secret) -> Option<Self> {
        let meta = &secret.metadata;
        let account = object::annotation(meta, ACCOUNT).filter(|name| !name.is_empty())?.to_owned();
        let account_uid = object::annotation(meta, ACCOUNT_UID).unwrap_or_default().to_owned();
        Some(Self { secret: Key::of(meta), uid: object::uid(meta).to_owned(), account, account_uid })
    }

    fn account_path(&self) -> Result<String, RestError> {
        let accounts = path::collection("v1", Some(&self.secret.namespace), "serviceaccounts");
        path::object(&accounts, &self.account).map_err(RestError::other)
    }

    fn is_of(&self, account: &ServiceAccount) -> bool {
        self.account_uid.is_empty() || self.account_uid == object::uid(&account.metadata)
    }
}

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
        let queue: Queue<TokenKey> = Queue::new("serviceaccount_tokens_secret");
        // The process's own identity: this controller makes what other identities need.
        let executor =
            Executor { rest: cx.own_rest(), ..cx.executor("token-controller", "serviceaccount-token-controller") };
        let this = Arc::new(Tokens { executor, accounts: accounts.store(), secrets: secrets.store(), signer, root_ca });
        let wake = queue.clone();
        secrets.add_handler(move |event: &Event<Secret>| {
            if let Some(key) = TokenKey::of(event.object()) {
                wake.add(key);
            }
        });
        let (wake, all) = (queue.clone(), secrets.store());
        let changes = Passage::new("serviceaccount_tokens_service");
        accounts.add_handler(move |event: &Event<ServiceAccount>| {
            let _under_way = changes.begin();
            let account = event.object();
            if matches!(event, Event::Updated { .. }) {
                return;
            }
            for secret in all.list_namespace(object::namespace(&account.metadata)) {
                if let Some(key) = TokenKey::of(&secret).filter(|key| key.account == object::name(&account.metadata)) {
                    wake.add(key);
                }
            }
        });
        let workers = settings.workers.service_account_token;
        worker::run(cx, "serviceaccount-token", workers, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

impl Tokens {
    async fn sync(&self, key: &TokenKey) -> Synced {
        let secret = self.secrets.get(&key.secret.namespace, &key.secret.name);
        let Some(secret) = secret.filter(|s| object::uid(&s.metadata) == key.uid) else {
            if let Err(error) = self.forget(key).await {
                tracing::warn!(secret = %key.secret, %error, "the account still refers to it");
            }
            return Ok(None);
        };
        let mut account = self.account(key);
        if account.is_none() {
            // A secret must not be removed on the word of a cache.
            account = match self.executor.rest.get(&key.account_path()?).await {
                Ok(v) => Some(Arc::new(from_tree(&v).map_err(RestError::other)?)),
                Err(e) if e.not_found() => None,
                Err(e) => return Err(e),
            };
        }
        let Some(action) = plan::plan(&secret, account.as_deref(), self.root_ca.as_deref(), &self.signer) else {
            return Ok(None);
        };
        match self.executor.one(action).await {
            // The cache will show it.
            Err(e) if e.conflict() || e.not_found() => Ok(None),
            other => other.map(|()| None),
        }
    }

    /// The account, as far as the cache knows it.
    fn account(&self, key: &TokenKey) -> Option<Arc<ServiceAccount>> {
        self.accounts.get(&key.secret.namespace, &key.account).filter(|a| key.is_of(a))
    }

    /// The account no longer refers to a secret that is gone.
    async fn forget(&self, key: &TokenKey) -> Result<(), RestError> {
        if self.account(key).is_none() {
            return Ok(());
        }
        let (rest, path) = (&self.executor.rest, key.account_path()?);
        let mut tried = 1;
        loop {
            let live = match rest.get(&path).await {
                Err(e) if e.not_found() => return Ok(()),
                other => from_tree::<ServiceAccount>(&other?).map_err(RestError::other)?,
            };
            let Some(account) = plan::without(&live, &key.account_uid, &key.secret.name) else { return Ok(()) };
            match self.executor.one(Action::update(&account)).await {
                Err(e) if e.not_found() => return Ok(()),
                Err(e) if e.conflict() && tried < REMOVALS => tokio::time::sleep(PAUSE).await,
                other => return other,
            }
            tried += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn secrets_and_whom_they_are_for() {
        for (annotations, want) in [
            (json!({}), None),
            (json!({ACCOUNT: ""}), None),
            (json!({ACCOUNT: "a"}), Some(("a", ""))),
            (json!({ACCOUNT: "a", ACCOUNT_UID: "u"}), Some(("a", "u"))),
        ] {
            let meta = json!({"name": "s", "namespace": "ns", "uid": "1", "annotations": annotations});
            let key = TokenKey::of(&serde_json::from_value(json!({"metadata": meta})).expect("secret"));
            let got = key.as_ref().map(|k| (k.account.as_str(), k.account_uid.as_str()));
            assert_eq!(got, want, "{annotations}");
        }
    }
}
