//! Events of both groups, which name the same fields differently.

use proto::Value;

/// Names in core v1 and in events.k8s.io/v1.
const EVENT_NAMES: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Converts a core event to the group of its own.
pub(in crate::registry) fn from_core(object: &mut Value, group: &str, _: &str) {
    if !group.is_empty() {
        rename(object, EVENT_NAMES, true);
    }
}

/// Converts an event of the group of its own to the core group.
pub(in crate::registry) fn to_core(object: &mut Value, group: &str, _: &str) {
    if group.is_empty() {
        rename(object, EVENT_NAMES, false);
    }
}

fn rename(object: &mut Value, names: &[(&str, &str)], forward: bool) {
    let Some(map) = object.as_object_mut() else { return };
    for (core, events) in names {
        let (old, new) = if forward { (core, events) } else { (events, core) };
        if let Some(v) = map.remove(*old) {
            map.insert((*new).to_owned(), v);
        }
    }
}
