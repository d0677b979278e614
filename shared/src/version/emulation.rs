//! `--emulated-version` and `--min-compatibility-version`: which release a component behaves as, and the oldest it goes
//! together with.

use std::fmt;

/// The release this is, and how many before it can be behaved as.
const BINARY: u32 = 35;
const FLOOR: u32 = BINARY - 3;
/// The component whose version the flags speak of.
const COMPONENT: &str = "kube";

/// Minor releases of version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emulation {
    emulated: u32,
    least: u32,
}

impl Default for Emulation {
    fn default() -> Self {
        Self { emulated: BINARY, least: BINARY - 1 }
    }
}

/// Errors of the emulation flags.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EmulationError {
    /// No version.
    #[error("could not parse {0:?} as version")]
    NoVersion(String),
    /// More than major and minor.
    #[error("patch version not allowed, got: {0}, in {1}")]
    Patch(String, String),
    /// Of a component that there is not.
    #[error("component not registered: {0}")]
    Stranger(String),
    /// Said twice.
    #[error("duplicate version flag, {0}={1} and {0}={2}")]
    Twice(String, String, String),
    /// A release that cannot be behaved as, or gone together with.
    #[error("{what} {got} is not between [1.{floor}, 1.{most}]")]
    Outside {
        /// Name of the version.
        what: &'static str,
        /// Said.
        got: String,
        /// The oldest.
        floor: u32,
        /// The newest.
        most: u32,
    },
}

/// Major and minor.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version(u32, u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Emulation {
    /// From the texts of both flags.
    ///
    /// # Errors
    /// Upstream's words for what cannot be.
    pub(crate) fn read(emulated: &[String], least: &[String]) -> Result<Self, EmulationError> {
        let (emulated, least) = (one(emulated)?, one(least)?);
        let minor = |what, said: Option<Version>, most: u32, otherwise: u32| match said {
            None => Ok(otherwise),
            Some(Version(1, minor)) if (FLOOR..=most).contains(&minor) => Ok(minor),
            Some(version) => Err(EmulationError::Outside { what, got: version.to_string(), floor: FLOOR, most }),
        };
        let emulated = minor("emulation version", emulated, BINARY, BINARY)?;
        let least = minor("minCompatibilityVersion version", least, emulated, FLOOR.max(emulated - 1))?;
        Ok(Self { emulated, least })
    }

    /// The minor release behaved as.
    pub fn minor(self) -> u32 {
        self.emulated
    }

    /// The oldest minor release gone together with.
    pub fn least(self) -> u32 {
        self.least
    }

    /// Reports whether another release than this one is emulated.
    pub fn is_of_another(self) -> bool {
        self.emulated != BINARY
    }
}

/// Parses the version of the only component, `kube`.
fn one(texts: &[String]) -> Result<Option<Version>, EmulationError> {
    let mut found: Option<(&str, Version)> = None;
    for text in texts.iter().flat_map(|text| text.split(',')).filter(|text| !text.is_empty()) {
        let (component, version) = text.split_once('=').unwrap_or((COMPONENT, text));
        let (component, version) = (component.trim(), version.trim());
        let read = version_of(version).ok_or_else(|| EmulationError::NoVersion(version.to_owned()))?;
        if read.1 != 0 {
            return Err(EmulationError::Patch(version.trim_start_matches('v').to_owned(), text.to_owned()));
        }
        if component != COMPONENT {
            return Err(EmulationError::Stranger(component.to_owned()));
        }
        if let Some((_, before)) = found {
            return Err(EmulationError::Twice(component.to_owned(), before.to_string(), version.to_owned()));
        }
        found = Some((component, read.0));
    }
    Ok(found.map(|(_, version)| version))
}

/// A version, and its patch.
fn version_of(text: &str) -> Option<(Version, u32)> {
    let number = |part: &str| {
        let plain = part.bytes().all(|b| b.is_ascii_digit()) && (part.len() == 1 || !part.starts_with('0'));
        if plain { part.parse().ok() } else { None }
    };
    let parts: Vec<u32> = text.trim_start_matches('v').split('.').map(number).collect::<Option<_>>()?;
    match parts.as_slice() {
        [major, minor, rest @ ..] => Some((Version(*major, *minor), rest.first().copied().unwrap_or(0))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_checked_in_upstreams_words() {
        for (emulated, least, want) in [
            ("", "", Ok((35, 34))),
            ("1.34", "", Ok((34, 33))),
            ("kube=1.33", "1.33", Ok((33, 33))),
            ("kube=v1.32", "", Ok((32, 32))),
            ("1.35", "kube=1.32", Ok((35, 32))),
            ("1.31", "", Err("emulation version 1.31 is not between [1.32, 1.35]")),
            ("1.36", "", Err("emulation version 1.36 is not between [1.32, 1.35]")),
            ("1.33", "1.34", Err("minCompatibilityVersion version 1.34 is not between [1.32, 1.33]")),
            ("1.33.1", "", Err("patch version not allowed, got: 1.33.1, in 1.33.1")),
            ("other=1.33", "", Err("component not registered: other")),
            ("kube=1.33,1.34", "", Err("duplicate version flag, kube=1.33 and kube=1.34")),
            ("soon", "", Err("could not parse \"soon\" as version")),
        ] {
            let read = Emulation::read(&[emulated.to_owned()], &[least.to_owned()]);
            let read = read.map(|e| (e.minor(), e.least())).map_err(|e| e.to_string());
            assert_eq!(read, want.map_err(str::to_owned), "{emulated} {least}");
        }
    }
}
