//! ResourceQuota: what a namespace uses stays within what it may. The usage in a quota's status is raised before the
//! object is stored, under the quota's revision, so that requests racing each other cannot both get the last bit.
//! The controller lowers it again, and repairs it. Answers for upstream's `pkg/admission/plugin/resourcequota`
//! (`quotaEvaluator`, `CheckRequest`).

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
use crate::api::{Api, Reader};
use crate::machinery::identity::server_user;
use crate::machinery::tree;
use crate::registry::core::resource_quota::RESOURCE_QUOTAS;
pub(super) use scopes::best_effort;

/// Attempts to raise a quota that others change meanwhile.
const ROUNDS: usize = 10;
/// Namespaces whose queues are remembered.
const QUEUES: usize = 1024;

/// The plugin.
pub(super) struct ResourceQuota {
    reader: Arc<dyn Reader>,
    api: Api,
    /// Resources that need a quota that covers them (`limitedResources`).
    limited: Vec<Value>,
    /// Requests of one namespace raise its quotas one after the other.
    queues: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl ResourceQuota {
    /// Reads quotas from the cache and raises them in storage.
    pub(super) fn new(reader: Arc<dyn Reader>, api: Api, configuration: &Value) -> Result<Self, Error> {
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
        let quotas = self.reader.list(RESOURCE_QUOTAS, Some(a.namespace));
        if quotas.is_empty() && self.limited.is_empty() {
            return Ok(());
        }
        let kind = EvaluatedObject { group: a.resource.group.as_ref(), plural: a.resource.plural.as_ref(), object };
        let mut plan = Vec::new();
        for quota in &quotas {
            let Some(names) = concerned(quota, kind) else { continue };
            let name = tree::name(quota);
            if let Some(missing) = usage::unspecified(kind.group, kind.plural, object, &names) {
                return Err(a.forbidden(format!("failed quota: {name}: must specify {missing}")));
            }
            check_counted(quota, &names).map_err(|why| a.forbidden(why.to_string()))?;
            plan.push(quota.clone());
        }
        let asked = UsageRequest::of(a, kind);
        let concerned = !plan.is_empty();
        plan.retain(|quota| !asked.of_quota(quota).is_empty());
        if plan.is_empty() && (concerned || asked.more.is_empty()) {
            return Ok(());
        }
        self.demand_cover(a, kind, &quotas)?;
        if plan.is_empty() {
            return Ok(());
        }
        let queue = self.queue(a.namespace);
        let _turn = queue.lock().await;
        // All of them must have room before one is raised.
        for quota in &mut plan {
            if let Ok(fresh) = self.api.get(RESOURCE_QUOTAS, a.namespace, tree::name(quota)).await {
                *quota = Arc::new(fresh);
            }
            raise(quota, kind, &asked).map_err(|why| a.forbidden(why.to_string()))?;
        }
        if a.dry_run {
            return Ok(());
        }
        for quota in plan {
            self.store(a, kind, quota, &asked).await?;
        }
        Ok(())
    }
}

impl ResourceQuota {
    /// Refuses what is limited by the configuration where no quota covers it.
    fn demand_cover(&self, a: &Attributes<'_>, kind: EvaluatedObject<'_>, quotas: &[Arc<Value>]) -> Result<(), Status> {
        let EvaluatedObject { group, plural, object } = kind;
        let about = |l: &&Value| tree::text(l, "/apiGroup") == group && tree::text(l, "/resource") == plural;
        let parts = self.limited.iter().filter(about).flat_map(|l| tree::strings(l, "/matchContains"));
        let parts: Vec<String> = parts.collect();
        let used = kind.usage();
        let named = used.iter().filter(|(name, q)| q.sign() > 0 && parts.iter().any(|part| name.contains(part)));
        let covered: BTreeSet<String> = quotas.iter().filter_map(|q| concerned(q, kind)).flatten().collect();
        let open: Vec<&str> = named.map(|(n, _)| n.as_str()).filter(|n| !covered.contains(*n)).collect();
        if !open.is_empty() {
            return Err(a.forbidden(format!("insufficient quota to consume: {}", open.join(","))));
        }
        // Scopes are not asked which resource they were written for.
        let mut missing = Vec::new();
        for wanted in self.limited.iter().flat_map(|l| tree::list(l, "/matchScopes")) {
            let scope = scopes::QuotaScope::of(wanted);
            if scopes::is_in(&scope, group, plural, object)
                && !quotas.iter().any(|q| scopes::covers(q, scope.name, group, plural, object))
            {
                missing.push(scopes::describe(wanted));
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        // An error that upstream never classified.
        Err(Status::unknown(&format!("insufficient quota to match these scopes: [{}]", missing.join(" "))))
    }

    async fn store(
        &self,
        a: &Attributes<'_>,
        kind: EvaluatedObject<'_>,
        mut quota: Arc<Value>,
        asked: &UsageRequest<'_>,
    ) -> Result<(), Status> {
        for _ in 0..ROUNDS {
            let Some(raised) = raise(&quota, kind, asked).map_err(|why| a.forbidden(why.to_string()))? else {
                return Ok(());
            };
            match self.api.update(&server_user(), RESOURCE_QUOTAS, "status", raised).await {
                Ok(_) => return Ok(()),
                Err(status) if status.is_conflict() => {}
                Err(status) if status.is_not_found() => return Ok(()),
                Err(status) => return Err(status),
            }
            match self.api.get(RESOURCE_QUOTAS, a.namespace, tree::name(&quota)).await {
                Ok(fresh) => quota = Arc::new(fresh),
                Err(status) if status.is_not_found() => return Ok(()),
                Err(status) => return Err(status),
            }
        }
        Err(a.forbidden(format!("failed quota: {}: status update failed, please try again", tree::name(&quota))))
    }
}

/// An object and what it is.
#[derive(Clone, Copy)]
struct EvaluatedObject<'a> {
    group: &'a str,
    plural: &'a str,
    object: &'a Value,
}

impl EvaluatedObject<'_> {
    fn usage(&self) -> List {
        usage::usage_of(self.group, self.plural, self.object)
    }
}

/// Usage of a request.
struct UsageRequest<'a> {
    /// Whole usage of the object.
    all: List,
    /// Increase over the stored object; the quota controller returns decreases.
    more: List,
    /// Stored object of an update: quotas that it did not match are charged the whole usage.
    before: Option<EvaluatedObject<'a>>,
    /// Quotas follow what is written to a status; they do not refuse it.
    follows: bool,
}

impl<'a> UsageRequest<'a> {
    fn of(a: &Attributes<'a>, kind: EvaluatedObject<'a>) -> Self {
        let positive = |mut list: List| {
            list.retain(|_, q| q.sign() > 0);
            list
        };
        let before =
            a.old_object.filter(|_| a.operation == Operation::Update).map(|object| EvaluatedObject { object, ..kind });
        let all = kind.usage();
        let more = before.map_or_else(|| all.clone(), |before| list::subtract(&all, &before.usage()));
        Self { all: positive(all), more: positive(more), before, follows: a.subresource == "status" }
    }

    /// Usage that one quota is charged.
    fn of_quota(&self, quota: &Value) -> &List {
        if self.before.is_some_and(|before| concerned(quota, before).is_none()) { &self.all } else { &self.more }
    }
}

/// The limits of a quota that an object counts towards, if there are any.
fn concerned(quota: &Value, kind: EvaluatedObject<'_>) -> Option<BTreeSet<String>> {
    let EvaluatedObject { group, plural, object } = kind;
    if !scopes::matches(quota, group, plural, object) {
        return None;
    }
    let hard = list::read(quota, "/status/hard");
    let names: BTreeSet<String> = list::names(&hard).into_iter().filter(|n| usage::limits(group, plural, n)).collect();
    (!names.is_empty()).then_some(names)
}

/// Refusal of a request by a quota.
#[derive(Debug, thiserror::Error)]
enum QuotaError {
    /// The quota controller has not counted these resources yet.
    #[error("status unknown for quota: {quota}, resources: {resources}")]
    Uncounted {
        /// Name of the quota.
        quota: String,
        /// The resources.
        resources: String,
    },
    /// There is no room for these amounts.
    #[error("exceeded quota: {quota}, requested: {requested}, used: {used}, limited: {limited}")]
    Exceeded {
        /// Name of the quota.
        quota: String,
        /// Amounts of the request.
        requested: String,
        /// Amounts in use.
        used: String,
        /// Limits.
        limited: String,
    },
}

/// Refuses a request for resources that the quota controller has not counted yet.
fn check_counted(quota: &Value, names: &BTreeSet<String>) -> Result<(), QuotaError> {
    let used = list::read(quota, "/status/used");
    if names.iter().all(|n| used.contains_key(n)) {
        return Ok(());
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Err(QuotaError::Uncounted { quota: tree::name(quota).to_owned(), resources: names.join(",") })
}

/// The quota with the request added to its usage; `None` when it does not count, an error when there is no room.
fn raise(quota: &Value, kind: EvaluatedObject<'_>, asked: &UsageRequest<'_>) -> Result<Option<Value>, QuotaError> {
    let Some(names) = concerned(quota, kind) else { return Ok(None) };
    check_counted(quota, &names)?;
    let (hard, used) = (list::read(quota, "/status/hard"), list::read(quota, "/status/used"));
    let more = list::mask(asked.of_quota(quota), &names);
    if more.is_empty() {
        return Ok(None);
    }
    let total = list::add(&used, &more);
    let over = list::exceeding(&list::mask(&total, &list::names(&more)), &hard);
    if !over.is_empty() && !asked.follows {
        let of = |l: &List| list::describe(&list::mask(l, &over));
        return Err(QuotaError::Exceeded {
            quota: tree::name(quota).to_owned(),
            requested: of(&more),
            used: of(&used),
            limited: of(&hard),
        });
    }
    let mut raised = quota.clone();
    *tree::field(&mut raised, &["status", "used"]) = list::write(&total);
    Ok(Some(raised))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::testing::{Fixed, Write};
    use crate::machinery::GroupResource;
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
        cluster.get(GroupResource::new("", "resourcequotas"), "e", "rq").expect("there")["status"]["used"].clone()
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
    async fn last_unit_of_quota_is_granted_once() {
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
    async fn dry_run_uses_no_quota() {
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
    async fn limited_resources_need_a_quota() {
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
        let elsewhere = cluster(
            &json!({"pods": "5"}),
            &json!({"pods": "0"}),
            &json!({"scopes": ["BestEffort"], "scopeSelector": {"matchExpressions": [scope]}}),
        );
        for (cluster, configuration, want) in [
            (&empty, &by_name, Err("pods \"x\" is forbidden: insufficient quota to consume: cpu,requests.cpu")),
            (&cpu, &by_name, Ok(())),
            (&cpu, &by_scope, Err("insufficient quota to match these scopes: [{PriorityClass In [high]}]")),
            (&scoped, &by_scope, Ok(())),
            // One scope of a quota is enough, also where the quota is about other pods.
            (&elsewhere, &by_scope, Ok(())),
        ] {
            let plugin = ResourceQuota::new(cluster.clone(), cluster.api(), configuration).expect("configured");
            let got = Write::create("", "pods", "e", pod.clone()).validate(&plugin).await;
            assert!(got.as_ref().err().is_none_or(|e| (e.code == 403) == e.message.contains("forbidden")), "{got:?}");
            assert_eq!(got.map(drop).map_err(|s| s.message), want.map_err(str::to_owned), "{configuration}");
        }
    }

    #[tokio::test]
    async fn update_is_charged_the_increase() {
        let cluster = cluster(&json!({"services.nodeports": "1"}), &json!({"services.nodeports": "0"}), &json!(null));
        let plugin = ResourceQuota::new(cluster.clone(), cluster.api(), &Value::Null).expect("no configuration");
        let service = |kind: &str| json!({"metadata": {"name": "s"}, "spec": {"type": kind, "ports": [{"port": 1}]}});
        let update = |new: &str, old: &str| Write::update("", "services", "", "s", service(new), service(old));
        assert!(update("NodePort", "ClusterIP").validate(&plugin).await.is_ok());
        assert_eq!(used(&cluster), json!({"services.nodeports": "1"}));
        assert!(update("ClusterIP", "NodePort").validate(&plugin).await.is_ok());
        assert!(update("NodePort", "ClusterIP").validate(&plugin).await.is_err());
    }

    /// Writes, one after the other, and what a quota says of each.
    async fn updates(
        cluster: &Arc<Fixed>,
        group: &str,
        plural: &str,
        sub: &'static str,
        writes: &[(Value, Value, &str)],
    ) {
        let plugin = ResourceQuota::new(cluster.clone(), cluster.api(), &Value::Null).expect("no configuration");
        for (new, old, want) in writes {
            let write = Write::update(group, plural, sub, "x", new.clone(), old.clone());
            let got = write.validate(&plugin).await.map(drop).map_err(|s| s.message).err().unwrap_or_default();
            assert_eq!(got, *want, "{new}");
        }
    }

    #[tokio::test]
    async fn pods_are_resized_within_their_quota() {
        let cluster = cluster(&json!({"requests.cpu": "2"}), &json!({"requests.cpu": "1"}), &json!(null));
        let pod = |requests: Value, status: Value| {
            let mut pod = pod(requests);
            pod["status"] = status;
            pod
        };
        let has = |cpu: &str| json!({"containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]});
        let failed = json!({"phase": "Failed"});
        let over = "pods \"x\" is forbidden: exceeded quota: rq, requested: requests.cpu=2, used: requests.cpu=1, limited: requests.cpu=2";
        let silent = "pods \"x\" is forbidden: failed quota: rq: must specify requests.cpu for: c";
        let one = || pod(json!({"cpu": "1"}), has("1"));
        updates(
            &cluster,
            "",
            "pods",
            "resize",
            &[
                (pod(json!({"cpu": "3"}), has("1")), one(), over),
                (pod(json!({}), has("1")), one(), silent),
                // What it has counts until it is given back.
                (pod(json!({"cpu": "1"}), has("2")), pod(json!({"cpu": "2"}), has("2")), ""),
                (pod(json!({"cpu": "9"}), failed.clone()), pod(json!({"cpu": "1"}), failed), ""),
                (pod(json!({"cpu": "2"}), has("1")), one(), ""),
            ],
        )
        .await;
        assert_eq!(used(&cluster), json!({"requests.cpu": "2"}));
    }

    #[tokio::test]
    async fn adding_a_deadline_moves_a_pod_between_scopes() {
        let scope = json!({"scopes": ["Terminating"]});
        let cluster = cluster(&json!({"pods": "1"}), &json!({"pods": "0"}), &scope);
        let ends = |deadline: Value| {
            let mut pod = pod(json!({}));
            pod["spec"]["activeDeadlineSeconds"] = deadline;
            pod
        };
        let over =
            "pods \"x\" is forbidden: exceeded quota: rq, requested: pods=1, used: pods=1, limited: pods=1".to_owned();
        let without = || ends(Value::Null);
        let writes = [
            (without(), without(), ""),
            (ends(json!(5)), without(), ""),
            (ends(json!(4)), ends(json!(5)), ""),
            (ends(json!(5)), without(), over.as_str()),
        ];
        updates(&cluster, "", "pods", "", &writes).await;
        assert_eq!(used(&cluster), json!({"pods": "1"}));
    }

    #[tokio::test]
    async fn devices_count_by_their_class() {
        let devices = "gpu.deviceclass.resource.k8s.io/devices";
        let cluster = cluster(&json!({devices: "4"}), &json!({devices: "1"}), &json!(null));
        let plugin = ResourceQuota::new(cluster.clone(), cluster.api(), &Value::Null).expect("no configuration");
        let claim = |count: i64| json!({"metadata": {"name": "x"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}}]}}});
        let mut got = Vec::new();
        for count in [4, 3] {
            let write = Write::create("resource.k8s.io", "resourceclaims", "e", claim(count));
            got.push(write.validate(&plugin).await.map(drop).map_err(|s| s.message).err());
        }
        let over = format!(
            "resourceclaims.resource.k8s.io \"x\" is forbidden: exceeded quota: rq, requested: {devices}=4, used: {devices}=1, limited: {devices}=4"
        );
        assert_eq!(got, [Some(over), None]);
        assert_eq!(used(&cluster), json!({devices: "4"}));
    }

    #[tokio::test]
    async fn claims_move_from_quota_to_quota() {
        let gold = json!({"scopeSelector": {"matchExpressions": [{"scopeName": "VolumeAttributesClass", "operator": "In", "values": ["gold"]}]}});
        let cluster = cluster(&json!({"persistentvolumeclaims": "1"}), &json!({"persistentvolumeclaims": "1"}), &gold);
        let claim = |class: &str| json!({"metadata": {"name": "x"}, "spec": {"volumeAttributesClassName": class}});
        let over = "persistentvolumeclaims \"x\" is forbidden: exceeded quota: rq, requested: persistentvolumeclaims=1, used: persistentvolumeclaims=1, limited: persistentvolumeclaims=1";
        updates(
            &cluster,
            "",
            "persistentvolumeclaims",
            "",
            &[
                (claim("gold"), claim("silver"), over),
                (claim("gold"), claim("gold"), ""),
                (claim("silver"), claim("gold"), ""),
            ],
        )
        .await;
    }

    #[tokio::test]
    async fn allocated_storage_counts_even_above_the_limit() {
        let cluster = cluster(&json!({"requests.storage": "5"}), &json!({"requests.storage": "4"}), &json!(null));
        let claim = |given: &str| json!({"metadata": {"name": "x"}, "spec": {"resources": {"requests": {"storage": "4"}}}, "status": {"allocatedResources": {"storage": given}}});
        updates(
            &cluster,
            "",
            "persistentvolumeclaims",
            "status",
            &[(claim("3"), claim("2"), ""), (claim("6500m"), claim("3"), "")],
        )
        .await;
        assert_eq!(used(&cluster), json!({"requests.storage": "7"}));
    }
}
