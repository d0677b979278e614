//! Feature gates: upstream's names, stages and defaults.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::value::{NumberError, parse_bool};
use crate::version::Emulation;

#[derive(Clone, Copy)]
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

fn position(name: &str) -> Option<usize> {
    table().binary_search_by_key(&name, |g| g.name).ok()
}

fn find(name: &str) -> Option<&'static Gate> {
    table().get(position(name)?)
}

/// Gates of earlier releases that can be emulated, where they differed: by name and minor release. A line without a
/// stage is a gate that did not exist yet.
fn before() -> &'static BTreeMap<(&'static str, u32), Gate> {
    static TABLE: OnceLock<BTreeMap<(&'static str, u32), Gate>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let line = |line: &'static str| {
            let mut words = line.split(' ');
            let mut word = || words.next().unwrap_or("");
            let (name, minor) = (word(), word().parse().ok()?);
            let gate = Gate { name, stage: word(), default: word() == "on", locked: word() == "locked" };
            Some(((name, minor), gate))
        };
        include_str!("tables/feature-gates-before.txt").lines().filter_map(line).collect()
    })
}

/// The stage of a gate that was not there yet.
const TO_COME: &str = "-";

/// Errors of setting feature gates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// No gate of this name.
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
    /// The gate cannot change any more.
    #[error("cannot set feature gate {0} to {1}, feature is locked to {2}")]
    Locked(String, bool, bool),
    /// The release to behave as does not have it.
    #[error("cannot set feature gate {0} to {1}, feature is PreAlpha at emulated version 1.{2}")]
    ToCome(String, bool, u32),
    /// `Gate` without a value.
    #[error("missing bool value for {0}")]
    NoValue(String),
    /// Not a boolean.
    #[error("invalid value of {0}={1}, err: {2}")]
    NotBool(String, String, #[source] NumberError),
}

/// Feature gates and their values.
#[derive(Clone, Debug)]
pub struct FeatureGates {
    set: Arc<BTreeMap<&'static str, bool>>,
    emulation: Emulation,
    /// By position in the table: gates that somebody has asked for.
    read: Arc<[AtomicBool]>,
}

impl Default for FeatureGates {
    fn default() -> Self {
        let read = table().iter().map(|_| AtomicBool::new(false)).collect();
        Self { set: Arc::default(), emulation: Emulation::default(), read }
    }
}

impl FeatureGates {
    /// Reports whether a gate is enabled. An unknown one is not.
    pub fn enabled(&self, name: &str) -> bool {
        let Some(at) = position(name) else { return false };
        self.read[at].store(true, Ordering::Relaxed);
        self.value(&self.then(&table()[at]))
    }

    /// The gates that were set to other than their default and that nobody has asked for so far.
    pub fn idle(&self) -> Vec<&'static str> {
        let changed = |gate: &Gate| self.set.get(gate.name).is_some_and(|on| *on != self.then(gate).default);
        let gates = table().iter().zip(&*self.read).filter(|(gate, _)| !matches!(gate.name, "AllAlpha" | "AllBeta"));
        gates.filter(|(gate, read)| changed(gate) && !read.load(Ordering::Relaxed)).map(|(gate, _)| gate.name).collect()
    }

    /// The gates that are other than their default because their whole group was set, and that nobody has asked for so far.
    pub fn idle_of_groups(&self) -> Vec<&'static str> {
        let changed = |gate: &Gate| {
            let then = self.then(gate);
            !self.set.contains_key(gate.name) && then.stage != TO_COME && self.value(&then) != then.default
        };
        let gates = table().iter().zip(&*self.read);
        gates.filter(|(gate, read)| changed(gate) && !read.load(Ordering::Relaxed)).map(|(gate, _)| gate.name).collect()
    }

    /// Says once for each of [`Self::idle`] that it has no effect, and once for all of [`Self::idle_of_groups`].
    pub fn warn_idle(&self) {
        for gate in self.idle() {
            tracing::warn!(gate, "Feature gate was set but has no effect on this component");
        }
        let of_groups = self.idle_of_groups();
        if !of_groups.is_empty() {
            let gates = of_groups.join(",");
            tracing::warn!(gates, "Feature gates were set by AllAlpha or AllBeta but have no effect on this component");
        }
    }

    /// The gates that somebody has asked for so far.
    pub fn asked_for(&self) -> Vec<&'static str> {
        let gates = table().iter().zip(&*self.read);
        gates.filter(|(_, read)| read.load(Ordering::Relaxed)).map(|(gate, _)| gate.name).collect()
    }

    /// A gate as the release to behave as has it.
    fn then(&self, gate: &Gate) -> Gate {
        if !self.emulation.is_of_another() {
            return *gate;
        }
        before().get(&(gate.name, self.emulation.minor())).copied().unwrap_or(*gate)
    }

    fn value(&self, gate: &Gate) -> bool {
        if let Some(set) = self.set.get(gate.name) {
            return *set;
        }
        let group = match gate.stage {
            "ALPHA" => "AllAlpha",
            "BETA" => "AllBeta",
            _ => return gate.default,
        };
        match self.set.get(group) {
            Some(all) if !gate.locked && gate.name != group => *all,
            _ => gate.default,
        }
    }

    /// Returns these gates with some set; later ones win.
    pub fn with(&self, changes: &BTreeMap<String, bool>) -> Result<Self, GateError> {
        let mut set = (*self.set).clone();
        for (name, value) in changes {
            let gate = self.then(find(name).ok_or_else(|| GateError::Unknown(name.clone()))?);
            if gate.locked && *value != gate.default {
                return Err(GateError::Locked(name.clone(), *value, gate.default));
            }
            if gate.stage == TO_COME {
                return Err(GateError::ToCome(name.clone(), *value, self.emulation.minor()));
            }
            set.insert(gate.name, *value);
        }
        Ok(Self { set: Arc::new(set), ..self.clone() })
    }

    /// Returns the gates set here on top of those set in `base`.
    #[must_use]
    pub fn on_top_of(&self, base: &Self) -> Self {
        let mut set = (*base.set).clone();
        set.extend(self.set.iter().map(|(k, v)| (*k, *v)));
        Self { set: Arc::new(set), ..self.clone() }
    }

    /// From the texts of `--feature-gates`, with or without a `component:` before each pair.
    pub(super) fn parse(texts: &[String], emulation: Emulation) -> Result<Self, GateError> {
        let mut changes = BTreeMap::new();
        for pair in texts.iter().flat_map(|t| t.split(',')).map(str::trim).filter(|p| !p.is_empty()) {
            let pair = pair.split_once(':').map_or(pair, |(_, rest)| rest);
            let (name, value) = pair.split_once('=').ok_or_else(|| GateError::NoValue(pair.to_owned()))?;
            let (name, value) = (name.trim(), value.trim());
            let on = parse_bool(value).map_err(|e| GateError::NotBool(name.to_owned(), value.to_owned(), e))?;
            changes.insert(name.to_owned(), on);
        }
        Self { emulation, ..Self::default() }.with(&changes)
    }

    /// Every gate: name, stage, state.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, bool)> + '_ {
        let then = table().iter().map(|gate| self.then(gate)).filter(|gate| gate.stage != TO_COME);
        then.map(|gate| (gate.name, gate.stage, self.value(&gate)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<FeatureGates, String> {
        FeatureGates::parse(&[text.to_owned()], Emulation::default()).map_err(|e| e.to_string())
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
    fn changed_gates_that_nobody_asks_for_are_idle() {
        let gates =
            parse("ComponentFlagz=true,ComponentStatusz=true,APIServerIdentity=true,AllBeta=true").expect("gates");
        let component = gates.clone();
        assert!(component.enabled("ComponentFlagz"));
        assert_eq!(gates.idle(), ["ComponentStatusz"]);
        assert_eq!(gates.asked_for(), ["ComponentFlagz"]);
    }

    #[test]
    fn gates_of_groups_that_nobody_asks_for_are_idle_together() {
        let gates = parse("AllAlpha=true,ComponentStatusz=true").expect("gates");
        assert!(gates.enabled("ComponentFlagz"));
        let idle = gates.idle_of_groups();
        assert!(idle.contains(&"GangScheduling"));
        for (gate, why) in [
            ("ComponentFlagz", "it was asked for"),
            ("ComponentStatusz", "it was set by itself"),
            ("APIServerIdentity", "it is of another stage"),
        ] {
            assert!(!idle.contains(&gate), "{why}");
        }
        assert_eq!(gates.idle(), ["ComponentStatusz"]);
        assert!(FeatureGates::default().idle_of_groups().is_empty());
    }

    #[test]
    fn gates_are_those_of_the_release_to_behave_as() {
        let at = |version: &str, text: &str| {
            let emulation = Emulation::read(&[version.to_owned()], &[]).expect("a version");
            FeatureGates::parse(&[text.to_owned()], emulation).map_err(|e| e.to_string())
        };
        // Beta until 1.34, locked from then on.
        assert!(at("1.33", "APIServerTracing=false").is_ok_and(|gates| !gates.enabled("APIServerTracing")));
        let locked = "cannot set feature gate APIServerTracing to false, feature is locked to true";
        assert_eq!(at("1.34", "APIServerTracing=false").map(drop), Err(locked.to_owned()));
        // Not there before 1.33.
        let gate = "AllowParsingUserUIDFromCertAuth";
        assert!(at("1.33", "").expect("gates").enabled(gate) && !at("1.32", "").expect("gates").enabled(gate));
        let early = format!("cannot set feature gate {gate} to true, feature is PreAlpha at emulated version 1.32");
        assert_eq!(at("1.32", &format!("{gate}=true")).map(drop), Err(early));
        assert!(at("1.32", "").expect("gates").all().all(|(name, ..)| name != gate));
        for ((name, _), gate) in before() {
            assert!(find(name).is_some() && gate.name == *name, "{name}");
        }
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
