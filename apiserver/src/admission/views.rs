//! A write as those outside see it: its objects in the versions that they are asked about. Answers for upstream's
//! `pkg/admission/conversion.go` (`VersionedAttributes`).
//!
//! An object changes its version when somebody wants to see it in another one, and what was changed there goes back
//! when the next one wants something else, or at the end: no sooner, because a conversion may cost a call and may lose
//! something.

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::merge::apply;
use proto::resources::{Resource, Row};
use serde_json::{Value, json};
use shared::status::Status;

use super::{Attributes, Caller};
use crate::crd;
use crate::machinery::tree;
use crate::registry::{behavior, strategy};

/// Objects of a request in the versions that webhooks and policies ask for.
pub(super) struct Views<'c> {
    /// Conversion webhooks are asked through it.
    caller: &'c Arc<Caller>,
    /// Stored object by version, without the version at hand.
    old: BTreeMap<String, Value>,
    /// New object by version, without the version at hand.
    new: BTreeMap<String, Value>,
    /// Version shown last.
    last: Option<Row>,
    /// The object was changed in the version shown last, so that the write's own is out of date.
    changed: bool,
}

impl<'c> Views<'c> {
    pub(super) fn new(caller: &'c Arc<Caller>) -> Self {
        Self { caller, old: BTreeMap::new(), new: BTreeMap::new(), last: None, changed: false }
    }

    /// The object as it was shown last.
    pub(super) fn object<'v>(&'v self, a: &'v Attributes<'_>) -> Option<&'v Value> {
        let shown = self.last.as_ref().and_then(|row| self.new.get(&row.api_version()));
        shown.or(a.object())
    }

    /// Shows the write in the version of a row from now on.
    ///
    /// # Errors
    /// Objects cannot be converted.
    pub(super) async fn show_version(&mut self, row: &Row, a: &mut Attributes<'_>) -> Result<(), Status> {
        let version = row.api_version();
        if self.last.as_ref().is_some_and(|last| last.api_version() != version) {
            self.commit_mutation(a).await?;
        }
        if let Some(old) = a.old_object.filter(|_| !self.old.contains_key(&version))
            && let Some(converted) = brought(self.caller, row, old).await?
        {
            self.old.insert(version.clone(), converted);
        }
        if let Some(new) = a.object().filter(|_| !self.new.contains_key(&version))
            && let Some(converted) = brought(self.caller, row, new).await?
        {
            self.new.insert(version, converted);
        }
        self.last = Some(row.clone());
        Ok(())
    }

    /// Takes back what was changed in another version.
    ///
    /// # Errors
    /// It cannot be converted.
    pub(super) async fn commit_mutation(&mut self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let Some(last) = self.last.as_ref().filter(|_| std::mem::take(&mut self.changed)) else { return Ok(()) };
        let shown = self.new.remove(&last.api_version());
        self.new.clear();
        let Some(shown) = shown else { return Ok(()) };
        let mut object =
            brought(self.caller, &behavior(a.resource).working_row(a.resource), &shown).await?.unwrap_or(shown);
        behavior(a.resource).complete_converted(a.resource, &mut object);
        if let Some(slot) = a.object.as_deref_mut() {
            *slot = object;
        }
        Ok(())
    }

    /// Changes the object of a write as it is shown. Who does it adds what is as incomplete as what clients send, and
    /// may be as wrong. Whether anything changed; without an object nothing does.
    pub(super) fn amend<E>(
        &mut self,
        a: &mut Attributes<'_>,
        change: impl FnOnce(&mut Value) -> Result<(), E>,
    ) -> Result<bool, E> {
        let Some(before) = self.object(a).cloned() else { return Ok(false) };
        let mut object = before.clone();
        change(&mut object)?;
        let row = self.last.as_ref().unwrap_or(a.resource);
        behavior(row).complete_admitted(row, a.resource, &mut object, &before);
        if let Some(why) = restore_managed_fields(&mut object, &before) {
            a.warnings.push(format!(".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: {why}"));
        }
        let changed = object != before;
        let version = row.api_version();
        if changed {
            // As other versions saw it it is no more.
            self.new.retain(|known, _| *known == version);
        }
        match self.new.get_mut(&version) {
            Some(slot) => {
                *slot = object;
                self.changed |= changed;
            }
            None => {
                if let Some(slot) = a.object.as_deref_mut() {
                    *slot = object;
                }
            }
        }
        Ok(changed)
    }

    /// The `request` that webhooks and expressions are told about, without uid, as it is shown.
    pub(super) fn request(&self, a: &Attributes<'_>) -> Value {
        let shown: &Resource = self.last.as_ref().unwrap_or(a.resource);
        let old = self.old.get(&shown.api_version()).or(a.old_object);
        let [object, old] = [self.object(a), old].map(|o| o.cloned().unwrap_or_default());
        let own = [&object, &old].into_iter().find(|o| !tree::text(o, "/kind").is_empty());
        let kind = match own {
            // A subresource may have a kind of its own.
            Some(o) => gvk(tree::text(o, "/apiVersion"), tree::text(o, "/kind")),
            None => json!({"group": shown.group, "version": shown.version, "kind": shown.kind}),
        };
        let mut request_kind = kind.clone();
        let row = a.resource;
        if tree::text(&kind, "/kind") == shown.kind {
            request_kind = json!({"group": row.group, "version": row.version, "kind": row.kind});
        }
        let name = match (a.name, a.object()) {
            ("", Some(object)) => tree::name(object),
            (name, _) => name,
        };
        let mut request = json!({
            "kind": kind,
            "resource": {"group": shown.group, "version": shown.version, "resource": shown.plural},
            "requestKind": request_kind,
            "requestResource": {"group": row.group, "version": row.version, "resource": row.plural},
            "operation": a.operation.as_str(),
            "userInfo": a.user,
            "object": object,
            "oldObject": old,
            "dryRun": a.dry_run,
            "options": a.options,
        });
        for (field, value) in [
            ("subResource", a.subresource),
            ("requestSubResource", a.subresource),
            ("name", name),
            ("namespace", a.namespace),
        ] {
            if !value.is_empty() {
                request[field] = value.into();
            }
        }
        request
    }
}

/// An object in the version of a row; nothing if it is in that already, or is of another kind, as subresources may be.
async fn brought(caller: &Arc<Caller>, row: &Row, object: &Value) -> Result<Option<Value>, Status> {
    let (api_version, kind) = (tree::text(object, "/apiVersion"), tree::text(object, "/kind"));
    if kind != row.kind || api_version == row.api_version() {
        return Ok(None);
    }
    if behavior(row).converts_by_webhook() {
        return Ok(crd::convert::between(&**caller, row, vec![object.clone()]).await?.pop());
    }
    let (group, _) = api_version.split_once('/').unwrap_or(("", api_version));
    Ok(Some(behavior(row).convert(object.clone(), (group, kind), row)))
}

/// Puts back what was known of owners if it was damaged; says what is wrong with it.
fn restore_managed_fields(object: &mut Value, before: &Value) -> Option<String> {
    const FIELDS: &str = "/metadata/managedFields";
    if object.pointer(FIELDS) == before.pointer(FIELDS) {
        return None;
    }
    let why = apply::complaint(object)?.to_string();
    strategy::restore(&mut object["metadata"], &before["metadata"], "managedFields");
    Some(why)
}

fn gvk(api_version: &str, kind: &str) -> Value {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    json!({"group": group, "version": version, "kind": kind})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_owners_are_put_back() {
        let object = |entry: Value| json!({"metadata": {"name": "a", "managedFields": [entry]}});
        let good = json!({"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {}}});
        let with = |key: &str, value: &str| {
            let mut entry = good.clone();
            entry[key] = value.into();
            object(entry)
        };
        let before = object(good.clone());
        for (mut now, why) in [
            (before.clone(), None),
            (with("manager", "other"), None),
            (with("operation", "Think"), Some("operation must be `Apply` or `Update`")),
            (with("apiVersion", ""), Some("apiVersion must not be empty")),
            (with("fieldsType", ""), Some("missing fieldsType in managed fields entry 0")),
            (with("fieldsType", "V2"), Some("invalid fieldsType \"V2\" in managed fields entry 0")),
        ] {
            let sent = now.clone();
            assert_eq!(restore_managed_fields(&mut now, &before).as_deref(), why);
            assert_eq!(now, if why.is_some() { before.clone() } else { sent });
        }
    }
}
