//! Services: families, cluster addresses and node ports.
//!
//! Called around every write of a Service; other kinds pass through untouched. What is taken before the write is given
//! back when the write fails; what an update no longer needs is released after it.

use std::net::IpAddr;

use ipnet::IpNet;
use parking_lot::Mutex;
use proto::Value;
use proto::resources::Resource;
use serde_json::{Map, json};
use shared::address;
use shared::status::{Status, field};

use super::ip_allocator::{self, IpError, Taken};
use super::node_ports::{self, PortRange, is_service};
use crate::bootstrap;
use crate::registry::meta;
use crate::validation;
use crate::verbs::engine::{DeleteOptions, Engine, Target};
use crate::verbs::query::WriteOptions;

/// Ranges services are allocated from.
#[derive(Debug)]
pub struct Services {
    /// Cluster address ranges, the first family is the default one.
    pub ranges: Vec<IpNet>,
    /// Node ports.
    pub ports: PortRange,
    /// What `/metrics` counts.
    taken: Mutex<Taken>,
}

/// What was taken for a write.
#[derive(Debug, Default)]
pub struct Allocation {
    ips: Vec<String>,
    ports: Vec<u16>,
}

pub(super) type Spec = Map<String, Value>;

pub(super) fn text<'a>(spec: &'a Spec, key: &str) -> &'a str {
    spec.get(key).and_then(Value::as_str).unwrap_or("")
}

pub(super) fn strings(spec: &Spec, key: &str) -> Vec<String> {
    spec.get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|v| v.as_str().map(str::to_owned))
        .collect()
}

pub(super) fn needs_cluster_ip(spec: &Spec) -> bool {
    matches!(text(spec, "type"), "" | "ClusterIP" | "NodePort" | "LoadBalancer")
}

fn is_headless(spec: &Spec) -> bool {
    text(spec, "clusterIP") == "None" || strings(spec, "clusterIPs").first().is_some_and(|ip| ip == "None")
}

pub(super) fn needs_node_ports(spec: &Spec) -> bool {
    match text(spec, "type") {
        "NodePort" => true,
        "LoadBalancer" => spec.get("allocateLoadBalancerNodePorts").and_then(Value::as_bool).unwrap_or(true),
        _ => false,
    }
}

pub(super) fn may_have_node_ports(spec: &Spec) -> bool {
    matches!(text(spec, "type"), "NodePort" | "LoadBalancer")
}

pub(super) fn needs_health_port(spec: &Spec) -> bool {
    text(spec, "type") == "LoadBalancer" && text(spec, "externalTrafficPolicy") == "Local"
}

pub(super) fn number(v: &Value) -> u16 {
    v.as_u64().and_then(|n| u16::try_from(n).ok()).unwrap_or(0)
}

pub(super) fn node_ports_of(spec: &Spec) -> Vec<u16> {
    let mut out: Vec<u16> =
        spec.get("ports").and_then(Value::as_array).into_iter().flatten().map(|p| number(&p["nodePort"])).collect();
    out.push(spec.get("healthCheckNodePort").map_or(0, number));
    out.retain(|p| *p != 0);
    out.sort_unstable();
    out.dedup();
    out
}

fn ips_of(spec: &Spec) -> Vec<String> {
    let mut ips = strings(spec, "clusterIPs");
    if ips.is_empty() && !text(spec, "clusterIP").is_empty() {
        ips.push(text(spec, "clusterIP").to_owned());
    }
    ips.retain(|ip| ip != "None" && !ip.is_empty());
    ips
}

fn family(ip: &IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

impl Services {
    /// Over these ranges.
    pub fn new(ranges: Vec<IpNet>, ports: PortRange) -> Self {
        Self { ranges, ports, taken: Mutex::default() }
    }

    fn families(&self) -> Vec<&'static str> {
        self.ranges.iter().map(|r| family(&r.addr())).collect()
    }

    /// Fills in families and policy.
    fn default_families(&self, spec: &mut Spec) {
        if !needs_cluster_ip(spec) {
            for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                spec.remove(key);
            }
            return;
        }
        let mut ips = strings(spec, "clusterIPs");
        if ips.is_empty() && !text(spec, "clusterIP").is_empty() {
            ips.push(text(spec, "clusterIP").to_owned());
            spec.insert("clusterIPs".to_owned(), json!(ips));
        }
        let without_selector = spec.get("selector").and_then(Value::as_object).is_none_or(Map::is_empty);
        let mut families = strings(spec, "ipFamilies");
        let selectorless_headless = is_headless(spec) && without_selector;
        if text(spec, "ipFamilyPolicy").is_empty() {
            let both = selectorless_headless || ips.len() == 2 || families.len() == 2;
            let policy = if both { "RequireDualStack" } else { "SingleStack" };
            spec.insert("ipFamilyPolicy".to_owned(), Value::from(policy));
        }
        for ip in ips.iter().skip(families.len()) {
            if let Some(ip) = address::ip(ip) {
                families.push(family(&ip).to_owned());
            }
        }
        let ours = self.families();
        if families.is_empty() {
            families.push(ours.first().copied().unwrap_or("IPv4").to_owned());
        }
        let dual = match text(spec, "ipFamilyPolicy") {
            "RequireDualStack" => true,
            "PreferDualStack" => ours.len() == 2,
            _ => false,
        };
        if dual && families.len() == 1 {
            families.push(if families[0] == "IPv4" { "IPv6" } else { "IPv4" }.to_owned());
        }
        spec.insert("ipFamilies".to_owned(), json!(families));
    }

    async fn take_ips(
        &self,
        engine: &Engine,
        spec: &mut Spec,
        have: &[String],
        who: (&str, &str),
        dry_run: bool,
        taken: &mut Allocation,
    ) -> Result<(), field::Error> {
        if !needs_cluster_ip(spec) || is_headless(spec) {
            if is_headless(spec) {
                spec.insert("clusterIP".to_owned(), Value::from("None"));
                spec.insert("clusterIPs".to_owned(), json!(["None"]));
            }
            return Ok(());
        }
        let mut ips = strings(spec, "clusterIPs");
        let given = ips.clone();
        let wrong =
            |why: String| field::Error::invalid(field::Path::new("spec").child("clusterIPs"), json!(given), &why);
        for (i, family_name) in strings(spec, "ipFamilies").iter().enumerate() {
            let Some(range) = self.ranges.iter().find(|r| family(&r.addr()) == family_name) else {
                let path = field::Path::new("spec").child("ipFamilies").index(i);
                return Err(field::Error::invalid(
                    path,
                    Value::from(family_name.as_str()),
                    "not configured on this cluster",
                ));
            };
            match ips.get(i).filter(|ip| !ip.is_empty()) {
                Some(ip) if have.contains(ip) => {}
                Some(ip) => {
                    let parsed = address::ip(ip)
                        .ok_or_else(|| wrong(format!("failed to allocate IP {ip}: {}", IpError::Range)))?;
                    if !dry_run {
                        ip_allocator::allocate(engine, range, parsed, who.0, who.1)
                            .await
                            .map_err(|e| wrong(format!("failed to allocate IP {ip}: {e}")))?;
                        taken.ips.push(ip.clone());
                    } else if !range.contains(&parsed) {
                        return Err(wrong(format!("failed to allocate IP {ip}: {}", IpError::Range)));
                    }
                }
                None => {
                    let ip = if dry_run {
                        ip_allocator::preview(range).to_string()
                    } else {
                        let ip = ip_allocator::allocate_next(engine, range, who.0, who.1)
                            .await
                            .map_err(|e| wrong(format!("failed to allocate a serviceIP: {e}")))?;
                        taken.ips.push(ip.to_string());
                        ip.to_string()
                    };
                    ips.resize(ips.len().max(i + 1), String::new());
                    ips[i] = ip;
                }
            }
        }
        spec.insert("clusterIP".to_owned(), json!(ips.first()));
        spec.insert("clusterIPs".to_owned(), json!(ips));
        Ok(())
    }

    /// A port is none of those that are given out.
    fn beyond(&self) -> node_ports::PortError {
        node_ports::PortError::Range(self.ports.first, self.ports.last)
    }

    /// A port that nobody has. A dry run takes none and shows the last of the range.
    async fn free_port(
        &self,
        engine: &Engine,
        dry_run: bool,
        taken: &mut Allocation,
    ) -> Result<u16, node_ports::PortError> {
        if dry_run {
            return Ok(self.ports.last);
        }
        let port = node_ports::allocate_next(engine, self.ports).await?;
        taken.ports.push(port);
        Ok(port)
    }

    async fn take_ports(
        &self,
        engine: &Engine,
        spec: &mut Spec,
        have: &[u16],
        dry_run: bool,
        taken: &mut Allocation,
    ) -> Result<(), field::Error> {
        let allocate_missing = needs_node_ports(spec);
        let may_have = may_have_node_ports(spec);
        let health = needs_health_port(spec);
        let mut mine: Vec<u16> = have.to_vec();
        if let Some(ports) = spec.get_mut("ports").and_then(Value::as_array_mut).filter(|_| may_have) {
            // Given ports first, so that a generated one cannot take them.
            for given in [true, false] {
                for (i, port) in ports.iter_mut().enumerate() {
                    let asked = port["nodePort"].as_i64().unwrap_or(0);
                    let wrong = |e: node_ports::PortError| {
                        let path = field::Path::new("spec").child("ports").index(i).child("nodePort");
                        field::Error::invalid(path, Value::from(asked), &e.to_string())
                    };
                    let wanted = u16::try_from(asked).map_err(|_| wrong(self.beyond()))?;
                    if given && wanted != 0 && !mine.contains(&wanted) {
                        if dry_run {
                            if !(self.ports.first..=self.ports.last).contains(&wanted) {
                                return Err(wrong(self.beyond()));
                            }
                        } else {
                            node_ports::allocate(engine, self.ports, wanted).await.map_err(wrong)?;
                            taken.ports.push(wanted);
                        }
                        mine.push(wanted);
                    }
                    if !given && wanted == 0 && allocate_missing {
                        let p = self.free_port(engine, dry_run, taken).await.map_err(wrong)?;
                        mine.push(p);
                        port["nodePort"] = Value::from(p);
                    }
                }
            }
        }
        if health {
            let asked = spec.get("healthCheckNodePort").and_then(Value::as_i64).unwrap_or(0);
            let wrong = |e: node_ports::PortError| {
                let why = format!("failed to allocate requested HealthCheck NodePort {asked}: {e}");
                field::Error::invalid(field::Path::new("spec").child("healthCheckNodePort"), Value::from(asked), &why)
            };
            let wanted = u16::try_from(asked).map_err(|_| wrong(self.beyond()))?;
            if wanted == 0 {
                let p = self.free_port(engine, dry_run, taken).await.map_err(wrong)?;
                spec.insert("healthCheckNodePort".to_owned(), Value::from(p));
            } else if !mine.contains(&wanted) && !dry_run {
                node_ports::allocate(engine, self.ports, wanted).await.map_err(wrong)?;
                taken.ports.push(wanted);
            }
        }
        Ok(())
    }

    async fn take(
        &self,
        engine: &Engine,
        object: &mut Value,
        old: Option<&Spec>,
        dry_run: bool,
    ) -> Result<Allocation, Status> {
        let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("").to_owned();
        let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
            return Ok(Allocation::default());
        };
        let mut taken = Allocation::default();
        let have_ips = old.map(ips_of).unwrap_or_default();
        let have_ports = old.map(node_ports_of).unwrap_or_default();
        let mut outcome = self.take_ips(engine, spec, &have_ips, (&namespace, &name), dry_run, &mut taken).await;
        if outcome.is_ok() {
            outcome = self.take_ports(engine, spec, &have_ports, dry_run, &mut taken).await;
        }
        match outcome {
            Ok(()) => Ok(taken),
            Err(e) => {
                self.undo(engine, taken).await;
                Err(Status::invalid("", "Service", &name, vec![e]))
            }
        }
    }

    /// Completes a new Service and takes what it needs.
    pub async fn before_create(
        &self,
        engine: &Engine,
        row: &Resource,
        object: &mut Value,
        dry_run: bool,
    ) -> Result<Allocation, Status> {
        if !is_service(row) {
            return Ok(Allocation::default());
        }
        let wrong = validation::service::addressed(object);
        if !wrong.is_empty() {
            return Err(Status::invalid("", "Service", object["metadata"]["name"].as_str().unwrap_or(""), wrong));
        }
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            self.default_families(spec);
        }
        self.take(engine, object, None, dry_run).await
    }

    /// Completes a changed Service and takes what it needs more.
    pub async fn before_update(
        &self,
        engine: &Engine,
        row: &Resource,
        new: &mut Value,
        old: &Value,
        dry_run: bool,
    ) -> Result<Allocation, Status> {
        if !is_service(row) {
            return Ok(Allocation::default());
        }
        let empty = Map::new();
        let old_spec = old.get("spec").and_then(Value::as_object).unwrap_or(&empty);
        if let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) {
            self.default_families(spec);
        }
        self.take(engine, new, Some(old_spec), dry_run).await
    }

    /// Releases what a deleted Service had. Its endpoints go with it.
    pub async fn after_delete(&self, engine: &Engine, row: &Resource, object: &Value) {
        if let Some(spec) = object.get("spec").and_then(Value::as_object).filter(|_| is_service(row)) {
            self.undo(engine, Allocation { ips: ips_of(spec), ports: node_ports_of(spec) }).await;
            drop_endpoints(engine, object).await;
        }
    }

    /// Shows how much of the ranges is taken.
    pub fn publish(&self, engine: &Engine) {
        ip_allocator::publish(engine, &self.ranges, &self.taken);
    }

    /// Gives back what was taken.
    pub async fn undo(&self, engine: &Engine, taken: Allocation) {
        for ip in &taken.ips {
            ip_allocator::release(engine, ip).await;
        }
        node_ports::release(engine, self.ports, &taken.ports).await;
    }
}

/// Deletes the endpoints of a Service that is gone. Admission is not asked: it was about the Service.
async fn drop_endpoints(engine: &Engine, service: &Value) {
    let Some(row) = &engine.rows.storage("", "endpoints") else { return };
    let (user, options) = (bootstrap::server_user(), WriteOptions::default());
    let (namespace, name) = (meta::text(service, "namespace"), meta::text(service, "name"));
    let mut t = Target { admitted: true, ..Target::new(row, (namespace, name), &user, &options) };
    // A delete may end in this one.
    let deleted = Box::pin(engine.delete(&mut t, &DeleteOptions::default())).await;
    if let Err(why) = deleted.map(drop).or_else(|e| if e.is_not_found() { Ok(()) } else { Err(e) }) {
        tracing::error!(namespace, name, why = why.message, "endpoints of a service are left");
    }
}

/// What an update of a Service no longer needs.
pub fn freed(row: &Resource, new: &Value, old: &Value) -> Allocation {
    let spec = |object: &'_ Value| object.get("spec").and_then(Value::as_object).filter(|_| is_service(row)).cloned();
    let (Some(old), Some(new)) = (spec(old), spec(new)) else { return Allocation::default() };
    let (mut ips, mut ports) = (ips_of(&old), node_ports_of(&old));
    let (kept_ips, kept_ports) = (ips_of(&new), node_ports_of(&new));
    ips.retain(|ip| !kept_ips.contains(ip));
    ports.retain(|p| !kept_ports.contains(p));
    Allocation { ips, ports }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(v: Value) -> Spec {
        v.as_object().cloned().expect("object")
    }

    fn services() -> Services {
        Services::new(vec!["10.96.0.0/12".parse().expect("net")], PortRange { first: 30000, last: 32767 })
    }

    #[test]
    fn families_by_default() {
        for (given, policy, families) in [
            (json!({"type": "ClusterIP"}), "SingleStack", json!(["IPv4"])),
            (json!({"clusterIP": "None", "selector": {"a": "b"}}), "SingleStack", json!(["IPv4"])),
            (json!({"clusterIP": "None"}), "RequireDualStack", json!(["IPv4", "IPv6"])),
            (json!({"ipFamilyPolicy": "PreferDualStack"}), "PreferDualStack", json!(["IPv4"])),
        ] {
            let mut s = spec(given);
            services().default_families(&mut s);
            assert_eq!((text(&s, "ipFamilyPolicy"), &s["ipFamilies"]), (policy, &families));
        }
        let mut s = spec(json!({"type": "ExternalName", "clusterIP": ""}));
        services().default_families(&mut s);
        assert_eq!(s, spec(json!({"type": "ExternalName"})));
    }
}
