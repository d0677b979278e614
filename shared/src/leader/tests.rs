use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::sleep;

use super::{Config, Elector, Lease, Leases, Outcome, Renewed, Step, decide, refused, run, run_over};
use crate::events::Recorder;
use crate::run::{Shutdown, TaskGroup};

fn config() -> Config {
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

fn held_by(holder: &str, transitions: i32) -> LeaseSpec {
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
            Step::Wait => assert_eq!(expected, None, "{holder} {unchanged}"),
            Step::Take(spec) => {
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
struct Remote {
    stored: Arc<Mutex<Option<Lease>>>,
    dice: Arc<Mutex<StdRng>>,
    /// Percentage of messages that are lost.
    lost: u32,
    /// The longest way of a message.
    longest: Duration,
}

impl Remote {
    fn new(seed: u64, lost: u32, longest: Duration) -> Self {
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

/// Counts those that work, and how often somebody began to.
#[derive(Clone, Default)]
struct Working(Arc<(AtomicUsize, AtomicUsize)>);

impl Working {
    fn begin(&self, seed: u64) -> impl Drop + use<> {
        struct Ends(Working);
        impl Drop for Ends {
            fn drop(&mut self) {
                self.0.0.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        assert_eq!(self.0.0.fetch_add(1, Ordering::SeqCst), 0, "two work at one time, seed {seed}");
        self.0.1.fetch_add(1, Ordering::SeqCst);
        Ends(self.clone())
    }
}

/// Runs a machine: a process leads until it is asked to end, which takes its work a while, or has lost the lease; then
/// the next one is started.
async fn machine(name: String, remote: Remote, working: Working, seed: u64) {
    loop {
        let (life, drain) = {
            let mut dice = remote.dice.lock();
            (Duration::from_secs(dice.random_range(5..120)), Duration::from_secs(dice.random_range(0..20)))
        };
        let (end, shutdown) = (Shutdown::new(), Shutdown::new());
        let trigger = shutdown.clone();
        let life = tokio::spawn(async move {
            tokio::select! { () = sleep(life) => trigger.trigger(), () = end.wait() => {} }
        });
        let working = working.clone();
        let work = move |token: tokio_util::sync::CancellationToken| async move {
            let _working = working.begin(seed);
            token.cancelled().await;
            sleep(drain).await;
        };
        let config = Config { identity: super::identity(&name), ..config() };
        run_over(remote.clone(), Config { renewed: Renewed::default(), ..config }, None, shutdown, work).await;
        life.abort();
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_two_lead_at_one_time_behind_any_network() {
    const REGIMES: [(u32, u64); 4] = [(0, 10), (2, 1_000), (20, 3_000), (5, 4_000)];
    let mut begun = [0; REGIMES.len()];
    for seed in 0..40 {
        let at = usize::try_from(seed).expect("small") % REGIMES.len();
        let (lost, longest) = REGIMES[at];
        let (remote, working) = (Remote::new(seed, lost, Duration::from_millis(longest)), Working::default());
        let machines = futures::future::join_all(
            ["a", "b", "c"].map(|name| machine(name.to_owned(), remote.clone(), working.clone(), seed)),
        );
        drop(tokio::time::timeout(Duration::from_secs(1800), machines).await);
        begun[at] += working.0.1.load(Ordering::SeqCst);
    }
    assert!(begun.iter().all(|n| *n > 10), "the lease was handed on in each regime: {begun:?}");
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
    let work = |token: tokio_util::sync::CancellationToken| async move {
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
    assert_eq!(config.check_health(), Err(text.to_owned()));
}
