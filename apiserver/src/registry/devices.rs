//! Slices of devices, and rules that taint them. Answers for upstream's `pkg/registry/resource`.

use proto::Value;
use serde_json::json;

use super::strategy::StrategyCx;
use crate::machinery::meta::now;

/// Taints that do not say since when they are there are there since now.
fn date<'a>(taints: impl Iterator<Item = &'a mut Value>) {
    for taint in taints.filter_map(Value::as_object_mut) {
        if taint.get("timeAdded").is_none_or(Value::is_null) {
            taint.insert("timeAdded".to_owned(), json!(now()));
        }
    }
}

fn date_slice(slice: &mut Value) {
    let devices = slice.pointer_mut("/spec/devices").and_then(Value::as_array_mut).into_iter().flatten();
    date(devices.filter_map(|device| device.get_mut("taints")?.as_array_mut()).flatten());
}

fn date_rule(rule: &mut Value) {
    date(rule.pointer_mut("/spec/taint").into_iter());
}

/// Dates the taints of a slice.
pub(super) fn create_slice(slice: &mut Value, _: &mut StrategyCx<'_>) {
    date_slice(slice);
}

/// Dates the taints of an updated slice.
pub(super) fn update_slice(slice: &mut Value, _: &Value) {
    date_slice(slice);
}

/// Dates the taint of a rule.
pub(super) fn create_rule(rule: &mut Value, _: &mut StrategyCx<'_>) {
    date_rule(rule);
}

/// Dates the taint of an updated rule; a changed effect without a new time counts as a new taint.
pub(super) fn update_rule(rule: &mut Value, old: &Value) {
    date_rule(rule);
    let same = |field: &str| rule.pointer(field) == old.pointer(field);
    if !same("/spec/taint/effect") && same("/spec/taint/timeAdded") {
        rule["spec"]["taint"]["timeAdded"] = json!(now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_are_dated_once() {
        let mut slice = json!({"spec": {"devices": [
            {"name": "a", "taints": [{"key": "k"}, {"key": "l", "timeAdded": "2026-01-01T00:00:00Z"}]}, {"name": "b"}]}});
        date_slice(&mut slice);
        let taints = &slice["spec"]["devices"][0]["taints"];
        assert!(taints[0]["timeAdded"].is_string());
        assert_eq!(taints[1]["timeAdded"], "2026-01-01T00:00:00Z");
        let mut rule = json!({"spec": {"taint": {"key": "k"}}});
        date_rule(&mut rule);
        assert!(rule["spec"]["taint"]["timeAdded"].is_string());
    }

    #[test]
    fn another_effect_is_another_taint() {
        let rule = |effect: &str, time: &str| json!({"spec": {"taint": {"effect": effect, "timeAdded": time}}});
        let (first, second) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        for (effect, time, kept) in [
            ("NoSchedule", first, true),
            ("NoSchedule", second, true),
            ("NoExecute", second, true),
            ("NoExecute", first, false),
        ] {
            let mut changed = rule(effect, time);
            update_rule(&mut changed, &rule("NoSchedule", first));
            assert_eq!(changed == rule(effect, time), kept, "{effect} {time}: {changed}");
        }
    }
}
