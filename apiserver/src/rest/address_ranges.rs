//! The ranges that cluster addresses are given out of: those of the ServiceCIDRs that are ready. The server makes the
//! first one of `--service-cluster-ip-range`; administrators add more where it is full. Answers for upstream's
//! `pkg/registry/core/service/ipallocator` (`MetaAllocator`).

use ipnet::IpNet;
use proto::Value;
use shared::status::Status;

use crate::machinery::meta;
use crate::machinery::tree;
use crate::registry::networking::service_cidr::SERVICE_CIDRS;
use crate::rest::AllocationStorage;
use crate::storage::codec;
use crate::verbs::engine::storage_status;
use crate::verbs::get;

/// The one that the server makes.
pub(super) const DEFAULT: &str = "kubernetes";

/// A range, and whether addresses may be taken of it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) net: IpNet,
    pub(super) ready: bool,
}

/// Reports whether a ServiceCIDR is ready: not in deletion, and without a `Ready` condition that is not true.
fn is_ready(object: &Value) -> bool {
    let ready = tree::list(object, "/status/conditions").iter().find(|c| tree::text(c, "/type") == "Ready");
    meta::text(object, "deletionTimestamp").is_empty() && ready.is_none_or(|c| tree::text(c, "/status") == "True")
}

/// The ranges of ServiceCIDRs, the default one's first. A range that several have is ready when it is with any.
pub(super) fn of<'o>(objects: impl Iterator<Item = &'o Value>) -> Vec<Range> {
    let mut objects: Vec<&Value> = objects.collect();
    objects.sort_by_key(|o| (meta::text(o, "name") != DEFAULT, meta::text(o, "name")));
    let mut all: Vec<Range> = Vec::new();
    for object in objects {
        let ready = is_ready(object);
        for net in tree::list(object, "/spec/cidrs").iter().filter_map(|c| c.as_str()?.parse::<IpNet>().ok()) {
            match all.iter_mut().find(|known| known.net == net) {
                Some(known) => known.ready |= ready,
                None => all.push(Range { net, ready }),
            }
        }
    }
    all
}

/// The ranges as the cache knows them, or as they are now.
pub(super) async fn known(backend: &AllocationStorage, now: bool) -> Result<Vec<Range>, Status> {
    let row = backend.rows.storage(SERVICE_CIDRS).ok_or_else(Status::generic_not_found)?;
    let cacher = backend.caches.cacher(&row);
    get::ready(&cacher).await?;
    if now {
        get::catch_up(&backend.caches, &cacher, &row).await.map_err(|e| storage_status(&e))?;
    }
    Ok(cached(backend))
}

/// The ranges as far as the cache has told; none while it has not been asked for.
pub(super) fn cached(backend: &AllocationStorage) -> Vec<Range> {
    let Some(row) = backend.rows.storage(SERVICE_CIDRS) else { return Vec::new() };
    let Some(cacher) = backend.caches.running(&row) else { return Vec::new() };
    let entries = cacher.cached_entries("");
    let objects: Vec<Value> = entries.iter().filter_map(|e| codec::value(&row, &e.raw).ok()).collect();
    of(objects.iter())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ranges_that_are_ready() {
        let object = |name: &str, cidrs: Value, ready: Option<&str>, going: bool| {
            let conditions = ready.map(|status| json!([{"type": "Ready", "status": status}]));
            let gone = going.then_some("2020-01-01T00:00:00Z");
            json!({"metadata": {"name": name, "deletionTimestamp": gone}, "spec": {"cidrs": cidrs}, "status": {"conditions": conditions}})
        };
        let objects = [
            object("b", json!(["10.2.0.0/24"]), Some("False"), false),
            object("a", json!(["10.1.0.0/24", "fd00:1::/64"]), None, false),
            object("c", json!(["10.3.0.0/24"]), Some("True"), true),
            object("d", json!(["10.2.0.0/24", "nonsense"]), Some("True"), false),
            object("kubernetes", json!(["10.0.0.0/24"]), Some("True"), false),
        ];
        let shown: Vec<(String, bool)> = of(objects.iter()).iter().map(|r| (r.net.to_string(), r.ready)).collect();
        let want = [
            ("10.0.0.0/24", true),
            ("10.1.0.0/24", true),
            ("fd00:1::/64", true),
            ("10.2.0.0/24", true),
            ("10.3.0.0/24", false),
        ];
        assert_eq!(shown, want.map(|(net, ready)| (net.to_owned(), ready)));
    }
}
