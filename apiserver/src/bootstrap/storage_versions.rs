//! `StorageVersionAPI`: what this server encodes resources to, for those who migrate what is stored, and that nothing
//! is written before that is known. Answers for upstream's `pkg/storageversion` (`updateStorageVersionFor`).
//!
//! Each server writes itself into one StorageVersion for each stored resource, once its identity lease is there: who
//! finds a server without a lease takes it out again. What is pure stands above [`run`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use proto::resources::{Resource, Row};
use proto::schema::group_version;
use serde_json::{Value, json};
use shared::authn::{SYSTEM_MASTERS, UserInfo};
use shared::flags::FlagSet;
use shared::status::Status;

use crate::api::{Api, RequestInfo, ServerContext};
use crate::machinery::GroupResource;
use crate::machinery::identity::{SERVER, server_user};
use crate::machinery::meta;
use crate::machinery::{identity, tree};
use crate::registry::apiserverinternal::storage_version::STORAGE_VERSIONS;
use crate::registry::coordination::lease::LEASES;
use crate::registry::core::namespace::NAMESPACES;
use crate::registry::kinds::kind_of;
use crate::rows::{Rows, version_rank};

/// The check that waits for it.
pub const HOOK: &str = "poststarthook/built-in-resources-storage-version-updater";

const CONDITION: &str = "AllEncodingVersionsEqual";
/// Between looks at the lease, between attempts, and until everything is looked at again.
const LOOK: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_secs(600);
const ATTEMPTS: usize = 3;

/// Versions that are served no more, and are understood all the same, of all kinds of a group. Those of a kind its home
/// says.
const OLDER: &[(&str, &[&str])] = &[
    ("apiextensions.k8s.io", &["v1beta1"]),
    ("apiregistration.k8s.io", &["v1beta1"]),
    ("autoscaling", &["v2beta2", "v2beta1"]),
    ("discovery.k8s.io", &["v1beta1"]),
    ("events.k8s.io", &["v1beta1"]),
    ("flowcontrol.apiserver.k8s.io", &["v1beta3", "v1beta2", "v1beta1"]),
    ("node.k8s.io", &["v1beta1", "v1alpha1"]),
    ("policy", &["v1beta1"]),
    ("rbac.authorization.k8s.io", &["v1beta1", "v1alpha1"]),
    ("resource.k8s.io", &["v1beta2", "v1beta1"]),
];

/// A stored resource: group and plural.
type Name = (String, String);

/// Encoding and decodable versions of a stored resource.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Encoding {
    encodes: String,
    decodes: Vec<String>,
    /// Other resources that store the same objects.
    also: Vec<Name>,
}

fn name(row: &Resource) -> Name {
    (row.group.to_string(), row.plural.to_string())
}

/// `pods` or `deployments.apps`.
fn qualified((group, plural): &Name) -> String {
    if group.is_empty() { plural.clone() } else { format!("{plural}.{group}") }
}

/// Encodings of stored resources, by their first name.
fn encodings(rows: &Rows) -> BTreeMap<Name, Encoding> {
    let rows: Vec<Row> = rows.built_in().filter(|row| row.is_stored()).collect();
    let mut stored: Vec<&Resource> = rows.iter().map(|row| &**row).collect();
    stored.sort_by_key(|row| (name(row), version_rank(&row.version)));
    let mut found: BTreeMap<Name, Encoding> = BTreeMap::new();
    for row in &stored {
        let same = |other: &&&Resource| other.etcd_prefix == row.etcd_prefix;
        let Some(first) = stored.iter().find(same) else { continue };
        let encoding = found.entry(name(first)).or_insert_with(|| Encoding {
            encodes: row.storage_api_version(),
            decodes: versions(&stored, row),
            also: Vec::new(),
        });
        if name(row) != name(first) {
            let served = row.api_version();
            if !encoding.decodes.contains(&served) {
                encoding.decodes.push(served);
            }
            if !encoding.also.contains(&name(row)) {
                encoding.also.push(name(row));
            }
        }
    }
    found
}

/// The versions of a resource's own group that are understood.
fn versions(stored: &[&Resource], row: &Resource) -> Vec<String> {
    let of_group = OLDER.iter().filter(|(group, _)| *group == row.group).flat_map(|(_, versions)| *versions);
    let own = kind_of(row).into_iter().flat_map(|kind| kind.life_cycle.decodes);
    let served = stored.iter().filter(|other| name(other) == name(row)).map(|other| &*other.version);
    let mut all: Vec<&str> = served.chain(of_group.chain(own).copied()).collect();
    all.sort_by_key(|version| version_rank(version));
    all.dedup();
    all.into_iter().map(|version| group_version(&row.group, version)).collect()
}

/// An object with what a server says of itself.
fn told(mut object: Value, server: &str, encoding: &Encoding, now: &str) -> Value {
    let own =
        json!({"apiServerID": server, "encodingVersion": encoding.encodes, "decodableVersions": encoding.decodes});
    let mut servers = tree::list(&object, "/status/storageVersions").to_vec();
    match servers.iter_mut().find(|s| s["apiServerID"] == server) {
        Some(there) => *there = own,
        None => servers.push(own),
    }
    let before = tree::text(&object, "/status/commonEncodingVersion").to_owned();
    let first = servers[0]["encodingVersion"].clone();
    let common = servers.iter().all(|s| s["encodingVersion"] == first).then_some(first);
    let (status, reason, message) = match common {
        Some(_) => ("True", "CommonEncodingVersionSet", "Common encoding version set"),
        None => ("False", "CommonEncodingVersionUnset", "Common encoding version unset"),
    };
    let mut conditions = tree::list(&object, "/status/conditions").to_vec();
    let there = conditions.iter().position(|c| c["type"] == CONDITION);
    let moved = common.as_ref().is_some_and(|common| !before.is_empty() && *common != before.as_str());
    let since = there.map(|i| &conditions[i]).filter(|c| c["status"] == status && !moved);
    let since = since.map_or_else(|| Value::from(now), |c| c["lastTransitionTime"].clone());
    let mut condition =
        json!({"type": CONDITION, "status": status, "lastTransitionTime": since, "reason": reason, "message": message});
    if let Some(generation) = tree::int(&object, "/metadata/generation") {
        condition["observedGeneration"] = Value::from(generation);
    }
    match there {
        Some(i) => conditions[i] = condition,
        None => conditions.push(condition),
    }
    let mut status = json!({"storageVersions": servers, "conditions": conditions});
    if let Some(common) = common {
        status["commonEncodingVersion"] = common;
    }
    object["status"] = status;
    object
}

/// Storage versions that have yet to be published, each with its last error.
pub struct StorageVersions {
    encodings: BTreeMap<Name, Encoding>,
    pending: RwLock<BTreeMap<Name, Option<String>>>,
    complete: AtomicBool,
}

impl StorageVersions {
    /// Created where the feature gates are on. Custom resources are not waited for.
    pub fn from_flags(flags: &FlagSet, rows: &Rows) -> Option<Arc<Self>> {
        let wanted = flags.enabled("StorageVersionAPI") && flags.enabled("APIServerIdentity");
        wanted.then(|| Arc::new(Self::new(encodings(rows))))
    }

    fn new(encodings: BTreeMap<Name, Encoding>) -> Self {
        let names = encodings.iter().flat_map(|(name, encoding)| [name].into_iter().chain(&encoding.also));
        let pending = RwLock::new(names.map(|name| (name.clone(), None)).collect());
        Self { encodings, pending, complete: AtomicBool::new(false) }
    }

    /// Reports whether every version was published once.
    pub fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    /// The refusal of a write that has to wait.
    pub fn refusal(&self, info: &RequestInfo, user: &UserInfo) -> Option<Status> {
        if self.is_complete() || matches!(info.verb.as_str(), "get" | "list" | "watch") || is_spared(info, user) {
            return None;
        }
        let name = (info.api_group.clone(), info.resource.clone());
        let error = self.pending.read().get(&name).cloned()?;
        let error = error.as_deref().unwrap_or("<nil>");
        Some(Status::service_unavailable(&format!(
            "wait for storage version registration to complete for resource: {}, last seen error: {error}",
            qualified(&name)
        )))
    }

    fn note(&self, name: &Name, encoding: &Encoding, outcome: &Result<(), Status>) {
        let mut pending = self.pending.write();
        for name in [name].into_iter().chain(&encoding.also) {
            match outcome {
                Ok(()) => drop(pending.remove(name)),
                Err(status) => {
                    if let Some(error) = pending.get_mut(name) {
                        *error = Some(status.message.clone());
                    }
                }
            }
        }
    }

    async fn tell_all(&self, api: &Api, server: &str) {
        let mut failed = false;
        for (name, encoding) in &self.encodings {
            let outcome = publish(api, server, name, encoding).await;
            if let Err(error) = &outcome {
                tracing::warn!(%error, resource = qualified(name), "Failed to update storage version");
            }
            failed |= outcome.is_err();
            self.note(name, encoding, &outcome);
        }
        if !failed {
            self.complete.store(true, Ordering::Release);
        }
    }
}

/// Reports whether a request is exempt from waiting, because publishing needs it: storage versions, leases of servers,
/// and their namespace.
fn is_spared(info: &RequestInfo, user: &UserInfo) -> bool {
    match GroupResource::new(&info.api_group, &info.resource) {
        STORAGE_VERSIONS => true,
        LEASES => info.namespace == "kube-system",
        NAMESPACES => info.verb == "create" && user.name == SERVER && user.in_group(SYSTEM_MASTERS),
        _ => false,
    }
}

async fn publish(api: &Api, server: &str, name: &Name, encoding: &Encoding) -> Result<(), Status> {
    let mut attempt = 1;
    loop {
        let error = match tell_once(api, server, name, encoding).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        // Other servers write at the same time.
        if !error.is_conflict() && !error.is_already_exists() {
            if attempt == ATTEMPTS {
                return Err(error);
            }
            attempt += 1;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn tell_once(api: &Api, server: &str, (group, plural): &Name, encoding: &Encoding) -> Result<(), Status> {
    let object = format!("{}.{plural}", if group.is_empty() { "core" } else { group });
    let user = server_user();
    let there = match api.get(STORAGE_VERSIONS, "", &object).await {
        Err(error) if error.is_not_found() && error.details.as_ref().is_some_and(|d| d.name == object) => {
            let new = json!({"metadata": {"name": object}, "spec": {}, "status": {}});
            api.create(&user, STORAGE_VERSIONS, "", new).await?
        }
        other => other?,
    };
    api.update(&user, STORAGE_VERSIONS, "status", told(there, server, encoding, &meta::now())).await.map(drop)
}

/// Tells everything once the server's lease is there, and now and then again, until dropped.
async fn run(versions: Arc<StorageVersions>, api: Api, server: String) {
    while api.get(LEASES, "kube-system", &server).await.is_err() {
        tokio::time::sleep(LOOK).await;
    }
    loop {
        versions.tell_all(&api, &server).await;
        tokio::time::sleep(AGAIN).await;
    }
}

/// Begins it.
pub(super) fn start(cx: &ServerContext, versions: Arc<StorageVersions>) {
    let work = run(versions, cx.api.clone(), identity::server_id());
    cx.tasks.spawn_until(&cx.shutdown, "storage-versions", work);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoding(group: &str, plural: &str) -> Encoding {
        let all = encodings(&Rows::default());
        all.get(&(group.to_owned(), plural.to_owned())).cloned().expect("it is stored")
    }

    #[test]
    fn storage_versions_are_reported_by_storage_location() {
        for (group, plural, encodes, decodes) in [
            ("", "pods", "v1", &["v1"][..]),
            ("apps", "deployments", "apps/v1", &["apps/v1", "apps/v1beta2", "apps/v1beta1"]),
            (
                "autoscaling",
                "horizontalpodautoscalers",
                "autoscaling/v2",
                &["autoscaling/v2", "autoscaling/v1", "autoscaling/v2beta2", "autoscaling/v2beta1"],
            ),
            ("", "events", "v1", &["v1", "events.k8s.io/v1"]),
        ] {
            let found = encoding(group, plural);
            assert_eq!(
                (found.encodes.as_str(), found.decodes.as_slice()),
                (encodes, &decodes.iter().map(|d| (*d).to_owned()).collect::<Vec<_>>()[..]),
                "{plural}"
            );
        }
        let events = ("events.k8s.io".to_owned(), "events".to_owned());
        assert_eq!(encoding("", "events").also, std::slice::from_ref(&events));
        let all = encodings(&Rows::default());
        assert!(!all.contains_key(&events), "the same objects");
        assert!(!all.keys().any(|(_, plural)| plural == "tokenreviews" || plural == "bindings"));
    }

    #[test]
    fn servers_agree_or_do_not() {
        let deployments = encoding("apps", "deployments");
        let older = Encoding { encodes: "apps/v1beta2".to_owned(), ..deployments.clone() };
        let fresh = json!({"metadata": {"name": "apps.deployments"}});
        let of = |object: &Value| {
            let condition = &object["status"]["conditions"][0];
            let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
            [&object["status"]["commonEncodingVersion"], &condition["status"], &condition["lastTransitionTime"]]
                .map(text)
        };
        let one = told(fresh, "a", &deployments, "t1");
        assert_eq!(of(&one), ["apps/v1", "True", "t1"]);
        assert_eq!(told(one.clone(), "a", &deployments, "t2"), one, "nothing new");
        let two = told(one, "b", &older, "t3");
        assert_eq!(of(&two), ["", "False", "t3"]);
        assert_eq!(tree::list(&two, "/status/storageVersions").len(), 2);
        let agreed = told(two, "b", &deployments, "t4");
        assert_eq!(of(&agreed), ["apps/v1", "True", "t4"]);
        let moved = told(told(json!({}), "a", &older, "t5"), "a", &deployments, "t6");
        assert_eq!(of(&moved), ["apps/v1", "True", "t6"], "another version in common");
    }

    #[test]
    fn writes_wait_for_their_storage_version() {
        let versions = StorageVersions::new(encodings(&Rows::default()));
        let ask = |group: &str, resource: &str, namespace: &str, verb: &str| {
            let [api_group, resource, namespace, verb] = [group, resource, namespace, verb].map(str::to_owned);
            let info =
                RequestInfo { is_resource: true, api_group, resource, namespace, verb, ..RequestInfo::default() };
            versions.refusal(&info, &UserInfo::default()).map(|status| (status.code, status.message))
        };
        let waits = |resource: &str, error: &str| {
            let why = "wait for storage version registration to complete for resource";
            Some((503, format!("{why}: {resource}, last seen error: {error}")))
        };
        assert_eq!(ask("", "pods", "e", "create"), waits("pods", "<nil>"));
        assert_eq!(ask("events.k8s.io", "events", "e", "delete"), waits("events.events.k8s.io", "<nil>"));
        assert_eq!(ask("", "pods", "e", "watch"), None);
        assert_eq!(ask("authorization.k8s.io", "subjectaccessreviews", "", "create"), None, "nothing is stored");
        assert_eq!(ask(LEASES.group, "leases", "kube-system", "update"), None);
        assert!(ask(LEASES.group, "leases", "kube-node-lease", "update").is_some());
        assert_eq!(ask(STORAGE_VERSIONS.group, STORAGE_VERSIONS.plural, "", "update"), None);
        let pods = (String::new(), "pods".to_owned());
        versions.note(&pods, &encoding("", "pods"), &Err(Status::unknown("no luck")));
        assert_eq!(ask("", "pods", "e", "create"), waits("pods", "no luck"));
        versions.note(&pods, &encoding("", "pods"), &Ok(()));
        assert_eq!(ask("", "pods", "e", "create"), None);
        assert!(ask("", "secrets", "e", "create").is_some());
    }
}
