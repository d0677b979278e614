//! Keeps ServiceCIDRs ready, and from going while addresses in them are in use.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use ipnet::IpNet;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
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
/// How long allocators may take to hear that a range is going, in seconds. An address that is given out meanwhile must
/// still be seen here.
const GRACE: i64 = 10;

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
            let leaves = |r: &ServiceCIDR| object::deleting(&r.metadata);
            if !matches!(event, Event::Updated { old, new } if leaves(old) == leaves(new)) {
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
            let actions = plan(&range, &s.ranges.list(), &s.addresses.list(), clock::now());
            let outcome = s.executor.run(&key, None, actions).await;
            if outcome.failure.is_some() && !object::deleting(&range.metadata) {
                let about = object::reference::<ServiceCIDR>(&range.metadata);
                s.executor.events.say(&about, true, "KubernetesServiceCIDRError", NOT_SET.to_owned());
            }
            Synced::from(outcome)
        });
        Ok(Started::Yes)
    })
}

fn nets(range: &ServiceCIDR) -> Vec<IpNet> {
    range.spec.iter().flat_map(|s| s.cidrs.iter().flatten()).filter_map(|c| c.parse().ok()).collect()
}

/// Whether an address is in this range and in no other that stays.
fn depends(range: &ServiceCIDR, all: &[Arc<ServiceCIDR>], address: &IPAddress) -> bool {
    if object::label(&address.metadata, MANAGED_BY) != Some(ALLOCATOR) {
        return false;
    }
    let Ok(ip) = object::name(&address.metadata).parse::<std::net::IpAddr>() else { return false };
    let holds = |r: &ServiceCIDR| nets(r).iter().any(|n| n.contains(&ip));
    // Of ranges that are all to go, the widest is the last.
    let width = |r: &ServiceCIDR| (nets(r).iter().map(IpNet::prefix_len).min(), r.metadata.name.clone());
    let stays = |r: &ServiceCIDR| !object::deleting(&r.metadata) || width(r) < width(range);
    let others = all.iter().filter(|r| r.metadata.name != range.metadata.name && stays(r));
    holds(range) && !others.into_iter().any(|r| holds(r))
}

/// The next writes for a range.
#[must_use]
pub fn plan(
    range: &ServiceCIDR,
    all: &[Arc<ServiceCIDR>],
    addresses: &[Arc<IPAddress>],
    now: Timestamp,
) -> Vec<Action> {
    let held = range.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER);
    if object::deleting(&range.metadata) {
        if !held {
            return Vec::new();
        }
        if addresses.iter().any(|a| depends(range, all, a)) {
            let text = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
            return condition(range, "False", "Terminating", text, now).into_iter().collect();
        }
        let since = range.metadata.deletion_timestamp.as_ref().map_or(now, |t| t.0);
        let left = since.as_second() + GRACE - now.as_second();
        if left > 0 {
            return vec![Action::RequeueAfter(Duration::from_secs(left.unsigned_abs()))];
        }
        let patch =
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER], "uid": range.metadata.uid}});
        return vec![Action::patch::<ServiceCIDR>(&range.metadata, PatchKind::Strategic, patch)];
    }
    let mut actions = Vec::new();
    if !held {
        let patch = json!({"metadata": {"finalizers": [FINALIZER], "uid": range.metadata.uid}});
        actions.push(Action::patch::<ServiceCIDR>(&range.metadata, PatchKind::Strategic, patch));
    }
    actions.extend(condition(range, "True", "", "Kubernetes Service CIDR is ready", now));
    actions
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

    fn range(name: &str, cidr: &str, extra: Value) -> Arc<ServiceCIDR> {
        let mut v = json!({"metadata": {"name": name}, "spec": {"cidrs": [cidr]}});
        if let (Some(m), Value::Object(e)) = (v["metadata"].as_object_mut(), extra) {
            m.extend(e);
        }
        Arc::new(serde_json::from_value(v).expect("range"))
    }

    #[test]
    fn ready_then_held_then_let_go() {
        let address: Arc<IPAddress> = Arc::new(
            serde_json::from_value(json!({"metadata": {"name": "10.0.0.5", "labels": {MANAGED_BY: ALLOCATOR}}}))
                .expect("address"),
        );
        let at = |second: &str| -> Timestamp { format!("2026-01-01T00:00:{second}Z").parse().expect("time") };
        let now = at("10");
        let fresh = range("a", "10.0.0.0/24", json!({}));
        let first = plan(&fresh, std::slice::from_ref(&fresh), &[], now);
        let [Action::Patch { body, .. }, Action::Apply { path, body: applied }] = first.as_slice() else {
            panic!("{first:?}")
        };
        assert_eq!(body["metadata"]["finalizers"], json!([FINALIZER]));
        assert!(path.ends_with("/servicecidrs/a/status?fieldManager=service-cidr-controller&force=true"), "{path}");
        let ready = |message: &str| {
            let mut there = ServiceCIDR::clone(&fresh);
            there.metadata.finalizers = Some(vec![FINALIZER.into()]);
            let mut status = applied["status"].clone();
            status["conditions"][0]["message"] = json!(message);
            there.status = Some(serde_json::from_value(status).expect("status"));
            plan(&there, &[], &[], now).len()
        };
        assert_eq!(ready("Kubernetes Service CIDR is ready"), 0, "as it is");
        assert_eq!(ready("Kubernetes default Service CIDR is ready"), 1, "in other words");
        let dying =
            range("a", "10.0.0.0/24", json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FINALIZER]}));
        let texts = |all: &[Arc<ServiceCIDR>], used: &[Arc<IPAddress>]| -> Vec<String> {
            plan(&dying, all, used, now)
                .iter()
                .map(|a| match a {
                    Action::Patch { body, .. } | Action::Apply { body, .. } => body.to_string(),
                    other => format!("{other:?}"),
                })
                .collect()
        };
        assert!(
            texts(std::slice::from_ref(&dying), std::slice::from_ref(&address))[0]
                .contains("There are still IPAddresses")
        );
        let wider = range("b", "10.0.0.0/16", json!({}));
        assert!(texts(&[dying.clone(), wider], std::slice::from_ref(&address))[0].contains("deleteFromPrimitiveList"));
        assert!(texts(std::slice::from_ref(&dying), &[])[0].contains("deleteFromPrimitiveList"));
        let mut foreign = IPAddress::clone(&address);
        foreign.metadata.labels = None;
        assert!(texts(std::slice::from_ref(&dying), &[Arc::new(foreign)])[0].contains("deleteFromPrimitiveList"));
        for (other, lets_go) in [("10.0.0.0/16", true), ("10.0.0.0/28", false)] {
            let too = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FINALIZER]});
            let all = [dying.clone(), range("b", other, too)];
            let text = &texts(&all, std::slice::from_ref(&address))[0];
            assert_eq!(text.contains("deleteFromPrimitiveList"), lets_go, "with {other}, which is to go, too");
        }
        let early = plan(&dying, std::slice::from_ref(&dying), &[], at("04"));
        assert_eq!(early, [Action::RequeueAfter(Duration::from_secs(6))], "allocators may not know yet");
    }
}
