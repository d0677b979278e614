//! A found share of devices, as it is written into the claim.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult, DeviceClass,
    DeviceRequestAllocationResult, OpaqueDeviceConfiguration,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::allocate::{Picked, Share};
use super::request::{MAX_ALTERNATIVES, Want, Wanted};
use crate::model::devices::{Amounts, Binding, Reach};

/// The allocation of a claim.
pub(super) fn allocation(wanted: &Wanted, share: &Share<'_>, node: &str) -> AllocationResult {
    let results = share.devices.iter().map(|p| DeviceRequestAllocationResult {
        request: p.want.name.clone(),
        driver: p.slice.driver.to_string(),
        pool: p.slice.pool.to_string(),
        device: p.device.name.clone(),
        admin_access: p.want.admin.then_some(true),
        share_id: p.share.is_some().then(|| uuid::Uuid::new_v4().to_string()),
        tolerations: Some(p.want.tolerations.clone()).filter(|all| !all.is_empty()),
        binding_conditions: conditions(p, |binding| &binding.conditions),
        binding_failure_conditions: conditions(p, |binding| &binding.failures),
        consumed_capacity: p.share.as_ref().filter(|share| !share.is_empty()).map(stored),
    });
    let config = configuration(wanted, share);
    AllocationResult {
        devices: Some(DeviceAllocationResult {
            results: Some(results.collect()),
            config: (!config.is_empty()).then_some(config),
        }),
        node_selector: node_selector(&share.devices, node),
        ..AllocationResult::default()
    }
}

/// Conditions that a device has, if any.
fn conditions(picked: &Picked<'_>, of: impl Fn(&Binding) -> &Vec<String>) -> Option<Vec<String>> {
    picked.device.binding.as_ref().map(|binding| of(binding).clone()).filter(|all| !all.is_empty())
}

fn stored(amounts: &Amounts) -> BTreeMap<String, Quantity> {
    amounts.iter().map(|(name, amount)| (name.clone(), Quantity(amount.canonical()))).collect()
}

/// The configuration of the classes, then of the claim, as far as it is about what was allocated.
fn configuration(wanted: &Wanted, share: &Share<'_>) -> Vec<DeviceAllocationConfiguration> {
    let part = |source: &str, requests: Option<Vec<String>>, opaque: &Option<OpaqueDeviceConfiguration>| {
        DeviceAllocationConfiguration { source: source.to_owned(), requests, opaque: opaque.clone() }
    };
    let chosen = || wanted.requests.iter().zip(&share.chosen).map(|(r, a)| (&r.name, &r.alternatives[*a]));
    let mut out = of_classes(chosen().map(|(_, want)| want));
    let devices = wanted.claim.spec.devices.as_ref();
    for c in devices.and_then(|d| d.config.as_ref()).into_iter().flatten() {
        let named = c.requests.as_deref().unwrap_or_default();
        if named.is_empty() {
            out.push(part("FromClaim", None, &c.opaque));
        }
        let about = |(request, _): &(&String, _)| named.contains(request);
        let matching = chosen().filter(|c| about(c) || named.contains(&c.1.name)).count();
        out.extend((0..matching).map(|_| part("FromClaim", c.requests.clone(), &c.opaque)));
    }
    out
}

/// The configuration of each class, once, with the requests that got devices of the class.
fn of_classes<'a>(chosen: impl Iterator<Item = &'a Want>) -> Vec<DeviceAllocationConfiguration> {
    let mut by_class: Vec<(&DeviceClass, Vec<String>)> = Vec::new();
    for want in chosen {
        let known = by_class.iter_mut().find(|(class, _)| class.metadata.name == want.class.metadata.name);
        match known {
            Some((_, requests)) => requests.push(want.name.clone()),
            None => by_class.push((&want.class, vec![want.name.clone()])),
        }
    }
    let configuration = |(class, requests): (&DeviceClass, Vec<String>)| {
        let part = move |opaque: &Option<OpaqueDeviceConfiguration>| DeviceAllocationConfiguration {
            source: "FromClass".to_owned(),
            requests: Some(requests.clone()),
            opaque: opaque.clone(),
        };
        class.spec.config.iter().flatten().map(|c| part(&c.opaque)).collect::<Vec<_>>()
    };
    by_class.into_iter().flat_map(configuration).collect()
}

/// From where all devices can be reached; `None` for everywhere.
fn node_selector(devices: &[Picked<'_>], node: &str) -> Option<NodeSelector> {
    let mut term = NodeSelectorTerm::default();
    for device in devices {
        if device.device.binding.as_ref().is_some_and(|binding| binding.to_node) {
            return Some(only(node));
        }
        match device.slice.reach_of(device.device) {
            Reach::Node(name) => return Some(only(name)),
            Reach::Everywhere | Reach::PerDevice => {}
            Reach::Selected(selector, _) => {
                if let [one] = selector.node_selector_terms.as_slice() {
                    add_new(&mut term.match_fields, one.match_fields.as_deref());
                    add_new(&mut term.match_expressions, one.match_expressions.as_deref());
                }
            }
        }
    }
    let any = term.match_fields.is_some() || term.match_expressions.is_some();
    any.then(|| NodeSelector { node_selector_terms: vec![term] })
}

fn only(node: &str) -> NodeSelector {
    let name = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![name]), ..NodeSelectorTerm::default() };
    NodeSelector { node_selector_terms: vec![term] }
}

fn add_new(to: &mut Option<Vec<NodeSelectorRequirement>>, from: Option<&[NodeSelectorRequirement]>) {
    let sorted = |r: &NodeSelectorRequirement| {
        let mut values = r.values.clone().unwrap_or_default();
        values.sort();
        values
    };
    for r in from.into_iter().flatten() {
        let list = to.get_or_insert_default();
        if !list.iter().any(|have| have.key == r.key && have.operator == r.operator && sorted(have) == sorted(r)) {
            list.push(r.clone());
        }
    }
}

/// Scores the alternatives that the requests got: the earlier, the better.
pub(super) fn score(wanted: &[Wanted], shares: &[Share<'_>]) -> i64 {
    let of_claim = |(wanted, share): (&Wanted, &Share<'_>)| -> i64 {
        let got = wanted.requests.iter().zip(&share.chosen);
        got.filter(|(r, a)| r.alternatives[**a].name != r.name)
            .map(|(_, a)| MAX_ALTERNATIVES - i64::try_from(*a).unwrap_or(MAX_ALTERNATIVES))
            .sum()
    };
    wanted.iter().zip(shares).map(of_claim).sum()
}
