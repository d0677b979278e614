//! Services: families, cluster addresses and node ports. Answers for upstream's `pkg/registry/core/service/storage`
//! (`beginCreate`, `beginUpdate`).
//!
//! Called around every write of a Service; other kinds pass through untouched. What is taken before the write is given
//! back when the write fails; what an update no longer needs is released after it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use futures::future::BoxFuture;
use ipnet::IpNet;
use parking_lot::Mutex;
use proto::Value;
use proto::resources::Resource;
use serde_json::{Map, json};
use shared::address;
use shared::run::TaskGroup;
use shared::status::{Status, field};

use super::ip_allocator::{self, AllocatedAddresses, IpError};
use super::node_ports::{self, PortRange, is_service};
use super::{AllocationStorage, service_families};
use crate::machinery::identity;
use crate::machinery::meta;
use crate::machinery::query::WriteOptions;
use crate::registry::core::endpoints::ENDPOINTS;
use crate::registry::core::service::{
    Spec, family, ips_of, is_headless, may_have_node_ports, needs_cluster_ip, needs_health_port, needs_node_ports,
    node_ports_of, ports_of, strings,
};
use crate::registry::core::service_update;
use crate::verbs::engine::{Begin, DeleteOptions, Engine, Release, Reservation, WriteHook, WriteTarget};

/// Ranges services are allocated from.
#[derive(Clone, Debug)]
pub(crate) struct ServiceRanges {
    /// The first cluster address ranges; that of the first is the default family. Administrators may add more.
    pub(crate) addresses: Vec<IpNet>,
    /// Node ports.
    pub(crate) ports: PortRange,
}

/// Allocation of addresses and ports around the writes of Services.
pub(crate) struct Services {
    /// The first cluster address ranges; that of the first is the default family.
    pub(crate) ranges: Vec<IpNet>,
    /// Node ports.
    pub(crate) ports: PortRange,
    /// Storage of allocations.
    pub(crate) backend: Arc<AllocationStorage>,
    /// Tasks that give back what a dropped request was given.
    tasks: TaskGroup,
    /// Allocations, for the metrics.
    taken: Mutex<AllocatedAddresses>,
}

/// Reasons for which a service cannot be allocated.
#[derive(Debug)]
enum AllocationError {
    Field(field::Error),
    Internal(String),
    Unknown(String),
}

impl From<field::Error> for AllocationError {
    fn from(wrong: field::Error) -> Self {
        Self::Field(wrong)
    }
}

impl From<String> for AllocationError {
    fn from(why: String) -> Self {
        Self::Internal(why)
    }
}

/// Addresses and ports allocated for a write.
#[derive(Debug, Default)]
struct Allocation {
    ips: Vec<String>,
    ports: Vec<u16>,
    /// Ports that a dry run shows; nobody has to give them back.
    shown: Vec<i64>,
}

/// The first port that dry runs show.
const SHOWN_FIRST: i64 = 32_769;

/// The addresses that a completed service is to get, as indexes of its families: all when there were none, the second
/// one when there was one.
fn unaddressed(spec: &Spec, old: Option<&Spec>) -> Range<usize> {
    if !needs_cluster_ip(spec) || is_headless(spec) {
        return 0..0;
    }
    let families = |spec: &Spec| strings(spec, "ipFamilies").len();
    match old {
        None => 0..families(spec),
        Some(old) if !needs_cluster_ip(old) => 0..families(spec),
        Some(old) if is_headless(old) || service_families::is_settled(spec, old) => 0..0,
        Some(old) => families(old).max(ips_of(old).len())..families(spec),
    }
}

impl Services {
    /// Over these ranges.
    pub(crate) fn new(ranges: ServiceRanges, backend: Arc<AllocationStorage>, tasks: TaskGroup) -> Self {
        let ServiceRanges { addresses, ports } = ranges;
        Self { ranges: addresses, ports, backend, tasks, taken: Mutex::default() }
    }

    fn families(&self) -> Vec<&'static str> {
        self.ranges.iter().map(|r| family(&r.addr())).collect()
    }

    /// Takes the addresses of these families, by index.
    async fn take_ips(
        &self,
        spec: &mut Spec,
        wanted: Range<usize>,
        who: (&str, &str),
        dry_run: bool,
        taken: &mut Allocation,
    ) -> Result<(), AllocationError> {
        if wanted.is_empty() {
            return Ok(());
        }
        let mut ips = strings(spec, "clusterIPs");
        let given = ips.clone();
        let wrong = |ip: &str, e: IpError| {
            let why = format!("failed to allocate IP {ip}: {e}");
            field::Error::invalid(field::Path::of(&["spec", "clusterIPs"]), json!(given), &why)
        };
        for (i, name) in strings(spec, "ipFamilies").iter().enumerate().filter(|(i, _)| wanted.contains(i)) {
            ips.resize(ips.len().max(i + 1), String::new());
            let ip = ips[i].clone();
            if ip.is_empty() {
                let next = match dry_run {
                    true => ip_allocator::would_allocate_next(&self.backend, name).await,
                    false => ip_allocator::allocate_next(&self.backend, name, who.0, who.1).await,
                };
                ips[i] = next.map_err(|e| format!("failed to allocate a serviceIP: {e}"))?.to_string();
                taken.ips.extend((!dry_run).then(|| ips[i].clone()));
                continue;
            }
            let parsed = address::ip(&ip).ok_or_else(|| format!("failed to parse service IP {ip:?}"))?;
            let outcome = match dry_run {
                true => ip_allocator::would_allocate(&self.backend, parsed).await,
                false => ip_allocator::allocate(&self.backend, parsed, who.0, who.1).await,
            };
            outcome.map_err(|e| wrong(&ip, e))?;
            taken.ips.extend((!dry_run).then_some(ip));
        }
        spec.insert("clusterIP".to_owned(), json!(ips.first()));
        spec.insert("clusterIPs".to_owned(), json!(ips));
        Ok(())
    }

    /// A port that nobody has. A dry run takes none, and shows one that is in no usual range.
    async fn free_port(&self, dry_run: bool, taken: &mut Allocation) -> Result<u16, node_ports::PortError> {
        if dry_run {
            let next = taken.shown.iter().max().map_or(SHOWN_FIRST, |last| last + 1);
            taken.shown.push(next);
            return Ok(u16::try_from(next).unwrap_or(u16::MAX));
        }
        let port = node_ports::allocate_next(&self.backend, self.ports).await?;
        taken.ports.push(port);
        Ok(port)
    }

    /// A given port.
    async fn given_port(&self, asked: i64, dry_run: bool, taken: &mut Allocation) -> Result<(), node_ports::PortError> {
        if dry_run {
            // Whether it is one of the range is not looked at.
            if taken.shown.contains(&asked) || node_ports::is_taken(&self.backend, self.ports, asked).await? {
                return Err(node_ports::PortError::AllocatedAddresses);
            }
            taken.shown.push(asked);
            return Ok(());
        }
        let port = u16::try_from(asked).map_err(|_| node_ports::PortError::Range(self.ports))?;
        node_ports::allocate(&self.backend, self.ports, port).await?;
        taken.ports.push(port);
        Ok(())
    }

    /// Node ports of a new service, or of a changed one that has some. Ports of a new one that have a number in common,
    /// for two protocols, have a node port in common.
    async fn take_ports(
        &self,
        spec: &mut Spec,
        old: Option<&Spec>,
        dry_run: bool,
        taken: &mut Allocation,
    ) -> Result<(), AllocationError> {
        if !may_have_node_ports(spec) {
            return Ok(());
        }
        let (allocates, mut have) = (needs_node_ports(spec), old.map(ports_of).unwrap_or_default());
        let mut shared: BTreeMap<i64, i64> = BTreeMap::new();
        let mut used = BTreeSet::new();
        let asked = |port: &Value| port["nodePort"].as_i64().unwrap_or(0);
        let Some(ports) = spec.get_mut("ports").and_then(Value::as_array_mut) else { return Ok(()) };
        for i in 0..ports.len() {
            let (number, mine) = (ports[i]["port"].as_i64().unwrap_or(0), asked(&ports[i]));
            if mine == 0 && !allocates {
                continue;
            }
            let sibling = || ports.iter().filter(|p| p["port"] == number).map(asked).find(|asked| *asked != 0);
            let wanted = match (old, shared.get(&number)) {
                (None, None) => sibling().unwrap_or(0),
                (None, Some(theirs)) if mine == 0 || mine == *theirs => {
                    ports[i]["nodePort"] = Value::from(*theirs);
                    continue;
                }
                _ => mine,
            };
            let got = if wanted == 0 {
                let port = self.free_port(dry_run, taken).await;
                i64::from(port.map_err(|e| format!("failed to allocate a nodePort: {e}"))?)
            } else {
                if !have.iter().any(|had| i64::from(*had) == wanted) {
                    self.given_port(wanted, dry_run, taken).await.map_err(|e| {
                        let path = field::Path::of(&["spec", "ports"]).index(i).child("nodePort");
                        field::Error::invalid(path, wanted, &e.to_string())
                    })?;
                }
                wanted
            };
            ports[i]["nodePort"] = Value::from(got);
            let protocol = ports[i]["protocol"].as_str().unwrap_or_default().to_owned();
            match old {
                None => drop(shared.entry(number).or_insert(got)),
                Some(_) if used.insert((protocol.clone(), got)) => have.extend(u16::try_from(got)),
                Some(_) => return Err(AllocationError::Unknown(format!("duplicate nodePort: {{{protocol} {got}}}"))),
            }
        }
        Ok(())
    }

    /// The port that load balancers ask whether a node has pods.
    async fn take_health_port(
        &self,
        spec: &mut Spec,
        dry_run: bool,
        taken: &mut Allocation,
    ) -> Result<(), AllocationError> {
        match spec.get("healthCheckNodePort").and_then(Value::as_i64).unwrap_or(0) {
            0 => {
                let port = self.free_port(dry_run, taken).await;
                let port = port.map_err(|e| format!("failed to allocate a HealthCheck NodePort 0: {e}"))?;
                spec.insert("healthCheckNodePort".to_owned(), Value::from(port));
            }
            asked => self
                .given_port(asked, dry_run, taken)
                .await
                .map_err(|e| format!("failed to allocate requested HealthCheck NodePort {asked}: {e}"))?,
        }
        Ok(())
    }

    /// Completes a Service and takes what it needs more than `old` has.
    async fn take(&self, object: &mut Value, old: Option<&Spec>, dry_run: bool) -> Result<Reservation, Status> {
        let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("").to_owned();
        let invalid = |wrong| Status::invalid("", "Service", &name, wrong);
        service_families::complete(object, old, &self.families()).map_err(invalid)?;
        let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
            return Ok(Reservation::default());
        };
        let mut taken = Allocation::default();
        let outcome = async {
            self.take_ips(spec, unaddressed(spec, old), (&namespace, &name), dry_run, &mut taken).await?;
            self.take_ports(spec, old, dry_run, &mut taken).await?;
            if needs_health_port(spec) && !old.is_some_and(needs_health_port) {
                self.take_health_port(spec, dry_run, &mut taken).await?;
            }
            Ok(())
        };
        let outcome = outcome.await;
        let reservation = self.reserve(taken);
        let Err(refused) = outcome else { return Ok(reservation) };
        reservation.settle().await;
        Err(match refused {
            AllocationError::Field(wrong) => invalid(vec![wrong]),
            AllocationError::Internal(why) => Status::internal(&why),
            AllocationError::Unknown(why) => Status::unknown(&why),
        })
    }

    /// Holds what was taken, to be given back unless the write is made.
    fn reserve(&self, taken: Allocation) -> Reservation {
        match self.release(taken) {
            Some(release) => Reservation::new(self.tasks.clone(), release),
            None => Reservation::default(),
        }
    }

    /// Gives back addresses and ports, once it is awaited.
    fn release(&self, taken: Allocation) -> Option<Release> {
        let Allocation { ips, ports, .. } = taken;
        if ips.is_empty() && ports.is_empty() {
            return None;
        }
        let (backend, range) = (self.backend.clone(), self.ports);
        Some(Box::pin(async move {
            for ip in &ips {
                ip_allocator::release(&backend, ip).await;
            }
            node_ports::release(&backend, range, &ports).await;
        }))
    }
}

impl WriteHook for Services {
    fn begin_create<'a>(&'a self, row: &Resource, object: &'a mut Value, dry_run: bool) -> Option<Begin<'a>> {
        if !is_service(row) {
            return None;
        }
        Some(Box::pin(self.take(object, None, dry_run)))
    }

    fn begin_update<'a>(
        &'a self,
        (row, subresource): (&Resource, &str),
        new: &'a mut Value,
        old: &'a Value,
        dry_run: bool,
    ) -> Option<Begin<'a>> {
        if !is_service(row) || !subresource.is_empty() {
            return None;
        }
        Some(Box::pin(async move {
            let empty = Map::new();
            let old_spec = old.get("spec").and_then(Value::as_object).unwrap_or(&empty);
            if let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) {
                service_update::inherit(spec, old_spec);
            }
            self.take(new, Some(old_spec), dry_run).await
        }))
    }

    fn surplus(&self, row: &Resource, new: &Value, old: &Value) -> Option<Release> {
        if is_service(row) { self.release(surplus(new, old)) } else { None }
    }

    fn after_delete<'a>(&'a self, engine: &'a Engine, row: &Resource, object: &'a Value) -> Option<BoxFuture<'a, ()>> {
        let spec = object.get("spec").and_then(Value::as_object).filter(|_| is_service(row))?;
        let had = Allocation { ips: ips_of(spec), ports: node_ports_of(spec), shown: Vec::new() };
        Some(Box::pin(async move {
            if let Some(release) = self.release(had) {
                release.await;
            }
            drop_endpoints(engine, object).await;
        }))
    }

    fn publish(&self) {
        ip_allocator::publish(&self.backend, &self.taken);
    }
}

/// Deletes the endpoints of a Service that is gone. Admission is not asked: it was about the Service.
async fn drop_endpoints(engine: &Engine, service: &Value) {
    let Some(row) = &engine.rows.storage(ENDPOINTS) else { return };
    let (user, options) = (identity::server_user(), WriteOptions::default());
    let (namespace, name) = (meta::text(service, "namespace"), meta::text(service, "name"));
    let mut t = WriteTarget { admitted: true, ..WriteTarget::new(row, (namespace, name), &user, &options) };
    // A delete may end in this one.
    let deleted = Box::pin(engine.delete(&mut t, &DeleteOptions::default())).await;
    if let Err(why) = deleted.map(drop).or_else(|e| if e.is_not_found() { Ok(()) } else { Err(e) }) {
        tracing::error!(namespace, name, why = why.message, "Failed to delete endpoints of a deleted service");
    }
}

/// Addresses and ports of a Service that it has no more after an update.
fn surplus(new: &Value, old: &Value) -> Allocation {
    let spec = |object: &Value| object.get("spec").and_then(Value::as_object).cloned();
    let (Some(old), Some(new)) = (spec(old), spec(new)) else { return Allocation::default() };
    let (mut ips, mut ports) = (ips_of(&old), node_ports_of(&old));
    let (kept_ips, kept_ports) = (ips_of(&new), node_ports_of(&new));
    ips.retain(|ip| !kept_ips.contains(ip));
    ports.retain(|p| !kept_ports.contains(p));
    Allocation { ips, ports, shown: Vec::new() }
}
