//! Carries out what plans ask for.
//!
//! Ordinary writes run in order and stop at the first failure. Pod creations run in batches that double while they
//! succeed, so that a quota or an admission error costs one request and not hundreds. Every pod write is announced in
//! the expectations first and taken back when it fails.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::Resource;
use serde_json::{Value, json};
use tokio::task::coop::consume_budget;

use super::action::{Action, join};
use super::clock;
use super::events::Events;
use super::expect::{Expectations, Expected};
use super::object::{Key, name};
use super::rest::{Rest, RestError};

const INITIAL_BATCH: usize = 1;
/// Number of deletes that are in flight at once.
const DELETE_BATCH: usize = 64;

/// Result of a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The soonest time the plan wants to look again.
    pub requeue: Option<Duration>,
    /// The first failed write.
    pub failure: Option<Failure>,
    /// Number of requested pods that were not made.
    pub uncreated: usize,
}

/// A failed write.
#[derive(Debug)]
pub struct Failure {
    /// `FailedCreate`, `FailedDelete` or empty.
    pub reason: &'static str,
    /// Failure of the action.
    pub error: RestError,
}

/// Writes on behalf of one controller.
#[derive(Clone)]
pub struct Executor {
    /// The controller's client.
    pub rest: Rest,
    /// Recorder of the controller's events.
    pub events: Events,
}

impl Executor {
    /// Carry out a plan for `key`.
    pub async fn run(&self, key: &Key, expectations: Option<&Expectations>, actions: Vec<Action>) -> Outcome {
        let mut out = Outcome::default();
        let (mut creates, mut deletes, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        for action in actions {
            match action {
                Action::CreatePod { pod, parent } => creates.push((pod, parent)),
                Action::DeletePod { namespace, name, uid, parent } => {
                    deletes.push((Key::new(namespace, name), uid, parent))
                }
                Action::RequeueAfter(d) => out.requeue = Some(out.requeue.map_or(d, |r| r.min(d))),
                other => rest.push(other),
            }
        }
        let (before, after) = split_status(rest);
        for action in before {
            let reason = if matches!(action, Action::Create { .. }) { "FailedCreate" } else { "" };
            if let Err(error) = self.one(action).await {
                out.failure = Some(Failure { reason, error });
                return out;
            }
        }
        let parent = creates.iter().map(|c| &c.1).chain(deletes.iter().map(|d| &d.2)).next();
        let owner = parent.and_then(|p| p.uid.clone()).unwrap_or_default();
        let expected = expectations.map(|all| all.of(key, &owner));
        if let Some(e) = expected.filter(|_| parent.is_some()) {
            let adds = i64::try_from(creates.len()).unwrap_or(i64::MAX);
            e.expect(adds, deletes.iter().map(|d| d.1.clone()), clock::instant());
        }
        (out.failure, out.uncreated) = self.create_pods(expected, creates).await;
        let failed_delete = self.delete_pods(expected, deletes).await;
        out.failure = out.failure.or(failed_delete);
        for action in after {
            if let Err(error) = self.one(action).await {
                out.failure = out.failure.or(Some(Failure { reason: "", error }));
                break;
            }
        }
        out
    }

    /// One ordinary write. What is gone already needs no deletion.
    pub async fn one(&self, action: Action) -> Result<(), RestError> {
        match action {
            Action::Create { path, body } => self.rest.post(&path, &body).await.map(drop),
            Action::Update { path, body } => self.rest.put(&path, &body).await.map(drop),
            Action::Report { path, body } => match self.rest.put(&path, &body).await {
                Err(e) if e.conflict() => self.report_again(&path, body).await,
                other => other.map(drop),
            },
            Action::Patch { path, kind, body } => self.rest.patch(&path, kind, &body).await.map(drop),
            Action::Apply { path, body } => self.rest.apply(&path, &body).await.map(drop),
            Action::Delete { path, options } => match self.rest.delete(&path, &options).await {
                Err(e) if e.not_found() => Ok(()),
                other => other.map(drop),
            },
            Action::Event { about, warning, reason, message } => {
                // Nothing is waited for: thousands in a row would hold the thread.
                consume_budget().await;
                self.events.say(&about, warning, reason, message);
                Ok(())
            }
            Action::CreatePod { .. } | Action::DeletePod { .. } | Action::RequeueAfter(_) => Ok(()),
        }
    }

    /// Puts a status on the newest version.
    async fn report_again(&self, path: &str, mut body: Value) -> Result<(), RestError> {
        let mut live = self.rest.get(path.trim_end_matches("/status")).await?;
        if live["metadata"]["uid"] != body["metadata"]["uid"] {
            return Err(RestError::other("the object was replaced by another of the same name"));
        }
        live["status"] = body["status"].take();
        self.rest.put(path, &live).await.map(drop)
    }

    async fn create_pods(
        &self,
        expected: Option<Expected<'_>>,
        pods: Vec<(Arc<Pod>, ObjectReference)>,
    ) -> (Option<Failure>, usize) {
        let mut left = pods.into_iter();
        let mut batch = INITIAL_BATCH;
        let (mut failure, mut uncreated) = (None, 0);
        let mut text = PodText::default();
        while left.len() > 0 && failure.is_none() {
            let now: Vec<_> = left.by_ref().take(batch).map(|(pod, parent)| (text.of(&pod), pod, parent)).collect();
            let requests = now.iter().map(|(text, pod, parent)| self.create_pod(pod, text, parent));
            let results = join_all(requests).await;
            for error in results.into_iter().filter_map(Result::err) {
                uncreated += 1;
                if let Some(e) = expected {
                    e.created();
                }
                if !error.namespace_terminating() {
                    failure.get_or_insert(Failure { reason: "FailedCreate", error });
                }
            }
            batch *= 2;
        }
        uncreated += left.len();
        if let Some(e) = expected {
            for _ in left {
                e.created();
            }
        }
        (failure, uncreated)
    }

    async fn create_pod(&self, pod: &Pod, text: &[u8], parent: &ObjectReference) -> Result<(), RestError> {
        let path = Pod::url_path(&(), pod.metadata.namespace.as_deref());
        match self.rest.write("POST", &path, "application/json", text.to_vec()).await {
            Ok(made) => {
                let name = if made.name.is_empty() { name(&pod.metadata) } else { &made.name };
                self.events.say(parent, false, "SuccessfulCreate", format!("Created pod: {name}"));
                Ok(())
            }
            Err(e) => {
                if !e.namespace_terminating() {
                    self.events.say(parent, true, "FailedCreate", format!("Error creating: {e}"));
                }
                Err(e)
            }
        }
    }

    async fn delete_pods(
        &self,
        expected: Option<Expected<'_>>,
        pods: Vec<(Key, String, ObjectReference)>,
    ) -> Option<Failure> {
        let mut failure = None;
        for batch in pods.chunks(DELETE_BATCH) {
            let results = join_all(batch.iter().map(|(pod, uid, parent)| self.delete_pod(pod, uid, parent))).await;
            for ((_, uid, _), result) in batch.iter().zip(results) {
                if let Err(error) = result {
                    if let Some(e) = expected {
                        e.deleted(uid);
                    }
                    if !error.not_found() {
                        failure.get_or_insert(Failure { reason: "FailedDelete", error });
                    }
                }
            }
        }
        failure
    }

    async fn delete_pod(&self, pod: &Key, uid: &str, parent: &ObjectReference) -> Result<(), RestError> {
        let path = join(&Pod::url_path(&(), Some(&pod.namespace)), &pod.name);
        match self.rest.delete(&path, &json!({"preconditions": {"uid": uid}})).await {
            Ok(_) => {
                self.events.say(parent, false, "SuccessfulDelete", format!("Deleted pod: {}", pod.name));
                Ok(())
            }
            Err(e) => {
                if !e.not_found() {
                    self.events.say(parent, true, "FailedDelete", format!("Error deleting: {e}"));
                }
                Err(e)
            }
        }
    }
}

/// The request body of the last pod: replicas are the same pod many times.
#[derive(Default)]
struct PodText(Option<(Arc<Pod>, Arc<[u8]>)>);

impl PodText {
    fn of(&mut self, pod: &Arc<Pod>) -> Arc<[u8]> {
        if let Some((last, text)) = &self.0
            && Arc::ptr_eq(last, pod)
        {
            return Arc::clone(text);
        }
        // Typed objects always serialise: their keys are strings.
        let text: Arc<[u8]> = serde_json::to_vec(&**pod).unwrap_or_default().into();
        self.0 = Some((Arc::clone(pod), Arc::clone(&text)));
        text
    }
}

/// Status writes come after the pods they report on.
fn split_status(actions: Vec<Action>) -> (Vec<Action>, Vec<Action>) {
    actions.into_iter().partition(|a| !a.is_status())
}
