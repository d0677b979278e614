//! Pod Security levels and versions as they stand in namespace labels. Answers for upstream's
//! `k8s.io/pod-security-admission/api`.

use serde_json::Value;

use crate::machinery::tree;

/// Level of the Pod Security Standards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Unrestricted.
    Privileged,
    /// Known privilege escalations.
    Baseline,
    /// Current hardening practice is required.
    Restricted,
}

impl Level {
    /// Reads a level; `None` for anything that is none.
    pub(super) fn parse(text: &str) -> Option<Level> {
        match text {
            "privileged" => Some(Level::Privileged),
            "baseline" => Some(Level::Baseline),
            "restricted" => Some(Level::Restricted),
            _ => None,
        }
    }

    /// The label's word.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        }
    }
}

/// Minor version of `v1.N`, or latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PolicyVersion(pub Option<u32>);

impl PolicyVersion {
    /// `latest`.
    pub(super) const LATEST: PolicyVersion = PolicyVersion(None);

    /// Reads `latest` or `v1.N`.
    pub(super) fn parse(text: &str) -> Option<PolicyVersion> {
        if text == "latest" {
            return Some(PolicyVersion::LATEST);
        }
        let digits = text.strip_prefix("v1.")?;
        let plain = digits == "0" || (!digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit()));
        if !plain {
            return None;
        }
        digits.parse().ok().map(|minor| PolicyVersion(Some(minor)))
    }

    /// The minor version that counts; later than known is latest.
    pub(super) fn minor(self) -> u32 {
        self.0.unwrap_or(u32::MAX)
    }
}

impl std::fmt::Display for PolicyVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            None => f.write_str("latest"),
            Some(minor) => write!(f, "v1.{minor}"),
        }
    }
}

/// A level at a version: `restricted:latest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LevelVersion {
    /// Level.
    pub level: Level,
    /// Version.
    pub version: PolicyVersion,
}

impl std::fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.level.as_str(), self.version)
    }
}

/// The three policies of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Policy {
    /// Violations are refused.
    pub enforce: LevelVersion,
    /// Violations are noted in the audit log.
    pub audit: LevelVersion,
    /// Violations are answered with a warning.
    pub warn: LevelVersion,
}

/// A label value that is no level or version: label key, value, what it must be.
pub(super) type LabelError = (String, String, &'static str);

/// A default of the configuration that is no level or version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("defaults.{field}: Invalid value: {value:?}: {must_be}")]
pub struct PolicyConfigError {
    field: String,
    value: String,
    must_be: &'static str,
}

const MUST_BE_LEVEL: &str = "must be one of privileged, baseline, restricted";
const MUST_BE_VERSION: &str = "must be \"latest\" or \"v1.x\"";

impl Policy {
    /// Reads a namespace's labels over the defaults. A bad value counts as restricted,
    /// except for a bad level, which leaves the version alone; both are reported.
    pub(super) fn of_namespace(namespace: &Value, defaults: &Policy) -> (Policy, Vec<LabelError>) {
        let mut errors = Vec::new();
        let mut read = |mode: &str, default: LevelVersion| {
            let key = format!("pod-security.kubernetes.io/{mode}");
            let level = match tree::label(namespace, &key) {
                None => default.level,
                Some(text) => Level::parse(text).unwrap_or_else(|| {
                    errors.push((key.clone(), text.to_owned(), MUST_BE_LEVEL));
                    Level::Restricted
                }),
            };
            let key = format!("{key}-version");
            let version = match tree::label(namespace, &key) {
                None => default.version,
                Some(text) => PolicyVersion::parse(text).unwrap_or_else(|| {
                    errors.push((key.clone(), text.to_owned(), MUST_BE_VERSION));
                    PolicyVersion::LATEST
                }),
            };
            LevelVersion { level, version }
        };
        let enforce = read("enforce", defaults.enforce);
        let (audit, mut warn) = (read("audit", defaults.audit), read("warn", defaults.warn));
        // Without its own label, warn follows enforce.
        let labelled = |mode: &str| tree::label(namespace, &format!("pod-security.kubernetes.io/{mode}")).is_some();
        if labelled("enforce") && !labelled("warn") && enforce.level > warn.level {
            warn = enforce;
        }
        (Policy { enforce, audit, warn }, errors)
    }

    /// Reads the `defaults` of a configuration: levels are privileged and versions latest where it says nothing.
    pub(super) fn of_configuration(defaults: &Value) -> Result<Policy, PolicyConfigError> {
        let invalid =
            |field: String, value: &str, must_be| PolicyConfigError { field, value: value.to_owned(), must_be };
        let read = |mode: &str| {
            let level = match tree::text(defaults, &format!("/{mode}")) {
                "" => Level::Privileged,
                text => Level::parse(text).ok_or_else(|| invalid(mode.to_owned(), text, MUST_BE_LEVEL))?,
            };
            let field = format!("{mode}-version");
            let version = match tree::text(defaults, &format!("/{field}")) {
                "" => PolicyVersion::LATEST,
                text => PolicyVersion::parse(text).ok_or_else(|| invalid(field, text, MUST_BE_VERSION))?,
            };
            Ok(LevelVersion { level, version })
        };
        Ok(Policy { enforce: read("enforce")?, audit: read("audit")?, warn: read("warn")? })
    }

    /// Reports whether enforce, audit and warn are all `privileged`.
    pub(super) fn is_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|p| p.level == Level::Privileged)
    }
}
