//! Writes of slices, and how they are carried out: by this controller and by the one that mirrors. Answers for
//! upstream's `reconciler.finalize`.

use std::sync::Arc;

use serde_json::json;
use shared::informer::Cached as _;

use super::tracker::Tracker;
use crate::engine::action::Action;
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object::Key;
use crate::engine::rest::RestError;
use crate::engine::slice::Slice;

/// One step of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// A slice that was not there.
    Create(Slice),
    /// A slice as it is to be, in the version it was seen in.
    Update(Slice),
    /// A slice that goes.
    Delete(Arc<Slice>),
    /// Something to say.
    Tell(Box<Action>),
}

impl Write {
    /// Reports whether a slice is written or deleted.
    #[must_use]
    pub fn changes(&self) -> bool {
        !matches!(self, Self::Tell(_))
    }
}

/// Counts what is about to be written under the name of a metric.
pub fn count(metric: &str, writes: &[Write]) {
    for write in writes {
        match write {
            Write::Create(_) => metrics::count(metric, &["create"]),
            Write::Update(_) => metrics::count(metric, &["update"]),
            Write::Delete(_) => metrics::count(metric, &["delete"]),
            Write::Tell(_) => {}
        }
    }
}

/// A write that the server did not take.
#[derive(Debug)]
pub struct Failed {
    /// Action in messages.
    pub what: String,
    /// Failure of the write.
    pub error: RestError,
}

impl Failed {
    /// Reports whether the failure is final: the namespace takes no new objects any more.
    #[must_use]
    pub fn for_good(&self) -> bool {
        self.error.namespace_terminating()
    }
}

/// The writes of each type of addresses, in their order: what becomes of one type is nothing to another. Words go with
/// what they are about.
#[must_use]
pub fn by_family(writes: Vec<Write>) -> Vec<Vec<Write>> {
    let mut families: Vec<(String, Vec<Write>)> = Vec::new();
    for write in writes {
        let family = match &write {
            Write::Create(slice) | Write::Update(slice) => Some(slice.address_type()),
            Write::Delete(slice) => Some(slice.address_type()),
            Write::Tell(_) => None,
        };
        let known = match family {
            Some(family) => families.iter_mut().find(|(known, _)| known == family),
            None => families.last_mut(),
        };
        match known {
            Some((_, writes)) => writes.push(write),
            None => families.push((family.unwrap_or_default().to_owned(), vec![write])),
        }
    }
    families.into_iter().map(|(_, writes)| writes).collect()
}

/// Carries out what was planned for `key`, remembering each write in `tracker`.
///
/// # Errors
/// The first write that the server did not take.
pub async fn carry_out(executor: &Executor, tracker: &Tracker, key: &Key, writes: Vec<Write>) -> Result<(), Failed> {
    let named = |verb: &str, slice: &Slice| format!("{verb} {} EndpointSlice", slice.meta().name());
    // What is rare is in boxes: it is larger than the rest.
    for write in writes {
        match write {
            Write::Create(slice) => {
                let path = Slice::collection_path(Some(slice.meta().namespace()));
                let made = tracked(executor, tracker, key, "POST", &path, &slice).await;
                made.map_err(|error| Failed { what: "create EndpointSlice".to_owned(), error })?;
            }
            Write::Update(slice) => {
                let put = tracked(executor, tracker, key, "PUT", &slice.path(), &slice).await;
                put.map_err(|error| Failed { what: named("update", &slice), error })?;
            }
            Write::Delete(slice) => {
                let options = json!({"preconditions": {"uid": slice.meta().uid()}});
                let deleted = Box::pin(executor.one(Action::Delete { path: slice.path(), options })).await;
                deleted.map_err(|error| Failed { what: named("delete", &slice), error })?;
                tracker.deleted(key, slice.meta().uid());
            }
            // Events are not waited for.
            Write::Tell(event) => drop(Box::pin(executor.one(*event)).await),
        }
    }
    Ok(())
}

/// Sends a slice, and tells the tracker.
async fn tracked(
    executor: &Executor,
    tracker: &Tracker,
    key: &Key,
    method: &str,
    path: &str,
    slice: &Slice,
) -> Result<(), RestError> {
    tracker.writes(key);
    let sent = executor.rest.send_packed(method, path, slice.body()).await;
    tracker.wrote(key, sent.as_ref().ok().cloned());
    sent.map(drop)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn writes_by_family() {
        let slice = |name: &str, family: &str| -> Slice {
            serde_json::from_value(json!({"metadata": {"name": name}, "addressType": family, "endpoints": []}))
                .expect("slice")
        };
        let words = |text: &str| {
            let about = serde_json::from_value(Value::Object(serde_json::Map::new())).expect("reference");
            Write::Tell(Box::new(Action::normal(&about, "Reason", text.to_owned())))
        };
        let name = |write: &Write| match write {
            Write::Create(slice) | Write::Update(slice) => slice.meta().name().to_owned(),
            Write::Delete(slice) => slice.meta().name().to_owned(),
            Write::Tell(_) => "words".to_owned(),
        };
        let shown = |writes| -> Vec<String> {
            by_family(writes).iter().map(|family| family.iter().map(name).collect::<Vec<_>>().join(" ")).collect()
        };
        let writes = vec![
            Write::Create(slice("a", "IPv4")),
            Write::Update(slice("b", "IPv4")),
            words("of IPv4"),
            Write::Create(slice("c", "IPv6")),
            words("of IPv6"),
            Write::Delete(Arc::new(slice("d", "FQDN"))),
            Write::Delete(Arc::new(slice("e", "IPv4"))),
        ];
        assert_eq!(shown(writes), ["a b words e", "c words", "d"]);
        assert_eq!(shown(vec![words("alone")]), ["words"]);
        assert!(shown(Vec::new()).is_empty());
    }
}
