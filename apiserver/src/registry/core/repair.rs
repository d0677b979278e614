//! What services have, against what they were given: in between a server may have died, a client gone away or etcd been
//! slow to say that it wrote. What nobody has is given back, what somebody has is taken for him.
//!
//! Every server does this for all of them, when it begins and every few minutes. Nothing is taken from anybody: a write
//! that is on its way has a grace for its addresses, and its ports have to be nobody's several times over.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use proto::Value;
use proto::resources::Row;
use shared::metrics;
use shared::status::Status;

use super::service::{ips_of, node_ports_of};
use super::{ip_allocator, node_ports};
use crate::access::tree;
use crate::cache::Entry;
use crate::registry::builtin;
use crate::storage::codec;
use crate::verbs::engine::{Engine, storage_status};
use crate::verbs::list;
use crate::verbs::select::Selection;

/// Time between two rounds.
const EVERY: Duration = Duration::from_secs(3 * 60);
/// Seconds an address may be taken before its service is written.
const GRACE: i64 = 60;

/// Namespace and name of a service.
type Name = (String, String);

/// An address that was taken.
#[derive(Debug)]
struct Taken {
    /// Its object's last write.
    revision: i64,
    owner: Name,
    /// Seconds since.
    age: i64,
    /// By this server or one like it.
    ours: bool,
}

/// What is to be done about addresses.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    /// With the revision at which nobody had them.
    release: Vec<(IpAddr, i64)>,
    take: Vec<(IpAddr, Name)>,
    /// Several services have them.
    shared: Vec<IpAddr>,
}

/// Compares what services have with what was taken for them.
fn plan(held: &BTreeMap<IpAddr, Vec<Name>>, taken: &BTreeMap<IpAddr, Taken>, ranges: &[IpNet]) -> Plan {
    let mut plan = Plan::default();
    let holders = |ip: &IpAddr| held.get(ip).map(Vec::as_slice).unwrap_or_default();
    let unused =
        |(ip, taken): &(&IpAddr, &Taken)| taken.ours && taken.age > GRACE && !holders(ip).contains(&taken.owner);
    plan.release.extend(taken.iter().filter(unused).map(|(ip, taken)| (*ip, taken.revision)));
    for (ip, holders) in held {
        if holders.len() > 1 {
            plan.shared.push(*ip);
        }
        let free = !taken.contains_key(ip) || plan.release.iter().any(|(released, _)| released == ip);
        if free && ranges.iter().any(|range| range.contains(ip)) {
            plan.take.extend(holders.first().map(|holder| (*ip, holder.clone())));
        }
    }
    plan
}

/// What all services have.
#[derive(Default)]
struct Held {
    addresses: BTreeMap<IpAddr, Vec<Name>>,
    ports: BTreeSet<u16>,
}

impl Held {
    fn add(&mut self, service: &Value) {
        let Some(spec) = service.get("spec").and_then(Value::as_object) else { return };
        let name = (tree::namespace(service).to_owned(), tree::name(service).to_owned());
        for ip in ips_of(spec).iter().filter_map(|ip| shared::address::ip(ip)) {
            self.addresses.entry(ip).or_default().push(name.clone());
        }
        self.ports.extend(node_ports_of(spec));
    }
}

fn owner_of(address: &Value) -> Option<Name> {
    let of = |field: &str| tree::text(address, &format!("/spec/parentRef/{field}")).to_owned();
    (of("group").is_empty() && of("resource") == "services").then(|| (of("namespace"), of("name")))
}

/// All objects of a kind as they are now, with the revisions of their last writes. None rather than some: what one that
/// cannot be read has would pass for nobody's.
async fn all(engine: &Arc<Engine>, row: &Row) -> Result<Vec<(Value, i64)>, Status> {
    let found = list::collect(engine, row, "", &Selection::all()).await?;
    let tallies = engine.hub.tallies();
    let mut its_own = tallies.iter().filter(|tally| tally.row.group == row.group && tally.row.plural == row.plural);
    whole(row, &found.items, its_own.any(|tally| tally.unreadable > 0))
}

/// What was listed, if that is all there is.
fn whole(row: &Row, items: &[Arc<Entry>], unreadable: bool) -> Result<Vec<(Value, i64)>, Status> {
    if unreadable {
        return Err(Status::internal(&format!("some {} in etcd cannot be read", row.plural)));
    }
    let read = |entry: &Arc<Entry>| match codec::value(row, &entry.raw) {
        Ok(object) => Ok((object, entry.revision)),
        Err(error) => Err(Status::internal(&format!("{}: {error}", entry.key))),
    };
    items.iter().map(read).collect()
}

/// See the module. Until dropped.
pub async fn keep(engine: Arc<Engine>) {
    let mut leaks = node_ports::Leaks::new();
    let failed = |name: &str| {
        let help = "[ALPHA] Failed attempts to bring what was given to services in line with what they have.";
        metrics::counter(name, help, &[]).with_label_values::<&str>(&[])
    };
    let (addresses, ports) = (
        failed("apiserver_clusterip_repair_reconcile_errors_total"),
        failed("apiserver_nodeport_repair_reconcile_errors_total"),
    );
    loop {
        match round(&engine, &mut leaks).await {
            Ok(None) => {}
            Ok(Some(error)) => {
                ports.inc();
                tracing::error!(%error, "the node ports were not repaired");
            }
            Err(status) => {
                addresses.inc();
                tracing::error!(why = status.message, "the cluster addresses were not repaired");
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// One round; what kept the ports from being looked after, if anything did.
async fn round(engine: &Arc<Engine>, leaks: &mut node_ports::Leaks) -> Result<Option<node_ports::PortError>, Status> {
    let rows = (builtin("", "services"), builtin("networking.k8s.io", "ipaddresses"));
    let (Some(services), Some(addresses)) = rows else { return Ok(None) };
    // Whoever is written between the two has what was taken before.
    let (taken, mut held) = (all(engine, &addresses).await?, Held::default());
    all(engine, &services).await?.iter().for_each(|(service, _)| held.add(service));
    let now = jiff::Timestamp::now().as_second();
    let read = |(address, revision): &(Value, i64)| {
        let made = tree::text(address, "/metadata/creationTimestamp").parse::<jiff::Timestamp>().ok()?;
        let ours = tree::label(address, ip_allocator::MANAGED_BY) == Some(ip_allocator::MANAGER);
        let (owner, age) = (owner_of(address).unwrap_or_default(), now - made.as_second());
        Some((shared::address::ip(tree::name(address))?, Taken { revision: *revision, owner, age, ours }))
    };
    let plan = plan(&held.addresses, &taken.iter().filter_map(read).collect(), &engine.services.ranges);
    carry_out(engine, &addresses, plan).await?;
    Ok(node_ports::repair(engine, engine.services.ports, &held.ports, leaks).await.err())
}

async fn carry_out(engine: &Engine, row: &Row, plan: Plan) -> Result<(), Status> {
    let help = "[ALPHA] Cluster addresses that were not as they should be, by what was wrong.";
    let found = metrics::counter("apiserver_clusterip_repair_ip_errors_total", help, &["type"]);
    for (ip, revision) in plan.release {
        tracing::warn!(%ip, "no service has a cluster address that was taken, it is given back");
        found.with_label_values(&["leak"]).inc();
        let key = engine.key(row, "", &ip.to_string());
        engine.store.delete_if(&key, revision).await.map_err(|e| storage_status(&e))?;
    }
    for (ip, (namespace, name)) in plan.take {
        tracing::warn!(%ip, namespace, name, "a service has a cluster address that was not taken, it is taken");
        found.with_label_values(&["repair"]).inc();
        ip_allocator::take(engine, ip, &namespace, &name).await.map_err(|e| Status::unknown(&e.to_string()))?;
    }
    for ip in plan.shared {
        tracing::error!(%ip, "several services have a cluster address, all but one have to be made again");
        found.with_label_values(&["duplicate"]).inc();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::cache::Raw;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 96, 0, last])
    }

    fn of(name: &str) -> Name {
        ("n".to_owned(), name.to_owned())
    }

    fn taken(owner: &str, age: i64, ours: bool) -> Taken {
        Taken { revision: 7, owner: of(owner), age, ours }
    }

    #[test]
    fn what_nobody_has_is_given_back_and_what_somebody_has_is_taken() {
        let ranges = ["10.96.0.0/24".parse().expect("a range")];
        let held = BTreeMap::from([
            (ip(1), vec![of("a")]),
            (ip(2), vec![of("b")]),
            (ip(3), vec![of("c"), of("d")]),
            (ip(4), vec![of("e")]),
            (IpAddr::from([10, 97, 0, 1]), vec![of("f")]),
        ]);
        let taken = BTreeMap::from([
            // As it should be.
            (ip(1), taken("a", 1000, true)),
            // Shared by two, one of whom it was taken for.
            (ip(3), taken("d", 1000, true)),
            // Of a service that no longer is, and another has it now.
            (ip(4), taken("gone", 1000, true)),
            // Of a service that is not yet, of one that never came to be, and of somebody else.
            (ip(5), taken("soon", GRACE, true)),
            (ip(6), taken("never", GRACE + 1, true)),
            (ip(7), taken("theirs", 1000, false)),
        ]);
        let wanted = Plan {
            release: vec![(ip(4), 7), (ip(6), 7)],
            take: vec![(ip(2), of("b")), (ip(4), of("e"))],
            shared: vec![ip(3)],
        };
        assert_eq!(plan(&held, &taken, &ranges), wanted);
    }

    #[test]
    fn services_that_cannot_be_read_do_not_pass_for_gone() {
        let row = builtin("", "services").expect("services");
        let entry = |body: &'static [u8]| {
            Arc::new(Entry::new("n/a", 7, Raw::Proto(Bytes::from_static(body)), Vec::new(), std::iter::empty()))
        };
        let (sound, broken) = (entry(b""), entry(b"\x0a\x7f"));
        assert_eq!(whole(&row, std::slice::from_ref(&sound), false).expect("all of them").len(), 1);
        assert!(whole(&row, &[sound.clone(), broken], false).is_err());
        assert!(whole(&row, &[sound], true).is_err());
    }

    #[test]
    fn services_have_addresses_and_ports() {
        let mut held = Held::default();
        let service =
            |name: &str, spec: Value| serde_json::json!({"metadata": {"namespace": "n", "name": name}, "spec": spec});
        held.add(&service(
            "a",
            serde_json::json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"],
            "ports": [{"nodePort": 30001}, {"port": 1}], "healthCheckNodePort": 30002}),
        ));
        held.add(&service("b", serde_json::json!({"clusterIP": "None", "clusterIPs": ["None"]})));
        assert_eq!(held.addresses.len(), 2);
        assert_eq!(held.addresses[&ip(1)], [of("a")]);
        assert_eq!(held.ports, BTreeSet::from([30001, 30002]));
    }
}
