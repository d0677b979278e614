//! Storage options from flags, without those of connections.

use std::collections::BTreeMap;

use proto::resources::Resource;
use shared::flags::FlagSet;

use crate::registry::behavior;
use crate::registry::core::event::EVENTS;
use crate::registry::events::event::EVENTS as EVENTS_V1;

/// Invalid flags.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// `--storage-backend`
    #[error("--storage-backend invalid, allowed values: etcd3. If not specified, it will default to 'etcd3'")]
    Backend,
    /// `--storage-media-type`
    #[error(
        "--storage-media-type {0:?} invalid, allowed values: application/json, application/vnd.kubernetes.protobuf, application/yaml"
    )]
    Media(String),
    /// `--watch-cache-sizes`
    #[error("invalid value of watch cache size: {0}")]
    CacheSize(String),
    /// `--watch-cache-sizes`: a size that is not a number.
    #[error("invalid size of watch cache size: {0}")]
    CacheNumber(String),
    /// `--watch-cache-sizes`: a negative size.
    #[error("watch cache size cannot be negative: {0}")]
    CacheNegative(String),
}

/// Checks the flag about the backend.
///
/// # Errors
/// A backend that there is not.
pub fn check_backend(flags: &FlagSet) -> Result<(), SettingsError> {
    match flags.string("storage-backend").as_str() {
        "" | "etcd3" => Ok(()),
        _ => Err(SettingsError::Backend),
    }
}

/// Resources with a watch cache. A cache has the size it needs, whatever the flags say; a size of 0 disables it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caching {
    on: bool,
    /// By plural and group. Not of custom resources, which no flag says the size of.
    sizes: BTreeMap<(String, String), u64>,
}

impl Default for Caching {
    /// Resources without a cache by default: events are many, and read by few.
    fn default() -> Self {
        let events = [EVENTS, EVENTS_V1].map(|events| ((events.plural.to_owned(), events.group.to_owned()), 0));
        Self { on: true, sizes: events.into() }
    }
}

impl Caching {
    /// Reads `--watch-cache` and `--watch-cache-sizes`. `--default-watch-cache-size` is taken and says nothing.
    ///
    /// # Errors
    /// What is no size.
    pub fn from_flags(flags: &FlagSet) -> Result<Self, SettingsError> {
        flags.integer("default-watch-cache-size");
        let mut caching = Self { on: flags.boolean("watch-cache"), ..Self::default() };
        // No size is looked at where there is no cache.
        for text in flags.list("watch-cache-sizes").iter().filter(|_| caching.on) {
            let (resource, size) = cache_size(text)?;
            if size > 0 {
                tracing::warn!(
                    resource = resource.0,
                    group = resource.1,
                    "Size of watch cache is dynamic, ignoring the configured size"
                );
            }
            caching.sizes.insert(resource, size);
        }
        Ok(caching)
    }

    /// Reports whether a resource has a watch cache.
    pub fn has(&self, row: &Resource) -> bool {
        let none = |((plural, group), size): (&(String, String), &u64)| {
            *size == 0 && *plural == *row.plural && *group == *row.group
        };
        self.on && (!behavior(row).has_cache_size() || !self.sizes.iter().any(none))
    }
}

/// `resource[.group]#size`
fn cache_size(text: &str) -> Result<((String, String), u64), SettingsError> {
    let (resource, size) = text.split_once('#').ok_or_else(|| SettingsError::CacheSize(text.to_owned()))?;
    if size.contains('#') {
        return Err(SettingsError::CacheSize(text.to_owned()));
    }
    let size: i64 = size.parse().map_err(|_| SettingsError::CacheNumber(text.to_owned()))?;
    let size = u64::try_from(size).map_err(|_| SettingsError::CacheNegative(text.to_owned()))?;
    let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
    Ok(((plural.to_owned(), group.to_owned()), size))
}

/// Reports whether built-in objects are stored as JSON (`--storage-media-type`; YAML includes JSON).
///
/// # Errors
/// A media type in which nothing is stored.
pub fn stores_json(flags: &FlagSet) -> Result<bool, SettingsError> {
    match flags.string("storage-media-type").as_str() {
        "" | "application/vnd.kubernetes.protobuf" => Ok(false),
        "application/json" | "application/yaml" => Ok(true),
        other => Err(SettingsError::Media(other.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_checked() {
        let flags = |args: &[&str]| FlagSet::of("kube-apiserver", args).expect("flags");
        for (arg, want) in
            [("--storage-backend=etcd3", Ok(())), ("--storage-backend=etcd2", Err(SettingsError::Backend))]
        {
            assert_eq!(check_backend(&flags(&[arg])), want, "{arg}");
        }
        assert_eq!(stores_json(&flags(&[])), Ok(false));
        assert_eq!(stores_json(&flags(&["--storage-media-type=application/json"])), Ok(true));
        assert!(stores_json(&flags(&["--storage-media-type=text/plain"])).is_err());
    }

    #[test]
    fn flags_select_watch_caches() {
        let row = |group, plural| crate::rows::builtin(group, plural).expect("a row");
        let pods = ("", "pods");
        let (events, deployments, leases) =
            (("", "events"), ("apps", "deployments"), ("coordination.k8s.io", "leases"));
        let of = |args: &[&str]| {
            let flags = FlagSet::of("kube-apiserver", args).expect("flags");
            let caching = Caching::from_flags(&flags).map_err(|e| e.to_string())?;
            Ok([pods, events, deployments, leases].map(|(group, plural)| caching.has(&row(group, plural))))
        };
        let bad = |why: &str| Err(why.to_owned());
        for (args, want) in [
            (&[][..], Ok([true, false, true, true])),
            (&["--default-watch-cache-size=0"], Ok([true, false, true, true])),
            (&["--watch-cache=false", "--watch-cache-sizes=pods"], Ok([false; 4])),
            (&["--watch-cache-sizes=pods#0,deployments.apps#0,leases#0"], Ok([false, false, false, true])),
            (&["--watch-cache-sizes=events#5"], Ok([true; 4])),
            (&["--watch-cache-sizes=pods"], bad("invalid value of watch cache size: pods")),
            (&["--watch-cache-sizes=pods#1#2"], bad("invalid value of watch cache size: pods#1#2")),
            (&["--watch-cache-sizes=pods#x"], bad("invalid size of watch cache size: pods#x")),
            (&["--watch-cache-sizes=pods#-1"], bad("watch cache size cannot be negative: pods#-1")),
        ] {
            assert_eq!(of(args), want, "{args:?}");
        }
    }
}
