use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::{Config, Elector, Step, decide};

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
    Elector { leases, config: config(), observed: None }.release().await;
    assert_eq!(began.elapsed(), config().renew_deadline);
}
