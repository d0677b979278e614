//! Extenders in the configuration.

use std::collections::HashSet;

use proto::selector::format::qualified_name;
use serde_json::Value;
use shared::status::field::{Error, Path};
use shared::types::is_extended_resource;

/// Fills in defaults, and lets NodeResourcesFit ignore what extenders look after alone.
pub(super) fn complete(settings: &mut Value) {
    let mut ignored: Vec<Value> = Vec::new();
    for extender in settings.get_mut("extenders").and_then(Value::as_array_mut).into_iter().flatten() {
        let timeout = extender.get("httpTimeout").and_then(Value::as_str).unwrap_or_default();
        if ["", "0s"].contains(&timeout) {
            extender["httpTimeout"] = "5s".into();
        }
        for resource in extender.get("managedResources").and_then(Value::as_array).into_iter().flatten() {
            if resource.get("ignoredByScheduler") == Some(&Value::Bool(true)) {
                ignored.push(resource["name"].clone());
            }
        }
    }
    if ignored.is_empty() {
        return;
    }
    for profile in settings["profiles"].as_array_mut().into_iter().flatten() {
        for config in profile["pluginConfig"].as_array_mut().into_iter().flatten() {
            if config["name"] == "NodeResourcesFit" {
                config["args"]["ignoredResources"] = Value::Array(ignored.clone());
            }
        }
    }
}

/// Refuses what makes no sense.
pub(super) fn validate(extenders: &[Value], errors: &mut Vec<Error>) {
    let all = Path::new("extenders");
    let text = |e: &Value, name: &str| e.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut managed: HashSet<String> = HashSet::new();
    for (i, extender) in extenders.iter().enumerate() {
        let path = all.index(i);
        let weight = extender.get("weight").and_then(Value::as_i64).unwrap_or(0);
        if !text(extender, "prioritizeVerb").is_empty() && weight <= 0 {
            errors.push(Error::invalid(path.child("weight"), weight, "must have a positive weight applied to it"));
        }
        let resources = extender.get("managedResources").and_then(Value::as_array);
        for (j, resource) in resources.into_iter().flatten().enumerate() {
            let path = path.child("managedResources").index(j).child("name");
            let name = text(resource, "name");
            let wrong = qualified_name(&name);
            if wrong.is_empty() && !is_extended_resource(&name) {
                errors.push(Error::invalid(path.clone(), name.clone(), "is an invalid extended resource name"));
            }
            errors.extend(wrong.iter().map(|why| Error::invalid(path.clone(), name.clone(), why)));
            if managed.contains(&name) {
                errors.push(Error::invalid(path, name.clone(), "duplicate extender managed resource name"));
            }
            managed.insert(name);
        }
    }
    let binders = extenders.iter().filter(|e| !text(e, "bindVerb").is_empty()).count();
    if binders > 1 {
        let found = format!("found {binders} extenders implementing bind");
        errors.push(Error::invalid(all, found, "only one extender can implement bind"));
    }
}
