//! Upstream's command lines: every flag of the five components with its type, default and spelling.
//!
//! What each flag does is decided where it is read; a flag that was given but that nobody read is reported once
//! ([`FlagSet::warn_unread`]). Refusals are worded as upstream words them.

mod duration;
mod gates;
mod help;
mod parse;
mod table;
mod value;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::version::Emulation;
pub use duration::{DurationError, format_duration, format_nanos, parse_duration, parse_nanos};
pub use gates::{FeatureGates, GateError};
use table::{FlagType, Row};
pub use value::{NumberError, NumberProblem, parse_bool, parse_decimal, parse_integer, parse_unsigned_decimal};

/// Reasons to exit before start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// `--help`: print to stdout, exit 0.
    #[error("{0}")]
    Help(String),
    /// `--version`: print to stdout, exit 0.
    #[error("{0}")]
    Version(String),
    /// Bad usage: print to stderr, exit 1.
    #[error("{message}")]
    Usage {
        /// Error text.
        message: String,
        /// The usage text, for components that print it.
        usage: String,
    },
}

struct ParsedFlags {
    component: &'static str,
    rows: Vec<Row>,
    /// The texts given for each row, in order.
    given: Vec<Vec<String>>,
    read: Vec<AtomicBool>,
    gates: FeatureGates,
    emulation: Emulation,
}

/// A parsed command line. Cheap to clone.
#[derive(Clone)]
pub struct FlagSet(Arc<ParsedFlags>);

impl FlagSet {
    /// Parses the arguments after the program's name.
    pub fn parse(component: &str, args: impl IntoIterator<Item = OsString>) -> Result<Self, Stop> {
        let (component, rows) = table::rows(component);
        let given = parse::arguments(component, &rows, args)?;
        let texts = |name: &str| rows.iter().position(|r| r.name == name).map(|i| &given[i]);
        let usage = |message: String| Stop::Usage { message, usage: String::new() };
        let said = |name: &str| texts(name).map(Vec::as_slice).unwrap_or_default();
        let emulation = Emulation::read(said("emulated-version"), said("min-compatibility-version"));
        let emulation = emulation.map_err(|e| usage(e.to_string()))?;
        let gates = FeatureGates::parse(said("feature-gates"), emulation).map_err(|e| usage(e.to_string()))?;
        let read: Vec<AtomicBool> = rows.iter().map(|r| AtomicBool::new(READ_HERE.contains(&r.name))).collect();
        Ok(Self(Arc::new(ParsedFlags { component, rows, given, read, gates, emulation })))
    }

    /// For tests: arguments that are known to be good.
    pub fn of(component: &str, args: &[&str]) -> Result<Self, Stop> {
        Self::parse(component, args.iter().map(OsString::from))
    }

    /// The component's name.
    pub fn component(&self) -> &'static str {
        self.0.component
    }

    /// The gates in force.
    pub fn feature_gates(&self) -> FeatureGates {
        self.0.gates.clone()
    }

    /// The release to behave as.
    pub fn emulation(&self) -> Emulation {
        self.0.emulation
    }

    /// Reports whether a feature gate is enabled.
    pub fn enabled(&self, gate: &str) -> bool {
        self.0.gates.enabled(gate)
    }

    /// Reports whether this component has such a flag.
    pub fn knows(&self, name: &str) -> bool {
        self.0.rows.iter().any(|r| r.name == name)
    }

    /// Reports whether the flag was given. Does not count as reading it.
    pub fn is_set(&self, name: &str) -> bool {
        self.0.rows.iter().position(|r| r.name == name).is_some_and(|i| !self.0.given[i].is_empty())
    }

    fn look(&self, name: &str) -> Option<(&Row, &[String])> {
        let found = self.0.rows.iter().position(|r| r.name == name);
        if found.is_none() {
            tracing::error!(component = self.0.component, flag = name, "Unknown flag was read");
        }
        let i = found?;
        self.0.read[i].store(true, Ordering::Relaxed);
        Some((&self.0.rows[i], &self.0.given[i]))
    }

    /// The last text given, or the default.
    fn text(&self, name: &str) -> &str {
        let Some((row, given)) = self.look(name) else { return "" };
        match given.last() {
            Some(text) => text,
            None if row.default == "<nil>" => "",
            None => row.default,
        }
    }

    /// A text.
    pub fn string(&self, name: &str) -> String {
        self.text(name).to_owned()
    }

    /// A truth value.
    pub fn boolean(&self, name: &str) -> bool {
        value::parse_bool(self.text(name)).unwrap_or(false)
    }

    /// A whole number.
    pub fn integer(&self, name: &str) -> i64 {
        value::parse_int(self.text(name), 64).unwrap_or(0)
    }

    /// A number.
    pub fn float(&self, name: &str) -> f64 {
        value::parse_float(self.text(name)).unwrap_or(0.0)
    }

    /// A duration; a negative one is zero.
    pub fn duration(&self, name: &str) -> Duration {
        parse_duration(self.text(name)).unwrap_or(Duration::ZERO)
    }

    /// An address; `None` when empty.
    pub fn address(&self, name: &str) -> Option<IpAddr> {
        self.text(name).trim().parse().ok()
    }

    /// A list; also of flags that may be repeated.
    pub fn list(&self, name: &str) -> Vec<String> {
        let Some((row, given)) = self.look(name) else { return Vec::new() };
        if given.is_empty() {
            let inner = row.default.trim_start_matches('[').trim_end_matches(']');
            return value::split_csv(inner);
        }
        match row.kind {
            FlagType::Array | FlagType::NamedKeys => given.to_vec(),
            _ => given.iter().flat_map(|t| value::split_csv(t)).collect(),
        }
    }

    /// A map of `key=value` pairs.
    pub fn map(&self, name: &str) -> BTreeMap<String, String> {
        let Some((row, given)) = self.look(name) else { return BTreeMap::new() };
        let parse = |t: &str| match row.kind {
            FlagType::Thresholds => value::thresholds(t).unwrap_or_default(),
            FlagType::Configuration => value::configuration(t),
            FlagType::Pairs => value::string_pairs(t).unwrap_or_default(),
            _ => value::pairs(t, value::STRING_PAIR).unwrap_or_default(),
        };
        if given.is_empty() {
            return parse(row.default.trim_start_matches('[').trim_end_matches(']')).into_iter().collect();
        }
        given.iter().flat_map(|t| parse(t)).collect()
    }

    /// A port range as its first port and its size.
    pub fn port_range(&self, name: &str) -> (u16, u32) {
        value::port_range(self.text(name)).unwrap_or((0, 0))
    }

    /// The named serving pairs of `--tls-sni-cert-key`: certificate file, key file, names.
    pub fn named_keys(&self, name: &str) -> Vec<(String, String, Vec<String>)> {
        self.list(name).iter().filter_map(|t| value::named_keys(t).ok()).collect()
    }

    /// Every flag that is not hidden with its value in force, sorted by name. Does not count as reading them.
    pub fn all(&self) -> Vec<(String, String)> {
        let rows = self.0.rows.iter().zip(&self.0.given).filter(|(r, _)| !r.hidden);
        let mut all: Vec<_> = rows.map(|(row, given)| (row.name.to_owned(), shown(row, given))).collect();
        all.sort_unstable();
        all
    }

    /// Says once for each flag that was given and that nobody read so far that it has no effect.
    pub fn warn_unread(&self) {
        for name in self.unread() {
            tracing::warn!(flag = name, "Flag was given but has no effect");
        }
    }

    /// The flags that were given and that nobody read so far.
    pub fn unread(&self) -> Vec<&'static str> {
        let rows = self.0.rows.iter().zip(&self.0.given).zip(&self.0.read);
        rows.filter(|((_, given), read)| !given.is_empty() && !read.load(Ordering::Relaxed))
            .map(|((row, _), _)| row.name)
            .collect()
    }

    /// Warnings about deprecated flags that were given, as lines for stderr.
    pub(crate) fn deprecations(&self) -> Vec<String> {
        let why = if self.0.component == "kubelet" {
            "This parameter should be set via the config file specified by the Kubelet's --config flag."
        } else {
            "This flag will be removed in a future version."
        };
        let rows = self.0.rows.iter().zip(&self.0.given).filter(|(r, given)| r.deprecated && !given.is_empty());
        rows.map(|(row, _)| format!("Flag --{} has been deprecated, {why}", row.name)).collect()
    }
}

/// Flags that take effect in this crate's start-up whatever the component does, or that only concern how log
/// output is buffered.
const READ_HERE: [&str; 13] = [
    "emulated-version",
    "min-compatibility-version",
    "help",
    "version",
    "v",
    "vmodule",
    "logging-format",
    "feature-gates",
    "log-flush-frequency",
    "log-json-info-buffer-size",
    "log-text-info-buffer-size",
    "log-json-split-stream",
    "log-text-split-stream",
];

fn shown(row: &Row, given: &[String]) -> String {
    match given {
        [] => row.default.to_owned(),
        many => match row.kind {
            FlagType::List | FlagType::Array | FlagType::NamedKeys => format!("[{}]", many.join(",")),
            FlagType::Duration => many.last().and_then(|t| parse_nanos(t).ok()).map(format_nanos).unwrap_or_default(),
            FlagType::Map
            | FlagType::Configuration
            | FlagType::Thresholds
            | FlagType::BoolMap
            | FlagType::Pairs
            | FlagType::Gates
            | FlagType::Headers => many.join(","),
            _ => many.last().cloned().unwrap_or_default(),
        },
    }
}

#[cfg(test)]
mod tests;
