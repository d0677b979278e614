//! Ownership: adoption of matching orphans and release of what no longer matches. Answers for upstream's
//! `ControllerRefManager`, `BaseControllerRefManager.ClaimObject`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::json;
use std::sync::Arc;

use super::action::{Action, PatchKind};
use super::object::{self, Held, Metadata as _};

/// The outcome of sorting candidates by owner.
#[derive(Debug)]
pub struct Claimed<K> {
    /// Objects of this owner, adopted ones included.
    pub owned: Vec<Arc<K>>,
    /// Patches that release what is not selected any more.
    pub releases: Vec<Action>,
    /// Patches that adopt, with the uids of what they adopt. They need the owner to be read afresh first.
    pub adoptions: Vec<(String, Action)>,
}

/// Sort `candidates` for `owner`: keep what it controls and selects, adopt orphans it selects, release what it no
/// longer selects. Nothing is adopted by an owner that is being deleted, nor adopted when itself being deleted. What is
/// adopted gets the `finalizer` of its owner, and what is released loses it.
pub fn claim<K: Held>(
    owner: &ObjectMeta,
    reference: &OwnerReference,
    selects: impl Fn(&K) -> bool,
    candidates: impl IntoIterator<Item = Arc<K>>,
    finalizer: Option<&str>,
) -> Claimed<K> {
    let mut out = Claimed { owned: Vec::new(), releases: Vec::new(), adoptions: Vec::new() };
    for candidate in candidates {
        let meta = candidate.metadata();
        match object::controller_of(meta) {
            Some(r) if r.uid != reference.uid => {}
            Some(_) if selects(&candidate) => out.owned.push(candidate),
            Some(_) => {
                if !object::deleting(owner) {
                    out.releases.push(release::<K>(meta, &reference.uid, finalizer));
                }
            }
            None => {
                if !object::deleting(owner) && !object::deleting(meta) && selects(&candidate) {
                    out.adoptions.push((object::uid(meta).to_owned(), adopt::<K>(meta, reference, finalizer)));
                    out.owned.push(candidate);
                }
            }
        }
    }
    out
}

fn adopt<K: Held>(meta: &K::Meta, reference: &OwnerReference, finalizer: Option<&str>) -> Action {
    let mut metadata = json!({"ownerReferences": [reference], "uid": meta.uid()});
    if let Some(finalizer) = finalizer {
        metadata["finalizers"] = json!([finalizer]);
    }
    Action::patch::<K>(meta, PatchKind::Strategic, json!({"metadata": metadata}))
}

fn release<K: Held>(meta: &K::Meta, owner_uid: &str, finalizer: Option<&str>) -> Action {
    let mut metadata = json!({"ownerReferences": [{"$patch": "delete", "uid": owner_uid}], "uid": meta.uid()});
    if let Some(finalizer) = finalizer {
        metadata["$deleteFromPrimitiveList/finalizers"] = json!([finalizer]);
    }
    Action::patch::<K>(meta, PatchKind::Strategic, json!({"metadata": metadata}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::pod::Pod;

    fn pod(name: &str, app: &str, owner: Option<&str>, deleting: bool) -> Arc<Pod> {
        let mut v = json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"app": app}}});
        if let Some(uid) = owner {
            v["metadata"]["ownerReferences"] =
                json!([{"apiVersion": "v1", "kind": "X", "name": "x", "uid": uid, "controller": true}]);
        }
        if deleting {
            v["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        Arc::new(serde_json::from_value(v).expect("pod"))
    }

    #[test]
    fn claims() {
        let owner = ObjectMeta { uid: Some("me".into()), ..ObjectMeta::default() };
        let reference = OwnerReference { uid: "me".into(), controller: Some(true), ..OwnerReference::default() };
        let selects = |p: &Pod| object::label(&p.metadata, "app") == Some("web");
        let all = || {
            [
                pod("mine", "web", Some("me"), false),
                pod("strayed", "db", Some("me"), false),
                pod("orphan", "web", None, false),
                pod("dying-orphan", "web", None, true),
                pod("foreign", "web", Some("them"), false),
                pod("unrelated", "db", None, false),
            ]
        };
        let got = claim(&owner, &reference, selects, all(), None);
        let names: Vec<_> = got.owned.iter().map(|p| object::name(&p.metadata)).collect();
        assert_eq!(names, ["mine", "orphan"]);
        assert_eq!((got.releases.len(), got.adoptions.len()), (1, 1));
        assert_eq!(got.adoptions[0].0, "orphan");

        let Claimed { releases, adoptions, .. } = claim(&owner, &reference, selects, all(), Some("f/f"));
        let written = releases.into_iter().chain(adoptions.into_iter().map(|(_, patch)| patch));
        let written = written.map(|a| if let Action::Patch { body, .. } = a { body } else { json!(null) });
        let written: Vec<_> = written.collect();
        assert_eq!(written[0]["metadata"]["$deleteFromPrimitiveList/finalizers"], json!(["f/f"]));
        assert_eq!(written[1]["metadata"]["finalizers"], json!(["f/f"]));

        let dying =
            ObjectMeta { deletion_timestamp: Some(object::seconds(k8s_openapi::jiff::Timestamp::UNIX_EPOCH)), ..owner };
        let got = claim(&dying, &reference, selects, all(), None);
        assert!(got.releases.is_empty() && got.adoptions.is_empty(), "a dying owner neither adopts nor releases");
    }
}
