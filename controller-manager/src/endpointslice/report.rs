//! What the metrics say of slices: what one sync changes, and what there is in all.
//!
//! In: the slices of a service before a sync and the writes that follow. Out: numbers. Nothing here is decided upon.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use serde_json::Value;

use crate::engine::action::{Action, body};
use crate::engine::metrics;
use crate::engine::object::{self, Key};

/// What there is for one service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Endpoints in all slices.
    pub endpoints: usize,
    /// Slices.
    pub slices: usize,
    /// Slices there would be if each were full.
    pub packed: usize,
    /// How the service wants its traffic distributed; empty for not at all.
    pub distribution: String,
}

/// One sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sync {
    /// Endpoints that were not there.
    pub added: usize,
    /// Endpoints that are not there any more.
    pub removed: usize,
    /// Slices written or deleted.
    pub changed: usize,
    /// What there is afterwards.
    pub totals: Totals,
}

/// What of a slice is counted.
struct Shape<'a> {
    /// Slices with the same could be one.
    group: String,
    addresses: Vec<Option<&'a str>>,
}

impl<'a> Shape<'a> {
    fn new(kind: &str, ports: &Value, addresses: impl Iterator<Item = Option<&'a str>>) -> Self {
        Self { group: format!("{kind} {ports}"), addresses: addresses.collect() }
    }

    fn cached(slice: &'a EndpointSlice) -> Self {
        let first = |e: &'a Endpoint| e.addresses.first().map(String::as_str);
        Self::new(&slice.address_type, &body(&slice.ports), slice.endpoints.iter().map(first))
    }

    fn written(slice: &'a Value) -> Self {
        let endpoints = slice["endpoints"].as_array().into_iter().flatten();
        let kind = slice["addressType"].as_str().unwrap_or_default();
        Self::new(kind, &slice["ports"], endpoints.map(|e| e["addresses"][0].as_str()))
    }
}

/// Read a sync from what was and what is to be written.
#[must_use]
pub fn read(service: &Service, before: &[Arc<EndpointSlice>], actions: &[Action], max: usize) -> Sync {
    let mut after: HashMap<String, Shape<'_>> =
        before.iter().map(|s| (object::name(&s.metadata).to_owned(), Shape::cached(s))).collect();
    let addresses = |all: &HashMap<String, Shape<'_>>| -> BTreeSet<String> {
        all.values().flat_map(|s| s.addresses.iter().flatten()).map(|a| (*a).to_owned()).collect()
    };
    let old = addresses(&after);
    let mut changed = 0;
    for action in actions {
        match action {
            Action::Create { body, .. } | Action::Update { body, .. } => {
                changed += 1;
                let name = body["metadata"]["name"].as_str().map_or_else(|| format!("new {changed}"), str::to_owned);
                after.insert(name, Shape::written(body));
            }
            Action::Delete { path, .. } => {
                changed += 1;
                after.remove(path.rsplit('/').next().unwrap_or_default());
            }
            _ => {}
        }
    }
    let new = addresses(&after);
    let mut groups: HashMap<&str, usize> = HashMap::new();
    for slice in after.values() {
        *groups.entry(&slice.group).or_default() += slice.addresses.len();
    }
    Sync {
        added: new.difference(&old).count(),
        removed: old.difference(&new).count(),
        changed,
        totals: Totals {
            endpoints: groups.values().sum(),
            slices: after.len(),
            packed: groups.values().map(|n| n.div_ceil(max.max(1)).max(1)).sum(),
            distribution: service.spec.as_ref().and_then(|s| s.traffic_distribution.clone()).unwrap_or_default(),
        },
    }
}

/// What there is of each service, and the sum of it.
#[derive(Debug, Default)]
pub struct Report {
    known: HashMap<Key, Totals>,
    sum: Totals,
    by_distribution: HashMap<String, usize>,
}

impl Report {
    /// A service was synced.
    pub fn synced(&mut self, key: &Key, topology: bool, sync: Sync) {
        metrics::observe("endpoint_slice_controller_endpoints_added_per_sync", &[], float(sync.added));
        metrics::observe("endpoint_slice_controller_endpoints_removed_per_sync", &[], float(sync.removed));
        let labels = [if topology { "Auto" } else { "Disabled" }, &sync.totals.distribution];
        metrics::observe("endpoint_slice_controller_endpointslices_changed_per_sync", &labels, float(sync.changed));
        if self.known.get(key) != Some(&sync.totals) {
            self.replace(key, Some(sync.totals));
        }
    }

    /// A service is gone.
    pub fn forget(&mut self, key: &Key) {
        self.replace(key, None);
    }

    fn replace(&mut self, key: &Key, new: Option<Totals>) {
        let old = match &new {
            Some(new) => self.known.insert(key.clone(), new.clone()),
            None => self.known.remove(key),
        };
        let named = |t: &Totals| (!t.distribution.is_empty()).then(|| t.distribution.clone());
        for (totals, sign) in [(old, -1), (new, 1)] {
            let Some(t) = totals else { continue };
            let by = |n: usize, change: usize| if sign > 0 { n + change } else { n.saturating_sub(change) };
            self.sum.endpoints = by(self.sum.endpoints, t.endpoints);
            self.sum.slices = by(self.sum.slices, t.slices);
            self.sum.packed = by(self.sum.packed, t.packed);
            if let Some(name) = named(&t) {
                let count = self.by_distribution.entry(name.clone()).or_default();
                *count = by(*count, 1);
                let metric = "endpoint_slice_controller_services_count_by_traffic_distribution";
                metrics::set(metric, &[&name], float(*count));
            }
        }
        metrics::set("endpoint_slice_controller_endpoints_desired", &[], float(self.sum.endpoints));
        metrics::set("endpoint_slice_controller_num_endpoint_slices", &[], float(self.sum.slices));
        metrics::set("endpoint_slice_controller_desired_endpoint_slices", &[], float(self.sum.packed));
    }
}

#[allow(clippy::cast_precision_loss, reason = "small numbers")]
fn float(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_sync_is_read_from_its_writes() {
        let slice = |name: &str, addresses: &[&str]| {
            json!({"metadata": {"name": name, "namespace": "ns"}, "addressType": "IPv4",
                "endpoints": addresses.iter().map(|a| json!({"addresses": [a]})).collect::<Vec<_>>()})
        };
        let typed = |v| Arc::new(serde_json::from_value::<EndpointSlice>(v).expect("slice"));
        let before = [typed(slice("a", &["10.0.0.1", "10.0.0.2"])), typed(slice("b", &["10.0.0.3"]))];
        let actions = [
            Action::Update { path: "x/a".into(), body: slice("a", &["10.0.0.1", "10.0.0.4"]) },
            Action::Delete { path: "x/b".into(), options: json!({}) },
        ];
        let sync = read(&Service::default(), &before, &actions, 100);
        let totals = Totals { endpoints: 2, slices: 1, packed: 1, distribution: String::new() };
        assert_eq!(sync, Sync { added: 1, removed: 2, changed: 2, totals: totals.clone() });
        let mut report = Report::default();
        report.synced(&Key::new("ns", "s"), false, sync);
        assert_eq!(report.sum, totals);
        report.forget(&Key::new("ns", "s"));
        assert_eq!(report.sum, Totals::default());
    }
}
