//! Validation of the capacity that requests may ask of a shared device.

use std::collections::BTreeSet;

use proto::Value;
use proto::quantity::Quantity;
use shared::status::field::{Error, Path};

use crate::rules::options::FieldErrors;
use crate::rules::tree::{get, has, list, quantity};

/// Most amounts to choose from.
const MAX_VALUES: usize = 10;

/// The request policy of a capacity.
pub(super) fn policy(capacity: &Value, path: &Path, out: &mut FieldErrors) {
    let (policy, most) = (get(capacity, "requestPolicy"), quantity(get(capacity, "value")));
    let (values, range) = (!list(policy, "validValues").is_empty(), has(policy, "validRange"));
    let kind = match (values, range) {
        (false, false) => return,
        (true, true) => {
            let why = r#"exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time"#;
            out.push(Error::forbidden(path, why));
            return;
        }
        (true, false) => "validValues",
        (false, true) => "validRange",
    };
    if !has(policy, "default") {
        out.push(Error::required(path.child("default"), &format!("required when {kind} is defined")));
        return;
    }
    let (usual, path) = (quantity(get(policy, "default")), path.child(kind));
    if values {
        choice(list(policy, kind), &usual, &most, &path, out);
    } else {
        between(get(policy, kind), &usual, &most, &path, out);
    }
}

fn wrong(path: &Path, value: &Quantity, why: &str) -> Error {
    Error::invalid(path, value.to_string(), why)
}

/// Amounts to choose from, which go up; the usual one is one of them.
fn choice(values: &[Value], usual: &Quantity, most: &Quantity, path: &Path, out: &mut FieldErrors) {
    let amounts: Vec<Quantity> = values.iter().map(quantity).collect();
    for (i, pair) in amounts.windows(2).enumerate().filter(|(_, pair)| pair[0] > pair[1]) {
        out.push(wrong(&path.index(i + 1), &pair[1], "values must be sorted in ascending order"));
    }
    let few = amounts.len() <= MAX_VALUES;
    if few {
        for (i, amount) in amounts.iter().enumerate().filter(|(_, amount)| *amount > most) {
            let why = format!("option is larger than capacity value: {most}");
            out.push(wrong(&path.index(i), amount, &why));
        }
        // Upstream tells them apart by whole numbers.
        let mut seen = BTreeSet::new();
        for (i, whole) in amounts.iter().map(Quantity::value).enumerate() {
            if !seen.insert(whole) {
                out.push(Error::duplicate(path.index(i), whole.to_string()));
            }
        }
    } else {
        out.push(Error::too_many(path, amounts.len(), MAX_VALUES));
    }
    if !few || !amounts.contains(usual) {
        out.push(wrong(path, usual, "default value is not valid according to the requestPolicy"));
    }
}

/// Amounts between two, perhaps in steps.
fn between(range: &Value, usual: &Quantity, most: &Quantity, path: &Path, out: &mut FieldErrors) {
    let (low_path, high_path) = (path.child("min"), path.child("max"));
    if !has(range, "min") {
        out.push(Error::required(low_path, "required when validRange is defined"));
        return;
    }
    let low = quantity(get(range, "min"));
    let high = has(range, "max").then(|| quantity(get(range, "max")));
    if low > *most {
        out.push(wrong(&low_path, &low, &format!("min is larger than capacity value: {most}")));
    }
    if *usual < low {
        out.push(wrong(&low_path, usual, &format!("default is less than min: {low}")));
    }
    if let Some(high) = &high {
        for (value, bound, why) in [
            (&low, high, format!("min is larger than max: {high}")),
            (high, most, format!("max is larger than capacity value: {most}")),
            (usual, high, format!("default is more than max: {high}")),
        ] {
            if value > bound {
                out.push(wrong(&high_path, value, &why));
            }
        }
    }
    if has(range, "step") {
        let step = quantity(get(range, "step"));
        let ends: Vec<&Quantity> = [usual].into_iter().chain(&high).collect();
        steps(&step, &low, &ends, most, &path.child("step"), out);
    }
}

/// A step fits, and some amounts are whole steps above the lowest.
fn steps(step: &Quantity, low: &Quantity, ends: &[&Quantity], most: &Quantity, path: &Path, out: &mut FieldErrors) {
    let mut first = low.clone();
    first.add(step);
    if first > *most {
        out.push(wrong(path, step, &format!("one step {first} is larger than capacity value: {most}")));
    }
    for end in ends {
        let apart = end.value().wrapping_sub(low.value());
        // Nothing is a multiple of nothing.
        if apart.checked_rem(step.value()) != Some(0) {
            let why = format!("value is not a multiple of a given step ({step}) from ({low})");
            out.push(wrong(path, end, &why));
        }
    }
}
