//! `KubeSchedulerConfiguration` as a whole: what the file leaves out is filled in, and what makes no sense is refused in
//! upstream's words, before anything is built from it.
//!
//! In comes the tree that `shared::config` has decoded; out goes the same tree with complete profiles. Pure.

mod args;
mod extenders;
#[cfg(test)]
mod tests;
mod validate;

use anyhow::Context as _;
use serde_json::{Map, Value, json};
use shared::config::{ConfigError, Unknown, decode};

use crate::framework::config::DEFAULT_PLUGINS;
use crate::framework::{Configuration, Features, Profile, ProfileConfig, ProfileError, Threads};
use crate::plugins::registry;

pub use validate::validate;

const VERSION: &str = "kubescheduler.config.k8s.io/v1";

/// Extension points as the file names them.
const POINTS: [&str; 12] = [
    "preEnqueue",
    "queueSort",
    "preFilter",
    "filter",
    "postFilter",
    "preScore",
    "score",
    "reserve",
    "permit",
    "preBind",
    "bind",
    "postBind",
];

/// Plugins that take arguments.
const WITH_ARGS: [&str; 8] = [
    "DefaultPreemption",
    "DynamicResources",
    "InterPodAffinity",
    "NodeAffinity",
    "NodeResourcesBalancedAllocation",
    "NodeResourcesFit",
    "PodTopologySpread",
    "VolumeBinding",
];

/// Fault of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// Fills in what profiles leave out: names, the default plugins, arguments with their defaults.
///
/// # Errors
/// Arguments that are none.
pub fn complete(settings: &Value, features: Features) -> Result<Value, Refused> {
    let mut out = settings.clone();
    let mut profiles = settings.get("profiles").and_then(Value::as_array).cloned().unwrap_or_default();
    if profiles.is_empty() {
        profiles.push(json!({}));
    }
    let alone = profiles.len() == 1;
    let mut strict: Vec<String> = Vec::new();
    for (i, profile) in profiles.iter_mut().enumerate() {
        if profile.get("schedulerName").is_none_or(Value::is_null) {
            profile["schedulerName"] = if alone { "default-scheduler" } else { "" }.into();
        }
        complete_plugins(profile, features)?;
        complete_args(profile, i, features, &mut strict)?;
    }
    if !strict.is_empty() {
        return Err(Refused(format!("strict decoding error: {}", strict.join(", "))));
    }
    out["profiles"] = Value::Array(profiles);
    extenders::complete(&mut out);
    Ok(out)
}

fn complete_plugins(profile: &mut Value, features: Features) -> Result<(), Refused> {
    let mut plugins = profile.get("plugins").and_then(Value::as_object).cloned().unwrap_or_default();
    for point in POINTS {
        plugins.entry(point).or_insert_with(|| json!({}));
    }
    let mut config: ProfileConfig = serde_json::from_value(json!({"plugins": plugins}))
        .map_err(|e| Refused(format!("json: cannot unmarshal profile plugins: {e}")))?;
    config.features = features;
    let enabled: Vec<Value> = config
        .multi_point()
        .into_iter()
        .map(|p| if p.weight == 0 { json!({"name": p.name}) } else { json!({"name": p.name, "weight": p.weight}) })
        .collect();
    let mut multi_point = json!({"enabled": enabled});
    if let Some(disabled) = plugins.get("multiPoint").and_then(|m| m.get("disabled")).filter(|d| !d.is_null()) {
        multi_point["disabled"] = disabled.clone();
    }
    plugins.insert("multiPoint".to_owned(), multi_point);
    profile["plugins"] = Value::Object(plugins);
    Ok(())
}

/// Names of all plugins that a complete profile enables anywhere.
fn enabled(profile: &Value) -> Vec<&str> {
    let sets = profile["plugins"].as_object().into_iter().flatten().map(|(_, set)| set);
    let plugins = sets.flat_map(|set| set.get("enabled").and_then(Value::as_array).into_iter().flatten());
    plugins.filter_map(|p| p["name"].as_str()).collect()
}

fn complete_args(profile: &mut Value, at: usize, features: Features, strict: &mut Vec<String>) -> Result<(), Refused> {
    let mut configs = profile.get("pluginConfig").and_then(Value::as_array).cloned().unwrap_or_default();
    for (j, config) in configs.iter_mut().enumerate() {
        let name = config["name"].as_str().unwrap_or_default().to_owned();
        if !WITH_ARGS.contains(&name.as_str()) {
            continue;
        }
        let where_ = format!("decoding .profiles[{at}].pluginConfig[{j}]: ");
        match decoded(&name, config.get("args"), features) {
            Ok(args) => config["args"] = args,
            Err(ConfigError::Strict(why)) => {
                strict.push(format!("decoding args for plugin {name}: strict decoding error: {}", why.join(", ")));
            }
            Err(ConfigError::WrongKind { got, .. }) => {
                let got = got
                    .split_once(", Kind=")
                    .map_or(got.clone(), |(g, k)| format!("{k}.{}", g.split_once('/').map_or(g, |(group, _)| group)));
                let wanted = format!("{name}Args.kubescheduler.config.k8s.io");
                return Err(Refused(format!("{where_}args for plugin {name} were not of type {wanted}, got {got}")));
            }
            Err(e) => return Err(Refused(format!("{where_}decoding args for plugin {name}: {e}"))),
        }
    }
    let mut names: Vec<&str> = enabled(profile).into_iter().filter(|n| WITH_ARGS.contains(n)).collect();
    names.sort_unstable();
    names.dedup();
    let missing: Vec<Value> = names
        .into_iter()
        .filter(|n| !configs.iter().any(|c| c["name"] == **n))
        .filter_map(|n| Some(json!({"name": n, "args": decoded(n, None, features).ok()?})))
        .collect();
    configs.extend(missing);
    profile["pluginConfig"] = Value::Array(configs);
    Ok(())
}

/// A plugin's arguments with their defaults.
fn decoded(plugin: &str, args: Option<&Value>, features: Features) -> Result<Value, ConfigError> {
    let kind = format!("{plugin}Args");
    let mut tree = args.and_then(Value::as_object).cloned().unwrap_or_else(Map::new);
    tree.entry("apiVersion").or_insert_with(|| VERSION.into());
    tree.entry("kind").or_insert_with(|| kind.clone().into());
    let mut out = decode(Value::Object(tree).to_string().as_bytes(), &kind, Unknown::Refuse)?;
    args::defaults(plugin, &mut out, args, features);
    Ok(out)
}

/// The profiles of a complete configuration, and the rest of what the scheduling core reads.
///
/// # Errors
/// Plugins that are not there, arguments they do not understand, two profiles of one name.
pub fn profiles(settings: &Value, features: Features) -> anyhow::Result<(Configuration, Vec<Profile>)> {
    let mut configuration: Configuration =
        serde_json::from_value(settings.clone()).context("reading KubeSchedulerConfiguration")?;
    let mut profiles: Vec<Profile> = Vec::new();
    for config in configuration.profiles.iter_mut() {
        config.features = features;
        let profile = Profile::build(config)
            .with_context(|| format!("creating profile for scheduler name {}", config.scheduler_name))?;
        if profiles.iter().any(|p| p.name == profile.name) {
            return Err(ProfileError::Duplicate(config.scheduler_name.clone()).into());
        }
        profiles.push(profile.on(Threads::up_to(configuration.parallelism)));
    }
    Ok((configuration, profiles))
}

/// Reports whether there is such a plugin, in the binary or among those that upstream removed.
fn known(name: &str) -> bool {
    registry::known(name).is_some() || DEFAULT_PLUGINS.iter().any(|(n, _)| *n == name)
}
