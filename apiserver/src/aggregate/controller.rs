//! Follows the API services: registers this server's own, checks those of others, and says in the directory what there
//! is. Answers for upstream's `kube-aggregator/pkg/apiserver` (`APIServiceRegistrationController`).
//!
//! One task. Checks of other servers run beside each other in it; what they bring is written as conditions.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};
use shared::status::Status;
use tokio::time::Instant;

use super::availability::{self};
use super::registrar::{ServiceAction, desired, steps};
use super::service::ApiService;
use super::{Aggregator, Backend, Directory, Discovered, GroupVersion, Remote, discovery};
use crate::api::{DeleteArgs, Source};
use crate::machinery::identity::server_user;
use crate::machinery::meta;
use crate::machinery::tree;
use crate::registry::api_services::{Condition, set};
use crate::registry::apiregistration::api_service::API_SERVICES;
use crate::registry::core::service::SERVICES;
use crate::registry::discovery::endpoint_slice::ENDPOINT_SLICES;
use crate::rows::Rows;

/// Changes that come together are looked at together.
const TOGETHER: Duration = Duration::from_millis(20);
/// A server is asked again after this time, without a reason.
const AGAIN: Duration = Duration::from_secs(30);
/// Shortest interval after a failure, doubled with each one up to [`AGAIN`].
const SOON: Duration = Duration::from_secs(5);
/// Pause after a failed write.
const PAUSE: Duration = Duration::from_millis(500);
/// Interval at start, where others wait for the result.
const AT_START: Duration = Duration::from_millis(50);
/// Writes under way at once.
const WRITES: usize = 32;

/// State of the checks of one server.
struct ServerCheck {
    /// Hash of the checked parts: a change makes the check due.
    of: u64,
    /// Condition of the last check: it is due again when somebody writes another.
    found: Option<Condition>,
    due: Instant,
    failures: u32,
    running: bool,
}

/// Result of a check.
struct CheckResult {
    name: String,
    condition: Condition,
    /// Discovery of the server; none when it did not respond.
    entry: Option<Value>,
}

/// The task's own state.
struct Controller {
    aggregator: Arc<Aggregator>,
    rows: Rows,
    services: BTreeMap<String, Arc<ApiService>>,
    remotes: BTreeMap<GroupVersion, Arc<Remote>>,
    found: BTreeMap<GroupVersion, Discovered>,
    checks: BTreeMap<String, ServerCheck>,
    running: FuturesUnordered<BoxFuture<'static, CheckResult>>,
    /// Versions of services and endpoint slices that were looked at.
    seen: (u64, u64),
    /// Rows that were registered, and whether that went well.
    registered: Option<u64>,
    first: bool,
}

impl Aggregator {
    /// Works until dropped; calls `ready` once this server's own API services are there. `defined` ends when the
    /// custom resources that are there are served.
    pub async fn run(self: Arc<Self>, rows: Rows, defined: impl Future<Output = ()>, ready: impl Fn()) {
        defined.await;
        let reader = self.reader.clone();
        let Some(source) = reader.source(API_SERVICES) else { return };
        let mut controller = Controller {
            aggregator: self,
            rows,
            services: BTreeMap::new(),
            remotes: BTreeMap::new(),
            found: BTreeMap::new(),
            checks: BTreeMap::new(),
            running: FuturesUnordered::new(),
            seen: (0, 0),
            registered: None,
            first: true,
        };
        reader.changed(API_SERVICES, u64::MAX).await;
        let mut seen = 0;
        loop {
            let version = reader.version(API_SERVICES);
            seen = controller.follow(source.as_ref(), seen);
            controller.register().await;
            controller.mark_local().await;
            controller.begin_checks().await;
            if !controller.first {
                ready();
            }
            controller.wait_for_change(version).await;
        }
    }
}

impl Aggregator {
    async fn write(&self, step: ServiceAction) -> Result<(), Status> {
        let (api, user) = (&self.api, server_user());
        let outcome = match step {
            ServiceAction::Create(wanted) => {
                let object = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                    "metadata": {"name": wanted.name(), "labels": wanted.labels()}, "spec": wanted.spec()});
                match api.create(&user, API_SERVICES, "", object).await {
                    Err(status) if status.is_already_exists() => Ok(()),
                    outcome => outcome.map(drop),
                }
            }
            ServiceAction::Update(wanted) => {
                let mut object = api.get(API_SERVICES, "", &wanted.name()).await?;
                object["spec"] = wanted.spec();
                for (key, value) in wanted.labels().as_object().into_iter().flatten() {
                    *tree::field(&mut object, &["metadata", "labels", key]) = value.clone();
                }
                api.update(&user, API_SERVICES, "", object).await.map(drop)
            }
            ServiceAction::Delete(name, uid) => {
                let args = DeleteArgs { uid: Some(uid), ..DeleteArgs::default() };
                api.delete(&user, API_SERVICES, "", &name, args).await
            }
        };
        match outcome {
            // Somebody else was faster: what is stored now is looked at next.
            Err(status) if status.is_conflict() || status.is_not_found() => Ok(()),
            outcome => outcome,
        }
    }

    /// Writes a condition unless it is there.
    async fn mark(&self, name: String, condition: Condition) -> Result<(), Status> {
        let api = &self.api;
        let mut object = match api.get(API_SERVICES, "", &name).await {
            Err(status) if status.is_not_found() => return Ok(()),
            outcome => outcome?,
        };
        if !set(&mut object, &condition, &meta::now()) {
            return Ok(());
        }
        match api.update(&server_user(), API_SERVICES, "status", object).await {
            Err(status) if status.is_conflict() || status.is_not_found() => Ok(()),
            outcome => outcome.map(drop),
        }
    }
}

impl Controller {
    /// Takes over what changed.
    fn follow(&mut self, source: &dyn Source, seen: u64) -> u64 {
        let news = source.changes(seen);
        if news.complete {
            let there: BTreeSet<&str> = news.objects.iter().map(|o| o.name.as_str()).collect();
            let gone: Vec<String> = self.services.keys().filter(|n| !there.contains(n.as_str())).cloned().collect();
            for name in gone {
                self.remove(&name);
            }
        }
        let changed = news.complete || !news.objects.is_empty();
        for change in news.objects {
            match change.object {
                None => self.remove(&change.name),
                Some(object) => self.apply_service(ApiService::read(&object)),
            }
        }
        if changed {
            self.publish();
        }
        news.version
    }

    fn remove(&mut self, name: &str) {
        let Some(service) = self.services.remove(name) else { return };
        self.remotes.remove(&service.key());
        self.found.remove(&service.key());
        self.checks.remove(name);
        // An error: it was never counted.
        let _ = self.aggregator.meters.unavailable.remove_label_values(&[name]);
    }

    fn apply_service(&mut self, service: ApiService) {
        let meters = &self.aggregator.meters;
        let unavailable = !service.is_available();
        meters.unavailable.with_label_values(&[&service.name]).set(f64::from(u8::from(unavailable)));
        let key = service.key();
        match &service.behind {
            None => {
                self.remotes.remove(&key);
                self.found.remove(&key);
                self.checks.remove(&service.name);
            }
            Some(behind) => {
                let known = self.remotes.get(&key).filter(|r| r.service.behind.as_ref() == Some(behind));
                let backend = match known {
                    Some(remote) => remote.backend.clone(),
                    None => {
                        let a = &self.aggregator;
                        Backend::new(behind, a).map(Arc::new).map_err(Arc::new)
                    }
                };
                self.remotes.insert(key, Arc::new(Remote { service: service.clone(), backend }));
            }
        }
        self.services.insert(service.name.clone(), Arc::new(service));
    }

    fn publish(&self) {
        let services = self.services.values().map(|s| (s.key(), s.clone())).collect();
        let directory = Directory { services, remotes: self.remotes.clone(), found: self.found.clone() };
        self.aggregator.directory.store(Arc::new(directory));
    }

    /// Brings this server's own API services in order when what is served changed.
    async fn register(&mut self) {
        let generation = self.rows.generation();
        // Also when nothing new is served: somebody may have changed what is kept as it is.
        let wanted = desired(&self.rows.all());
        let todo = steps(&wanted, self.services.values().map(AsRef::as_ref), self.first);
        let aggregator = self.aggregator.clone();
        let outcomes = each(todo.into_iter().map(|step| aggregator.write(step))).await;
        match outcomes.into_iter().find_map(Result::err) {
            None => {
                self.registered = Some(generation);
                self.first = false;
            }
            Some(error) => {
                tracing::warn!(%error, "Failed to register API services, will retry");
                self.registered = None;
            }
        }
    }

    /// Says of what is answered here that it is available.
    async fn mark_local(&mut self) {
        let local = Condition::local();
        let unmarked = self.services.values().filter(|s| s.behind.is_none() && !has_condition(s, &local));
        let names: Vec<String> = unmarked.map(|s| s.name.clone()).collect();
        let aggregator = self.aggregator.clone();
        let writes = names.into_iter().map(|name| aggregator.mark(name, local.clone()));
        for error in each(writes).await.into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "Failed to mark APIService as available");
        }
    }

    /// Starts the checks that are due.
    async fn begin_checks(&mut self) {
        if self.remotes.is_empty() {
            return;
        }
        let reader = self.aggregator.reader.clone();
        // Both have been read before anything is said to be missing.
        reader.changed(SERVICES, u64::MAX).await;
        reader.changed(ENDPOINT_SLICES, u64::MAX).await;
        self.seen = (reader.version(SERVICES), reader.version(ENDPOINT_SLICES));
        let now = Instant::now();
        for remote in self.remotes.values() {
            let (api, Some(behind)) = (&remote.service, &remote.service.behind) else { continue };
            let service = reader.get(SERVICES, &behind.namespace, &behind.name);
            let slices = availability::slices(reader.as_ref(), &behind.namespace, &behind.name);
            let of = fingerprint(api, service.as_deref(), &slices);
            let check = self.checks.entry(api.name.clone()).or_insert(ServerCheck {
                of: 0,
                found: None,
                due: now,
                failures: 0,
                running: false,
            });
            let agreed = check.found.as_ref().is_none_or(|found| has_condition(api, found));
            if check.running || (check.of == of && agreed && now < check.due) {
                continue;
            }
            (check.of, check.running) = (of, true);
            let verdict = availability::condition_from_objects(api, service.as_deref(), &slices);
            self.running.push(look_at(self.aggregator.clone(), remote.clone(), verdict).boxed());
        }
    }

    async fn finish(&mut self, done: CheckResult) {
        let Some(check) = self.checks.get_mut(&done.name) else { return };
        check.running = false;
        check.found = Some(done.condition.clone());
        check.failures = if done.condition.status == "True" { 0 } else { check.failures + 1 };
        let pause = match done.condition.reason {
            "FailedDiscoveryCheck" => SOON.saturating_mul(1 << (check.failures - 1).min(4)).min(AGAIN),
            _ => AGAIN,
        };
        check.due = Instant::now() + pause;
        let Some(service) = self.services.get(&done.name).cloned() else { return };
        let fresh = done.entry.is_some();
        let entry = match (done.entry, self.found.get(&service.key())) {
            (Some(entry), _) => Arc::new(entry),
            (None, Some(known)) => known.entry.clone(),
            (None, None) => Arc::new(json!({"version": service.version})),
        };
        self.found.insert(service.key(), Discovered { entry, fresh });
        // Here it counts at once; others learn of it from the condition.
        let condition = &done.condition;
        let mut judged = (*service).clone();
        judged.available = Some((condition.status.to_owned(), condition.reason.to_owned(), condition.message.clone()));
        self.apply_service(judged);
        self.publish();
        if has_condition(&service, &done.condition) {
            return;
        }
        if done.condition.status != "True" && service.available.as_ref().is_none_or(|a| a.0 == "True") {
            let labels = [done.name.as_str(), done.condition.reason];
            self.aggregator.meters.unavailable_total.with_label_values(&labels).inc();
        }
        let aggregator = self.aggregator.clone();
        if let Err(error) = aggregator.mark(done.name.clone(), done.condition).await {
            tracing::warn!(%error, service = done.name, "Failed to update APIService status");
            if let Some(check) = self.checks.get_mut(&done.name) {
                check.due = Instant::now() + PAUSE;
            }
        }
    }

    /// Until there is something to do.
    async fn wait_for_change(&mut self, version: u64) {
        let reader = self.aggregator.reader.clone();
        let generation = self.registered;
        let remotes = !self.remotes.is_empty();
        let (services, slices) = self.seen;
        let due = self.checks.values().filter(|c| !c.running).map(|c| c.due).min();
        let due = due.unwrap_or_else(|| Instant::now() + AGAIN);
        let retry = match (self.first, generation.is_none()) {
            (true, true) => AT_START,
            (false, true) => PAUSE,
            _ => AGAIN,
        };
        tokio::select! {
            done = self.running.next(), if !self.running.is_empty() => {
                if let Some(done) = done {
                    self.finish(done).await;
                }
            }
            () = reader.changed(API_SERVICES, version) => tokio::time::sleep(TOGETHER).await,
            () = self.rows.changed(generation.unwrap_or_default()), if generation.is_some() => {
                tokio::time::sleep(TOGETHER).await;
            }
            () = reader.changed(SERVICES, services), if remotes => {}
            () = reader.changed(ENDPOINT_SLICES, slices), if remotes => {}
            () = tokio::time::sleep_until(due), if remotes => {}
            () = tokio::time::sleep(retry) => {}
        }
    }
}

/// Reports whether a service has this condition.
fn has_condition(service: &ApiService, condition: &Condition) -> bool {
    service.available.as_ref().is_some_and(|(status, reason, message)| {
        status == condition.status && reason == condition.reason && *message == condition.message
    })
}

fn fingerprint(api: &ApiService, service: Option<&Value>, slices: &[Arc<Value>]) -> u64 {
    let mut hash = DefaultHasher::new();
    let revision = |o: &Value| tree::text(o, "/metadata/resourceVersion").to_owned();
    (&api.uid, &api.name).hash(&mut hash);
    if let Some(behind) = &api.behind {
        (&behind.namespace, &behind.name, behind.port, &behind.bundle, behind.insecure).hash(&mut hash);
    }
    service.map(revision).hash(&mut hash);
    for slice in slices {
        (tree::name(slice), revision(slice)).hash(&mut hash);
    }
    hash.finish()
}

/// One check: what the objects say, what the server answers, and what it has.
async fn look_at(aggregator: Arc<Aggregator>, remote: Arc<Remote>, verdict: Option<Condition>) -> CheckResult {
    let (name, reader) = (remote.service.name.clone(), aggregator.reader.as_ref());
    let backend = match &remote.backend {
        Ok(backend) => backend,
        Err(why) => {
            let condition = Condition { status: "False", reason: "FailedDiscoveryCheck", message: why.to_string() };
            return CheckResult { name, condition: verdict.unwrap_or(condition), entry: None };
        }
    };
    if let Some(condition) = verdict {
        return CheckResult { name, condition, entry: None };
    }
    let condition = availability::check_server(&remote.service, backend, reader).await;
    let entry =
        if condition.status == "True" { discovery::fetch(&remote.service, backend, reader).await } else { None };
    CheckResult { name, condition, entry }
}

/// Many writes, some at a time; all outcomes.
async fn each<F: Future<Output = Result<(), Status>>>(writes: impl Iterator<Item = F>) -> Vec<Result<(), Status>> {
    let mut outcomes = Vec::new();
    let mut writes = writes.peekable();
    while writes.peek().is_some() {
        outcomes.extend(join_all(writes.by_ref().take(WRITES)).await);
    }
    outcomes
}
