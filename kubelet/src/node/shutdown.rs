//! Graceful shutdown of the node: when the machine is to go down, pods end in the order of their priorities, each range
//! of priorities with time of its own, while logind waits. Answers for upstream's `pkg/kubelet/nodeshutdown`.
//!
//! In: shutdowns that [`Logind`] tells of. Out: pods that are ended, through [`Pods`].

use super::agent::Agent;
use super::logind::{Inhibitor, Logind};
use crate::config::{KubeletConfiguration, PriorityGracePeriod};
use crate::events::EventType;
use crate::pods;
use crate::workers::manager::Manager;
use async_trait::async_trait;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio_util::sync::CancellationToken;

/// Priority from which on pods are critical.
const CRITICAL: i32 = 2_000_000_000;
/// Pause before logind is asked again after it was away.
const RECONNECT: Duration = Duration::from_secs(1);
/// Reason of pods that end.
pub const REASON: &str = "Terminated";
/// Message of pods that end.
pub const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

/// The pods of the node.
#[async_trait]
pub trait Pods: Send + Sync {
    /// Returns the pods that run.
    fn active(&self) -> Vec<Arc<Pod>>;
    /// Ends one within `grace` seconds.
    fn end(&self, pod: &Pod, grace: i64);
    /// Waits until these have ended and their volumes have been unmounted: drivers of volumes end later than those who use them.
    async fn ended(&self, pods: &[Arc<Pod>]);
    /// Says whether the node is going down: new pods are refused then, and the node is not ready.
    fn going_down(&self, now: bool);
}

/// The configured periods by priority, lowest first; none where shutdowns are not to be delayed.
pub fn periods(kubelet: &KubeletConfiguration) -> Vec<PriorityGracePeriod> {
    let mut periods = kubelet.shutdown_grace_period_by_pod_priority.clone();
    if periods.is_empty() {
        periods = by_class(kubelet.shutdown_grace_period.0, kubelet.shutdown_grace_period_critical_pods.0);
    }
    periods.sort_by_key(|period| period.priority);
    periods
}

/// Periods of common and of critical pods, out of the whole and the part of it that is for critical ones.
fn by_class(whole: Duration, critical: Duration) -> Vec<PriorityGracePeriod> {
    let Some(common) = whole.checked_sub(critical).filter(|_| !whole.is_zero()) else { return Vec::new() };
    let period = |priority: i32, time: Duration| PriorityGracePeriod {
        priority,
        shutdown_grace_period_seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
    };
    vec![period(0, common), period(CRITICAL, critical)]
}

/// Time of all periods one after the other.
fn whole(periods: &[PriorityGracePeriod]) -> Duration {
    let seconds = periods.iter().map(|period| u64::try_from(period.shutdown_grace_period_seconds).unwrap_or(0));
    Duration::from_secs(seconds.fold(0, u64::saturating_add))
}

/// Pods by the period that they end in: that of the greatest priority that is not above theirs, or else the first.
fn groups(periods: &[PriorityGracePeriod], all: Vec<Arc<Pod>>) -> Vec<(i64, Vec<Arc<Pod>>)> {
    let mut groups: Vec<(i64, Vec<Arc<Pod>>)> =
        periods.iter().map(|period| (period.shutdown_grace_period_seconds, Vec::new())).collect();
    for pod in all {
        let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
        let above = periods.partition_point(|period| period.priority <= priority);
        if let Some((_, group)) = groups.get_mut(above.saturating_sub(1)) {
            group.push(pod);
        }
    }
    groups
}

/// Ends all pods, group after group.
async fn end_all(periods: &[PriorityGracePeriod], node: &dyn Pods) {
    for (seconds, group) in groups(periods, node.active()) {
        // Nobody waits for pods that there are not.
        if group.is_empty() {
            continue;
        }
        for pod in &group {
            tracing::info!(pod = %pods::describe(pod), "Shutdown manager killing pod");
            node.end(pod, seconds.min(pods::grace(pod)));
        }
        let time = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        if tokio::time::timeout(time, node.ended(&group)).await.is_err() {
            tracing::info!(grace_period = seconds, "Shutdown manager pod killing time out");
        }
    }
}

/// Delays shutdowns, having logind grant as much time as the periods need.
async fn delay(logind: &dyn Logind, periods: &[PriorityGracePeriod]) -> Result<Inhibitor, String> {
    let wanted = whole(periods);
    if wanted > logind.longest_delay().await? {
        logind
            .grant_delay(wanted)
            .await
            .map_err(|error| format!("unable to override inhibit delay by shutdown manager: {error}"))?;
        let granted = logind.longest_delay().await?;
        if wanted > granted {
            return Err(format!(
                "node shutdown manager was unable to update logind InhibitDelayMaxSec to {wanted:?} (ShutdownGracePeriod), current value of InhibitDelayMaxSec ({granted:?}) is less than requested ShutdownGracePeriod"
            ));
        }
    }
    logind.inhibit().await
}

/// Watches one logind until it goes away.
async fn watch(logind: &dyn Logind, periods: &[PriorityGracePeriod], node: &dyn Pods) -> Result<(), String> {
    let mut held = Some(delay(logind, periods).await?);
    let mut shutdowns = logind.shutdowns().await?;
    while let Some(begins) = shutdowns.next().await {
        tracing::info!(is_active = begins, "Shutdown manager detected new shutdown event, isNodeShuttingDownNow");
        node.going_down(begins);
        if !begins {
            held = Some(logind.inhibit().await?);
            continue;
        }
        mark("start");
        end_all(periods, node).await;
        mark("end");
        held.take();
    }
    Ok(())
}

fn mark(end: &str) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let name = format!("kubelet_graceful_shutdown_{end}_time_seconds");
    let help = format!("[ALPHA] Last graceful shutdown {end} time since unix epoch in seconds");
    crate::metrics::set(&name, &help, &[], now);
}

/// Watches until the kubelet ends; `connect` reaches logind, again when it was away.
pub async fn run<L, F>(
    periods: Vec<PriorityGracePeriod>,
    connect: impl Fn() -> F,
    node: Arc<dyn Pods>,
    shutdown: CancellationToken,
) where
    L: Logind,
    F: Future<Output = Result<L, String>>,
{
    if whole(&periods).is_zero() {
        return;
    }
    let watching = async {
        loop {
            let watched = match connect().await {
                Ok(logind) => watch(&logind, &periods, node.as_ref()).await,
                Err(error) => Err(error),
            };
            if let Err(error) = watched {
                tracing::error!(error, "Failed to start node shutdown manager");
            }
            tokio::time::sleep(RECONNECT).await;
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = watching => {}
    }
}

/// The node's own pods.
pub struct NodePods {
    /// All of them.
    pub manager: Arc<Manager>,
    /// The node.
    pub agent: Arc<Agent>,
}

#[async_trait]
impl Pods for NodePods {
    fn active(&self) -> Vec<Arc<Pod>> {
        self.manager.active()
    }

    fn end(&self, pod: &Pod, grace: i64) {
        self.manager.fail(pods::uid(pod), REASON, MESSAGE, Some(grace));
    }

    async fn ended(&self, pods: &[Arc<Pod>]) {
        self.manager.until_ended(pods).await;
        self.manager.until_given_back(pods).await;
    }

    fn going_down(&self, now: bool) {
        if now {
            let text = "Shutdown manager detected shutdown event";
            self.manager.context().events.node(EventType::Normal, "Shutdown", text);
        }
        self.agent.set_going_down(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream::BoxStream;
    use parking_lot::Mutex;
    use serde_json::json;

    fn period(priority: i32, seconds: i64) -> PriorityGracePeriod {
        PriorityGracePeriod { priority, shutdown_grace_period_seconds: seconds }
    }

    fn pod(name: &str, priority: i32, grace: i64) -> Arc<Pod> {
        let spec = json!({"priority": priority, "terminationGracePeriodSeconds": grace, "containers": []});
        Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("pod"))
    }

    #[test]
    fn the_whole_period_is_shared_between_common_and_critical_pods() {
        let seconds = Duration::from_secs;
        assert_eq!(by_class(seconds(30), seconds(10)), [period(0, 20), period(CRITICAL, 10)]);
        assert_eq!(by_class(seconds(0), seconds(0)), []);
        let kubelet = KubeletConfiguration {
            shutdown_grace_period_by_pod_priority: vec![period(100, 5), period(0, 7)],
            ..KubeletConfiguration::default()
        };
        assert_eq!(periods(&kubelet), [period(0, 7), period(100, 5)]);
        assert_eq!(whole(&periods(&kubelet)), seconds(12));
    }

    #[test]
    fn pods_end_in_the_range_of_their_priority() {
        let all = vec![pod("low", -5, 1), pod("common", 0, 1), pod("high", 150, 1), pod("critical", CRITICAL + 1, 1)];
        let found = groups(&[period(0, 1), period(100, 2), period(CRITICAL, 3)], all);
        let names: Vec<Vec<&str>> =
            found.iter().map(|(_, group)| group.iter().map(|pod| pods::name(pod)).collect()).collect();
        assert_eq!(names, [vec!["low", "common"], vec!["high"], vec!["critical"]]);
    }

    /// Pods of which some never end.
    #[derive(Default)]
    struct Node {
        pods: Vec<Arc<Pod>>,
        log: Mutex<Vec<String>>,
    }

    #[async_trait]
    impl Pods for Node {
        fn active(&self) -> Vec<Arc<Pod>> {
            self.pods.clone()
        }
        fn end(&self, pod: &Pod, grace: i64) {
            self.log.lock().push(format!("end {} in {grace}", pods::name(pod)));
        }
        async fn ended(&self, group: &[Arc<Pod>]) {
            if group.iter().any(|pod| pods::name(pod) == "stubborn") {
                std::future::pending::<()>().await;
            }
        }
        fn going_down(&self, now: bool) {
            self.log.lock().push(format!("going down {now}"));
        }
    }

    /// A logind that grants what it is asked for, or not.
    struct Fake {
        delay: Mutex<Duration>,
        grants: bool,
        events: Vec<bool>,
        node: Arc<Node>,
    }

    struct Held(Arc<Node>);

    impl Drop for Held {
        fn drop(&mut self) {
            self.0.log.lock().push("released".to_owned());
        }
    }

    #[async_trait]
    impl Logind for Fake {
        async fn longest_delay(&self) -> Result<Duration, String> {
            Ok(*self.delay.lock())
        }
        async fn grant_delay(&self, delay: Duration) -> Result<(), String> {
            if self.grants {
                *self.delay.lock() = delay;
            }
            Ok(())
        }
        async fn inhibit(&self) -> Result<Inhibitor, String> {
            self.node.log.lock().push("inhibited".to_owned());
            Ok(Box::new(Held(Arc::clone(&self.node))))
        }
        async fn shutdowns(&self) -> Result<BoxStream<'static, bool>, String> {
            Ok(futures::stream::iter(self.events.clone()).boxed())
        }
    }

    fn fake(pods: Vec<Arc<Pod>>, events: &[bool], grants: bool) -> Fake {
        let node = Arc::new(Node { pods, ..Node::default() });
        Fake { delay: Mutex::new(Duration::from_secs(5)), grants, events: events.to_vec(), node }
    }

    #[tokio::test(start_paused = true)]
    async fn pods_end_group_by_group_before_the_machine_does() {
        let pods = vec![pod("stubborn", 0, 60), pod("quick", 0, 3), pod("critical", CRITICAL, 60)];
        let logind = fake(pods, &[true], true);
        let began = tokio::time::Instant::now();
        watch(&logind, &[period(0, 20), period(1000, 30), period(CRITICAL, 10)], logind.node.as_ref())
            .await
            .expect("watched");
        assert_eq!(
            *logind.node.log.lock(),
            ["inhibited", "going down true", "end stubborn in 20", "end quick in 3", "end critical in 10", "released"]
        );
        assert_eq!(
            began.elapsed().as_secs(),
            20,
            "groups without pods take no time, those with stubborn ones all of it"
        );
        assert_eq!(*logind.delay.lock(), Duration::from_secs(60));
    }

    #[tokio::test]
    async fn a_shutdown_that_is_called_off_is_delayed_anew_the_next_time() {
        let logind = fake(Vec::new(), &[true, false], true);
        watch(&logind, &[period(0, 1)], logind.node.as_ref()).await.expect("watched");
        let expected = ["inhibited", "going down true", "released", "going down false", "inhibited", "released"];
        assert_eq!(*logind.node.log.lock(), expected);
    }

    #[tokio::test]
    async fn a_logind_that_grants_too_little_is_told_of() {
        let logind = fake(Vec::new(), &[], false);
        let error = watch(&logind, &[period(0, 30)], logind.node.as_ref()).await.expect_err("too little");
        assert!(
            error.starts_with("node shutdown manager was unable to update logind InhibitDelayMaxSec to 30s"),
            "{error}"
        );
    }
}
