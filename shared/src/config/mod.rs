//! Component configuration files: decoded against upstream's kinds with upstream's refusals and defaults.
//!
//! The result is a tree whose absent fields are filled in; [`Settings`] reads it by path. How flags override a file
//! is in one file per component.

mod decode;
mod kubelet;
mod scheduler;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::flags::{FeatureGates, GateError, parse_duration};
use crate::status::go_quote;
use decode::Checker;
pub use kubelet::{kubelet, kubelet_flags};
pub use scheduler::scheduler;

/// Errors of configuration files. The wording is upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("failed to read {what} config file {}, error: {why}", go_quote(.path))]
    Read {
        /// Component of the file.
        what: &'static str,
        /// The file.
        path: String,
        /// Cause.
        why: String,
    },
    /// The file is empty.
    #[error("{what} config file {} was empty", go_quote(.path))]
    Empty {
        /// Component of the file.
        what: &'static str,
        /// The file.
        path: String,
    },
    /// Neither JSON nor YAML.
    #[error("{0}")]
    Syntax(String),
    /// No kind.
    #[error("Object 'Kind' is missing in '{0}'")]
    NoKind(String),
    /// No version.
    #[error("Object 'apiVersion' is missing in '{0}'")]
    NoVersion(String),
    /// A kind nobody knows.
    #[error("no kind {} is registered for version {}", go_quote(.kind), go_quote(.version))]
    UnknownKind {
        /// The kind.
        kind: String,
        /// Group and version of the document.
        version: String,
    },
    /// Not the kind wanted.
    #[error("couldn't decode as {wanted}, got {got}")]
    WrongKind {
        /// Wanted.
        wanted: String,
        /// Got.
        got: String,
    },
    /// A value of the wrong type.
    #[error("{0}")]
    Type(String),
    /// Unknown or duplicate fields.
    #[error("strict decoding error: {}", .0.join(", "))]
    Strict(Vec<String>),
    /// Feature gates.
    #[error("{0}")]
    Gates(#[from] GateError),
    /// A component's own rule.
    #[error("{0}")]
    Refused(String),
}

/// Treatment of unknown and duplicate fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Errors.
    Refuse,
    /// Dropped with a line in the log.
    Warn,
}

/// Upstream's kinds of version v1alpha1 and v1beta1 of these two are decoded leniently when strict decoding fails.
fn policy(kind: &str) -> Unknown {
    if matches!(kind, "KubeletConfiguration" | "KubeProxyConfiguration") { Unknown::Warn } else { Unknown::Refuse }
}

/// Decodes JSON or YAML as `kind` in whichever version it says, with defaults filled in.
pub fn decode(bytes: &[u8], kind: &str, unknown: Unknown) -> Result<Value, ConfigError> {
    let parsed = decode::parse(bytes)?;
    let body = || String::from_utf8_lossy(bytes).into_owned();
    let text = |key: &str| parsed.value.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
    let (version, found) = (text("apiVersion"), text("kind"));
    if found.is_empty() {
        return Err(ConfigError::NoKind(body()));
    }
    if version.is_empty() {
        return Err(ConfigError::NoVersion(body()));
    }
    let (group, short) = version.split_once('/').unwrap_or(("", &version));
    let Some(name) = table::kind(group, short, &found) else {
        return Err(ConfigError::UnknownKind { kind: found, version });
    };
    if found != kind {
        let got = format!("{group}/{short}, Kind={found}");
        return Err(ConfigError::WrongKind { wanted: kind.to_owned(), got });
    }
    let table = table::Table::new();
    let mut checker = Checker { table: &table, yaml: parsed.yaml, strict: parsed.strict };
    let mut value = parsed.value;
    checker.object(name, &mut value, "")?;
    if !checker.strict.is_empty() {
        let error = ConfigError::Strict(checker.strict);
        if unknown == Unknown::Refuse {
            return Err(error);
        }
        tracing::info!(err = %error, "Using lenient decoding as strict decoding failed");
    }
    if let Some(defaults) = table::defaults(&version, kind) {
        decode::fill(&table, name, &mut value, &defaults);
    }
    Ok(value)
}

/// Reads and decodes a file of a kind.
pub fn load(path: &str, kind: &'static str) -> Result<Value, ConfigError> {
    decode(&read(path, what(kind))?, kind, policy(kind))
}

fn what(kind: &'static str) -> &'static str {
    match kind {
        "KubeletConfiguration" => "kubelet",
        "KubeProxyConfiguration" => "kube-proxy",
        "KubeSchedulerConfiguration" => "scheduler",
        other => other,
    }
}

fn read(path: &str, what: &'static str) -> Result<Vec<u8>, ConfigError> {
    let bytes =
        crate::os::read(path).map_err(|why| ConfigError::Read { what, path: path.into(), why: why.to_string() })?;
    if bytes.is_empty() { Err(ConfigError::Empty { what, path: path.to_owned() }) } else { Ok(bytes) }
}

/// An object of a kind with nothing but its defaults.
pub fn defaults(api_version: &str, kind: &str) -> Value {
    let mut value = table::defaults(api_version, kind).unwrap_or_else(|| Value::Object(serde_json::Map::new()));
    value["apiVersion"] = api_version.into();
    value["kind"] = kind.into();
    value
}

/// The fields of a kind; none of a kind that there is not.
pub fn fields(api_version: &str, kind: &str) -> Vec<&'static str> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let table = table::Table::new();
    let owner = table::kind(group, version, kind).and_then(|name| table.get(name));
    let names = owner.into_iter().flat_map(|owner| owner.fields.iter().map(|field| field.name));
    names.filter(|name| !matches!(*name, "kind" | "apiVersion")).collect()
}

/// The versions (`group/version`) in which a kind may be written.
pub fn versions(kind: &str) -> Vec<String> {
    table::versions(kind)
}

/// A configuration, read by dotted paths such as `authentication.anonymous.enabled`. Absent is zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings(pub Value);

impl Settings {
    /// Returns the value at a path.
    pub fn get(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&self.0, |value, key| value.get(key)).filter(|v| !v.is_null())
    }

    /// Puts a value at a path, making the objects on the way.
    pub fn set(&mut self, path: &str, value: Value) {
        let mut at = &mut self.0;
        for key in path.split('.') {
            if !at.is_object() {
                *at = Value::Object(serde_json::Map::new());
            }
            at = &mut at[key];
        }
        *at = value;
    }

    /// The fields that differ from their defaults and that are not in `read`, which holds (whatever its values) the
    /// fields that the component looks at: what to warn of as having no effect yet.
    pub fn ignored(&self, read: &Value) -> Vec<String> {
        let (version, kind) = (self.string("apiVersion"), self.string("kind"));
        let mut paths = Vec::new();
        ignored(&self.0, &defaults(&version, &kind), read, "", &mut paths);
        paths
    }

    /// A text.
    pub fn string(&self, path: &str) -> String {
        self.get(path).and_then(Value::as_str).unwrap_or("").to_owned()
    }

    /// A truth value.
    pub fn boolean(&self, path: &str) -> bool {
        self.get(path).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A whole number.
    pub fn integer(&self, path: &str) -> i64 {
        self.get(path).and_then(Value::as_i64).unwrap_or(0)
    }

    /// A number.
    pub fn float(&self, path: &str) -> f64 {
        self.get(path).and_then(Value::as_f64).unwrap_or(0.0)
    }

    /// A duration.
    pub fn duration(&self, path: &str) -> Duration {
        self.get(path).and_then(Value::as_str).and_then(|t| parse_duration(t).ok()).unwrap_or_default()
    }

    /// A list of texts.
    pub fn list(&self, path: &str) -> Vec<String> {
        let items = self.get(path).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// A map of texts.
    pub fn map(&self, path: &str) -> BTreeMap<String, String> {
        let entries = self.get(path).and_then(Value::as_object).into_iter().flatten();
        entries.filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect()
    }

    /// The gates of the `featureGates` field with those of the command line on top.
    pub fn feature_gates(&self, flags: &FeatureGates) -> Result<FeatureGates, ConfigError> {
        let entries = self.get("featureGates").and_then(Value::as_object).into_iter().flatten();
        let set: BTreeMap<String, bool> = entries.filter_map(|(k, v)| Some((k.clone(), v.as_bool()?))).collect();
        Ok(flags.on_top_of(&FeatureGates::default().with(&set)?))
    }
}

fn ignored(value: &Value, default: &Value, read: &Value, path: &str, out: &mut Vec<String>) {
    let Value::Object(fields) = value else { return };
    for (key, value) in fields {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let default = default.get(key).unwrap_or(&Value::Null);
        if value == default || matches!(path.as_str(), "kind" | "apiVersion") {
            continue;
        }
        match read.get(key) {
            None => out.push(path),
            // An empty one is a map, whose keys are all read.
            Some(Value::Object(inner)) if !inner.is_empty() && default.is_object() => {
                ignored(value, default, &read[key], &path, out);
            }
            Some(_) => {}
        }
    }
}
