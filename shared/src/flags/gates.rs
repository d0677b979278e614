//! Feature gates: upstream's names, stages and defaults.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use super::value::parse_bool;

struct Gate {
    name: &'static str,
    stage: &'static str,
    default: bool,
    locked: bool,
}

fn table() -> &'static [Gate] {
    static TABLE: OnceLock<Vec<Gate>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let line = |line: &'static str| {
            let mut words = line.split(' ');
            let mut word = || words.next().unwrap_or("");
            Gate { name: word(), stage: word(), default: word() == "on", locked: word() == "locked" }
        };
        let mut rows: Vec<Gate> = include_str!("tables/feature-gates.txt").lines().map(line).collect();
        rows.sort_unstable_by_key(|g| g.name);
        rows
    })
}

fn find(name: &str) -> Option<&'static Gate> {
    table().binary_search_by_key(&name, |g| g.name).ok().and_then(|i| table().get(i))
}

/// Why gates cannot be set so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// No gate of this name.
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
    /// The gate cannot change any more.
    #[error("cannot set feature gate {0} to {1}, feature is locked to {2}")]
    Locked(String, bool, bool),
    /// `Gate` without a value.
    #[error("missing bool value for {0}")]
    NoValue(String),
    /// Not a boolean.
    #[error("invalid value of {0}={1}, err: {2}")]
    NotBool(String, String, String),
}

/// Which gates are on.
#[derive(Clone, Debug, Default)]
pub struct FeatureGates(Arc<BTreeMap<&'static str, bool>>);

impl FeatureGates {
    /// Whether a gate is on. An unknown one is off.
    pub fn enabled(&self, name: &str) -> bool {
        let Some(gate) = find(name) else { return false };
        self.value(gate)
    }

    fn value(&self, gate: &Gate) -> bool {
        if let Some(set) = self.0.get(gate.name) {
            return *set;
        }
        let group = match gate.stage {
            "ALPHA" => "AllAlpha",
            "BETA" => "AllBeta",
            _ => return gate.default,
        };
        match self.0.get(group) {
            Some(all) if !gate.locked && gate.name != group => *all,
            _ => gate.default,
        }
    }

    /// These gates with some set; later wins.
    pub fn with(&self, changes: &BTreeMap<String, bool>) -> Result<Self, GateError> {
        let mut set = (*self.0).clone();
        for (name, value) in changes {
            let gate = find(name).ok_or_else(|| GateError::Unknown(name.clone()))?;
            if gate.locked && *value != gate.default {
                return Err(GateError::Locked(name.clone(), *value, gate.default));
            }
            set.insert(gate.name, *value);
        }
        Ok(Self(Arc::new(set)))
    }

    /// What is set here, and below it what is set in `base`.
    #[must_use]
    pub fn on_top_of(&self, base: &Self) -> Self {
        let mut set = (*base.0).clone();
        set.extend(self.0.iter().map(|(k, v)| (*k, *v)));
        Self(Arc::new(set))
    }

    /// From the texts of `--feature-gates`, with or without a `component:` before each pair.
    pub(super) fn parse(texts: &[String]) -> Result<Self, GateError> {
        let mut changes = BTreeMap::new();
        for pair in texts.iter().flat_map(|t| t.split(',')).map(str::trim).filter(|p| !p.is_empty()) {
            let pair = pair.split_once(':').map_or(pair, |(_, rest)| rest);
            let (name, value) = pair.split_once('=').ok_or_else(|| GateError::NoValue(pair.to_owned()))?;
            let (name, value) = (name.trim(), value.trim());
            let on = parse_bool(value).map_err(|e| GateError::NotBool(name.to_owned(), value.to_owned(), e))?;
            changes.insert(name.to_owned(), on);
        }
        Self::default().with(&changes)
    }

    /// Every gate: name, stage, state.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, bool)> + '_ {
        table().iter().map(|g| (g.name, g.stage, self.value(g)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<FeatureGates, String> {
        FeatureGates::parse(&[text.to_owned()]).map_err(|e| e.to_string())
    }

    #[test]
    fn defaults_and_changes() {
        let gates = FeatureGates::default();
        assert!(gates.enabled("APIServerIdentity"));
        assert!(!gates.enabled("ComponentFlagz"));
        assert!(!gates.enabled("NoSuchGate"));
        assert!(parse("ComponentFlagz=true").expect("gates").enabled("ComponentFlagz"));
        assert!(parse("kube:ComponentFlagz=true").expect("gates").enabled("ComponentFlagz"));
        let all = parse("AllAlpha=true,ComponentStatusz=false").expect("gates");
        assert!(all.enabled("ComponentFlagz") && !all.enabled("ComponentStatusz"));
    }

    #[test]
    fn refusals() {
        for (text, want) in [
            ("Foo=true", "unrecognized feature gate: Foo"),
            ("ComponentFlagz", "missing bool value for ComponentFlagz"),
            ("APIServerTracing=false", "cannot set feature gate APIServerTracing to false, feature is locked to true"),
            (
                "ComponentFlagz=x",
                r#"invalid value of ComponentFlagz=x, err: strconv.ParseBool: parsing "x": invalid syntax"#,
            ),
        ] {
            assert_eq!(parse(text).err().as_deref(), Some(want));
        }
    }
}
