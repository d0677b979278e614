//! Keeps ServiceCIDRs ready, and from going while addresses in them are in use. Answers for upstream's
//! `pkg/controller/servicecidrs`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use ipnet::IpNet;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use shared::address::may_be_given;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use crate::engine::action::{Action, PatchKind};
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::object::{self, Key};
use crate::engine::owned;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

const NAME: &str = "service-cidr-controller";
const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
const WORKERS: usize = 5;
/// On addresses: who gives them out. Those of others hold no range.
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";
const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
/// Seconds that allocators have to hear that a range is being deleted. An address that is given out meanwhile must
/// still be seen here.
const GRACE: i64 = 10;

const STILL_USED: &str =
    "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
const NOT_SET: &str = "The ServiceCIDR Status can not be set to Ready=True";

struct Ranges {
    executor: Executor,
    ranges: Store<ServiceCIDR>,
    addresses: Store<IPAddress>,
}

/// Wire the ServiceCIDR controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let (ranges, addresses) = (cx.informer::<ServiceCIDR>(), cx.informer::<IPAddress>());
        let queue: Queue<Key> = Queue::new("ipaddresses");
        let this = Arc::new(Ranges {
            executor: cx.executor("service-cidrs-controller", NAME),
            ranges: ranges.store(),
            addresses: addresses.store(),
        });
        owned::watch(&ranges, &queue);
        let (all, wake) = (ranges.store(), queue.clone());
        let wake_leaving = move || {
            for range in all.list().iter().filter(|r| object::deleting(&r.metadata)) {
                wake.add(Key::of(&range.metadata));
            }
        };
        // A range that has come, or gone, may take over the addresses of one that is to go, or leave them to it.
        let again = wake_leaving.clone();
        ranges.add_handler(move |event: &Event<ServiceCIDR>| {
            if !matches!(event, Event::Updated { .. }) {
                again();
            }
        });
        addresses.add_handler(move |event: &Event<IPAddress>| {
            if !matches!(event, Event::Updated { .. }) {
                wake_leaving();
            }
        });
        worker::run(cx, "service-cidr", WORKERS, &queue, &this, |s, key| async move {
            let Some(range) = s.ranges.get("", &key.name) else { return Ok(None) };
            s.sync(&key, &range).await
        });
        Ok(Started::Yes)
    })
}

impl Ranges {
    async fn sync(&self, key: &Key, range: &ServiceCIDR) -> Synced {
        if object::deleting(&range.metadata) {
            let actions = leaving(range, &self.ranges.list(), &self.addresses.list(), clock::now());
            return self.executor.run(key, None, actions).await.into();
        }
        if let Some(failed) = self.executor.run(key, None, hold(range)).await.failure.filter(|f| !f.error.not_found()) {
            return Err(failed.error);
        }
        let ready = condition(range, "True", "", "Kubernetes Service CIDR is ready", clock::now());
        let outcome = self.executor.run(key, None, ready.into_iter().collect()).await;
        if outcome.failure.is_some() {
            let about = object::reference::<ServiceCIDR>(&range.metadata);
            self.executor.events.say(&about, true, "KubernetesServiceCIDRError", NOT_SET.to_owned());
        }
        outcome.into()
    }
}

fn nets(range: &ServiceCIDR) -> impl Iterator<Item = IpNet> {
    range.spec.iter().flat_map(|s| s.cidrs.iter().flatten()).filter_map(|c| c.parse().ok())
}

/// Reports whether a range may go and leave no address behind that is in no other one. Others that are being deleted
/// count, too, as upstream.
fn may_go(range: &ServiceCIDR, all: &[Arc<ServiceCIDR>], addresses: &[Arc<IPAddress>]) -> bool {
    let others = || all.iter().filter(|r| r.metadata.name != range.metadata.name);
    if nets(range).all(|net| others().any(|r| nets(r).any(|n| n.contains(&net)))) {
        return true;
    }
    let held = |address: &IPAddress| {
        let label = |name| object::label(&address.metadata, name);
        let Ok(ip) = object::name(&address.metadata).parse::<IpAddr>() else { return false };
        let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
        let in_range = |r: &ServiceCIDR| nets(r).any(|net| may_be_given(&net, ip));
        label(MANAGED_BY) == Some(ALLOCATOR)
            && label(FAMILY) == Some(family)
            && in_range(range)
            && !others().any(|r| in_range(r))
    };
    !addresses.iter().any(|a| held(a))
}

fn is_held(range: &ServiceCIDR) -> bool {
    range.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER)
}

fn finalizer(range: &ServiceCIDR, key: &str) -> Action {
    let patch = json!({"metadata": {key: [FINALIZER], "uid": range.metadata.uid}});
    Action::patch::<ServiceCIDR>(&range.metadata, PatchKind::Strategic, patch)
}

/// Returns the finalizer that keeps a range.
fn hold(range: &ServiceCIDR) -> Vec<Action> {
    (!is_held(range)).then(|| finalizer(range, "finalizers")).into_iter().collect()
}

/// The next writes for a range that is to go.
fn leaving(range: &ServiceCIDR, all: &[Arc<ServiceCIDR>], addresses: &[Arc<IPAddress>], now: Timestamp) -> Vec<Action> {
    if !may_go(range, all, addresses) {
        return condition(range, "False", "Terminating", STILL_USED, now).into_iter().collect();
    }
    let since = range.metadata.deletion_timestamp.as_ref().map_or(now, |t| t.0);
    let left = since.as_second() + GRACE - now.as_second();
    if left > 0 {
        return vec![Action::RequeueAfter(Duration::from_secs(left.unsigned_abs()))];
    }
    is_held(range).then(|| finalizer(range, "$deleteFromPrimitiveList/finalizers")).into_iter().collect()
}

/// The write of a condition; None when it is there already.
fn condition(range: &ServiceCIDR, status: &str, reason: &str, message: &str, now: Timestamp) -> Option<Action> {
    let same = |c: &Condition| c.type_ == "Ready" && c.status == status && c.reason == reason && c.message == message;
    if range.status.iter().flat_map(|s| s.conditions.iter().flatten()).any(same) {
        return None;
    }
    let new = json!({"type": "Ready", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": object::seconds(now)});
    Some(Action::apply_status::<ServiceCIDR>(&range.metadata, NAME, json!({"conditions": [new]})))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const NETS: [&str; 2] = ["192.168.0.0/24", "2001:db2::/64"];

    fn range(name: &str, cidrs: &[&str], extra: Value) -> Arc<ServiceCIDR> {
        let mut v = json!({"metadata": {"name": name}, "spec": {"cidrs": cidrs}});
        if let (Some(m), Value::Object(e)) = (v["metadata"].as_object_mut(), extra) {
            m.extend(e);
        }
        Arc::new(serde_json::from_value(v).expect("range"))
    }

    fn address(name: &str) -> Arc<IPAddress> {
        let family = if name.contains(':') { "IPv6" } else { "IPv4" };
        let labels = json!({MANAGED_BY: ALLOCATOR, FAMILY: family});
        Arc::new(serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).expect("address"))
    }

    #[test]
    fn what_may_go() {
        let all: [&[&str]; 4] = [
            &["192.168.0.0/24", "2001:db2::/64"],
            &["192.168.0.0/26", "2001:db2::/64"],
            &["192.168.0.0/28", "2001:db2::/64"],
            &["192.168.0.0/16", "2001:db2::/48"],
        ];
        let [same, smaller, tiny, larger] = all;
        for (name, other, ip, want) in [
            ("no address", None, None, true),
            ("an address", None, Some("192.168.0.24"), false),
            ("an address elsewhere", None, Some("192.168.1.24"), true),
            ("the net itself is no address", None, Some("192.168.0.0"), true),
            ("nor is the last of IPv4", None, Some("192.168.0.255"), true),
            ("the first of IPv6", None, Some("2001:db2::"), true),
            ("the last of IPv6 is one", None, Some("2001:db2::ffff:ffff:ffff:ffff"), false),
            ("the same range", Some(same), Some("192.168.0.23"), true),
            ("a smaller one with the address", Some(smaller), Some("192.168.0.23"), true),
            ("a smaller one without", Some(tiny), Some("192.168.0.23"), false),
            ("a smaller one that may not give it", Some(smaller), Some("192.168.0.63"), false),
            ("a larger one", Some(larger), Some("192.168.0.23"), true),
            ("a larger one, which holds whatever there is", Some(larger), Some("2001:db2::1"), true),
            ("only one of two nets is held by another", Some(&["192.168.0.0/16"]), Some("2001:db2::1"), false),
            ("it is, and its addresses are all there are", Some(&["192.168.0.0/16"]), Some("192.168.0.23"), true),
            ("another one", Some(&["192.168.255.0/26", "2001:db2:a:b::/64"]), Some("2001:db2::1"), false),
        ] {
            for leaves in [false, true] {
                let extra = if leaves { json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}) } else { json!({}) };
                let going = range("a", &NETS, json!({}));
                let ranges: Vec<_> =
                    [going.clone()].into_iter().chain(other.map(|nets| range("b", nets, extra))).collect();
                let used: Vec<_> = ip.into_iter().map(address).collect();
                assert_eq!(may_go(&going, &ranges, &used), want, "{name}");
            }
        }
        let mut foreign = IPAddress::clone(&address("192.168.0.24"));
        foreign.metadata.labels = None;
        assert!(may_go(&range("a", &NETS, json!({})), &[], &[Arc::new(foreign)]), "an address of others");
    }

    #[test]
    fn held_and_ready() {
        let fresh = range("a", &NETS, json!({}));
        let [Action::Patch { body, .. }] = &*hold(&fresh) else { panic!("no finalizer") };
        assert_eq!(body["metadata"]["finalizers"], json!([FINALIZER]));
        assert_eq!(hold(&range("a", &NETS, json!({"finalizers": [FINALIZER]}))), []);
        let now = "2026-01-01T00:00:00Z".parse().expect("time");
        let write = |range: &ServiceCIDR| condition(range, "True", "", "Kubernetes Service CIDR is ready", now);
        let Some(Action::Apply { path, body }) = write(&fresh) else { panic!("no condition") };
        assert!(path.ends_with("/servicecidrs/a/status?fieldManager=service-cidr-controller&force=true"), "{path}");
        for (message, writes) in
            [("Kubernetes Service CIDR is ready", false), ("Kubernetes default Service CIDR is ready", true)]
        {
            let mut there = ServiceCIDR::clone(&fresh);
            let mut status = body["status"].clone();
            status["conditions"][0]["message"] = json!(message);
            there.status = Some(serde_json::from_value(status).expect("status"));
            assert_eq!(write(&there).is_some(), writes, "{message}");
        }
    }

    #[test]
    fn on_its_way_out() {
        let at = |second: &str| -> Timestamp { format!("2026-01-01T00:00:{second}Z").parse().expect("time") };
        let dying = |finalizers: Value| {
            range("a", &NETS, json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": finalizers}))
        };
        let held = dying(json!([FINALIZER]));
        let told = |range: &ServiceCIDR, used: &[Arc<IPAddress>], second: &str| -> Vec<String> {
            let brief = |a: &Action| match a {
                Action::Apply { body, .. } => {
                    let c = &body["status"]["conditions"][0];
                    format!("{} {} {}", c["type"], c["status"], c["reason"])
                }
                Action::Patch { body, .. } => body["metadata"]["$deleteFromPrimitiveList/finalizers"].to_string(),
                other => format!("{other:?}"),
            };
            leaving(range, &[], used, at(second)).iter().map(brief).collect()
        };
        let used = [address("192.168.0.1")];
        let let_go = format!("[\"{FINALIZER}\"]");
        assert_eq!(told(&held, &used, "20"), ["\"Ready\" \"False\" \"Terminating\""]);
        assert_eq!(told(&held, &[], "04"), ["RequeueAfter(6s)"], "allocators may not know yet");
        assert_eq!(told(&held, &[], "10"), [let_go]);
        assert_eq!(told(&dying(json!(["other"])), &[], "10"), Vec::<String>::new());
        assert_eq!(told(&dying(json!(["other"])), &used, "10").len(), 1, "the user is told all the same");
    }
}
