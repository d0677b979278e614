//! Since when devices are tainted.

use proto::Value;
use serde_json::json;

use super::meta::now;
use super::strategy::StrategyCx;

/// A new rule.
pub(super) fn prepare_rule(object: &mut Value, _: &mut StrategyCx<'_>) {
    date(object.pointer_mut("/spec/taint"), &now());
}

/// A changed rule: who changes the effect and not its time taints anew.
pub(super) fn prepare_rule_update(new: &mut Value, old: &Value) {
    let now = now();
    date(new.pointer_mut("/spec/taint"), &now);
    let same = |field: &str| new.pointer(field) == old.pointer(field);
    if !same("/spec/taint/effect") && same("/spec/taint/timeAdded") {
        new["spec"]["taint"]["timeAdded"] = json!(now);
    }
}

/// A new slice.
pub(super) fn prepare_slice(object: &mut Value, _: &mut StrategyCx<'_>) {
    date_all(object);
}

/// A changed slice.
pub(super) fn prepare_slice_update(new: &mut Value, _: &Value) {
    date_all(new);
}

fn date_all(slice: &mut Value) {
    let now = now();
    let devices = slice.pointer_mut("/spec/devices").and_then(Value::as_array_mut).into_iter().flatten();
    let taints = devices.filter_map(|device| device.get_mut("taints")?.as_array_mut()).flatten();
    taints.for_each(|taint| date(Some(taint), &now));
}

/// A taint nobody dated is new.
fn date(taint: Option<&mut Value>, now: &str) {
    if let Some(taint) = taint.and_then(Value::as_object_mut) {
        let time = taint.entry("timeAdded").or_insert(Value::Null);
        if time.is_null() {
            *time = json!(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_dated_by_its_effect() {
        let rule = |effect: &str, time: Option<&str>| json!({"spec": {"taint": {"effect": effect, "timeAdded": time}}});
        let (first, second) = (Some("2026-01-01T00:00:00Z"), Some("2026-01-02T00:00:00Z"));
        let old = rule("NoSchedule", first);
        for (new, want) in [
            (rule("NoSchedule", first), first),
            (rule("NoSchedule", second), second),
            (rule("NoExecute", second), second),
            (rule("NoExecute", first), None),
            (rule("NoSchedule", None), None),
        ] {
            let mut changed = new.clone();
            prepare_rule_update(&mut changed, &old);
            let time = changed["spec"]["taint"]["timeAdded"].as_str().expect("a time");
            assert!(want.map_or(Some(time) > second, |want| want == time), "{new}: {time}");
        }
    }

    #[test]
    fn taints_of_slices_are_dated_where_nobody_did() {
        let mut slice = json!({"spec": {"devices": [{"taints": [{"timeAdded": "2026-01-01T00:00:00Z"}, {}]}, {}]}});
        date_all(&mut slice);
        let taints = &slice["spec"]["devices"][0]["taints"];
        assert_eq!(taints[0]["timeAdded"], "2026-01-01T00:00:00Z");
        assert!(taints[1]["timeAdded"].is_string(), "{slice}");
    }
}
