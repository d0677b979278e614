//! The node ports that are noted as taken are those that services have. What nobody has is given back after a few
//! looks: somebody may just be about to use it. Answers for upstream's
//! `pkg/registry/core/service/portallocator/controller` (`Repair`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto::Value;
use serde_json::json;
use shared::status::Status;

use super::{EVERY, EventWriter, RepairEvent, all_readable, backoff};
use crate::api::Api;
use crate::machinery::tree;
use crate::registry::core::service::SERVICES;
use crate::rest::AllocationStorage;
use crate::rest::allocator_meters;
use crate::rest::node_ports::{self, PortError, PortRange};

/// So many looks have to find a port without a service.
const LOOKS: u8 = 3;
/// Rounds of a look that others keep overtaking.
const ROUNDS: usize = 16;

/// The node ports of a service. One that is there for several protocols is one; one that is there twice for the same is
/// not.
fn ports_of(service: &Value) -> Vec<u16> {
    let mut seen: BTreeMap<u16, BTreeSet<String>> = BTreeMap::new();
    let mut all = Vec::new();
    let ports = tree::list(service, "/spec/ports").iter();
    let named = ports.map(|port| (&port["nodePort"], tree::text(port, "/protocol").to_owned()));
    let health = (&service["spec"]["healthCheckNodePort"], "TCP".to_owned());
    for (number, protocol) in named.chain([health]) {
        let Some(port) = number.as_u64().and_then(|n| u16::try_from(n).ok()).filter(|port| *port > 0) else { continue };
        let protocols = seen.entry(port).or_default();
        if protocols.is_empty() || protocols.contains(&protocol) {
            all.push(port);
        }
        protocols.insert(protocol);
    }
    all
}

/// A look's outcome.
#[derive(Debug, Default, PartialEq, Eq)]
struct RepairRound {
    /// Allocated ports.
    taken: BTreeSet<u16>,
    /// Ports that no service uses, with the number of rounds until they are released.
    leaks: BTreeMap<u16, u8>,
    /// Findings: index of the service, upstream's label for the metric, complaint.
    wrong: Vec<(usize, &'static str, RepairEvent)>,
    /// Ports that are given back, or are about to be.
    leaked: usize,
}

fn look(range: PortRange, mut stored: BTreeSet<u16>, services: &[Value], leaks: &BTreeMap<u16, u8>) -> RepairRound {
    let mut seen = RepairRound { leaks: leaks.clone(), ..RepairRound::default() };
    for (i, service) in services.iter().enumerate() {
        for port in ports_of(service) {
            let wrong = if !range.contains(port) {
                let message = format!("Port {port} is not within the port range {range}; please recreate service");
                Some(("outOfRange", "PortOutOfRange", message))
            } else if !seen.taken.insert(port) {
                let message = format!("Port {port} was assigned to multiple services; please recreate service");
                Some(("duplicate", "PortAlreadyAllocated", message))
            } else {
                seen.leaks.remove(&port);
                let known = stored.remove(&port);
                (!known).then(|| ("repair", "PortNotAllocated", format!("Port {port} is not allocated; repairing")))
            };
            if let Some((counted, reason, message)) = wrong {
                seen.wrong.push((
                    i,
                    counted,
                    RepairEvent { reason: reason.into(), action: Some("PortAllocation"), message },
                ));
            }
        }
    }
    for port in stored {
        if seen.taken.contains(&port) {
            continue;
        }
        seen.leaked += 1;
        match seen.leaks.get(&port).copied().unwrap_or(LOOKS - 1) {
            0 => drop(seen.leaks.remove(&port)),
            left => {
                seen.leaks.insert(port, left - 1);
                seen.taken.extend(range.contains(port).then_some(port));
            }
        }
    }
    seen
}

/// Looks at everything; what else there is after it.
async fn repair_once(
    (backend, range): (&AllocationStorage, PortRange),
    api: &Api,
    teller: &mut EventWriter,
    leaks: &mut BTreeMap<u16, u8>,
) -> Result<(), Status> {
    let failed = |e: PortError| Status::internal(&e.to_string());
    for _ in 0..ROUNDS {
        // What is taken is read first: who takes a port meanwhile is noticed.
        let stock = node_ports::stock(backend, range).await.map_err(failed)?;
        let services = api.list(SERVICES, None).await?;
        all_readable(backend, SERVICES)?;
        let seen = look(range, stock.taken.clone(), &services, leaks);
        if node_ports::restock(backend, range, stock, &seen.taken).await.map_err(failed)?.is_some() {
            continue;
        }
        for (i, counted, complaint) in &seen.wrong {
            allocator_meters::port_repaired(counted, 1);
            teller.tell(("v1", "Service"), services.get(*i).unwrap_or(&json!({})), complaint).await;
        }
        allocator_meters::port_repaired("leak", seen.leaked);
        *leaks = seen.leaks;
        return Ok(());
    }
    Err(Status::internal("the node port range is too busy"))
}

/// Keeps both in line until dropped; `done` is called once they have been.
pub(crate) async fn run(backend: Arc<AllocationStorage>, range: PortRange, api: Api, done: impl FnOnce() + Send) {
    let (mut leaks, mut done, mut backoff) = (BTreeMap::new(), Some(done), backoff());
    let mut teller = EventWriter::new(api.clone(), "portallocator-repair-controller");
    allocator_meters::begin_repairs();
    loop {
        match repair_once((&backend, range), &api, &mut teller, &mut leaks).await {
            Ok(()) => {
                if let Some(done) = done.take() {
                    done();
                }
                backoff.reset();
                tokio::time::sleep(EVERY).await;
            }
            Err(error) => {
                allocator_meters::port_repair_failed();
                tracing::warn!(%error, "Failed to repair node port allocations");
                backoff.wait().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(ports: &[(u16, &str)], health: u16) -> Value {
        let ports: Vec<Value> = ports.iter().map(|(n, p)| json!({"nodePort": n, "protocol": p})).collect();
        json!({"spec": {"ports": ports, "healthCheckNodePort": health}})
    }

    #[test]
    fn repair_of_one_services_ports() {
        for (ports, health, want) in [
            (&[(0, "TCP")][..], 0, &[][..]),
            (&[(111, "TCP"), (112, "TCP")], 0, &[111, 112]),
            (&[(111, "TCP"), (111, "UDP")], 0, &[111]),
            (&[(111, "TCP"), (111, "TCP")], 0, &[111, 111]),
            (&[(111, "UDP")], 111, &[111]),
            (&[(111, "TCP"), (112, "TCP")], 112, &[111, 112, 112]),
        ] {
            assert_eq!(ports_of(&service(ports, health)), want, "{ports:?} {health}");
        }
    }

    #[test]
    fn repaired_ports_are_those_of_services() {
        let range = PortRange { first: 100, last: 200 };
        let services = [service(&[(111, "TCP"), (5, "TCP")], 0), service(&[(111, "TCP"), (112, "TCP")], 113)];
        let first = look(range, [111, 120].into(), &services, &[(113, 1)].into());
        assert_eq!(first.taken, [111, 112, 113, 120].into());
        let said: Vec<(usize, &str)> = first.wrong.iter().map(|(i, counted, _)| (*i, *counted)).collect();
        assert_eq!(said, [(0, "outOfRange"), (1, "duplicate"), (1, "repair"), (1, "repair")]);
        assert_eq!(first.wrong[0].2.message, "Port 5 is not within the port range 100-200; please recreate service");
        // The port that nobody has is given back at the third look that finds it so.
        let mut seen = RepairRound { leaks: [].into(), taken: [120].into(), ..RepairRound::default() };
        for there in [true, true, false] {
            seen = look(range, seen.taken, &[], &seen.leaks);
            assert_eq!((seen.taken.contains(&120), seen.leaked), (there, 1));
        }
        assert_eq!(seen.leaks, [].into());
        // Somebody was about to use it.
        seen = look(range, [120].into(), &[], &seen.leaks);
        seen = look(range, seen.taken, &[service(&[(120, "TCP")], 0)], &seen.leaks);
        assert_eq!((seen.leaks, seen.leaked), ([].into(), 0));
    }
}
