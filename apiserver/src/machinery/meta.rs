//! Object metadata: what the server fills in, what it never lets a client change, and what a delete does to it. Answers
//! for upstream's `BeforeCreate`, `BeforeUpdate`, `deletionFinalizersForGarbageCollection`.

use proto::Value;
use rand::Rng;
use serde_json::{Map, json};
use shared::flags::{NumberError, parse_unsigned_decimal};

/// Characters of generated name suffixes: no vowels, nothing that looks like something else.
const SUFFIX: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Longest generated name.
const MAX_GENERATED: usize = 63;

/// The time, as metadata writes it.
pub fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A time with microseconds, always six digits of them.
pub fn micro_time(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// The time `seconds` from now, or the last there is.
pub fn in_seconds(seconds: i64) -> String {
    let at = jiff::Timestamp::now().as_second().saturating_add(seconds);
    let at = jiff::Timestamp::from_second(at).unwrap_or(jiff::Timestamp::MAX);
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The string field of an object's metadata, or "".
pub fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_str).unwrap_or("")
}

/// The object's metadata map, made if missing.
pub fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    // Both were just made objects.
    object["metadata"].as_object_mut().expect("metadata is an object")
}

/// Sets a metadata field, or removes it when `value` is empty.
pub fn set_text(object: &mut Value, field: &str, value: &str) {
    let meta = metadata(object);
    if value.is_empty() {
        meta.remove(field);
    } else {
        meta.insert(field.to_owned(), Value::from(value));
    }
}

/// The object's revision as a number; 0 when it has none.
pub fn revision(object: &Value) -> Result<i64, NumberError> {
    match text(object, "resourceVersion") {
        "" => Ok(0),
        v => parse_unsigned_decimal(v).map(|n| i64::try_from(n).unwrap_or(i64::MAX)),
    }
}

/// Five random characters, as names that the server makes end in.
pub fn suffix() -> String {
    let mut rng = rand::rng();
    (0..5).map(|_| char::from(SUFFIX[rng.random_range(0..SUFFIX.len())])).collect()
}

/// A name made from `base` with five random characters.
pub fn generate_name(base: &str) -> String {
    let mut cut = base.len().min(MAX_GENERATED - 5);
    while !base.is_char_boundary(cut) {
        cut -= 1;
    }
    format!("{}{}", &base[..cut], suffix())
}

/// Drops what no client says of an object that it creates.
pub fn wipe(object: &mut Value) {
    let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    for field in ["creationTimestamp", "uid", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        meta.remove(field);
    }
}

/// Fills in what a new object gets from the server.
pub fn fill(object: &mut Value) {
    let meta = metadata(object);
    meta.remove("selfLink");
    meta.insert("uid".to_owned(), Value::from(uuid::Uuid::new_v4().to_string()));
    meta.insert("creationTimestamp".to_owned(), Value::from(now()));
}

/// Restores what an update cannot change. A uid given by the client stays: it was a precondition, or is an error.
pub fn carry_over(new: &mut Value, old: &Value) {
    let meta = metadata(new);
    let old_meta = old.get("metadata");
    let before = |field: &str| old_meta.and_then(|m| m.get(field)).filter(|v| !v.is_null()).cloned();
    for field in ["creationTimestamp", "generation"] {
        match before(field) {
            Some(v) => meta.insert(field.to_owned(), v),
            None => meta.remove(field),
        };
    }
    // That an object goes cannot be taken back; who says so of one that stays is refused.
    if let Some(v) = before("deletionTimestamp") {
        meta.insert("deletionTimestamp".to_owned(), v);
    }
    if let Some(v) = before("deletionGracePeriodSeconds")
        .filter(|_| meta.get("deletionGracePeriodSeconds").is_none_or(Value::is_null))
    {
        meta.insert("deletionGracePeriodSeconds".to_owned(), v);
    }
    if meta.get("uid").and_then(Value::as_str).unwrap_or("").is_empty()
        && let Some(uid) = old_meta.and_then(|m| m.get("uid"))
    {
        meta.insert("uid".to_owned(), uid.clone());
    }
    meta.remove("selfLink");
}

/// True when an object is marked deleted, its grace is over and nothing holds it.
pub fn is_deletable(object: &Value) -> bool {
    let meta = &object["metadata"];
    !meta["deletionTimestamp"].is_null()
        && meta["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && meta["finalizers"].as_array().is_none_or(Vec::is_empty)
}

/// Treatment of dependents of a deleted object (`propagationPolicy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// Decided by the object's finalizers.
    Unset,
    /// Dependents stay.
    Orphan,
    /// Dependents go first.
    Foreground,
    /// Dependents go afterwards.
    Background,
}

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// True when the object's finalizers say already what happens to its dependents.
pub fn has_propagation(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|l| l.iter().any(|f| f == ORPHAN || f == FOREGROUND))
}

/// Sets the garbage collector's finalizers as the propagation asks.
pub fn set_propagation(object: &mut Value, propagation: Propagation) {
    let old: Vec<Value> = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let has = |name: &str| old.iter().any(|f| f == name);
    let (orphan, foreground) = match propagation {
        Propagation::Unset => (has(ORPHAN), has(FOREGROUND)),
        Propagation::Orphan => (true, false),
        Propagation::Foreground => (false, true),
        Propagation::Background => (false, false),
    };
    let mut new: Vec<Value> = old.iter().filter(|f| *f != ORPHAN && *f != FOREGROUND).cloned().collect();
    if orphan {
        new.push(json!(ORPHAN));
    }
    if foreground {
        new.push(json!(FOREGROUND));
    }
    // Where nothing else comes of it, they stay in their order.
    if new.iter().all(|f| old.contains(f)) && old.iter().all(|f| new.contains(f)) {
        return;
    }
    let meta = metadata(object);
    if new.is_empty() {
        meta.remove("finalizers");
    } else {
        meta.insert("finalizers".to_owned(), Value::Array(new));
    }
}

/// Action of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// Remove the object now.
    Now,
    /// Write the marked object, then remove it: those who watch a kind with grace are told of its end beforehand.
    MarkedFirst,
    /// Write the marked object and let others finish.
    Marked,
    /// The deletion is in progress already: nothing to write.
    Pending,
}

fn grace_left(object: &Value) -> i64 {
    object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0)
}

/// Normalizes a grace period: a negative one means one second.
fn wanted(seconds: i64) -> i64 {
    if seconds < 0 { 1 } else { seconds }
}

/// True when an object of a kind with grace is being deleted, and `asked` is no hurry.
pub fn is_waiting(object: &Value, asked: Option<i64>) -> bool {
    let (marked, left) = (!object["metadata"]["deletionTimestamp"].is_null(), grace_left(object));
    marked && left > 0 && asked.is_none_or(|seconds| wanted(seconds) >= left)
}

/// Marks an object for deletion. `grace` is the kind's decision on seconds to wait, `None` for kinds without grace;
/// `kept` when something besides finalizers keeps it.
pub fn mark_deleted(
    object: &mut Value,
    grace: Option<i64>,
    asked: Option<i64>,
    propagation: Propagation,
    kept: bool,
) -> Deletion {
    if grace.is_some() && is_waiting(object, asked) {
        return Deletion::Pending;
    }
    let marked = !object["metadata"]["deletionTimestamp"].is_null();
    let left = grace_left(object);
    let waits = marked && grace.is_some() && left > 0;
    let asked = asked.map(wanted);
    let before = object["metadata"]["finalizers"].clone();
    set_propagation(object, propagation);
    let finalizers_changed = before != object["metadata"]["finalizers"];
    let held = kept || object["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    if let (true, Some(seconds)) = (waits, asked) {
        hurry(object, left, seconds);
        return if seconds == 0 && !held { Deletion::MarkedFirst } else { Deletion::Marked };
    }
    if marked {
        return match (held, finalizers_changed) {
            (false, _) => Deletion::Now,
            (true, true) => Deletion::Marked,
            (true, false) => Deletion::Pending,
        };
    }
    if grace.is_none() && !held {
        return Deletion::Now;
    }
    let seconds = grace.unwrap_or(0);
    let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
    let meta = metadata(object);
    meta.insert("deletionTimestamp".to_owned(), Value::from(in_seconds(seconds)));
    meta.insert("deletionGracePeriodSeconds".to_owned(), Value::from(seconds));
    if generation > 0 {
        meta.insert("generation".to_owned(), Value::from(generation + 1));
    }
    if seconds == 0 && !held { Deletion::MarkedFirst } else { Deletion::Marked }
}

/// The object has less time left than it had: counted from when its deletion began. Where that is over already, it has
/// a second, or none.
fn hurry(object: &mut Value, left: i64, seconds: i64) {
    let now = jiff::Timestamp::now().as_second();
    let end = text(object, "deletionTimestamp").parse().map_or(now, jiff::Timestamp::as_second);
    let end = end.saturating_sub(left).saturating_add(seconds);
    let period = if end < now { seconds.min(1) } else { seconds };
    let meta = metadata(object);
    meta.insert("deletionTimestamp".to_owned(), Value::from(in_seconds(end.max(now).saturating_sub(now))));
    meta.insert("deletionGracePeriodSeconds".to_owned(), Value::from(period));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlong_grace_period_is_clamped() {
        let mut o = json!({"metadata": {"name": "a"}});
        let forever = Some(i64::MAX);
        assert_eq!(mark_deleted(&mut o, forever, forever, Propagation::Unset, false), Deletion::Marked);
        assert!(text(&o, "deletionTimestamp").starts_with("9999-12-"), "{o}");
        assert_eq!(mark_deleted(&mut o, Some(1), Some(1), Propagation::Unset, false), Deletion::Marked);
        assert_eq!(o["metadata"]["deletionGracePeriodSeconds"], 1);
    }

    #[test]
    fn deletes() {
        let plain = || json!({"metadata": {"name": "a"}});
        let held = || json!({"metadata": {"name": "a", "finalizers": ["x/y"], "generation": 3}});
        let mut o = plain();
        assert_eq!(mark_deleted(&mut o, None, None, Propagation::Unset, false), Deletion::Now);
        let mut o = held();
        assert_eq!(mark_deleted(&mut o, None, None, Propagation::Foreground, false), Deletion::Marked);
        assert_eq!(o["metadata"]["finalizers"], json!(["x/y", "foregroundDeletion"]));
        assert_eq!(o["metadata"]["generation"], 4);
        assert_eq!(mark_deleted(&mut o, None, None, Propagation::Unset, false), Deletion::Pending);
        assert_eq!(mark_deleted(&mut o, None, None, Propagation::Background, false), Deletion::Marked);
        let mut o = plain();
        assert_eq!(mark_deleted(&mut o, Some(30), None, Propagation::Background, false), Deletion::Marked);
        assert_eq!(o["metadata"]["deletionGracePeriodSeconds"], 30);
        assert_eq!(mark_deleted(&mut o, Some(30), None, Propagation::Background, false), Deletion::Pending);
        assert_eq!(mark_deleted(&mut o, Some(5), Some(5), Propagation::Background, false), Deletion::Marked);
        assert_eq!(mark_deleted(&mut o, Some(60), Some(60), Propagation::Background, false), Deletion::Pending);
        assert_eq!(mark_deleted(&mut o, Some(0), None, Propagation::Foreground, false), Deletion::Pending);
        assert!(!has_propagation(&o), "what waits is left as it is");
        assert_eq!(mark_deleted(&mut o, Some(0), Some(0), Propagation::Background, false), Deletion::MarkedFirst);
        assert_eq!(o["metadata"]["deletionGracePeriodSeconds"], 0);
        assert_eq!(mark_deleted(&mut o, Some(0), Some(0), Propagation::Background, false), Deletion::Now);
        let mut o = plain();
        assert_eq!(mark_deleted(&mut o, Some(0), None, Propagation::Unset, false), Deletion::MarkedFirst);
        assert!(!text(&o, "deletionTimestamp").is_empty());
        let mut o = held();
        assert_eq!(mark_deleted(&mut o, Some(0), None, Propagation::Unset, false), Deletion::Marked);
    }

    #[test]
    fn finalizers_keep_their_order() {
        for (old, propagation, want) in [
            (json!(["a/x", "orphan", "b/y"]), Propagation::Orphan, json!(["a/x", "orphan", "b/y"])),
            (json!(["a/x", "b/y"]), Propagation::Orphan, json!(["a/x", "b/y", "orphan"])),
            (json!(["a/x", "orphan", "b/y"]), Propagation::Background, json!(["a/x", "b/y"])),
            (json!(["orphan", "a/x"]), Propagation::Foreground, json!(["a/x", "foregroundDeletion"])),
            (json!(["orphan"]), Propagation::Background, Value::Null),
            (json!(["orphan", "a/x"]), Propagation::Unset, json!(["orphan", "a/x"])),
        ] {
            let mut object = json!({"metadata": {"finalizers": old}});
            set_propagation(&mut object, propagation);
            assert_eq!(object["metadata"]["finalizers"], want, "{old} {propagation:?}");
        }
    }

    #[test]
    fn time_is_counted_from_the_beginning_of_a_deletion() {
        for (began, asked, until, period) in [(-20, 25, 5, 25), (-20, 10, 0, 1), (-20, 0, 0, 0)] {
            let mut o = json!({"metadata": {
                "deletionTimestamp": in_seconds(began + 30), "deletionGracePeriodSeconds": 30, "finalizers": ["x/y"]}});
            assert_eq!(mark_deleted(&mut o, Some(30), Some(asked), Propagation::Unset, false), Deletion::Marked);
            assert_eq!(o["metadata"]["deletionGracePeriodSeconds"], period, "{asked}");
            let end: jiff::Timestamp = text(&o, "deletionTimestamp").parse().expect("a time");
            let off = end.as_second() - jiff::Timestamp::now().as_second() - until;
            assert!((-1..=0).contains(&off), "{asked} {off}");
        }
    }

    #[test]
    fn generated_names() {
        let n = generate_name(&"g".repeat(260));
        assert_eq!(n.len(), 63);
        assert!(generate_name("pod-").starts_with("pod-"));
    }
}
