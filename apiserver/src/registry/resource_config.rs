//! Selection of built-in resources: `--runtime-config` for versions, stages and resources, with the feature gates.
//! Answers for upstream's `APIEnablementOptions`, `ResourceConfig`.

use std::collections::BTreeMap;

use proto::resources::{self, Resource};
use shared::flags::{FeatureGates, FlagSet, NumberError, parse_bool};
use shared::version::Emulation;

use super::kinds::kind_of;
use super::stored_versions;
use crate::rows::ResourceConfig;

/// Versions that upstream knows and serves nothing of, or that are not served here: they may be named.
const KNOWN: &[(&str, &[&str])] = &[
    ("admissionregistration.k8s.io", &["v1beta1", "v1alpha1"]),
    ("apiextensions.k8s.io", &["v1beta1"]),
    ("apiregistration.k8s.io", &["v1beta1"]),
    ("apps", &["v1beta1", "v1beta2"]),
    ("authentication.k8s.io", &["v1beta1", "v1alpha1"]),
    ("authorization.k8s.io", &["v1beta1"]),
    ("autoscaling", &["v2beta1", "v2beta2"]),
    ("batch", &["v1beta1"]),
    ("certificates.k8s.io", &["v1beta1", "v1alpha1"]),
    ("coordination.k8s.io", &["v1beta1", "v1alpha2"]),
    ("discovery.k8s.io", &["v1beta1"]),
    ("events.k8s.io", &["v1beta1"]),
    ("extensions", &["v1beta1"]),
    ("flowcontrol.apiserver.k8s.io", &["v1beta1", "v1beta2", "v1beta3"]),
    ("imagepolicy.k8s.io", &["v1alpha1"]),
    ("internal.apiserver.k8s.io", &["v1alpha1"]),
    ("networking.k8s.io", &["v1beta1"]),
    ("node.k8s.io", &["v1beta1", "v1alpha1"]),
    ("policy", &["v1beta1"]),
    ("rbac.authorization.k8s.io", &["v1beta1", "v1alpha1"]),
    ("resource.k8s.io", &["v1beta1", "v1beta2", "v1alpha3"]),
    ("scheduling.k8s.io", &["v1beta1", "v1alpha1"]),
    ("storage.k8s.io", &["v1beta1", "v1alpha1"]),
    ("storagemigration.k8s.io", &["v1beta1", "v1alpha1"]),
];

/// Group versions that came after the oldest release that can be behaved as, with the minor release. What came into an
/// older version its kind says.
const INTRODUCED_IN: &[(&str, &str, u32)] = &[("resource.k8s.io", "v1beta2", 33), ("resource.k8s.io", "v1", 34)];

/// The minor release in which a row came; `None`: it was always there.
pub(super) fn introduced_in(row: &Resource) -> Option<u32> {
    let versions = INTRODUCED_IN.iter().find(|(group, version, _)| *group == row.group && *version == row.version);
    let own = || kind_of(row)?.life_cycle.introduced.iter().find(|(version, _)| *version == row.version);
    versions.map(|(.., minor)| *minor).or_else(|| own().map(|(_, minor)| *minor))
}

/// Flags about resources that cannot be obeyed, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResourceConfigError {
    /// This option asks for what is later than the newest release.
    #[error("ServerRunOptions.{0} cannot be set to true if the emulation version is the same as the binary version")]
    NothingLater(&'static str),
    /// A resource is later than the release to behave as.
    #[error(
        "{group}/{version}, Resource={plural} is introduced in 1.{minor}, after the emulation version 1.{emulated}"
    )]
    TooNew {
        /// Group of the resource.
        group: String,
        /// Version of the resource.
        version: String,
        /// Plural of the resource.
        plural: String,
        /// Minor release in which it came.
        minor: u32,
        /// Minor release to behave as.
        emulated: u32,
    },
    /// Nothing would be served.
    #[error("invalid key with only api/all=false")]
    OnlyAllFalse,
    /// A group does not have this version.
    #[error("group version {0} that has not been registered")]
    Unregistered(String),
    /// This is no key.
    #[error("runtime-config invalid key {0}")]
    Key(String),
    /// The value of a key is neither true nor false.
    #[error("invalid value of {key}: {text}, err: {source}")]
    Value {
        /// The key.
        key: String,
        /// Value of the key.
        text: String,
        /// Cause.
        source: NumberError,
    },
    /// There are no such groups.
    #[error("unknown api groups {}", .0.join(","))]
    Groups(Vec<String>),
}

/// The release to behave as, and what is served of later ones all the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct EmulatedApis {
    emulation: Emulation,
    /// `--emulation-forward-compatible`: later versions of what is served and is no alpha.
    forward: bool,
    /// `--runtime-config-emulation-forward-compatible`: what `--runtime-config` asks for.
    asked: bool,
}

impl EmulatedApis {
    /// From the flags.
    ///
    /// # Errors
    /// Later things of the newest release there are none.
    pub fn from_flags(flags: &FlagSet) -> Result<Self, ResourceConfigError> {
        let emulation = flags.emulation();
        let forward = |flag: &str, option: &'static str| {
            if flags.boolean(flag) && !emulation.is_of_another() {
                return Err(ResourceConfigError::NothingLater(option));
            }
            Ok(flags.boolean(flag))
        };
        Ok(Self {
            emulation,
            forward: forward("emulation-forward-compatible", "EmulationForwardCompatible")?,
            asked: forward("runtime-config-emulation-forward-compatible", "RuntimeConfigEmulationForwardCompatible")?,
        })
    }

    /// The release in which a row came, where that is after the one to behave as.
    fn later(&self, row: &Resource) -> Option<u32> {
        introduced_in(row).filter(|minor| *minor > self.emulation.minor())
    }

    /// Reports whether a row is served, given `--runtime-config`.
    fn serves(&self, row: &Resource, said: &RuntimeConfig) -> Result<bool, ResourceConfigError> {
        let Some(minor) = self.later(row) else { return Ok(true) };
        if said.names(row) {
            let [group, version, plural] = [&row.group, &row.version, &row.plural].map(ToString::to_string);
            let emulated = self.emulation.minor();
            let too_new = ResourceConfigError::TooNew { group, version, plural, minor, emulated };
            return if self.asked { Ok(true) } else { Err(too_new) };
        }
        let older = |other: &&Resource| {
            other.group == row.group && other.plural == row.plural && stage(&other.version) != "alpha"
        };
        let before = || resources::all().iter().any(|other| older(&other) && self.later(other).is_none());
        let asked =
            || resources::optional().iter().any(|o| older(&o) && self.later(o).is_none() && said.of(o) == Some(true));
        Ok(self.forward && (before() || asked()))
    }
}

/// Stage of a version, as in its key `api/<stage>`.
fn stage(version: &str) -> &'static str {
    match version {
        v if v.contains("alpha") => "alpha",
        v if v.contains("beta") => "beta",
        _ => "ga",
    }
}

/// Settings of `--runtime-config`, by upstream's keys.
struct RuntimeConfig(BTreeMap<String, bool>);

impl RuntimeConfig {
    fn read(config: &BTreeMap<String, String>) -> Result<Self, ResourceConfigError> {
        if config.len() == 1 && config.get("api/all").is_some_and(|text| text == "false") {
            return Err(ResourceConfigError::OnlyAllFalse);
        }
        let mut said = BTreeMap::new();
        let mut strangers: Vec<String> = Vec::new();
        for (key, text) in config {
            let value = match text.as_str() {
                "" => Ok(true),
                text => parse_bool(text),
            };
            // The core group has been called by several names.
            let core = key.strip_prefix("api/").unwrap_or(key).split('/').next() == Some("v1");
            let key = if core { "/v1" } else { key.as_str() };
            match (key, key.split('/').collect::<Vec<_>>().as_slice()) {
                ("api/legacy", _) => continue,
                ("api/all" | "api/ga" | "api/beta" | "api/alpha", _) => {}
                (_, [group, version] | [group, version, _]) => match known(group, version) {
                    Some(true) => {}
                    Some(false) => {
                        let name = format!("{group}/{version}");
                        return Err(ResourceConfigError::Unregistered(name.trim_start_matches('/').to_owned()));
                    }
                    None => strangers.push((*group).to_owned()),
                },
                _ => return Err(ResourceConfigError::Key(key.to_owned())),
            }
            let invalid = |source| ResourceConfigError::Value { key: key.to_owned(), text: text.clone(), source };
            said.insert(key.to_owned(), value.map_err(invalid)?);
        }
        if strangers.is_empty() { Ok(Self(said)) } else { Err(ResourceConfigError::Groups(strangers)) }
    }

    /// Reports whether a row is enabled by its group and version.
    fn names(&self, row: &Resource) -> bool {
        let version = format!("{}/{}", row.group, row.version);
        let keys = [format!("{version}/{}", row.plural), version];
        keys.iter().find_map(|key| self.0.get(key)).is_some_and(|on| *on)
    }

    /// Setting of a row; the most specific key wins.
    fn of(&self, row: &Resource) -> Option<bool> {
        let version = format!("{}/{}", row.group, row.version);
        let keys = [
            format!("{version}/{}", row.plural),
            version,
            format!("api/{}", stage(&row.version)),
            "api/all".to_owned(),
        ];
        keys.iter().find_map(|key| self.0.get(key).copied())
    }
}

/// Reports whether a version exists; `None` when its group does not.
fn known(group: &str, version: &str) -> Option<bool> {
    let mut rows = resources::all().iter().chain(resources::optional()).filter(|row| row.group == group).peekable();
    let old = KNOWN.iter().find(|(name, _)| *name == group).map(|(_, versions)| versions.contains(&version));
    let served = rows.peek().is_some().then(|| rows.any(|row| row.version == version));
    served.or(old).map(|served| served || old == Some(true))
}

/// Selects the resources for `--runtime-config` and the feature gates.
///
/// # Errors
/// [`ResourceConfigError`].
pub fn select_resources(
    config: &BTreeMap<String, String>,
    gates: &FeatureGates,
    emulated: EmulatedApis,
) -> Result<ResourceConfig, ResourceConfigError> {
    let said = RuntimeConfig::read(config)?;
    let mut choice =
        ResourceConfig { stored: stored_versions::others(emulated.emulation.least()), ..ResourceConfig::default() };
    for row in resources::all() {
        if said.of(row) == Some(false) || !emulated.serves(row, &said)? {
            choice.off.push(row);
        }
    }
    for row in resources::optional().iter().filter(|row| said.of(row) == Some(true)) {
        if !emulated.serves(row, &said)? {
            continue;
        }
        let gate = kind_of(row).and_then(|kind| kind.life_cycle.gate);
        match gate.filter(|gate| !gates.enabled(gate)) {
            Some(gate) => tracing::warn!(
                resource = %row.plural, version = %row.version, gate,
                "This resource is not served: its feature gate is not enabled"
            ),
            None => choice.on.push(row),
        }
    }
    Ok(choice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(flags: &[&str]) -> Result<[Vec<String>; 2], String> {
        let flags = FlagSet::of("kube-apiserver", flags).expect("flags");
        let emulated = EmulatedApis::from_flags(&flags).map_err(|e| e.to_string())?;
        let choice = select_resources(&flags.map("runtime-config"), &flags.feature_gates(), emulated);
        let choice = choice.map_err(|e| e.to_string())?;
        let names = |rows: &[&Resource]| rows.iter().map(|r| format!("{}/{}", r.version, r.plural)).collect();
        Ok([names(&choice.on), names(&choice.off)])
    }

    #[test]
    fn optional_resources_need_version_and_gate() {
        const GATE: &str = "--feature-gates=MutatingAdmissionPolicy=true";
        const BETA: &str = "--runtime-config=admissionregistration.k8s.io/v1beta1=true";
        let beta = ["v1beta1/mutatingadmissionpolicies", "v1beta1/mutatingadmissionpolicybindings"];
        let alpha = ["v1alpha1/mutatingadmissionpolicies", "v1alpha1/mutatingadmissionpolicybindings"];
        let both: Vec<&str> = beta.into_iter().chain(alpha).collect();
        let table: &[(&[&str], &[&str])] = &[
            (&[], &[]),
            (&[GATE], &[]),
            (&[BETA], &[]),
            (&[GATE, BETA], &beta),
            (&[GATE, "--runtime-config=api/beta=true"], &beta),
            (&[GATE, "--runtime-config=api/alpha=true"], &alpha),
            (&[GATE, "--runtime-config=api/all=true"], &both),
            (&[GATE, "--runtime-config=api/all=true,admissionregistration.k8s.io/v1alpha1=false"], &beta),
            (
                &[GATE, "--runtime-config=admissionregistration.k8s.io/v1beta1/mutatingadmissionpolicies=true"],
                &beta[..1],
            ),
        ];
        for (flags, want) in table {
            let [on, off] = choose(flags).expect("a choice");
            let on: Vec<_> = on.iter().filter(|row| row.contains("mutatingadmission")).collect();
            assert_eq!(on, want.iter().collect::<Vec<_>>(), "{flags:?}");
            assert!(off.is_empty(), "{flags:?}: {off:?}");
        }
    }

    #[test]
    fn only_new_kinds_need_their_gate() {
        let [on, _] = choose(&["--runtime-config=api/all=true"]).expect("a choice");
        let kinds = crate::registry::kinds::all().iter().filter(|kind| kind.life_cycle.gate.is_some());
        let gated: Vec<&str> = kinds.map(|kind| kind.resource.plural).collect();
        assert_eq!(gated.len(), 8);
        for plural in [
            "v1beta1/servicecidrs",
            "v1beta1/volumeattributesclasses",
            "v1beta2/resourceclaims",
            "v1alpha1/storageversions",
        ] {
            assert!(on.iter().any(|row| row == plural), "{plural}");
        }
        assert!(!on.iter().any(|row| gated.iter().any(|plural| row.ends_with(plural))), "{on:?}");
    }

    #[test]
    fn default_resources_can_be_disabled() {
        let off = |config: &str| choose(&[&format!("--runtime-config={config}")]).map(|[_, off]| off);
        let jobs = ["v1/cronjobs", "v1/jobs"].map(str::to_owned);
        assert_eq!(off("batch/v1=false").as_deref(), Ok(&jobs[..]));
        assert_eq!(off("batch/v1/cronjobs=0").as_deref(), Ok(&jobs[..1]));
        assert_eq!(off("batch/v1=false,batch/v1/jobs").as_deref(), Ok(&jobs[..1]));
        assert_eq!(off("api/all=false,api/ga=true"), Ok(Vec::new()));
        let all = off("api/ga=false,batch/v1=true").expect("a choice");
        assert_eq!(all.len(), resources::all().len() - jobs.len());
        let core = off("/v1=false").expect("a choice");
        assert!(core.contains(&"v1/pods".to_owned()) && !core.contains(&"v1/jobs".to_owned()));
        for other in ["v1=false", "api/v1=false", "api/legacy=true,v1/pods=false"] {
            assert_eq!(off(other).as_ref(), Ok(&core), "{other}");
        }
        // Long gone, but in old command lines.
        assert_eq!(off("apps/v1beta1=true,extensions/v1beta1/ingresses=true"), Ok(Vec::new()));
    }

    #[test]
    fn later_resources_are_hidden_in_emulation() {
        const OLD: &str = "--emulated-version=1.33";
        const ASKED: &str = "--runtime-config=resource.k8s.io/v1=true";
        const BETA: &str = "--runtime-config=resource.k8s.io/v1beta1=true";
        let off = |flags: &[&str]| choose(flags).map(|[_, off]| off);
        let old = off(&[OLD]).expect("a choice");
        for (name, gone) in [
            ("v1/resourceclaims", true),
            ("v1/volumeattributesclasses", true),
            ("v1/ipaddresses", false),
            ("v1/pods", false),
        ] {
            assert_eq!(old.iter().any(|row| row == name), gone, "{name}");
        }
        assert!(off(&["--emulated-version=1.32"]).expect("a choice").contains(&"v1/ipaddresses".to_owned()));
        assert!(off(&["--emulated-version=1.35"]).expect("a choice").is_empty());
        let why = "resource.k8s.io/v1, Resource=deviceclasses is introduced in 1.34, after the emulation version 1.33";
        assert_eq!(off(&[OLD, ASKED]), Err(why.to_owned()));
        let forward = off(&[OLD, ASKED, "--runtime-config-emulation-forward-compatible"]).expect("a choice");
        assert!(
            !forward.contains(&"v1/resourceclaims".to_owned())
                && forward.contains(&"v1/volumeattributesclasses".to_owned())
        );
        let forward = off(&[OLD, BETA, "--emulation-forward-compatible"]).expect("a choice");
        assert!(
            !forward.contains(&"v1/resourceclaims".to_owned())
                && forward.contains(&"v1/volumeattributesclasses".to_owned())
        );
        let why = "ServerRunOptions.EmulationForwardCompatible cannot be set to true if the emulation version is the same as the binary version";
        assert_eq!(off(&["--emulation-forward-compatible"]), Err(why.to_owned()));
    }

    #[test]
    fn errors_match_upstream() {
        for (config, told) in [
            ("api/all=false", "invalid key with only api/all=false"),
            ("apiall=false", "runtime-config invalid key apiall"),
            ("a/b/c/d=true", "runtime-config invalid key a/b/c/d"),
            ("example.com/v1=true,other/v2=true", "unknown api groups example.com,other"),
            ("apps/v7=true", "group version apps/v7 that has not been registered"),
            (
                "api/all=maybe",
                "invalid value of api/all: maybe, err: strconv.ParseBool: parsing \"maybe\": invalid syntax",
            ),
        ] {
            assert_eq!(choose(&[&format!("--runtime-config={config}")]), Err(told.to_owned()), "{config}");
        }
    }
}
