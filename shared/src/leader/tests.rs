use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use parking_lot::Mutex;

use super::{Config, Elector, Outcome, Step, decide, refused, run};
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

/// What a server of one lease was asked, as verb and object.
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
