//! The API services of groups that are answered here: which there must be, and what to do about those there are.
//! Answers for upstream's `autoRegisterController`, `crdRegistrationController`.

use std::collections::BTreeMap;

use proto::resources::Row;
use serde_json::{Value, json};

use super::GROUP;
use super::service::{AUTOMANAGED, ApiService, preference};
use crate::registry::behavior;

/// Written when the server starts, and an administrator's from then on.
pub(super) const ON_START: &str = "onstart";
/// Kept as they are for as long as the server runs.
pub(super) const ALWAYS: &str = "true";

/// An API service there must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DesiredApiService {
    group: String,
    version: String,
    /// Value of the `autoregister` label.
    managed: &'static str,
}

/// Action on one API service, by name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ServiceAction {
    Create(DesiredApiService),
    Update(DesiredApiService),
    /// Only the one of that uid.
    Delete(String, String),
}

impl DesiredApiService {
    pub(super) fn name(&self) -> String {
        format!("{}.{}", self.version, self.group)
    }

    pub(super) fn spec(&self) -> Value {
        let (group, version) = preference(&self.group, &self.version);
        let mut spec = json!({"version": self.version, "groupPriorityMinimum": group, "versionPriority": version});
        if !self.group.is_empty() {
            spec["group"] = json!(self.group);
        }
        spec
    }

    pub(super) fn labels(&self) -> Value {
        json!({AUTOMANAGED: self.managed})
    }

    /// Reports whether a stored API service is as wanted.
    fn is(&self, stored: &ApiService) -> bool {
        let priorities = (stored.group_priority, stored.version_priority);
        stored.managed == self.managed
            && stored.behind.is_none()
            && stored.group == self.group
            && stored.version == self.version
            && priorities == preference(&self.group, &self.version)
    }
}

/// The API services there must be, by name: those of compiled-in groups, except that of API services themselves, and
/// those of custom resources.
pub(super) fn desired(rows: &[Row]) -> BTreeMap<String, DesiredApiService> {
    let mut wanted = BTreeMap::new();
    let mut last: Option<(&str, &str)> = None;
    for row in rows.iter().filter(|r| r.group != GROUP) {
        let (group, version): (&str, &str) = (&row.group, &row.version);
        if last.replace((group, version)) == Some((group, version)) {
            continue;
        }
        let managed = if behavior(row).comes_and_goes() { ALWAYS } else { ON_START };
        let service = DesiredApiService { group: group.to_owned(), version: version.to_owned(), managed };
        wanted.entry(service.name()).or_insert(service);
    }
    wanted
}

/// Plans the actions at start (`first`) and afterwards. Services without the label are not touched.
pub(super) fn steps<'s>(
    wanted: &BTreeMap<String, DesiredApiService>,
    stored: impl IntoIterator<Item = &'s ApiService>,
    first: bool,
) -> Vec<ServiceAction> {
    let mut missing: BTreeMap<&str, &DesiredApiService> = wanted.iter().map(|(name, w)| (name.as_str(), w)).collect();
    let mut steps = Vec::new();
    for service in stored {
        let wanted = missing.remove(service.name.as_str());
        let ours = match service.managed.as_str() {
            ALWAYS => true,
            ON_START => first,
            _ => false,
        };
        if !ours {
            continue;
        }
        match wanted {
            None => steps.push(ServiceAction::Delete(service.name.clone(), service.uid.clone())),
            Some(wanted) if wanted.is(service) => {}
            // What is written at start is written once.
            Some(wanted) if wanted.managed == ON_START && !first => {}
            Some(wanted) => steps.push(ServiceAction::Update(wanted.clone())),
        }
    }
    let create = missing.into_values().filter(|wanted| first || wanted.managed == ALWAYS);
    steps.extend(create.cloned().map(ServiceAction::Create));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(name: &str, label: &str, priority: i64) -> ApiService {
        let (version, group) = name.split_once('.').expect("a name");
        ApiService::read(&json!({"metadata": {"name": name, "uid": "u", "labels": {AUTOMANAGED: label}},
            "spec": {"group": group, "version": version, "groupPriorityMinimum": 1000, "versionPriority": priority}}))
    }

    #[test]
    fn only_labelled_api_services_are_managed() {
        let of =
            |group: &str, managed| DesiredApiService { group: group.to_owned(), version: "v1".to_owned(), managed };
        let wanted: BTreeMap<String, DesiredApiService> =
            [of("a.io", ALWAYS), of("b.io", ON_START)].into_iter().map(|w| (w.name(), w)).collect();
        let verbs = |stored: &[ApiService], first: bool| {
            let words = steps(&wanted, stored, first).into_iter().map(|step| match step {
                ServiceAction::Create(w) => format!("create {}", w.name()),
                ServiceAction::Update(w) => format!("update {} {}", w.name(), w.managed),
                ServiceAction::Delete(name, _) => format!("delete {name}"),
            });
            words.collect::<Vec<_>>()
        };
        assert_eq!(verbs(&[], true), ["create v1.a.io", "create v1.b.io"]);
        assert_eq!(verbs(&[], false), ["create v1.a.io"], "what an administrator deletes stays away");
        let good = [stored("v1.a.io", ALWAYS, 100), stored("v1.b.io", ON_START, 100)];
        assert!(verbs(&good, true).is_empty() && verbs(&good, false).is_empty());
        let changed = [stored("v1.a.io", ALWAYS, 7), stored("v1.b.io", ON_START, 7)];
        assert_eq!(verbs(&changed, true), ["update v1.a.io true", "update v1.b.io onstart"]);
        assert_eq!(verbs(&changed, false), ["update v1.a.io true"]);
        let others = ["v1.a.io", "v1.b.io", "v1.c.io"].map(|name| stored(name, "", 7));
        assert!(verbs(&others, true).is_empty());
        let [one, two] = good;
        let gone = [one, two, stored("v1.c.io", ALWAYS, 1), stored("v1.d.io", ON_START, 1)];
        assert_eq!(verbs(&gone, true), ["delete v1.c.io", "delete v1.d.io"]);
        assert_eq!(verbs(&gone, false), ["delete v1.c.io"]);
    }

    #[test]
    fn built_in_services_are_upstreams() {
        let facts: Value = serde_json::from_str(include_str!("../../testdata/apiservices.json")).expect("facts");
        let rows: Vec<Row> = proto::resources::all().iter().map(Row::from).collect();
        let made = desired(&rows);
        for fact in facts.as_array().expect("a list") {
            let name = fact["name"].as_str().expect("a name");
            let service = made.get(name).unwrap_or_else(|| panic!("{name} is missing"));
            assert_eq!((service.spec(), service.labels()), (fact["spec"].clone(), fact["labels"].clone()), "{name}");
        }
        assert_eq!(made.len(), facts.as_array().map_or(0, Vec::len));
    }
}
