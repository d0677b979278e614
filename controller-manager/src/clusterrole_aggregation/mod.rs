//! Fills aggregated ClusterRoles with the rules of the roles they select. Answers for upstream's
//! `pkg/controller/clusterroleaggregation`.
//!
//! In: all cluster roles. Out: the rules of those with an aggregation rule are applied. [`plan`] says which rules; none
//! is ever made up.

pub mod plan;

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::rbac::v1::ClusterRole;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::object::Key;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

const WORKERS: usize = 5;

struct Aggregation {
    executor: Executor,
    roles: Store<ClusterRole>,
}

/// Wire ClusterRole aggregation.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let roles = cx.informer::<ClusterRole>();
        let queue: Queue<Key> = Queue::new("ClusterRoleAggregator");
        let this = Arc::new(Aggregation { executor: cx.executor(plan::MANAGER, plan::MANAGER), roles: roles.store() });
        let (wake, all) = (queue.clone(), roles.store());
        roles.add_handler(move |event: &Event<ClusterRole>| {
            // Any role may be part of any aggregate.
            let changed = event.object();
            if changed.aggregation_rule.is_some() {
                wake.add(Key::of(&changed.metadata));
            }
            for role in all.list().iter().filter(|r| r.aggregation_rule.is_some()) {
                wake.add(Key::of(&role.metadata));
            }
        });
        worker::run(cx, "clusterrole-aggregation", WORKERS, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

impl Aggregation {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(role) = self.roles.get("", &key.name) else { return Ok(None) };
        let Some(rules) = plan::plan(&role, &self.roles.list()) else { return Ok(None) };
        let (path, body) = plan::application(&role, &rules);
        self.executor.rest.apply(&path, &body).await.map(|_| None)
    }
}
