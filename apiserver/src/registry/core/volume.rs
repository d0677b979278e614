//! Volumes and claims start out pending; what a claim is filled from goes by two names. Answers for upstream's
//! `NormalizeDataSources`, pkg/registry/core/persistentvolumeclaim.

use proto::Value;
use serde_json::json;

use crate::machinery::tree::text;
use crate::registry::strategy::StrategyCx;

/// The older name, of claims and snapshots in the claim's namespace.
const SOURCE: &str = "dataSource";
/// The name of anything.
const REFERENCE: &str = "dataSourceRef";

/// See the module.
pub(in crate::registry) fn prepare_create(object: &mut Value, _: &mut StrategyCx<'_>) {
    object["status"] = json!({"phase": "Pending"});
    normalize_data_source(object);
}

/// A claim stays as it was stored, whatever names it goes by; clients may send back the one they know.
pub(in crate::registry) fn prepare_update(new: &mut Value, old: &Value) {
    if [SOURCE, REFERENCE].iter().all(|name| new["spec"].get(name) == old["spec"].get(name)) {
        return;
    }
    match [SOURCE, REFERENCE].iter().all(|name| old["spec"][*name].is_null()) {
        true => normalize_data_source(new),
        false => name_twice(&mut new["spec"]),
    }
}

/// Drops a `dataSource` of an unknown kind when there is no `dataSourceRef`.
fn normalize_data_source(object: &mut Value) {
    let spec = &mut object["spec"];
    if let (true, false, Some(spec)) = (spec[REFERENCE].is_null(), is_known(&spec[SOURCE]), spec.as_object_mut()) {
        spec.remove(SOURCE);
    }
    name_twice(spec);
}

/// A volume also says since when.
pub(in crate::registry) fn prepare_create_volume(object: &mut Value, _: &mut StrategyCx<'_>) {
    object["status"] = json!({"phase": "Pending", "lastPhaseTransitionTime": crate::machinery::meta::now()});
}

/// A volume that changes its phase says when it did, unless whoever writes says something of his own.
pub(in crate::registry) fn prepare_volume_status(new: &mut Value, old: &Value) {
    const SINCE: &str = "lastPhaseTransitionTime";
    let (status, before) = (&new["status"], &old["status"]);
    let unsaid = status[SINCE].is_null();
    let since = match status["phase"] == before["phase"] {
        true if unsaid => before.get(SINCE).cloned(),
        false if unsaid || status[SINCE] == before[SINCE] => Some(json!(crate::machinery::meta::now())),
        _ => None,
    };
    if let (Some(since), Some(status)) = (since, new.get_mut("status").and_then(Value::as_object_mut)) {
        status.insert(SINCE.to_owned(), since);
    }
}

/// Reports whether a kind is supported in `dataSource`; others have always been ignored.
fn is_known(source: &Value) -> bool {
    let known = [("", "PersistentVolumeClaim"), ("snapshot.storage.k8s.io", "VolumeSnapshot")];
    known.contains(&(text(source, "/apiGroup"), text(source, "/kind")))
}

/// Gives it the other name, too. What is in another namespace has but one.
fn name_twice(spec: &mut Value) {
    match (&spec[SOURCE], &spec[REFERENCE]) {
        (Value::Null, Value::Null) => {}
        (source, Value::Null) => spec[REFERENCE] = source.clone(),
        (Value::Null, reference) if text(reference, "/namespace").is_empty() => {
            spec[SOURCE] =
                json!({"apiGroup": reference["apiGroup"], "kind": reference["kind"], "name": reference["name"]});
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_phase_has_a_transition_time() {
        let volume = |phase: &str, since: Option<&str>| match since {
            Some(since) => json!({"status": {"phase": phase, "lastPhaseTransitionTime": since}}),
            None => json!({"status": {"phase": phase}}),
        };
        let then = "2026-01-01T00:00:00Z";
        let old = volume("Available", Some(then));
        for (sent, want) in [
            (volume("Available", None), Some(then)),
            (volume("Available", Some("2026-02-02T00:00:00Z")), Some("2026-02-02T00:00:00Z")),
            (volume("Bound", None), None),
            (volume("Bound", Some(then)), None),
            (volume("Bound", Some("2026-02-02T00:00:00Z")), Some("2026-02-02T00:00:00Z")),
        ] {
            let mut new = sent.clone();
            prepare_volume_status(&mut new, &old);
            let since = new["status"]["lastPhaseTransitionTime"].as_str().expect("a time").to_owned();
            assert!(want.map_or(*since > *then, |want| want == since), "{sent}: {since}");
        }
    }

    #[test]
    fn data_source_is_mirrored() {
        let claim = json!({"apiGroup": null, "kind": "PersistentVolumeClaim", "name": "x"});
        let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "x"});
        let other = json!({"apiGroup": "foo.io", "kind": "Foo", "name": "x"});
        let mut abroad = other.clone();
        abroad["namespace"] = json!("n");
        let spec = |source: &Value, reference: &Value| {
            let mut spec = serde_json::Map::new();
            for (name, value) in [(SOURCE, source), (REFERENCE, reference)] {
                if !value.is_null() {
                    spec.insert(name.to_owned(), value.clone());
                }
            }
            json!({"spec": spec})
        };
        let none = &Value::Null;
        for (sent, stored) in [
            ((&claim, none), (&claim, &claim)),
            ((&snapshot, none), (&snapshot, &snapshot)),
            ((none, &claim), (&claim, &claim)),
            ((none, &other), (&other, &other)),
            ((&other, none), (none, none)),
            ((&other, &claim), (&other, &claim)),
            ((none, &abroad), (none, &abroad)),
            ((&claim, &abroad), (&claim, &abroad)),
            ((none, none), (none, none)),
        ] {
            let mut object = spec(sent.0, sent.1);
            let (user, gated) = Default::default();
            prepare_create(&mut object, &mut StrategyCx { user: &user, warnings: &mut Vec::new(), gated: &gated });
            let present = |name: &str| object["spec"].get(name).cloned().unwrap_or_default();
            assert_eq!((&present(SOURCE), &present(REFERENCE)), stored, "{sent:?}");
        }
        // What an update brings is looked at where there was nothing.
        for (before, after) in [(spec(none, none), spec(none, none)), (spec(none, &abroad), spec(&other, none))] {
            let mut sent = spec(&other, none);
            prepare_update(&mut sent, &before);
            let is_kept = after != spec(none, none);
            assert_eq!(!sent["spec"][SOURCE].is_null(), is_kept, "{before}");
        }
        // Who knows the older name alone sends it back alone.
        let stored = spec(&claim, &claim);
        let mut sent = spec(&claim, none);
        prepare_update(&mut sent, &stored);
        assert_eq!(sent, stored);
        // What was stored by one name keeps it.
        let mut sent = spec(&claim, none);
        prepare_update(&mut sent, &spec(&claim, none));
        assert_eq!(sent, spec(&claim, none));
    }
}
