//! Graceful shutdown of the node: when the machine is to go down, pods end in the order of their priorities, each range
//! of priorities with time of its own, while logind waits. Answers for upstream's `pkg/kubelet/nodeshutdown`.
//!
//! In: shutdowns that [`Logind`] tells of. Out: pods that are ended, through [`Pods`].

use super::logind::{Inhibitor, Logind, LogindError};
use super::shutdown_times::ShutdownTimes;
use crate::config::{KubeletConfiguration, PriorityGracePeriod};
use crate::pods;
use async_trait::async_trait;
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Priority from which on pods are critical.
const CRITICAL: i32 = 2_000_000_000;
/// Pause before logind is asked again after it was away.
const RECONNECT: Duration = Duration::from_secs(1);
/// Pauses between looks at a delay that logind was asked to grant: it reads its configuration again when it comes to it.
const GRANT_PAUSES: [Duration; 4] =
    [Duration::from_millis(100), Duration::from_millis(200), Duration::from_millis(400), Duration::from_millis(800)];
/// Time for the last statuses to get to the API server, which may be going down as well.
const TELLING: Duration = Duration::from_secs(2);
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
    /// Waits until the API server has been told what became of these: it may be stopped, or out of reach, a moment later.
    async fn told(&self, pods: &[Arc<Pod>]);
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
    let all = node.active();
    for (seconds, group) in groups(periods, all.clone()) {
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
    if tokio::time::timeout(TELLING, node.told(&all)).await.is_err() {
        tracing::warn!(
            "Shutdown manager leaves statuses of pods to the next kubelet, the API server does not take them"
        );
    }
}

/// Delays shutdowns, having logind grant as much time as the periods need.
async fn delay(logind: &dyn Logind, periods: &[PriorityGracePeriod]) -> Result<Inhibitor, LogindError> {
    let wanted = whole(periods);
    if wanted > logind.longest_delay().await? {
        let granted = logind.grant_delay(wanted).await;
        granted.map_err(|error| LogindError::Grant(Box::new(error)))?;
        until_granted(logind, wanted).await?;
    }
    logind.inhibit().await
}

/// Waits until logind grants a delay.
async fn until_granted(logind: &dyn Logind, wanted: Duration) -> Result<(), LogindError> {
    for pause in GRANT_PAUSES {
        if logind.longest_delay().await? >= wanted {
            return Ok(());
        }
        tokio::time::sleep(pause).await;
    }
    let granted = logind.longest_delay().await?;
    if granted >= wanted {
        return Ok(());
    }
    Err(LogindError::NotGranted { attempts: GRANT_PAUSES.len() + 1, wanted, granted })
}

/// Watches one logind until it goes away.
async fn watch(
    logind: &dyn Logind,
    periods: &[PriorityGracePeriod],
    node: &dyn Pods,
    times: Option<&ShutdownTimes>,
) -> Result<(), LogindError> {
    // Heard from before it is delayed: no shutdown begins between the two.
    let mut shutdowns = logind.shutdowns().await?;
    let mut held = Some(delay(logind, periods).await?);
    while let Some(begins) = shutdowns.next().await {
        tracing::info!(is_active = begins, "Shutdown manager detected new shutdown event, isNodeShuttingDownNow");
        node.going_down(begins);
        if !begins {
            held = Some(logind.inhibit().await?);
            continue;
        }
        let began = Timestamp::now();
        times.inspect(|times| times.began(began));
        end_all(periods, node).await;
        times.inspect(|times| times.ended(began, Timestamp::now()));
        held.take();
        tracing::info!("Shutdown manager completed processing shutdown event, node will shutdown shortly");
    }
    Ok(())
}

/// Watches until the kubelet ends; `connect` reaches logind, again when it was away. What `times` has of the last shutdown is
/// shown.
pub async fn run<L, F>(
    periods: Vec<PriorityGracePeriod>,
    connect: impl Fn() -> F,
    node: Arc<dyn Pods>,
    times: Option<ShutdownTimes>,
    shutdown: CancellationToken,
) where
    L: Logind,
    F: Future<Output = Result<L, LogindError>>,
{
    if whole(&periods).is_zero() {
        return;
    }
    times.as_ref().inspect(|times| times.show());
    let watching = async {
        loop {
            let watched = match connect().await {
                Ok(logind) => watch(&logind, &periods, node.as_ref(), times.as_ref()).await,
                Err(error) => Err(error),
            };
            if let Err(error) = watched {
                tracing::error!(%error, "Failed to start node shutdown manager");
            }
            tokio::time::sleep(RECONNECT).await;
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = watching => {}
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
        async fn told(&self, all: &[Arc<Pod>]) {
            if all.iter().any(|pod| pods::name(pod) == "untold") {
                std::future::pending::<()>().await;
            }
        }
        fn going_down(&self, now: bool) {
            self.log.lock().push(format!("going down {now}"));
        }
    }

    /// Delays that a logind grants of those that it is asked for.
    #[derive(PartialEq)]
    enum Grants {
        AtOnce,
        /// After so many looks.
        After(u32),
        Nothing,
    }

    /// A logind without a bus.
    struct Fake {
        delay: Mutex<Duration>,
        grants: Grants,
        wanted: Mutex<Duration>,
        looks: Mutex<u32>,
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
        async fn longest_delay(&self) -> Result<Duration, LogindError> {
            let mut looks = self.looks.lock();
            *looks += 1;
            if self.grants == Grants::After(*looks - 1) {
                *self.delay.lock() = *self.wanted.lock();
            }
            Ok(*self.delay.lock())
        }
        async fn grant_delay(&self, delay: Duration) -> Result<(), LogindError> {
            *self.wanted.lock() = delay;
            if self.grants == Grants::AtOnce {
                *self.delay.lock() = delay;
            }
            Ok(())
        }
        async fn inhibit(&self) -> Result<Inhibitor, LogindError> {
            self.node.log.lock().push("inhibited".to_owned());
            Ok(Box::new(Held(Arc::clone(&self.node))))
        }
        async fn shutdowns(&self) -> Result<BoxStream<'static, bool>, LogindError> {
            Ok(futures::stream::iter(self.events.clone()).boxed())
        }
    }

    fn fake(pods: Vec<Arc<Pod>>, events: &[bool], grants: Grants) -> Fake {
        let node = Arc::new(Node { pods, ..Node::default() });
        let (delay, wanted) = (Mutex::new(Duration::from_secs(5)), Mutex::default());
        Fake { delay, grants, wanted, looks: Mutex::default(), events: events.to_vec(), node }
    }

    #[tokio::test(start_paused = true)]
    async fn pods_end_group_by_group_before_the_machine_does() {
        let pods = vec![pod("stubborn", 0, 60), pod("quick", 0, 3), pod("critical", CRITICAL, 60)];
        let logind = fake(pods, &[true], Grants::AtOnce);
        let began = tokio::time::Instant::now();
        watch(&logind, &[period(0, 20), period(1000, 30), period(CRITICAL, 10)], logind.node.as_ref(), None)
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

    #[tokio::test(start_paused = true)]
    async fn a_machine_does_not_wait_for_an_api_server_for_long() {
        let logind = fake(vec![pod("untold", 0, 1)], &[true], Grants::AtOnce);
        let began = tokio::time::Instant::now();
        watch(&logind, &[period(0, 20)], logind.node.as_ref(), None).await.expect("watched");
        assert_eq!(began.elapsed(), TELLING);
    }

    #[tokio::test]
    async fn a_shutdown_that_is_called_off_is_delayed_anew_the_next_time() {
        let logind = fake(Vec::new(), &[true, false], Grants::AtOnce);
        watch(&logind, &[period(0, 1)], logind.node.as_ref(), None).await.expect("watched");
        let expected = ["inhibited", "going down true", "released", "going down false", "inhibited", "released"];
        assert_eq!(*logind.node.log.lock(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_logind_that_grants_too_little_is_told_of() {
        let logind = fake(Vec::new(), &[], Grants::Nothing);
        let watched = watch(&logind, &[period(0, 30)], logind.node.as_ref(), None).await;
        assert_eq!(
            watched.map_err(|error| error.to_string()),
            Err("node shutdown manager was timed out after 5 attempts waiting for logind InhibitDelayMaxSec to update to \
                 30s (ShutdownGracePeriod), current value is 5s"
                .to_owned())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_logind_that_takes_its_time_is_waited_for() {
        let logind = fake(Vec::new(), &[], Grants::After(3));
        let began = tokio::time::Instant::now();
        watch(&logind, &[period(0, 30)], logind.node.as_ref(), None).await.expect("watched");
        assert_eq!(began.elapsed(), Duration::from_millis(300));
        assert_eq!(*logind.node.log.lock(), ["inhibited", "released"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_times_of_a_shutdown_outlive_it() {
        let folder = tempfile::tempdir().expect("folder");
        let times = ShutdownTimes::new(folder.path());
        let logind = fake(vec![pod("stubborn", 0, 60)], &[true], Grants::AtOnce);
        watch(&logind, &[period(0, 2)], logind.node.as_ref(), Some(&times)).await.expect("watched");
        let (began, ended) = times.read().expect("kept");
        assert!(began.is_some() && began <= ended, "{began:?} {ended:?}");
    }
}
