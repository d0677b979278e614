//! Bootstrap objects: RBAC roles and bindings, system priority classes, flow control. Written at start through the
//! in-process [`Api`](crate::api::Api), many at a time, only where something is missing; changes of administrators
//! stay. Answers for upstream's `pkg/registry/rbac/rest` (`PostStartHook`), `AddPostStartHook`.
//!
//! Default namespaces, the `kubernetes` service and its endpoints are not made here.

mod authentication_info;
mod identity_lease;
mod plan;
pub mod storage_versions;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};
use shared::authn::UserInfo;
use shared::flags::FeatureGates;
use shared::status::Status;

use crate::api::{Api, ServerContext};
use crate::authz::rbac::Rule;
use crate::backoff::Backoff;
use crate::machinery::GroupResource;
use crate::machinery::identity::server_user;
use crate::machinery::tree;
use crate::registry::core::namespace::NAMESPACES;
use crate::registry::flowcontrol::flow_schema::FLOW_SCHEMAS;
use crate::registry::flowcontrol::priority_level_configuration::PRIORITY_LEVEL_CONFIGURATIONS;
use crate::registry::rbac::cluster_role::CLUSTER_ROLES;
use crate::registry::rbac::cluster_role_binding::CLUSTER_ROLE_BINDINGS;
use crate::registry::rbac::role::ROLES;
use crate::registry::rbac::role_binding::ROLE_BINDINGS;
use crate::registry::scheduling::priority_class::PRIORITY_CLASSES;
use plan::ObjectAction;
pub use plan::flow_control;
pub use storage_versions::StorageVersions;

const RBAC: &str = "poststarthook/rbac/bootstrap-roles";
const PRIORITY: &str = "poststarthook/scheduling/bootstrap-system-priority-classes";
const FLOW: &str = "poststarthook/priority-and-fairness-config-producer";

/// The names of the readiness checks, RBAC's only when RBAC is on.
pub const HOOKS: [&str; 3] = [RBAC, PRIORITY, FLOW];

/// Writes under way at once.
const WRITES: usize = 32;
/// Between attempts.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Interval at which the objects of flow control are reconciled.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// A post-start hook that has not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not finished")]
pub struct HookUnfinished;

/// Progress of the post-start hooks.
#[derive(Debug)]
pub struct HookProgress {
    rbac: bool,
    done: [AtomicBool; HOOKS.len()],
}

impl HookProgress {
    fn new(rbac: bool) -> Self {
        Self { rbac, done: Default::default() }
    }

    /// The checks there are.
    pub fn hooks(&self) -> Vec<&'static str> {
        HOOKS.into_iter().filter(|h| self.rbac || *h != RBAC).collect()
    }

    /// Reports the result of a check: an error until its hook has finished.
    pub fn check(&self, hook: &str) -> Result<(), HookUnfinished> {
        let at = HOOKS.iter().position(|h| *h == hook);
        let done = at.is_none_or(|i| self.done[i].load(Ordering::Acquire) || (HOOKS[i] == RBAC && !self.rbac));
        if done { Ok(()) } else { Err(HookUnfinished) }
    }

    fn finish(&self, hook: &str) {
        if let Some(i) = HOOKS.iter().position(|h| *h == hook) {
            self.done[i].store(true, Ordering::Release);
        }
    }
}

/// The rules every node has, for the node authoriser.
pub fn node_rules(gates: &FeatureGates) -> Vec<Rule> {
    let roles = plan::rbac(gates).remove(CLUSTER_ROLES.plural).unwrap_or_default();
    roles.iter().find(|r| tree::name(r) == "system:node").map(Rule::list_of).unwrap_or_default()
}

/// Starts the work in the background.
pub fn start(cx: &ServerContext, rbac: bool, versions: Option<Arc<StorageVersions>>) -> Arc<HookProgress> {
    let progress = Arc::new(HookProgress::new(rbac));
    publish(cx);
    identity_lease::start(cx);
    if let Some(versions) = versions {
        storage_versions::start(cx, versions);
    }
    let gates = cx.flags.feature_gates();
    let jobs = [(RBAC, rbac), (PRIORITY, true), (FLOW, true)];
    for (hook, wanted) in jobs {
        if !wanted {
            continue;
        }
        let (api, progress, gates) = (cx.api.clone(), progress.clone(), gates.clone());
        cx.tasks.spawn_until(&cx.shutdown, hook, async move {
            until_done(&api, hook, &gates).await;
            progress.finish(hook);
            // Those of flow control are looked after for as long as the server runs.
            if hook != FLOW {
                return;
            }
            loop {
                tokio::time::sleep(LOOK_AGAIN).await;
                until_done(&api, hook, &gates).await;
            }
        });
    }
    progress
}

/// Tells other servers how users are told apart.
fn publish(cx: &ServerContext) {
    let (flags, api) = (cx.flags.clone(), cx.api.clone());
    cx.tasks.spawn_until(&cx.shutdown, "cluster-authentication-info", async move {
        authentication_info::run(&flags, &api, authentication_info::LOOK).await;
    });
}

/// Pauses between attempts that fail.
fn backoff() -> Backoff {
    Backoff::doubling(PAUSE, LONGEST_PAUSE)
}

async fn until_done(api: &Api, hook: &str, gates: &FeatureGates) {
    let mut backoff = backoff();
    loop {
        match reconcile(api, hook, gates).await {
            Ok(()) => return,
            Err(error) => tracing::warn!(hook, %error, "Failed to write bootstrap objects, will retry"),
        }
        backoff.wait().await;
    }
}

async fn reconcile(api: &Api, hook: &str, gates: &FeatureGates) -> Result<(), Status> {
    match hook {
        RBAC => {
            let wanted = plan::rbac(gates);
            let has_namespaces = async {
                for namespace in ["kube-system", "kube-public"] {
                    ensure_namespace(api, namespace).await?;
                }
                Ok(())
            };
            let cluster = reconcile_all(api, &wanted, &[CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS]);
            let (one, two) = tokio::join!(cluster, has_namespaces);
            one.and(two)?;
            reconcile_all(api, &wanted, &[ROLES, ROLE_BINDINGS]).await
        }
        PRIORITY => {
            let wanted = BTreeMap::from([(PRIORITY_CLASSES.plural.to_owned(), plan::priority_classes())]);
            reconcile_all(api, &wanted, &[PRIORITY_CLASSES]).await
        }
        _ => {
            let wanted = plan::flow_control();
            let resources = [PRIORITY_LEVEL_CONFIGURATIONS, FLOW_SCHEMAS];
            reconcile_all(api, &wanted, &resources).await?;
            remove_outdated(api, &wanted, &resources).await
        }
    }
}

async fn ensure_namespace(api: &Api, name: &str) -> Result<(), Status> {
    if api.get(NAMESPACES, "", name).await.is_ok() {
        return Ok(());
    }
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    match api.create(&server_user(), NAMESPACES, "", object).await {
        Err(status) if !status.is_already_exists() => Err(status),
        _ => Ok(()),
    }
}

async fn reconcile_all(
    api: &Api,
    wanted: &BTreeMap<String, Vec<Value>>,
    resources: &[GroupResource<'static>],
) -> Result<(), Status> {
    let mut steps = Vec::new();
    for resource in resources {
        let found: BTreeMap<(String, String), Value> = api
            .list(*resource, None)
            .await?
            .into_iter()
            .map(|o| ((tree::namespace(&o).to_owned(), tree::name(&o).to_owned()), o))
            .collect();
        for object in wanted.get(resource.plural).into_iter().flatten() {
            let key = (tree::namespace(object).to_owned(), tree::name(object).to_owned());
            let step = plan::step(*resource, object, found.get(&key));
            if step != ObjectAction::Keep {
                steps.push((*resource, step));
            }
        }
    }
    let user = server_user();
    let writes: Vec<BoxFuture<'_, Result<(), Status>>> =
        steps.into_iter().map(|(resource, step)| write(api, &user, resource, step).boxed()).collect();
    let mut outcomes = futures::stream::iter(writes).buffer_unordered(WRITES);
    let mut first_error = Ok(());
    while let Some(outcome) = outcomes.next().await {
        if first_error.is_ok() {
            first_error = outcome;
        }
    }
    first_error
}

/// Deletes what older programs made and this one does not want.
async fn remove_outdated(
    api: &Api,
    wanted: &BTreeMap<String, Vec<Value>>,
    resources: &[GroupResource<'static>],
) -> Result<(), Status> {
    for resource in resources {
        let wanted = wanted.get(resource.plural).map_or(&[][..], Vec::as_slice);
        for object in api.list(*resource, None).await?.iter().filter(|o| plan::outdated(wanted, o)) {
            let args = crate::api::DeleteArgs {
                resource_version: Some(tree::text(object, "/metadata/resourceVersion").to_owned()),
                ..crate::api::DeleteArgs::default()
            };
            match api.delete(&server_user(), *resource, "", tree::name(object), args).await {
                Err(status) if !status.is_not_found() && !status.is_conflict() => return Err(status),
                _ => {}
            }
        }
    }
    Ok(())
}

async fn write(api: &Api, user: &UserInfo, resource: GroupResource<'_>, step: ObjectAction) -> Result<(), Status> {
    let created = |object: Value| async move {
        let namespace = tree::namespace(&object).to_owned();
        match api.create(user, resource, &namespace, object).await {
            Err(status) if !status.is_already_exists() => Err(status),
            _ => Ok(()),
        }
    };
    match step {
        ObjectAction::Keep => Ok(()),
        ObjectAction::Create(object) => created(object).await,
        ObjectAction::Update(object) => api.update(user, resource, "", object).await.map(drop),
        ObjectAction::Replace(object) => {
            let (namespace, name) = (tree::namespace(&object).to_owned(), tree::name(&object).to_owned());
            api.delete(user, resource, &namespace, &name, crate::api::DeleteArgs::default()).await?;
            created(object).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::testing::Fixed;
    use crate::api::Reader as _;

    #[tokio::test]
    async fn an_empty_cluster_gets_everything_once() {
        let cluster = Arc::new(Fixed::default());
        let api = cluster.api();
        for hook in HOOKS {
            reconcile(&api, hook, &FeatureGates::default()).await.expect("written");
        }
        let count = |group: &str, plural: &str| cluster.list(GroupResource::new(group, plural), None).len();
        let rbac = crate::authz::rbac::GROUP;
        for (group, plural, wanted) in [
            (rbac, "clusterroles", 68),
            (rbac, "clusterrolebindings", 49),
            (rbac, "roles", 7),
            (rbac, "rolebindings", 7),
            ("scheduling.k8s.io", "priorityclasses", 2),
            (FLOW_SCHEMAS.group, "flowschemas", 11),
            (FLOW_SCHEMAS.group, "prioritylevelconfigurations", 8),
        ] {
            assert_eq!(count(group, plural), wanted, "{plural}");
        }
        let before = cluster.version(GroupResource::new("", ""));
        for hook in HOOKS {
            reconcile(&api, hook, &FeatureGates::default()).await.expect("nothing to do");
        }
        assert_eq!(cluster.version(GroupResource::new("", "")), before, "a second start writes nothing");
    }

    #[test]
    fn checks() {
        let progress = HookProgress::new(true);
        assert_eq!(progress.check(RBAC), Err(HookUnfinished));
        progress.finish(RBAC);
        assert_eq!(progress.check(RBAC), Ok(()));
        assert_eq!(HookProgress::new(false).check(RBAC), Ok(()));
        assert_eq!(HookProgress::new(false).hooks().len(), 2);
    }

    #[test]
    fn nodes_have_their_static_rules() {
        assert!(!node_rules(&FeatureGates::default()).is_empty());
    }
}
