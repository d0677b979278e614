//! Shares of a device's capacities, where a device is given to several claims at a time.
//!
//! A request that names no amount takes what the capacity's policy has for such requests, or all there is. Other amounts
//! are rounded up to what the policy allows.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{CapacityRequestPolicy, CapacityRequestPolicyRange, DeviceCapacity};
use proto::quantity::{Format, Quantity};

use crate::model::devices::{Amounts, quantity};

/// Returns what a request takes of each capacity of a device; `None` when it names one that the device has not, an
/// amount that is not allowed, or more than `taken` has left.
pub(super) fn share<'a>(
    capacities: impl Iterator<Item = (String, &'a DeviceCapacity)>,
    requested: &Amounts,
    taken: &[Option<&Amounts>],
) -> Option<Amounts> {
    let mut share = Amounts::new();
    for (name, capacity) in capacities {
        let amount = amount(requested.get(&name), capacity);
        if capacity.request_policy.as_ref().is_some_and(|policy| violates(&amount, policy)) {
            return None;
        }
        let mut sum = amount.clone();
        for before in taken.iter().flatten().filter_map(|t| t.get(&name)) {
            sum.add(before);
        }
        if sum > quantity(&capacity.value) {
            return None;
        }
        share.insert(name, amount);
    }
    requested.keys().all(|name| share.contains_key(name)).then_some(share)
}

fn amount(requested: Option<&Quantity>, capacity: &DeviceCapacity) -> Quantity {
    let policy = capacity.request_policy.as_ref();
    let Some(requested) = requested else {
        return quantity(policy.and_then(|p| p.default.as_ref()).unwrap_or(&capacity.value));
    };
    let range = policy.and_then(|p| p.valid_range.as_ref());
    if let Some(range) = range {
        return in_range(requested, range);
    }
    let values = policy.and_then(|p| p.valid_values.as_deref()).unwrap_or_default();
    // They are in ascending order.
    let next = values.iter().map(quantity).find(|valid| requested <= valid);
    next.unwrap_or_else(|| requested.clone())
}

/// No less than the least, and so many steps more.
fn in_range(requested: &Quantity, range: &CapacityRequestPolicyRange) -> Quantity {
    let least = quantity(&range.min);
    if *requested < least {
        return least;
    }
    let Some((steps, over)) = steps(requested, range) else { return requested.clone() };
    if over == 0 && range.step.is_none() {
        return requested.clone();
    }
    let step = range.step.as_ref().map_or(0, |s| quantity(s).value());
    let steps = steps.wrapping_add(i64::from(over != 0));
    Quantity::from_int(least.value().wrapping_add(step.wrapping_mul(steps)), Format::BinarySI)
}

/// Whole steps above the least, and what is left.
fn steps(amount: &Quantity, range: &CapacityRequestPolicyRange) -> Option<(i64, i64)> {
    let step = range.step.as_ref().map(|s| quantity(s).value()).filter(|s| *s != 0)?;
    let above = amount.value().wrapping_sub(quantity(&range.min).value());
    Some((above.wrapping_div(step), above.wrapping_rem(step)))
}

fn violates(amount: &Quantity, policy: &CapacityRequestPolicy) -> bool {
    if policy.default.as_ref().is_some_and(|default| *amount == quantity(default)) {
        return false;
    }
    if let Some(range) = &policy.valid_range {
        let over = range.max.as_ref().is_some_and(|max| *amount > quantity(max));
        return over || steps(amount, range).is_some_and(|(_, left)| left != 0);
    }
    let values = policy.valid_values.as_deref().unwrap_or_default();
    !values.is_empty() && !values.iter().any(|valid| *amount == quantity(valid))
}

/// Adds what is taken.
pub(super) fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        sum.entry(name.clone()).or_default().add(amount);
    }
}

/// Gives back what was taken.
pub(super) fn give_back(sum: &mut Amounts, less: &Amounts) {
    for (name, amount) in less {
        sum.entry(name.clone()).or_default().sub(amount);
    }
}

/// Names as they stand in a slice: the driver's own without its domain.
pub(super) fn named<'a>(
    by_domain: &'a BTreeMap<String, BTreeMap<String, DeviceCapacity>>,
    driver: &'a str,
) -> impl Iterator<Item = (String, &'a DeviceCapacity)> {
    by_domain.iter().flat_map(move |(domain, all)| {
        all.iter().map(move |(name, capacity)| {
            let name = if domain == driver { name.clone() } else { format!("{domain}/{name}") };
            (name, capacity)
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn amounts(v: &Value) -> Amounts {
        let parse = |v: &Value| Quantity::parse(v.as_str().expect("text")).expect("quantity");
        v.as_object().expect("map").iter().map(|(name, v)| (name.clone(), parse(v))).collect()
    }

    fn of(capacity: &Value, requested: &Value, taken: &Value) -> Option<Value> {
        let capacity: BTreeMap<String, DeviceCapacity> = serde_json::from_value(capacity.clone()).expect("capacity");
        let all = capacity.iter().map(|(name, c)| (name.clone(), c));
        let found = share(all, &amounts(requested), &[Some(&amounts(taken)), None])?;
        Some(found.iter().map(|(name, q)| (name.clone(), json!(q.canonical()))).collect())
    }

    #[test]
    fn what_a_request_takes() {
        let plain = json!({"memory": {"value": "10Gi"}});
        let with = |policy: Value| json!({"memory": {"value": "10Gi", "requestPolicy": policy}});
        let range = json!({"default": "1Gi", "validRange": {"min": "2Gi", "max": "8Gi", "step": "2Gi"}});
        let values = json!({"default": "1Gi", "validValues": ["1Gi", "4Gi"]});
        let memory = |amount: &str| json!({"memory": amount});
        for (capacity, requested, taken, want) in [
            (plain.clone(), json!({}), json!({}), Some(memory("10Gi"))),
            (plain.clone(), json!({}), memory("1"), None),
            (plain.clone(), memory("3Gi"), memory("7Gi"), Some(memory("3Gi"))),
            (plain.clone(), memory("3Gi"), memory("8Gi"), None),
            (plain, json!({"other": "1"}), json!({}), None),
            (with(range.clone()), json!({}), json!({}), Some(memory("1Gi"))),
            (with(range.clone()), memory("1Mi"), json!({}), Some(memory("2Gi"))),
            (with(range.clone()), memory("3Gi"), json!({}), Some(memory("4Gi"))),
            (with(range.clone()), memory("4Gi"), memory("6Gi"), Some(memory("4Gi"))),
            (with(range), memory("9Gi"), json!({}), None),
            (with(json!({"validRange": {"min": "2Gi"}})), memory("3Gi"), json!({}), Some(memory("3Gi"))),
            (with(values.clone()), memory("2Gi"), json!({}), Some(memory("4Gi"))),
            (with(values.clone()), memory("5Gi"), json!({}), None),
            (with(values), json!({}), json!({}), Some(memory("1Gi"))),
        ] {
            assert_eq!(of(&capacity, &requested, &taken), want, "{requested} of {capacity}, {taken} taken");
        }
    }
}
