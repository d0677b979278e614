//! Upstream's rules for a complete configuration. Answers for upstream's `ValidateKubeSchedulerConfiguration`.

use serde_json::{Value, json};
use shared::flags::parse_duration;
use shared::status::field::{Error, Path, aggregate};

use crate::framework::Features;

use super::{POINTS, Refused, VERSION, args, extenders, known};

/// Plugins that were once there.
const GONE: [&str; 4] = ["AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits"];

/// Refuses a complete configuration that makes no sense, with all that is wrong.
///
/// # Errors
/// Upstream's words, one error as it is, several in brackets.
pub fn validate(settings: &Value, features: Features) -> Result<(), Refused> {
    let mut errors = Vec::new();
    connection(settings, &mut errors);
    leader_election(&settings["leaderElection"], &mut errors);
    let int = |name: &str| settings.get(name).and_then(Value::as_i64).unwrap_or(0);
    let at = |name: &str| Path::new(name);
    if int("parallelism") <= 0 {
        let why = "should be an integer value greater than zero";
        errors.push(Error::invalid(at("parallelism"), int("parallelism"), why));
    }
    profiles(settings["profiles"].as_array().map_or(&[], Vec::as_slice), features, &mut errors);
    percentage(settings, &at("percentageOfNodesToScore"), &mut errors);
    let (initial, max) = (int("podInitialBackoffSeconds"), int("podMaxBackoffSeconds"));
    if initial <= 0 {
        errors.push(Error::invalid(at("podInitialBackoffSeconds"), initial, "must be greater than 0"));
    }
    if max < initial {
        let why = "must be greater than or equal to PodInitialBackoffSeconds";
        errors.push(Error::invalid(at("podMaxBackoffSeconds"), max, why));
    }
    extenders::validate(settings.get("extenders").and_then(Value::as_array).map_or(&[], Vec::as_slice), &mut errors);
    if errors.is_empty() { Ok(()) } else { Err(Refused(aggregate(&errors))) }
}

fn connection(settings: &Value, errors: &mut Vec<Error>) {
    let burst = settings.pointer("/clientConnection/burst").and_then(Value::as_i64).unwrap_or(0);
    if burst < 0 {
        errors.push(Error::invalid(Path::of(&["clientConnection", "burst"]), burst, "must be non-negative"));
    }
}

fn leader_election(election: &Value, errors: &mut Vec<Error>) {
    if election["leaderElect"] != true {
        return;
    }
    let path = Path::new("leaderElection");
    let text = |name: &str| election[name].as_str().unwrap_or_default();
    let duration = |name: &str| parse_duration(text(name)).unwrap_or_default();
    for name in ["leaseDuration", "renewDeadline", "retryPeriod"] {
        if duration(name).is_zero() {
            errors.push(Error::invalid(path.child(name), text(name), "must be greater than zero"));
        }
    }
    if duration("leaseDuration") <= duration("renewDeadline") {
        let why = "must be greater than `RenewDeadline`";
        errors.push(Error::invalid(path.child("leaseDuration"), text("renewDeadline"), why));
    }
    for name in ["resourceLock", "resourceNamespace", "resourceName"] {
        if text(name).is_empty() {
            errors.push(Error::required(path.child(name), ""));
        }
    }
    if text("resourceLock") != "leases" {
        let why = r#"resourceLock value must be "leases""#;
        errors.push(Error::invalid(path.child("resourceLock"), text("resourceLock"), why));
    }
}

fn percentage(holder: &Value, path: &Path, errors: &mut Vec<Error>) {
    let value = holder.get("percentageOfNodesToScore").and_then(Value::as_i64);
    if let Some(value) = value.filter(|v| !(0..=100).contains(v)) {
        errors.push(Error::invalid(path.clone(), value, "not in valid range [0-100]"));
    }
}

fn profiles(profiles: &[Value], features: Features, errors: &mut Vec<Error>) {
    let all = Path::new("profiles");
    for (i, profile) in profiles.iter().enumerate() {
        let path = all.index(i);
        let name = profile["schedulerName"].as_str().unwrap_or_default();
        if name.is_empty() {
            errors.push(Error::required(path.child("schedulerName"), ""));
        }
        percentage(profile, &path.child("percentageOfNodesToScore"), errors);
        gone_plugins(profile, &path.child("plugins"), errors);
        plugin_config(profile, &path, features, errors);
        if profiles[..i].iter().any(|p| p["schedulerName"] == name) {
            // Upstream prints the path of the other profile here, which has no text.
            errors.push(Error::duplicate(path.child("schedulerName"), json!({})));
        }
    }
    common_queue_sort(profiles, &all, errors);
}

fn gone(path: Path, name: &str, errors: &mut Vec<Error>) -> bool {
    if !GONE.contains(&name) {
        return false;
    }
    let why = format!(r#"was invalid in version "v1" (KubeSchedulerConfiguration is version "{VERSION}")"#);
    errors.push(Error::invalid(path, name, &why));
    true
}

fn gone_plugins(profile: &Value, path: &Path, errors: &mut Vec<Error>) {
    for point in POINTS {
        let enabled = profile["plugins"][point]["enabled"].as_array();
        for (i, plugin) in enabled.into_iter().flatten().enumerate() {
            let name = plugin["name"].as_str().unwrap_or_default();
            gone(path.child(point).child("enabled").index(i), name, errors);
        }
    }
}

fn plugin_config(profile: &Value, path: &Path, features: Features, errors: &mut Vec<Error>) {
    let configs = profile["pluginConfig"].as_array().map_or(&[][..], Vec::as_slice);
    for (i, config) in configs.iter().enumerate() {
        let path = path.child("pluginConfig").index(i);
        let name = config["name"].as_str().unwrap_or_default();
        if configs[..i].iter().any(|c| c["name"] == name) {
            errors.push(Error::duplicate(path.clone(), name));
        }
        if !gone(path.clone(), name, errors) && known(name) {
            errors.extend(args::validate(name, &config["args"], &path.child("args"), features));
        }
    }
}

fn common_queue_sort(profiles: &[Value], path: &Path, errors: &mut Vec<Error>) {
    let set = |p: &Value| p["plugins"]["queueSort"].clone();
    let Some(first) = profiles.first().map(set) else { return };
    let enabled = first["enabled"].as_array().map_or(0, Vec::len);
    if enabled > 1 {
        let at = path.index(0).child("plugins").child("queueSort").child("Enabled");
        errors.push(Error::invalid(at, enabled, "only one queue sort plugin can be enabled"));
    }
    for (i, profile) in profiles.iter().enumerate().skip(1) {
        if set(profile) != first {
            let at = path.index(i).child("plugins").child("queueSort");
            errors.push(Error::invalid(at, set(profile), "must be the same for all profiles"));
        }
    }
}
