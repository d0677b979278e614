//! What the metrics say of slices: what one sync changes, and what there is in all.
//!
//! In: the slices of a service before a sync and the writes that follow. Out: numbers. Nothing here is decided upon.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use crate::engine::action::Action;
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

fn address(e: &Endpoint) -> Option<String> {
    e.addresses.first().cloned()
}

/// Read a sync from what was and what is to be written.
#[must_use]
pub fn read(service: &Service, before: &[Arc<EndpointSlice>], actions: &[Action], max: usize) -> Sync {
    let mut after: HashMap<String, Cow<'_, EndpointSlice>> =
        before.iter().map(|s| (object::name(&s.metadata).to_owned(), Cow::Borrowed(&**s))).collect();
    let mut changed = 0;
    for action in actions {
        match action {
            Action::Create { body, .. } | Action::Update { body, .. } => {
                let Ok(slice) = serde_json::from_value::<EndpointSlice>(body.clone()) else { continue };
                changed += 1;
                let name = slice.metadata.name.clone().unwrap_or_else(|| format!("new {changed}"));
                after.insert(name, Cow::Owned(slice));
            }
            Action::Delete { path, .. } => {
                changed += 1;
                after.remove(path.rsplit('/').next().unwrap_or_default());
            }
            _ => {}
        }
    }
    let old: BTreeSet<String> = before.iter().flat_map(|s| &s.endpoints).filter_map(address).collect();
    let new: BTreeSet<String> = after.values().flat_map(|s| &s.endpoints).filter_map(address).collect();
    let mut groups: HashMap<String, usize> = HashMap::new();
    for slice in after.values() {
        *groups.entry(format!("{} {:?}", slice.address_type, slice.ports)).or_default() += slice.endpoints.len();
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
