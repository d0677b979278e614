//! Sets the replicas of scalable objects so that measured use stays near a target. Answers for `podautoscaler`.
//!
//! In: autoscalers, pods, the scale subresource of any resource, three metrics APIs. Out: scales, status, events.
//! Every autoscaler is looked at once per sync period; nothing else wakes it, as measurements tell nobody of changes.

mod arithmetic;
pub mod behavior;
pub mod calculator;
pub mod error;
mod memory;
mod metric;
pub mod plan;
pub mod source;
pub mod target;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec};
use k8s_openapi::jiff::SignedDuration;
use parking_lot::Mutex;
use proto::selector::label::Selector;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

pub(crate) use self::metric::selector_text;

use self::memory::Memory;
use self::plan::{Measured, Scale, ScaleDecision, Snapshot};
use self::source::measure;
use self::target::{FoundScale, Targets};
use crate::engine::action::{Action, body};
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::pod::Pod;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::selectors;
use crate::engine::settings::Hpa;
use crate::engine::worker::{self, Synced};

const COUNT: &str = "horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers";
const DESIRED: &str = "horizontal_pod_autoscaler_controller_desired_replicas";
const ACCOUNT: &str = "horizontal-pod-autoscaler";
/// Attempts to write a scale that somebody else wrote meanwhile.
const RESCALES: usize = 5;
const RESCALE_PAUSE: Duration = Duration::from_millis(10);

struct Autoscaler {
    executor: Executor,
    hpas: Store<HorizontalPodAutoscaler>,
    pods: Store<Pod>,
    targets: Targets,
    memory: Mutex<Memory>,
    config: Hpa,
    own_tolerance: bool,
    /// From when windows and periods are counted.
    began: Instant,
}

/// Wire the horizontal pod autoscaler.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let Some(hpas) = cx.served::<HorizontalPodAutoscaler>().await? else { return Ok(Started::Skipped) };
        let config = cx.settings().hpa;
        let queue: Queue<Key> = Queue::new("horizontalpodautoscaler");
        let this = Arc::new(Autoscaler {
            executor: cx.executor(ACCOUNT, ACCOUNT),
            hpas: hpas.store(),
            pods: cx.pods().store(),
            targets: Targets::default(),
            memory: Mutex::default(),
            config,
            own_tolerance: cx.gate("HPAConfigurableTolerance"),
            began: clock::instant(),
        });
        let (wake, memory) = (queue.clone(), Arc::clone(&this));
        hpas.add_handler(move |event: &Event<HorizontalPodAutoscaler>| {
            let key = Key::of(&event.object().metadata);
            let mut known = memory.memory.lock();
            if let Event::Deleted(_) = event {
                known.forget(&key);
                metrics::forget(DESIRED, &[&key.namespace, &key.name]);
            } else {
                known.know(&key);
                wake.add_after(key, config.sync_period);
            }
            metrics::set(COUNT, &[], metrics::float(known.len()));
        });
        let workers = cx.settings().workers.hpa;
        worker::run(cx, ACCOUNT, workers, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

impl Autoscaler {
    /// Look once; a failure waits for the next period like a success.
    async fn sync(&self, key: &Key) -> Synced {
        let Some(hpa) = self.hpas.get(&key.namespace, &key.name) else { return Ok(None) };
        let started = clock::instant();
        let (action, error) = self.reconcile(key, &hpa).await;
        let (labels, took) = ([action, error], started.elapsed().as_secs_f64());
        metrics::count("horizontal_pod_autoscaler_controller_reconciliations_total", &labels);
        metrics::observe("horizontal_pod_autoscaler_controller_reconciliation_duration_seconds", &labels, took);
        Ok(Some(self.config.sync_period))
    }

    /// Reconciles, and returns what was done, and whether the spec or something else was at fault.
    async fn reconcile(&self, key: &Key, hpa: &HorizontalPodAutoscaler) -> (&'static str, &'static str) {
        let before = hpa.status.clone().unwrap_or_default();
        let Some(spec) = hpa.spec.as_ref() else { return ("none", "none") };
        let reference = &spec.scale_target_ref;
        let api_version = reference.api_version.as_deref().unwrap_or_default();
        let rest = &self.executor.rest;
        let found = self.targets.scale(rest, &key.namespace, api_version, &reference.kind, &reference.name).await;
        let mut action = "none";
        let mut decision = match found {
            Err(why) => plan::without_scale(hpa, &why.to_string(), clock::now()),
            Ok(mut found) => {
                let mut decision = self.decide(key, hpa, spec, &found.scale).await;
                if let Some((size, _)) = decision.rescale {
                    let result = self.rescale(&mut found, size).await;
                    let now = clock::now();
                    if result.is_ok() {
                        action = if size > found.scale.wanted { "scale_up" } else { "scale_down" };
                        if let Some(history) = self.memory.lock().history(key) {
                            history.scaled(spec.behavior.as_ref(), found.scale.wanted, size, self.steady());
                        }
                    }
                    plan::after_rescale(&mut decision, &before, result, now);
                }
                decision
            }
        };
        if let Some(desired) = decision.desired
            && self.memory.lock().history(key).is_some()
        {
            metrics::set(DESIRED, &[&key.namespace, &key.name], f64::from(desired));
        }
        let about = object::reference::<HorizontalPodAutoscaler>(&hpa.metadata);
        for (warning, reason, message) in decision.events.drain(..) {
            self.executor.events.say(&about, warning, reason, message);
        }
        if decision.status != before {
            let mut copy = hpa.clone();
            copy.status = Some(decision.status.clone());
            let Action::Update { path, body } = Action::update_status(&copy) else { return (action, "internal") };
            if let Err(e) = rest.put(&path, &body).await {
                self.executor.events.say(&about, true, "FailedUpdateStatus", e.to_string());
                decision.failure.get_or_insert(format!("failed to update status for {}: {e}", key.name));
            }
        }
        if let Some(why) = &decision.failure {
            tracing::warn!(controller = ACCOUNT, %key, error = %why, "sync failed, retrying");
        }
        let error = match &decision.failure {
            None => "none",
            Some(_) if target::malformed(api_version) => "spec",
            Some(_) => "internal",
        };
        (action, error)
    }

    async fn decide(
        &self,
        key: &Key,
        hpa: &HorizontalPodAutoscaler,
        spec: &HorizontalPodAutoscalerSpec,
        scale: &Scale,
    ) -> ScaleDecision {
        let asks = plan::asks_metrics(spec, scale);
        let (pods, selecting) = if asks { self.selected(key, scale) } else { Default::default() };
        let mut readings: Vec<Option<Measured>> = Vec::new();
        let mut took: Vec<Instant> = Vec::new();
        if asks && selecting.len() < 2 {
            for metric in spec.metrics.iter().flatten() {
                took.push(clock::instant());
                readings.push(match plan::query(metric) {
                    Some(q) => {
                        Some(measure(&self.executor.rest, &self.targets, &key.namespace, &scale.selector, &q).await)
                    }
                    None => None,
                });
            }
        }
        let snapshot = Snapshot {
            hpa,
            spec,
            scale,
            pods: &pods,
            selecting: &selecting,
            readings: &readings,
            config: self.config,
            own_tolerance: self.own_tolerance,
            now: clock::now(),
            steady: self.steady(),
        };
        let mut history = self.memory.lock().history(key).map(std::mem::take).unwrap_or_default();
        let decision = plan::plan(&snapshot, &mut history);
        if let Some(kept) = self.memory.lock().history(key) {
            *kept = history;
        }
        for done in &decision.computed {
            let kind = spec.metrics.iter().flatten().nth(done.metric).map_or("", |m| m.type_.as_str());
            let error = match (done.replicas, done.bad_spec) {
                (Some(_), _) => "none",
                (None, true) => "spec",
                (None, false) => "internal",
            };
            let seen = hpa.status.as_ref().and_then(|s| s.current_replicas).unwrap_or(0);
            let labels = [direction(seen, done.replicas), error, kind];
            metrics::count("horizontal_pod_autoscaler_controller_metric_computation_total", &labels);
            if let Some(started) = took.get(done.metric) {
                let name = "horizontal_pod_autoscaler_controller_metric_computation_duration_seconds";
                metrics::observe(name, &labels, started.elapsed().as_secs_f64());
            }
        }
        decision
    }

    fn steady(&self) -> SignedDuration {
        SignedDuration::try_from(clock::instant().saturating_duration_since(self.began)).unwrap_or_default()
    }

    /// The pods of a scale, and every autoscaler whose target selects any of them.
    fn selected(&self, key: &Key, scale: &Scale) -> (Vec<Arc<Pod>>, Vec<Key>) {
        let Some(selector) = Selector::parse(&scale.selector).ok().filter(|_| !scale.selector.is_empty()) else {
            return (Vec::new(), Vec::new());
        };
        let mut pods = selectors::candidates(&self.pods, &key.namespace, &memory::required(&selector));
        pods.retain(|p| memory::picks(&selector, p.metadata.labels.as_deref()));
        let labels = pods.iter().map(|pod| pod.metadata.labels.as_deref());
        let mut memory = self.memory.lock();
        memory.set_selector(key, selector);
        let selecting = memory.selecting(&key.namespace, labels);
        drop(memory);
        (pods, selecting)
    }

    /// Sets the replicas, whoever wrote the target meanwhile.
    async fn rescale(&self, found: &mut FoundScale, size: i32) -> Result<(), RestError> {
        let rest = &self.executor.rest;
        for left in (0..RESCALES).rev() {
            found.body["spec"]["replicas"] = body(&size);
            match rest.put(&found.path, &found.body).await {
                Ok(_) => break,
                Err(e) if e.conflict() && left > 0 => {
                    tokio::time::sleep(RESCALE_PAUSE).await;
                    match rest.get(&found.path).await {
                        Ok(latest) => found.body = latest,
                        Err(e) => tracing::warn!(controller = ACCOUNT, path = found.path, error = %e, "no newer scale"),
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

fn direction(current: i32, proposed: Option<i32>) -> &'static str {
    match proposed {
        Some(n) if n > current => "scale_up",
        Some(n) if n < current => "scale_down",
        _ => "none",
    }
}
