use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{Config, Elector, LeaderStep, Lease, Leases, Outcome, Renewed, decide, refused, run, run_over};
use crate::client::Fence;
use crate::events::Recorder;
use crate::run::{Shutdown, TaskGroup};

pub(super) fn config() -> Config {
    Config {
        lease_name: "kube-scheduler".to_owned(),
        namespace: "kube-system".to_owned(),
        identity: "me".to_owned(),
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
        renewed: Renewed::default(),
    }
}

pub(super) fn held_by(holder: &str, transitions: i32) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: Some(15),
        acquire_time: Some(MicroTime(Timestamp::UNIX_EPOCH)),
        renew_time: Some(MicroTime(Timestamp::UNIX_EPOCH)),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    }
}

#[test]
fn times_with_which_nobody_could_lead() {
    // (lease, renew, retry) in tenths of a second
    let table = [
        ((150, 100, 20), None),
        ((150, 150, 20), Some("leaseDuration must be greater than renewDeadline")),
        ((150, 24, 20), Some("renewDeadline must be greater than retryPeriod*JitterFactor")),
        ((150, 25, 20), None),
        ((150, 100, 0), Some("retryPeriod must be greater than zero")),
    ];
    for ((lease, renew, retry), expected) in table {
        let [lease, renew, retry] = [lease, renew, retry].map(|tenths| Duration::from_millis(tenths * 100));
        assert_eq!(refused(lease, renew, retry), expected, "{lease:?} {renew:?} {retry:?}");
    }
}

#[test]
fn who_may_take_the_lease() {
    let now = Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(100);
    // (holder, seconds unchanged) → transitions after taking it, or none when we must wait
    let table =
        [("me", 1, Some(4)), ("me", 60, Some(4)), ("other", 14, None), ("other", 15, Some(5)), ("", 0, Some(5))];
    for (holder, unchanged, expected) in table {
        match decide(&config(), &held_by(holder, 4), Duration::from_secs(unchanged), now) {
            LeaderStep::Wait => assert_eq!(expected, None, "{holder} {unchanged}"),
            LeaderStep::Take(spec) => {
                assert_eq!(spec.lease_transitions, expected, "{holder} {unchanged}");
                assert_eq!(spec.holder_identity.as_deref(), Some("me"));
                assert_eq!(spec.renew_time, Some(MicroTime(now)));
                let acquired = if holder == "me" { Timestamp::UNIX_EPOCH } else { now };
                assert_eq!(spec.acquire_time, Some(MicroTime(acquired)));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_given_back_is_left() {
    let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, tower::BoxError>>()
    });
    let leases: kube::Api<k8s_openapi::api::coordination::v1::Lease> =
        kube::Api::namespaced(kube::Client::new(silent, "default"), "kube-system");
    let began = tokio::time::Instant::now();
    Elector { leases, config: config(), observed: None, held: None }.release().await;
    assert_eq!(began.elapsed(), config().renew_deadline);
}

/// Requests to the server of one lease: method and body.
type Asked = Arc<Mutex<Vec<(http::Method, serde_json::Value)>>>;

/// Has no lease at first, and takes what it is sent.
async fn answer(
    request: http::Request<kube::client::Body>,
    asked: Asked,
) -> Result<http::Response<kube::client::Body>, tower::BoxError> {
    let (parts, body) = request.into_parts();
    let body = body.collect_bytes().await?;
    let mut object: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let stored = asked.lock().iter().rfind(|(_, o)| o["kind"] == "Lease").map(|(_, lease)| lease.clone());
    let (code, answer) = match (parts.method == http::Method::GET, stored) {
        (true, Some(lease)) => (200, lease),
        (true, None) => {
            (404, serde_json::json!({"kind": "Status", "code": 404, "reason": "NotFound", "status": "Failure"}))
        }
        (false, _) => {
            (object["metadata"]["uid"], object["metadata"]["resourceVersion"]) = ("u".into(), "7".into());
            (200, object.clone())
        }
    };
    asked.lock().push((parts.method, object));
    Ok(http::Response::builder().status(code).body(serde_json::to_vec(&answer)?.into())?)
}

#[tokio::test(start_paused = true)]
async fn who_leads_is_told_and_renews_without_a_look() {
    let asked = Asked::default();
    let all = Arc::clone(&asked);
    let service = tower::service_fn(move |request| answer(request, Arc::clone(&all)));
    let client = kube::Client::new(service, "default");
    let (tasks, term) = (TaskGroup::new(), Shutdown::new());
    let events = Recorder::new(client.clone(), &tasks, &term, "kube-scheduler", "");
    let work = |_| tokio::time::sleep(config().retry_period * 3 + Duration::from_secs(1));
    assert_eq!(run(client, config(), &events, Shutdown::new(), work).await, Outcome::Finished);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let asked = asked.lock().clone();
    let verbs: Vec<&str> = asked.iter().filter(|(_, o)| o["kind"] != "Event").map(|(verb, _)| verb.as_str()).collect();
    assert_eq!(verbs, ["GET", "POST", "PUT", "PUT", "PUT", "GET", "PUT"], "made, renewed, and given back");
    let told: Vec<&serde_json::Value> = asked.iter().map(|(_, o)| o).filter(|o| o["kind"] == "Event").collect();
    let messages: Vec<&str> = told.iter().filter_map(|e| e["message"].as_str()).collect();
    assert_eq!(messages, ["me became leader", "me stopped leading"]);
    let about = serde_json::json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": "kube-scheduler",
        "namespace": "kube-system", "uid": "u", "resourceVersion": "7"});
    assert_eq!((&told[0]["involvedObject"], &told[0]["reason"]), (&about, &"LeaderElection".into()));
}

/// A server of one lease behind a network that delays requests and answers, and loses them.
#[derive(Clone)]
pub(super) struct Remote {
    stored: Arc<Mutex<Option<Lease>>>,
    dice: Arc<Mutex<StdRng>>,
    /// Percentage of messages that are lost.
    lost: u32,
    /// The longest way of a message.
    longest: Duration,
}

impl Remote {
    pub(super) fn new(seed: u64, lost: u32, longest: Duration) -> Self {
        Self { stored: Arc::default(), dice: Arc::new(Mutex::new(StdRng::seed_from_u64(seed))), lost, longest }
    }

    async fn way(&self) {
        let (delay, lost) = {
            let mut dice = self.dice.lock();
            (self.longest.mul_f64(dice.random_range(0.0..=1.0)), dice.random_range(0..100) < self.lost)
        };
        sleep(delay).await;
        if lost {
            std::future::pending::<()>().await;
        }
    }

    /// Delivers a request, whether or not the sender still waits for the answer.
    async fn send<T: Send + 'static>(&self, ask: impl FnOnce(&mut Option<Lease>) -> T + Send + 'static) -> T {
        let (to, stored) = (self.clone(), Arc::clone(&self.stored));
        let arrived = tokio::spawn(async move {
            to.way().await;
            ask(&mut stored.lock())
        });
        let answer = arrived.await.expect("the server does not panic");
        self.way().await;
        answer
    }
}

fn version(lease: &Lease) -> u64 {
    lease.metadata.resource_version.as_deref().map_or(0, |v| v.parse().expect("a number"))
}

fn store(stored: &mut Option<Lease>, mut lease: Lease) -> Lease {
    let next = stored.as_ref().map_or(0, version) + 1;
    lease.metadata.resource_version = Some(next.to_string());
    *stored = Some(lease.clone());
    lease
}

impl Leases for Remote {
    type Error = String;

    async fn get(&self, _: &str, _: &str) -> Result<Option<Lease>, String> {
        Ok(self.send(|stored| stored.clone()).await)
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, String> {
        let lease = lease.clone();
        self.send(move |stored| if stored.is_some() { Err("exists".to_owned()) } else { Ok(store(stored, lease)) })
            .await
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, String> {
        let lease = lease.clone();
        self.send(move |stored| {
            let known = stored.as_ref().map(version);
            if known == Some(version(&lease)) { Ok(store(stored, lease)) } else { Err("conflict".to_owned()) }
        })
        .await
    }
}

/// Writes of leaders as the server gets them.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Terms>>);

#[derive(Default)]
struct Terms {
    /// Terms whose writes were followed by another's.
    over: HashSet<String>,
    last: String,
    begun: usize,
    written: usize,
}

impl Written {
    fn by(&self, term: &str, seed: u64) {
        let mut terms = self.0.lock();
        terms.written += 1;
        if terms.last == term {
            return;
        }
        assert!(!terms.over.contains(term), "{term} writes although {} has written since, seed {seed}", terms.last);
        let before = std::mem::replace(&mut terms.last, term.to_owned());
        terms.over.insert(before);
        terms.begun += 1;
    }
}

/// A clock on a wall that is set now and then, by hours: what is stamped by it decides nothing.
#[derive(Clone)]
struct Stamped {
    remote: Remote,
    ahead: Arc<Mutex<SignedDuration>>,
}

impl Stamped {
    fn stamp(&self, lease: &Lease) -> Lease {
        let mut lease = lease.clone();
        let ahead = {
            let (mut dice, mut ahead) = (self.remote.dice.lock(), self.ahead.lock());
            if dice.random_range(0..10) == 0 {
                *ahead = SignedDuration::from_secs(dice.random_range(-7200..7200));
            }
            *ahead
        };
        let at = |time: &mut Option<MicroTime>| time.iter_mut().for_each(|time| time.0 += ahead);
        if let Some(spec) = &mut lease.spec {
            at(&mut spec.renew_time);
            at(&mut spec.acquire_time);
        }
        lease
    }
}

impl Leases for Stamped {
    type Error = String;

    async fn get(&self, namespace: &str, name: &str) -> Result<Option<Lease>, String> {
        self.remote.get(namespace, name).await
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, String> {
        self.remote.create(&self.stamp(lease)).await
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, String> {
        self.remote.replace(&self.stamp(lease)).await
    }
}

/// Runs a process that is stopped now and then, as by SIGSTOP, and does not notice: what it sent is under way all the same.
async fn with_stops<F: Future>(process: F, remote: &Remote) -> F::Output {
    let mut process = std::pin::pin!(process);
    loop {
        let (runs, stopped) = {
            let mut dice = remote.dice.lock();
            (
                Duration::from_millis(dice.random_range(1_000..90_000)),
                Duration::from_millis(dice.random_range(0..40_000)),
            )
        };
        if let Ok(outcome) = tokio::time::timeout(runs, &mut process).await {
            return outcome;
        }
        sleep(stopped).await;
    }
}

/// Time for the answer to a write.
const ANSWER: Duration = Duration::from_secs(5);

/// Writes until the end, and while it drains, as the fence lets it.
async fn writes(remote: Remote, written: Written, fence: Fence, term: String, seed: u64, end: CancellationToken) {
    let drain = Duration::from_secs(remote.dice.lock().random_range(0..20));
    let last = async {
        end.cancelled().await;
        sleep(drain).await;
    };
    let mut last = std::pin::pin!(last);
    loop {
        tokio::select! {
            () = &mut last => return,
            () = sleep(Duration::from_millis(200)) => {}
        }
        if !fence.is_open() {
            continue;
        }
        let (written, term) = (written.clone(), term.clone());
        let write = remote.send(move |_| written.by(&term, seed));
        drop(tokio::time::timeout(ANSWER, write).await);
    }
}

/// Runs a machine: a process leads until it is asked to end, which takes its work a while, or has lost the lease; then
/// the next one is started.
async fn machine(name: String, remote: Remote, written: Written, seed: u64) {
    loop {
        let life = Duration::from_secs(remote.dice.lock().random_range(5..120));
        let (end, shutdown) = (Shutdown::new(), Shutdown::new());
        let trigger = shutdown.clone();
        let life = tokio::spawn(async move {
            tokio::select! { () = sleep(life) => trigger.trigger(), () = end.wait() => {} }
        });
        let config = Config { identity: super::identity(&name), renewed: Renewed::default(), ..config() };
        let (fence, term, sent) = (config.fence(), config.identity.clone(), written.clone());
        let (to, leases) = (remote.clone(), Stamped { remote: remote.clone(), ahead: Arc::default() });
        let work = move |token| writes(to, sent, fence, term, seed, token);
        with_stops(run_over(leases, config, None, shutdown, work), &remote).await;
        life.abort();
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_two_write_at_one_time_behind_any_network() {
    const REGIMES: [(u32, u64); 4] = [(0, 10), (2, 1_000), (20, 3_000), (5, 4_000)];
    let mut begun = [(0, 0); REGIMES.len()];
    for seed in 0..40 {
        let at = usize::try_from(seed).expect("small") % REGIMES.len();
        let (lost, longest) = REGIMES[at];
        let (remote, written) = (Remote::new(seed, lost, Duration::from_millis(longest)), Written::default());
        let machines = futures::future::join_all(
            ["a", "b", "c"].map(|name| machine(name.to_owned(), remote.clone(), written.clone(), seed)),
        );
        drop(tokio::time::timeout(Duration::from_secs(1800), machines).await);
        let terms = written.0.lock();
        begun[at] = (begun[at].0 + terms.begun, begun[at].1 + terms.written);
    }
    assert!(begun.iter().all(|(terms, writes)| *terms > 10 && *writes > 100), "handed on in each regime: {begun:?}");
}

#[tokio::test(start_paused = true)]
async fn lease_is_renewed_until_the_work_has_returned() {
    let remote = Remote::new(1, 0, Duration::ZERO);
    let (shutdown, stored) = (Shutdown::new(), Arc::clone(&remote.stored));
    let holder = move || {
        let lease = stored.lock().clone().expect("a lease").spec.expect("a spec");
        (lease.holder_identity.unwrap_or_default(), lease.renew_time.expect("a time").0)
    };
    let (seen, at_end) = (holder.clone(), Arc::new(Mutex::new(None)));
    let noted = Arc::clone(&at_end);
    let work = |token: CancellationToken| async move {
        token.cancelled().await;
        let before = seen();
        sleep(Duration::from_secs(30)).await;
        *noted.lock() = Some((before, seen()));
    };
    let trigger = shutdown.clone();
    tokio::spawn(async move {
        sleep(Duration::from_secs(5)).await;
        trigger.trigger();
    });
    assert_eq!(run_over(remote, config(), None, shutdown, work).await, Outcome::Shutdown);
    let ((first, before), (last, after)) = at_end.lock().take().expect("the work returned");
    assert_eq!((first.as_str(), last.as_str()), ("me", "me"));
    assert!(after > before, "renewed while the work ended");
    assert_eq!(holder().0, "", "given back");
}

#[tokio::test(start_paused = true)]
async fn hung_request_is_tried_again_before_the_deadline() {
    /// Answers everything but the third write.
    #[derive(Clone)]
    struct Hangs(Remote, Arc<AtomicUsize>);
    impl Leases for Hangs {
        type Error = String;
        async fn get(&self, namespace: &str, name: &str) -> Result<Option<Lease>, String> {
            self.0.get(namespace, name).await
        }
        async fn create(&self, lease: &Lease) -> Result<Lease, String> {
            self.0.create(lease).await
        }
        async fn replace(&self, lease: &Lease) -> Result<Lease, String> {
            if self.1.fetch_add(1, Ordering::SeqCst) == 2 {
                std::future::pending::<()>().await;
            }
            self.0.replace(lease).await
        }
    }
    let leases = Hangs(Remote::new(1, 0, Duration::ZERO), Arc::default());
    let work = |_| sleep(Duration::from_secs(60));
    assert_eq!(run_over(leases, config(), None, Shutdown::new(), work).await, Outcome::Finished);
}

#[tokio::test(start_paused = true)]
async fn leader_whose_lease_has_long_expired_is_unhealthy() {
    let config = config();
    assert_eq!(config.check_health(), Ok(()), "a candidate");
    *config.renewed.0.lock() = Some(tokio::time::Instant::now());
    sleep(Duration::from_secs(35)).await;
    assert_eq!(config.check_health(), Ok(()), "expired for 20 s");
    sleep(Duration::from_millis(1)).await;
    let text = "failed election to renew leadership on lease kube-scheduler";
    assert_eq!(config.check_health().map_err(|e| e.to_string()), Err(text.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn fence_is_open_while_the_lease_is_held_and_renewed() {
    let config = config();
    let fence = config.fence();
    assert!(!fence.is_open(), "a candidate");
    *config.renewed.0.lock() = Some(tokio::time::Instant::now());
    sleep(Duration::from_millis(9_999)).await;
    assert!(fence.is_open(), "within the renew deadline");
    sleep(Duration::from_millis(1)).await;
    assert!(!fence.is_open(), "past the renew deadline");
    *config.renewed.0.lock() = Some(tokio::time::Instant::now());
    assert!(fence.is_open(), "renewed");
    *config.renewed.0.lock() = None;
    assert!(!fence.is_open(), "given back");
}
