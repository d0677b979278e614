//! ResourceQuota: what a namespace uses stays within what it may. The usage in a quota's status is raised before the
//! object is stored, under the quota's revision, so that requests racing each other cannot both get the last bit.
//! The controller lowers it again, and repairs it.

mod scopes;
mod usage;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;
use shared::status::Status;

use super::resource_list::{self as list, List};
use super::{Attributes, Error, Operation, Plugin};
use crate::access::tree;
use crate::api::{Api, Reader};
use crate::bootstrap::server_user;
pub(super) use scopes::best_effort;

/// Attempts to raise a quota that others change meanwhile.
const ROUNDS: usize = 10;
/// Namespaces whose queues are remembered.
const QUEUES: usize = 1024;

/// The plugin.
pub struct ResourceQuota {
    reader: Arc<dyn Reader>,
    api: Api,
    /// What may only be used where a quota speaks of it.
    limited: Vec<Value>,
    /// Requests of one namespace raise its quotas one after the other.
    queues: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl ResourceQuota {
    /// Reads quotas from the cache and raises them in storage.
    pub fn new(reader: Arc<dyn Reader>, api: Api, configuration: &Value) -> Result<Self, Error> {
        let limited = tree::list(configuration, "/limitedResources").to_vec();
        if let Some(at) = limited.iter().position(|l| tree::text(l, "/resource").is_empty()) {
            return Err(Error::Configuration(format!("limitedResources[{at}].resource: Required value")));
        }
        Ok(Self { reader, api, limited, queues: Mutex::default() })
    }

    fn queue(&self, namespace: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut queues = self.queues.lock();
        if queues.len() > QUEUES {
            queues.retain(|_, q| Arc::strong_count(q) > 1);
        }
        queues.entry(namespace.to_owned()).or_default().clone()
    }
}

#[async_trait]
impl Plugin for ResourceQuota {
    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        if a.namespace.is_empty() || !usage::counts(a) {
            return Ok(());
        }
        let Some(object) = a.object() else { return Ok(()) };
        let quotas = self.reader.list("", "resourcequotas", Some(a.namespace));
        if quotas.is_empty() && self.limited.is_empty() {
            return Ok(());
        }
        let group = a.resource.group.as_ref();
        let plural = a.resource.plural.as_ref();
        let new = usage::of(group, plural, object);
        let old = a.old_object.filter(|_| a.operation == Operation::Update).map(|o| usage::of(group, plural, o));
        let mut asked = old.as_ref().map_or_else(|| new.clone(), |old| list::subtract(&new, old));
        if a.operation == Operation::Update {
            // What shrinks is the controller's to give back.
            asked.retain(|_, q| q.sign() > 0);
            if asked.is_empty() {
                return Ok(());
            }
        }
        self.demand_cover(a, object, &asked, &quotas)?;
        let mut plan = Vec::new();
        for quota in quotas {
            if let Some(names) = concerned(&quota, group, plural, object) {
                if a.operation == Operation::Create
                    && let Some(missing) = usage::unspecified(group, plural, object, &names)
                {
                    return Err(a.forbidden(format!("failed quota: {}: must specify {missing}", tree::name(&quota))));
                }
                plan.push(quota);
            }
        }
        if plan.is_empty() {
            return Ok(());
        }
        let queue = self.queue(a.namespace);
        let _turn = queue.lock().await;
        // All of them must have room before one is raised.
        for quota in &mut plan {
            if let Ok(fresh) = self.api.get("", "resourcequotas", a.namespace, tree::name(quota)).await {
                *quota = Arc::new(fresh);
            }
            raise(quota, group, plural, object, &asked).map_err(|why| a.forbidden(why))?;
        }
        if a.dry_run {
            return Ok(());
        }
        for quota in plan {
            self.store(a, quota, &asked).await?;
        }
        Ok(())
    }
}

impl ResourceQuota {
    /// Refuses what is limited by the configuration where no quota covers it.
    fn demand_cover(
        &self,
        a: &Attributes<'_>,
        object: &Value,
        asked: &List,
        quotas: &[Arc<Value>],
    ) -> Result<(), Status> {
        let (group, plural) = (a.resource.group.as_ref(), a.resource.plural.as_ref());
        let about = |l: &&Value| tree::text(l, "/apiGroup") == group && tree::text(l, "/resource") == plural;
        let limited: Vec<&Value> = self.limited.iter().filter(about).collect();
        if limited.is_empty() {
            return Ok(());
        }
        let parts: Vec<String> = limited.iter().flat_map(|l| tree::strings(l, "/matchContains")).collect();
        let named = asked.keys().filter(|name| parts.iter().any(|part| name.contains(part.as_str())));
        let covered: BTreeSet<String> =
            quotas.iter().filter_map(|q| concerned(q, group, plural, object)).flatten().collect();
        let open: Vec<&str> = named.filter(|n| !covered.contains(*n)).map(String::as_str).collect();
        if !open.is_empty() {
            return Err(a.forbidden(format!("insufficient quota to consume: {}", open.join(","))));
        }
        let wanted: Vec<Value> = limited.iter().flat_map(|l| tree::list(l, "/matchScopes")).cloned().collect();
        let mut missing = Vec::new();
        for scope in wanted {
            let alone = serde_json::json!({"spec": {"scopeSelector": {"matchExpressions": [scope]}}});
            let names_it = |q: &Arc<Value>| {
                scopes::matches(q, group, plural, object) && scopes::names(q, tree::text(&scope, "/scopeName"))
            };
            if scopes::matches(&alone, group, plural, object) && !quotas.iter().any(names_it) {
                missing.push(scopes::describe(&scope));
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(a.forbidden(format!("insufficient quota to match these scopes: [{}]", missing.join(" "))))
    }

    async fn store(&self, a: &Attributes<'_>, mut quota: Arc<Value>, asked: &List) -> Result<(), Status> {
        let (group, plural) = (a.resource.group.as_ref(), a.resource.plural.as_ref());
        let object = a.object().unwrap_or(super::NOTHING);
        for _ in 0..ROUNDS {
            let Some(raised) = raise(&quota, group, plural, object, asked).map_err(|why| a.forbidden(why))? else {
                return Ok(());
            };
            match self.api.update(&server_user(), "", "resourcequotas", "status", raised).await {
                Ok(_) => return Ok(()),
                Err(status) if status.is_conflict() => {}
                Err(status) if status.is_not_found() => return Ok(()),
                Err(status) => return Err(status),
            }
            match self.api.get("", "resourcequotas", a.namespace, tree::name(&quota)).await {
                Ok(fresh) => quota = Arc::new(fresh),
                Err(status) if status.is_not_found() => return Ok(()),
                Err(status) => return Err(status),
            }
        }
        Err(a.forbidden(format!("failed quota: {}: status update failed, please try again", tree::name(&quota))))
    }
}

/// The limits of a quota that an object counts towards, if there are any.
fn concerned(quota: &Value, group: &str, plural: &str, object: &Value) -> Option<BTreeSet<String>> {
    if !scopes::matches(quota, group, plural, object) {
        return None;
    }
    let hard = list::read(quota, "/status/hard");
    let names: BTreeSet<String> = list::names(&hard).into_iter().filter(|n| usage::limits(group, plural, n)).collect();
    (!names.is_empty()).then_some(names)
}

/// The quota with the request added to its usage; `None` when it does not count, an error when there is no room.
fn raise(quota: &Value, group: &str, plural: &str, object: &Value, asked: &List) -> Result<Option<Value>, String> {
    let Some(names) = concerned(quota, group, plural, object) else { return Ok(None) };
    let name = tree::name(quota);
    let (hard, used) = (list::read(quota, "/status/hard"), list::read(quota, "/status/used"));
    let unknown: Vec<&str> = names.iter().filter(|n| !used.contains_key(*n)).map(String::as_str).collect();
    if !unknown.is_empty() {
        return Err(format!("status unknown for quota: {name}, resources: {}", unknown.join(",")));
    }
    let asked = list::mask(asked, &names);
    if asked.is_empty() {
        return Ok(None);
    }
    let total = list::add(&used, &asked);
    let over = list::exceeding(&list::mask(&total, &list::names(&asked)), &hard);
    if !over.is_empty() {
        let of = |l: &List| list::describe(&list::mask(l, &over));
        return Err(format!(
            "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
            of(&asked),
            of(&used),
            of(&hard)
        ));
    }
    let mut raised = quota.clone();
    *tree::field(&mut raised, &["status", "used"]) = list::write(&total);
    Ok(Some(raised))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::testing::{Fixed, Write};
    use serde_json::json;

    fn cluster(hard: &Value, used: &Value, spec: &Value) -> Arc<Fixed> {
        let cluster = Arc::new(Fixed::default());
        let mut quota = json!({"metadata": {"name": "rq", "namespace": "e", "resourceVersion": "5"}, "spec": {}, "status": {"hard": hard, "used": used}});
        if let Some(spec) = spec.as_object() {
            quota["spec"] = json!(spec);
        }
        cluster.put("", "resourcequotas", quota);
        cluster
    }

    async fn create(cluster: &Arc<Fixed>, plural: &str, object: Value) -> Result<(), String> {
        let plugin = ResourceQuota::new(cluster.clone(), cluster.api(), &Value::Null).expect("no configuration");
        Write::create("", plural, "e", object).validate(&plugin).await.map(drop).map_err(|s| s.message)
    }

    fn used(cluster: &Arc<Fixed>) -> Value {
        cluster.get("", "resourcequotas", "e", "rq").expect("there")["status"]["used"].clone()
    }

    fn pod(requests: Value) -> Value {
        json!({"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}})
    }

    #[tokio::test]
    async fn upstreams_refusals() {
        let counts = cluster(&json!({"count/secrets": "1"}), &json!({"count/secrets": "1"}), &json!(null));
        assert_eq!(
            create(&counts, "secrets", json!({"metadata": {"name": "x"}})).await,
            Err("secrets \"x\" is forbidden: exceeded quota: rq, requested: count/secrets=1, used: count/secrets=1, limited: count/secrets=1".into())
        );
        let cpu = cluster(&json!({"requests.cpu": "1"}), &json!({"requests.cpu": "0"}), &json!(null));
        assert_eq!(
            create(&cpu, "pods", pod(json!({}))).await,
            Err("pods \"x\" is forbidden: failed quota: rq: must specify requests.cpu for: c".into())
        );
        assert_eq!(
            create(&cpu, "pods", pod(json!({"cpu": "2"}))).await,
            Err("pods \"x\" is forbidden: exceeded quota: rq, requested: requests.cpu=2, used: requests.cpu=0, limited: requests.cpu=1".into())
        );
    }

    #[tokio::test]
    async fn usage_is_raised_and_the_last_bit_goes_once() {
        let cluster = cluster(
            &json!({"pods": "2", "requests.cpu": "1"}),
            &json!({"pods": "0", "requests.cpu": "0"}),
            &json!(null),
        );
        assert_eq!(create(&cluster, "pods", pod(json!({"cpu": "600m"}))).await, Ok(()));
        assert_eq!(used(&cluster), json!({"pods": "1", "requests.cpu": "600m"}));
        assert!(create(&cluster, "pods", pod(json!({"cpu": "600m"}))).await.is_err());
        assert_eq!(used(&cluster), json!({"pods": "1", "requests.cpu": "600m"}), "a refused request takes nothing");
        assert_eq!(create(&cluster, "pods", pod(json!({"cpu": "400m"}))).await, Ok(()));
        assert_eq!(used(&cluster), json!({"pods": "2", "requests.cpu": "1"}));
    }

    #[tokio::test]
    async fn a_dry_run_takes_nothing() {
        let cluster = cluster(&json!({"secrets": "5"}), &json!({"secrets": "0"}), &json!(null));
        let plugin = ResourceQuota::new(cluster.clone(), cluster.api(), &Value::Null).expect("no configuration");
        let write = Write::create("", "secrets", "e", json!({"metadata": {"name": "x"}})).dry();
        assert!(write.validate(&plugin).await.is_ok());
        assert_eq!(used(&cluster), json!({"secrets": "0"}));
    }

    #[tokio::test]
    async fn scopes_choose_the_pods() {
        let spec = json!({"scopes": ["BestEffort"]});
        let cluster = cluster(&json!({"pods": "0"}), &json!({"pods": "0"}), &spec);
        assert!(create(&cluster, "pods", pod(json!({}))).await.is_err());
        assert_eq!(create(&cluster, "pods", pod(json!({"cpu": "1"}))).await, Ok(()));
    }

    #[tokio::test]
    async fn what_is_limited_needs_a_quota() {
        let pod = json!({"metadata": {"name": "x"}, "spec": {"priorityClassName": "high", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}});
        let scope = json!({"scopeName": "PriorityClass", "operator": "In", "values": ["high"]});
        let configuration = |limit: Value| json!({"limitedResources": [limit]});
        let by_name = configuration(json!({"resource": "pods", "matchContains": ["cpu"]}));
        let by_scope = configuration(json!({"resource": "pods", "matchScopes": [scope]}));
        let empty = Arc::new(Fixed::default());
        let cpu =
            cluster(&json!({"cpu": "5", "requests.cpu": "5"}), &json!({"cpu": "0", "requests.cpu": "0"}), &json!(null));
        let scoped = cluster(
            &json!({"pods": "5"}),
            &json!({"pods": "0"}),
            &json!({"scopeSelector": {"matchExpressions": [scope]}}),
        );
        for (cluster, configuration, want) in [
            (&empty, &by_name, Err("pods \"x\" is forbidden: insufficient quota to consume: cpu,requests.cpu")),
            (&cpu, &by_name, Ok(())),
            (
                &cpu,
                &by_scope,
                Err("pods \"x\" is forbidden: insufficient quota to match these scopes: [{PriorityClass In [high]}]"),
            ),
            (&scoped, &by_scope, Ok(())),
        ] {
            let plugin = ResourceQuota::new(cluster.clone(), cluster.api(), configuration).expect("configured");
            let got = Write::create("", "pods", "e", pod.clone()).validate(&plugin).await;
            assert_eq!(got.map(drop).map_err(|s| s.message), want.map_err(str::to_owned), "{configuration}");
        }
    }

    #[tokio::test]
    async fn only_growth_is_asked_for_on_update() {
        let cluster = cluster(&json!({"services.nodeports": "1"}), &json!({"services.nodeports": "0"}), &json!(null));
        let plugin = ResourceQuota::new(cluster.clone(), cluster.api(), &Value::Null).expect("no configuration");
        let service = |kind: &str| json!({"metadata": {"name": "s"}, "spec": {"type": kind, "ports": [{"port": 1}]}});
        let update = |new: &str, old: &str| Write::update("", "services", "", "s", service(new), service(old));
        assert!(update("NodePort", "ClusterIP").validate(&plugin).await.is_ok());
        assert_eq!(used(&cluster), json!({"services.nodeports": "1"}));
        assert!(update("ClusterIP", "NodePort").validate(&plugin).await.is_ok());
        assert!(update("NodePort", "ClusterIP").validate(&plugin).await.is_err());
    }
}
