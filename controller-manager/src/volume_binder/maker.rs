//! Makers of the volumes of a storage class, and their annotations where they were once a part of Kubernetes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolume;
use shared::csi::driver;

use crate::engine::object;

use super::plan::{HOST_PATH, OLD_PROVISIONER, PROVISIONED_BY, PROVISIONER};

/// Notes the driver that took over.
pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
const IN_TREE: &str = "kubernetes.io/";

/// Makers of volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Maker<'a> {
    /// A driver, by its name.
    Driver(&'a str),
    /// This process, on its host, where that is switched on.
    Host,
    /// Nobody, and why.
    Nobody(String),
}

/// Returns the maker of volumes for a class with this provisioner.
#[must_use]
pub fn maker(provisioner: &str) -> Maker<'_> {
    match provisioner {
        HOST_PATH => Maker::Host,
        "kubernetes.io/nfs" => Maker::Nobody("no provisionable volume plugin matched".to_owned()),
        other => match driver(other) {
            Some(driver) => Maker::Driver(driver),
            None if other.starts_with(IN_TREE) => Maker::Nobody(no_plugin(other)),
            None => Maker::Driver(other),
        },
    }
}

fn no_plugin(name: &str) -> String {
    format!("no volume plugin matched name: {name}")
}

/// Returns why nobody deletes the volumes of a provisioner.
#[must_use]
pub fn undeletable(provisioned_by: &str) -> Option<String> {
    let known = provisioned_by == HOST_PATH || driver(provisioned_by).is_some();
    (provisioned_by.starts_with(IN_TREE) && !known).then(|| no_plugin(provisioned_by))
}

type Notes = BTreeMap<String, String>;

/// The annotations of a claim with the right note of the driver that took over; None if they are right.
#[must_use]
pub fn noted_of_claim(notes: Option<&Notes>) -> Option<Notes> {
    let notes = notes?;
    noted(notes, notes.get(PROVISIONER).or_else(|| notes.get(OLD_PROVISIONER))?)
}

/// Returns the annotations of a volume, changed.
#[must_use]
pub fn noted_of_volume(notes: Option<&Notes>) -> Option<Notes> {
    let notes = notes?;
    noted(notes, notes.get(PROVISIONED_BY)?)
}

fn noted(notes: &Notes, plugin: &str) -> Option<Notes> {
    let (has, wanted) = (notes.get(MIGRATED_TO).map(String::as_str).filter(|to| !to.is_empty()), driver(plugin));
    if has == wanted {
        return None;
    }
    let mut notes = notes.clone();
    match wanted {
        Some(driver) => notes.insert(MIGRATED_TO.to_owned(), driver.to_owned()),
        None => notes.remove(MIGRATED_TO),
    };
    Some(notes)
}

/// Holds a volume that was made here until what it stands for has been deleted.
pub const GUARD: &str = "kubernetes.io/pv-controller";
/// Finalizer of volumes that drivers make.
const DRIVERS_GUARD: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// The finalizers that a volume ought to have, by who made it and what is to become of it; None if it has them.
#[must_use]
pub fn guarded(volume: &PersistentVolume) -> Option<Vec<String>> {
    let plugin = object::annotation(&volume.metadata, PROVISIONED_BY)?;
    let migrated = driver(plugin).is_some();
    if !migrated && !plugin.starts_with(IN_TREE) {
        return None;
    }
    let has = volume.metadata.finalizers.as_deref().unwrap_or_default();
    let guard = || has.iter().any(|f| f == GUARD);
    let wanted = match volume.spec.as_ref()?.persistent_volume_reclaim_policy.as_deref() {
        _ if migrated => false,
        // What is being deleted can be given none.
        Some("Delete") => guard() || !object::deleting(&volume.metadata),
        Some("Retain" | "Recycle") => false,
        _ => guard(),
    };
    let stays = |f: &&String| (*f != GUARD || wanted) && (*f != DRIVERS_GUARD || migrated);
    let mut out: Vec<String> = has.iter().filter(stays).cloned().collect();
    if wanted && !guard() {
        out.push(GUARD.to_owned());
    }
    (out != has).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_makes_volumes() {
        let nobody = |why: &str| Maker::Nobody(why.to_owned());
        for (provisioner, want) in [
            ("acme.io/p", Maker::Driver("acme.io/p")),
            ("kubernetes.io/gce-pd", Maker::Driver("pd.csi.storage.gke.io")),
            ("kubernetes.io/host-path", Maker::Host),
            ("kubernetes.io/no-provisioner", nobody("no volume plugin matched name: kubernetes.io/no-provisioner")),
            ("kubernetes.io/nfs", nobody("no provisionable volume plugin matched")),
        ] {
            assert_eq!(maker(provisioner), want);
        }
        assert_eq!(undeletable("acme.io/p"), None);
        assert_eq!(undeletable("kubernetes.io/x").as_deref(), Some("no volume plugin matched name: kubernetes.io/x"));
    }

    #[test]
    fn guards() {
        let none: &[&str] = &[];
        for (plugin, policy, deleting, has, want) in [
            (HOST_PATH, "Delete", false, none, Some(vec![GUARD])),
            (HOST_PATH, "Delete", false, &["x"], Some(vec!["x", GUARD])),
            (HOST_PATH, "Delete", false, &[GUARD], None),
            (HOST_PATH, "Delete", true, &["x"], None),
            (HOST_PATH, "Delete", true, &[GUARD], None),
            (HOST_PATH, "Delete", false, &[DRIVERS_GUARD], Some(vec![GUARD])),
            (HOST_PATH, "Retain", false, &["x", GUARD], Some(vec!["x"])),
            (HOST_PATH, "Recycle", false, &[GUARD], Some(vec![])),
            ("kubernetes.io/gce-pd", "Delete", false, &[GUARD, DRIVERS_GUARD], Some(vec![DRIVERS_GUARD])),
            ("acme.io/p", "Delete", false, &[DRIVERS_GUARD], None),
            ("", "Delete", false, none, None),
        ] {
            let deleted = deleting.then_some("2026-01-01T00:00:00Z");
            let notes =
                if plugin.is_empty() { serde_json::json!({}) } else { serde_json::json!({PROVISIONED_BY: plugin}) };
            let volume: PersistentVolume = serde_json::from_value(serde_json::json!({
                "metadata": {"finalizers": has, "annotations": notes, "deletionTimestamp": deleted},
                "spec": {"persistentVolumeReclaimPolicy": policy}}))
            .expect("volume");
            let want = want.map(|all| all.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(guarded(&volume), want, "{plugin} {policy} {deleting} {has:?}");
        }
    }

    #[test]
    fn notes_of_those_who_took_over() {
        let notes = |all: &[(&str, &str)]| -> Notes { all.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect() };
        let (ebs, driver) = ("kubernetes.io/aws-ebs", "ebs.csi.aws.com");
        for (of, want) in [
            (notes(&[]), None),
            (notes(&[(PROVISIONER, ebs)]), Some(notes(&[(PROVISIONER, ebs), (MIGRATED_TO, driver)]))),
            (notes(&[(OLD_PROVISIONER, ebs)]), Some(notes(&[(OLD_PROVISIONER, ebs), (MIGRATED_TO, driver)]))),
            (notes(&[(PROVISIONER, ebs), (MIGRATED_TO, driver)]), None),
            (notes(&[(PROVISIONER, "acme.io/p"), (MIGRATED_TO, driver)]), Some(notes(&[(PROVISIONER, "acme.io/p")]))),
        ] {
            assert_eq!(noted_of_claim(Some(&of)), want, "{of:?}");
        }
        let volume = notes(&[(PROVISIONED_BY, ebs)]);
        assert_eq!(noted_of_volume(Some(&volume)).map(|n| n.len()), Some(2));
        assert_eq!(noted_of_volume(Some(&notes(&[(PROVISIONER, ebs)]))), None);
    }
}
