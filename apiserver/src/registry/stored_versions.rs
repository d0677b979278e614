//! In which version a resource is stored: one that the oldest release a server goes together with can read. Answers for
//! upstream's `StorageVersion`, `DefaultStorageFactory`.
//!
//! Objects are kept and worked on in one version, whatever the server's; only what etcd gets, and what is said of that,
//! is of the version chosen here.

use std::borrow::Cow;
use std::sync::Arc;

use proto::resources::{self, Resource, Row};

use super::kinds::kind_of;
use super::resource_config::introduced_in;
use crate::rows::{storage_hash, version_rank};

fn every() -> impl Iterator<Item = &'static Resource> {
    resources::all().iter().chain(resources::optional())
}

/// Reports whether both rows are versions of one resource.
fn same(a: &Resource, b: &Resource) -> bool {
    a.plural == b.plural && a.group == b.group
}

/// The version of a row's group that etcd gets where `least` is the oldest minor release that reads it: the best one
/// that release has, or the best there is.
fn version(row: &'static Resource, least: u32) -> &'static str {
    // Upstream has fixed some, whoever else reads them.
    let fixed = kind_of(row).is_some_and(|kind| kind.life_cycle.fixed_storage);
    // Objects of another group are no business of this one's versions, nor is JSON.
    if fixed || row.storage_json || row.storage.0 != row.group {
        return &row.storage.1;
    }
    let readable = every().filter(|other| same(other, row) && introduced_in(other).is_none_or(|minor| minor <= least));
    readable.map(|other| &*other.version).min_by_key(|version| version_rank(version)).unwrap_or(&row.storage.1)
}

/// A row that says another version is stored.
fn stored_in(row: &Resource, version: &'static str, kept: Option<Arc<Resource>>) -> Arc<Resource> {
    Arc::new(Resource {
        storage: (row.group.clone(), Cow::Borrowed(version)),
        storage_version_hash: Cow::Owned(storage_hash(&row.group, version, &row.storage_kind)),
        kept,
        ..row.clone()
    })
}

/// The rows, served or not, that do not say by themselves what is stored where `least` is the oldest minor release that
/// reads it.
pub(super) fn others(least: u32) -> Vec<Row> {
    let mut found: Vec<Row> = Vec::new();
    for row in every().filter(|row| row.is_stored()) {
        let version = version(row, least);
        if version == row.storage.1 || found.iter().any(|other| same(other, row)) {
            continue;
        }
        let Row::Static(kept) = Row::from(row).storage() else { continue };
        let ours = stored_in(kept, version, None);
        let versions = every().filter(|other| same(other, row) && !std::ptr::eq(*other, kept));
        let versions = versions.map(|other| Row::from(stored_in(other, version, Some(ours.clone()))));
        found.push(Row::from(ours.clone()));
        found.extend(versions);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_release_that_reads_decides() {
        let stored = |least| -> Vec<String> {
            let rows = others(least);
            rows.iter().map(|r| format!("{}/{} as {}", r.version, r.plural, r.storage.1)).collect()
        };
        for (least, devices, ranges) in [(35, None, None), (34, None, None), (33, Some("v1beta2"), None)]
            .into_iter()
            .chain([(32, Some("v1beta1"), Some("v1beta1"))])
        {
            let mut want: Vec<String> = Vec::new();
            let of = |version: &str, plurals: &[&str], versions: &[&str]| -> Vec<String> {
                let each = |plural: &&str| -> Vec<String> {
                    versions.iter().map(|v| format!("{v}/{plural} as {version}")).collect()
                };
                plurals.iter().flat_map(each).collect()
            };
            if let Some(version) = ranges {
                want.extend(of(version, &["ipaddresses", "servicecidrs"], &["v1", "v1beta1"]));
            }
            if let Some(version) = devices {
                let plurals = ["deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"];
                want.extend(of(version, &plurals, &["v1", "v1beta2", "v1beta1"]));
            }
            let (mut got, mut want) = (stored(least), want);
            got.sort();
            want.sort();
            assert_eq!(got, want, "{least}");
        }
    }

    #[test]
    fn each_resource_has_one_storage_version() {
        let rows = others(32);
        let claims: Vec<&Row> = rows.iter().filter(|row| row.plural == "resourceclaims").collect();
        for row in &claims {
            let kept = row.storage();
            assert!(kept.is(claims[0]) && kept.is_storage() && kept.version == "v1", "{}", row.version);
            assert_eq!(row.is_storage(), row.version == "v1");
            assert_eq!(row.storage_version_hash, storage_hash("resource.k8s.io", "v1beta1", "ResourceClaim"));
        }
    }

    #[test]
    fn storage_version_hashes_match_the_idl() {
        for row in every().filter(|row| row.is_stored()) {
            let hash = storage_hash(&row.storage.0, &row.storage.1, &row.storage_kind);
            assert_eq!(row.storage_version_hash, hash, "{}/{}", row.version, row.plural);
        }
    }
}
