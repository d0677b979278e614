//! Keeps a service account named default in every active namespace. Answers for upstream's `ServiceAccountsController`.
//!
//! In: namespaces and service accounts. Out: accounts made, none ever changed.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use crate::engine::action::Action;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::object::{self, Key};
use crate::engine::owned;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

const NAME: &str = "default";

struct Accounts {
    executor: Executor,
    namespaces: Store<Namespace>,
    accounts: Store<ServiceAccount>,
}

/// Wire the service account controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let (namespaces, accounts) = (cx.informer::<Namespace>(), cx.informer::<ServiceAccount>());
        let queue: Queue<Key> = Queue::new("serviceaccount");
        let this = Arc::new(Accounts {
            executor: cx.executor("service-account-controller", "serviceaccount-controller"),
            namespaces: namespaces.store(),
            accounts: accounts.store(),
        });
        owned::watch(&namespaces, &queue);
        let wake = queue.clone();
        accounts.add_handler(move |event: &Event<ServiceAccount>| {
            if let Event::Deleted(account) = event
                && object::name(&account.metadata) == NAME
            {
                wake.add(Key::new("", object::namespace(&account.metadata)));
            }
        });
        worker::run(cx, "serviceaccount", 1, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

/// Reports whether content may still be put into a namespace.
#[must_use]
pub fn active(namespace: &Namespace) -> bool {
    let phase = namespace.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Active");
    phase == "Active" && !object::deleting(&namespace.metadata)
}

impl Accounts {
    async fn sync(&self, key: &Key) -> Synced {
        let wanted = self.namespaces.get("", &key.name).is_some_and(|n| active(&n));
        if !wanted || self.accounts.get(&key.name, NAME).is_some() {
            return Ok(None);
        }
        let account = ServiceAccount {
            metadata: ObjectMeta {
                name: Some(NAME.into()),
                namespace: Some(key.name.clone()),
                ..ObjectMeta::default()
            },
            ..ServiceAccount::default()
        };
        match self.executor.one(Action::create(&account)).await {
            Err(e) if e.already_exists() || e.namespace_terminating() => Ok(None),
            other => other.map(|()| None),
        }
    }
}
