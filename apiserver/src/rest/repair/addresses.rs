//! Each cluster address of a service has an IPAddress object that names the service, and each such object a service
//! that has the address. Answers for upstream's `pkg/registry/core/service/ipallocator/controller` (`RepairIPAddress`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proto::Value;
use proto::resources::Row;
use shared::address;
use shared::address::may_be_given;
use shared::status::Status;
use tokio::time::Instant;

use super::{EVERY, EventWriter, RepairEvent, all_readable, backoff};
use crate::api::{Api, DeleteArgs, Reader};
use crate::cache::Cacher;
use crate::machinery::GroupResource;
use crate::machinery::identity::server_user;
use crate::machinery::meta;
use crate::machinery::tree;
use crate::registry::core::service::SERVICES;
use crate::registry::core::service::ips_of;
use crate::registry::networking::ip_address::IP_ADDRESSES;
use crate::registry::networking::service_cidr::SERVICE_CIDRS;
use crate::rest::AllocationStorage;
use crate::rest::address_ranges::{self, DEFAULT, Range};
use crate::rest::ip_allocator::{self, ALLOCATOR, FAMILY, MANAGED_BY, family};
use crate::storage::codec;

const ALLOCATION: Option<&str> = Some("ClusterIPAllocation");
/// An address may wait so long for the service that it was taken for: requests do not last longer.
const SERVICE_COMES: i64 = 60;
/// An address that was taken for a service after that was made may be given back so much later.
const ADDRESS_GOES: i64 = 5;

/// Snapshot that addresses are checked against.
struct View<'a> {
    reader: &'a dyn Reader,
    ranges: Vec<Range>,
}

impl View<'_> {
    fn service(&self, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.reader.get(SERVICES, namespace, name)
    }
}

/// Repair action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RepairAction {
    Nothing,
    /// The service is given the object of its address.
    Make,
    /// Replaces the service's IPAddress.
    Replace,
}

fn cluster_addresses(service: &Value) -> Vec<String> {
    service["spec"].as_object().map(ips_of).unwrap_or_default()
}

fn names_service(address: &Value) -> bool {
    tree::text(address, "/spec/parentRef/group").is_empty()
        && tree::text(address, "/spec/parentRef/resource") == SERVICES.plural
}

fn is_ours(address: &Value) -> bool {
    tree::label(address, MANAGED_BY) == Some(ALLOCATOR)
}

/// Checks an address of a service; returns the finding and its repair.
fn judge_service(service: &Value, ip: &str, view: &View<'_>) -> Option<(RepairEvent, RepairAction)> {
    let (namespace, name) = (meta::text(service, "namespace"), meta::text(service, "name"));
    let complaint = |reason: &'static str, message| RepairEvent { reason: reason.into(), action: ALLOCATION, message };
    let Some(parsed) = address::ip(ip) else {
        let message = format!("Cluster IP {ip} is not a valid IP; please recreate Service");
        let complaint =
            RepairEvent { reason: "ClusterIPNotValid".into(), action: Some("ClusterIPValidation"), message };
        return Some((complaint, RepairAction::Nothing));
    };
    let of = family(parsed);
    if !view.ranges.iter().any(|range| may_be_given(&range.net, parsed)) {
        let message =
            format!("Cluster IP [{of}]: {parsed} is not within any configured Service CIDR; please recreate service");
        return Some((complaint("ClusterIPOutOfRange", message), RepairAction::Nothing));
    }
    let Some(there) = view.reader.get(IP_ADDRESSES, "", &parsed.to_string()) else {
        let message = format!("Cluster IP [{of}]: {parsed} is not allocated; repairing");
        return Some((complaint("ClusterIPNotAllocated", message), RepairAction::Make));
    };
    let wrong = || {
        let message =
            format!("the ClusterIP [{of}]: {parsed} for Service {namespace}/{name} has a wrong reference; repairing");
        Some((complaint("ClusterIPNotAllocated", message), RepairAction::Replace))
    };
    if !names_service(&there) {
        return wrong();
    }
    let parent = |field: &str| tree::text(&there, &format!("/spec/parentRef/{field}")).to_owned();
    let unlabelled = !is_ours(&there) || tree::label(&there, FAMILY) != Some(of);
    let mend = if unlabelled { RepairAction::Replace } else { RepairAction::Nothing };
    if (parent("namespace").as_str(), parent("name").as_str()) != (namespace, name) {
        let Some(other) = view.service(&parent("namespace"), &parent("name")) else { return wrong() };
        if cluster_addresses(&other).iter().any(|theirs| theirs == meta::text(&there, "name")) {
            let message =
                format!("Cluster IP [{of}]:{parsed} was assigned to multiple services; please recreate service");
            return Some((complaint("ClusterIPAlreadyAllocated", message), mend));
        }
    }
    let message = format!("the labels of the address {parsed} of service {namespace}/{name} are wrong; repairing");
    unlabelled.then(|| (complaint("", message), mend))
}

/// Result of checking an IPAddress.
#[derive(Debug, PartialEq, Eq)]
enum AddressCheck {
    Fine,
    /// Check again after this many seconds.
    Later(i64),
    /// Delete the IPAddress.
    Wrong(RepairEvent),
}

fn judge_address(address: &Value, view: &View<'_>, now: jiff::Timestamp) -> AddressCheck {
    let name = meta::text(address, "name");
    let wrong = |reason: &'static str, message| {
        AddressCheck::Wrong(RepairEvent { reason: reason.into(), action: Some("IPAddressAllocation"), message })
    };
    if !is_ours(address) {
        return AddressCheck::Fine;
    }
    let parent = |field: &str| tree::text(address, &format!("/spec/parentRef/{field}"));
    if !names_service(address) {
        let shown = format!(
            "&ParentReference{{Group:{},Resource:{},Namespace:{},Name:{},}}",
            parent("group"),
            parent("resource"),
            parent("namespace"),
            parent("name")
        );
        let message =
            format!("IPAddress {name} appears to have been modified, not referencing a Service {shown}: cleaning up");
        return wrong("IPAddressNotAllocated", message);
    }
    let of = format!("{}/{}", parent("namespace"), parent("name"));
    let time = |object: &Value| {
        meta::text(object, "creationTimestamp").parse::<jiff::Timestamp>().map_or(0, jiff::Timestamp::as_second)
    };
    let age = now.as_second() - time(address);
    let Some(service) = view.service(parent("namespace"), parent("name")) else {
        if age <= SERVICE_COMES {
            return AddressCheck::Later(SERVICE_COMES + 1 - age);
        }
        let message = format!("IPAddress: {name} for Service {of} appears to have leaked: cleaning up");
        return wrong("IPAddressNotAllocated", message);
    };
    if cluster_addresses(&service).iter().any(|ip| ip == name) {
        return AddressCheck::Fine;
    }
    if time(address) > time(&service) && age < ADDRESS_GOES {
        return AddressCheck::Later(ADDRESS_GOES - age);
    }
    wrong("IPAddressWrongReference", format!("IPAddress: {name} for Service {of} has a wrong reference; cleaning up"))
}

/// Mends what is wrong, and tells of it.
struct Repairer {
    api: Api,
    teller: EventWriter,
}

impl Repairer {
    fn new(api: Api) -> Self {
        Self { teller: EventWriter::new(api.clone(), "ipallocator-repair-controller"), api }
    }

    async fn delete(&self, name: &str) -> Result<(), Status> {
        match self.api.delete(&server_user(), IP_ADDRESSES, "", name, DeleteArgs::default()).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }

    /// Looks at a service.
    async fn service(&mut self, service: &Value, view: &View<'_>) -> Result<(), Status> {
        for ip in cluster_addresses(service) {
            let Some((complaint, mend)) = judge_service(service, &ip, view) else { continue };
            // News may be old by now. A service gives its address up before that is let go, so who still has it now had
            // it when it was looked for; what has changed since is looked at in its turn.
            let now = view.service(meta::text(service, "namespace"), meta::text(service, "name"));
            if !now.is_some_and(|now| cluster_addresses(&now).contains(&ip)) {
                continue;
            }
            if !complaint.reason.is_empty() {
                self.teller.tell(("v1", "Service"), service, &complaint).await;
            }
            let Some(ip) = address::ip(&ip).filter(|_| mend != RepairAction::Nothing) else { continue };
            if mend == RepairAction::Replace {
                self.delete(&ip.to_string()).await?;
            }
            let made = ip_allocator::object(ip, meta::text(service, "namespace"), meta::text(service, "name"));
            self.api.create(&server_user(), IP_ADDRESSES, "", made).await?;
        }
        Ok(())
    }

    /// Looks at an address; the seconds after which to look again.
    async fn address(&mut self, address: &Value, view: &View<'_>) -> Result<Option<i64>, Status> {
        match judge_address(address, view, jiff::Timestamp::now()) {
            AddressCheck::Fine => Ok(None),
            AddressCheck::Later(seconds) => Ok(Some(seconds)),
            AddressCheck::Wrong(complaint) => {
                self.teller.tell(("networking.k8s.io/v1", "IPAddress"), address, &complaint).await;
                self.delete(meta::text(address, "name")).await?;
                Ok(None)
            }
        }
    }
}

/// A resource whose changes are looked at.
struct FollowedResource {
    row: Row,
    cacher: Arc<Cacher>,
    seen: u64,
    version: u64,
}

impl FollowedResource {
    fn new(backend: &AllocationStorage, resource: GroupResource<'_>) -> Option<Self> {
        let row = backend.rows.storage(resource)?;
        Some(Self { cacher: backend.caches.cacher(&row), row, seen: 0, version: 0 })
    }

    /// Yields the objects that changed since the last call.
    fn changes(&mut self, reader: &dyn Reader) -> impl Iterator<Item = Value> {
        self.version = reader.version(GroupResource::of(&self.row));
        let news = self.cacher.since(self.seen);
        self.seen = news.sequence;
        let row = self.row.clone();
        let there = news.entries.into_iter().filter(|(_, gone)| !gone);
        there.filter_map(move |(entry, _)| codec::value(&row, &entry.raw).ok())
    }

    async fn changed(&self, reader: &dyn Reader) {
        reader.changed(GroupResource::of(&self.row), self.version).await;
    }
}

/// Waits until everything is known that is looked at, the server's own range among it.
async fn known(reader: &dyn Reader) {
    for resource in [SERVICES, IP_ADDRESSES, SERVICE_CIDRS] {
        reader.changed(resource, u64::MAX).await;
    }
    loop {
        let version = reader.version(SERVICE_CIDRS);
        if reader.get(SERVICE_CIDRS, "", DEFAULT).is_some() {
            return;
        }
        reader.changed(SERVICE_CIDRS, version).await;
    }
}

/// Keeps both in line until dropped; `done` is called once they have been.
pub(crate) async fn run(
    backend: Arc<AllocationStorage>,
    reader: Arc<dyn Reader>,
    api: Api,
    done: impl FnOnce() + Send,
) {
    known(&*reader).await;
    let (Some(mut services), Some(mut addresses)) =
        (FollowedResource::new(&backend, SERVICES), FollowedResource::new(&backend, IP_ADDRESSES))
    else {
        return;
    };
    let (mut mender, mut done, mut backoff) = (Repairer::new(api), Some(done), backoff());
    let mut everything = Instant::now() + EVERY;
    // When to look at which address again.
    let mut later: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        let ranges = reader.list(SERVICE_CIDRS, None);
        let view = View { reader: &*reader, ranges: address_ranges::of(ranges.iter().map(|o| &**o)) };
        let now = Instant::now();
        let due: Vec<String> = later.iter().filter(|(_, at)| **at <= now).map(|(name, _)| name.clone()).collect();
        let look = async {
            all_readable(&backend, SERVICES)?;
            for service in services.changes(&*reader) {
                mender.service(&service, &view).await?;
            }
            let again = due.iter().filter_map(|name| Some(reader.get(IP_ADDRESSES, "", name)?.as_ref().clone()));
            for address in again.chain(addresses.changes(&*reader)) {
                let name = meta::text(&address, "name").to_owned();
                match mender.address(&address, &view).await? {
                    Some(seconds) => {
                        later.insert(name, now + Duration::from_secs(seconds.unsigned_abs()));
                    }
                    None => drop(later.remove(&name)),
                }
            }
            Ok::<_, Status>(())
        };
        match look.await {
            Ok(()) => {
                backoff.reset();
                later.retain(|_, at| *at > now);
                if let Some(done) = done.take() {
                    done();
                }
            }
            Err(error) => {
                tracing::warn!(%error, "Failed to repair cluster IP allocations");
                backoff.wait().await;
                (services.seen, addresses.seen) = (0, 0);
                continue;
            }
        }
        let wake = later.values().min().copied().unwrap_or(everything).min(everything);
        tokio::select! {
            () = services.changed(&*reader) => {}
            () = addresses.changed(&*reader) => {}
            () = tokio::time::sleep_until(wake) => {}
        }
        if Instant::now() >= everything {
            (services.seen, addresses.seen) = (0, 0);
            everything = Instant::now() + EVERY;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::admission::testing::Fixed;

    fn service(name: &str, ips: &[&str]) -> Value {
        json!({"metadata": {"name": name, "namespace": "n", "creationTimestamp": "2020-01-01T00:00:01Z", "uid": name},
            "spec": {"type": "ClusterIP", "clusterIP": ips[0], "clusterIPs": ips}})
    }

    fn address(ip: &str, of: &str, created: &str) -> Value {
        let mut object = ip_allocator::object(ip.parse().expect("an address"), "n", of);
        object["metadata"]["creationTimestamp"] = json!(created);
        object
    }

    /// Runs one repair; returns the reasons and actions of events, and the addresses left.
    async fn mended(services: Vec<Value>, addresses: Vec<Value>, at: &str) -> (Vec<String>, Vec<String>) {
        let cluster = Arc::new(Fixed::default());
        for service in &services {
            cluster.put("", "services", service.clone());
        }
        for address in &addresses {
            cluster.put(IP_ADDRESSES.group, IP_ADDRESSES.plural, address.clone());
        }
        let now = at.parse().expect("a time");
        let net = |text: &str| Range { net: text.parse().expect("a range"), ready: true };
        let view = View { reader: &*cluster, ranges: vec![net("10.0.0.0/16"), net("fd00::/64")] };
        let mut mender = Repairer::new(cluster.api());
        for service in &services {
            mender.service(service, &view).await.expect("done");
        }
        let mut told: Vec<String> = cluster
            .list(GroupResource::new("", "events"), None)
            .iter()
            .map(|e| tree::text(e, "/message").to_owned())
            .collect();
        for there in cluster.list(IP_ADDRESSES, None) {
            match judge_address(&there, &view, now) {
                AddressCheck::Wrong(complaint) => {
                    told.push(complaint.message);
                    mender.delete(meta::text(&there, "name")).await.expect("gone");
                }
                AddressCheck::Later(seconds) => told.push(format!("later {seconds}")),
                AddressCheck::Fine => {}
            }
        }
        let left = |o: &Arc<Value>| format!("{} {}", meta::text(o, "name"), tree::text(o, "/spec/parentRef/name"));
        told.sort();
        (told, cluster.list(IP_ADDRESSES, None).iter().map(left).collect())
    }

    #[tokio::test]
    async fn stale_service_events_release_nothing() {
        let cluster = Arc::new(Fixed::default());
        cluster.put("", "services", service("a", &["10.0.1.1"]));
        cluster.put(IP_ADDRESSES.group, IP_ADDRESSES.plural, address("10.0.1.1", "a", "2020-01-01T00:00:00Z"));
        let net = Range { net: "10.0.0.0/16".parse().expect("a range"), ready: true };
        let view = View { reader: &*cluster, ranges: vec![net] };
        let mut mender = Repairer::new(cluster.api());
        for old in [service("a", &["10.0.1.1", "10.0.1.2"]), service("gone", &["10.0.1.3"])] {
            mender.service(&old, &view).await.expect("done");
        }
        assert_eq!(
            (cluster.list(IP_ADDRESSES, None).len(), cluster.list(GroupResource::new("", "events"), None).len()),
            (1, 0)
        );
    }

    #[tokio::test]
    async fn services_and_addresses_are_brought_in_line() {
        // A name, services, addresses, what is said, and what addresses there are then.
        type Case<'a> = (&'a str, Vec<Value>, Vec<Value>, &'a [&'a str], &'a [&'a str]);

        let early = "2020-01-01T00:00:00Z";
        let other = |mut object: Value, path: &str, value: Value| {
            *object.pointer_mut(path).expect("a field") = value;
            object
        };
        let two = ["10.0.1.1", "fd00::10"];
        let table: Vec<Case<'_>> = vec![
            (
                "fine",
                vec![service("a", &two)],
                two.map(|ip| address(ip, "a", early)).into(),
                &[],
                &["10.0.1.1 a", "fd00::10 a"],
            ),
            ("headless", vec![service("a", &["None"])], vec![], &[], &[]),
            (
                "from before there were such objects",
                vec![service("a", &two)],
                vec![],
                &[
                    "Cluster IP [IPv4]: 10.0.1.1 is not allocated; repairing",
                    "Cluster IP [IPv6]: fd00::10 is not allocated; repairing",
                ],
                &["10.0.1.1 a", "fd00::10 a"],
            ),
            (
                "of a service that is gone",
                vec![service("a", &["10.0.1.1"])],
                vec![address("10.0.1.1", "b", early)],
                &["the ClusterIP [IPv4]: 10.0.1.1 for Service n/a has a wrong reference; repairing"],
                &["10.0.1.1 a"],
            ),
            (
                "of no service",
                vec![service("a", &["10.0.1.1"])],
                vec![other(address("10.0.1.1", "a", early), "/spec/parentRef/resource", json!("gateways"))],
                &["the ClusterIP [IPv4]: 10.0.1.1 for Service n/a has a wrong reference; repairing"],
                &["10.0.1.1 a"],
            ),
            (
                "of somebody else",
                vec![],
                vec![other(address("10.0.1.1", "a", early), "/metadata/labels", json!({}))],
                &[],
                &["10.0.1.1 a"],
            ),
            (
                "two services",
                vec![service("a", &["10.0.1.1"]), service("b", &["10.0.1.1"])],
                vec![address("10.0.1.1", "b", early)],
                &["Cluster IP [IPv4]:10.0.1.1 was assigned to multiple services; please recreate service"],
                &["10.0.1.1 b"],
            ),
            (
                "two addresses",
                vec![service("a", &["10.0.1.1"])],
                vec![address("10.0.1.1", "a", early), address("10.0.1.2", "a", early)],
                &["IPAddress: 10.0.1.2 for Service n/a has a wrong reference; cleaning up"],
                &["10.0.1.1 a"],
            ),
            (
                "out of range",
                vec![service("a", &["10.0.0.0"]), service("b", &["192.0.2.1"])],
                vec![],
                &[
                    "Cluster IP [IPv4]: 10.0.0.0 is not within any configured Service CIDR; please recreate service",
                    "Cluster IP [IPv4]: 192.0.2.1 is not within any configured Service CIDR; please recreate service",
                ],
                &[],
            ),
            (
                "leaked",
                vec![],
                vec![address("10.0.1.1", "a", early), address("10.0.1.2", "a", "2020-01-01T00:01:00Z")],
                &["IPAddress: 10.0.1.1 for Service n/a appears to have leaked: cleaning up", "later 51"],
                &["10.0.1.2 a"],
            ),
            (
                "just taken again",
                vec![service("a", &["10.0.1.1"])],
                vec![address("10.0.1.1", "a", early), address("10.0.1.2", "a", "2020-01-01T00:01:08Z")],
                &["later 3"],
                &["10.0.1.1 a", "10.0.1.2 a"],
            ),
        ];
        for (what, services, addresses, told, left) in table {
            let (said, there) = mended(services, addresses, "2020-01-01T00:01:10Z").await;
            assert_eq!(said, told, "{what}");
            assert_eq!(there, left, "{what}");
        }
    }
}
