//! Upstream release, and the document of `/version`.

mod emulation;

use std::hint::black_box;
use std::sync::LazyLock;

use serde_json::{Value, json};

pub use emulation::{Emulation, EmulationError};

/// Marks the identity in a finished program; the release tool finds it there (`e2e/src/release/identity.rs`).
const MARK: &[u8] = b"\0ironclad identity\0";
/// Widths of the version, the commit and the date.
const WIDTHS: [usize; 3] = [64, 40, 20];
const LENGTH: usize = MARK.len() + WIDTHS[0] + WIDTHS[1] + WIDTHS[2];
/// The identity of a build that no release has stamped: the environment of the compiler may give one.
const UNSTAMPED: [&str; 3] = [
    match option_env!("IRONCLAD_VERSION") {
        Some(version) => version,
        None => concat!("v", env!("CARGO_PKG_VERSION")),
    },
    match option_env!("IRONCLAD_COMMIT") {
        Some(commit) => commit,
        None => "0000000000000000000000000000000000000000",
    },
    match option_env!("IRONCLAD_BUILD_DATE") {
        Some(date) => date,
        None => "1970-01-01T00:00:00Z",
    },
];

/// Version, commit and date, padded with zeros. A release writes its own into the finished programs, as Go's linker does
/// with `-X`: another identity compiles nothing anew.
#[used]
static IDENTITY: [u8; LENGTH] = unstamped();

static PARTS: LazyLock<[String; 3]> = LazyLock::new(|| parts(black_box(&IDENTITY)));

const fn unstamped() -> [u8; LENGTH] {
    let mut out = [0; LENGTH];
    let mut at = copy(&mut out, 0, MARK);
    let mut field = 0;
    while field < WIDTHS.len() {
        copy(&mut out, at, UNSTAMPED[field].as_bytes());
        at += WIDTHS[field];
        field += 1;
    }
    out
}

const fn copy(out: &mut [u8; LENGTH], at: usize, bytes: &[u8]) -> usize {
    let mut i = 0;
    while i < bytes.len() {
        out[at + i] = bytes[i];
        i += 1;
    }
    at + bytes.len()
}

/// The fields of an identity; what is no text is as if it had not been stamped.
fn parts(identity: &[u8; LENGTH]) -> [String; 3] {
    let mut rest = &identity[MARK.len()..];
    [0, 1, 2].map(|field| {
        let (own, others) = rest.split_at(WIDTHS[field]);
        rest = others;
        let text = own.split(|byte| *byte == 0).next().and_then(|text| std::str::from_utf8(text).ok());
        text.filter(|text| !text.is_empty()).unwrap_or(UNSTAMPED[field]).to_owned()
    })
}

/// Version of this build: upstream's release, or that of a release of our own, such as `v1.35.4+ironclad.2`.
pub fn git_version() -> &'static str {
    &PARTS[0]
}
/// Major number.
pub const MAJOR: &str = "1";
/// Minor number.
pub const MINOR: &str = "35";
/// Upstream's Go release of this version; clients print it.
pub const GO_VERSION: &str = "go1.26.0";

/// Go's name of the architecture this is built for: of nodes, images and user agents.
pub const ARCH: &str = if cfg!(target_arch = "x86_64") {
    "amd64"
} else if cfg!(target_arch = "aarch64") {
    "arm64"
} else if cfg!(all(target_arch = "powerpc64", target_endian = "little")) {
    "ppc64le"
} else {
    std::env::consts::ARCH
};

/// The version document of one that behaves as this release.
pub fn info() -> Value {
    info_of(Emulation::default())
}

/// The version document.
pub fn info_of(emulation: Emulation) -> Value {
    json!({
        "major": MAJOR,
        "minor": MINOR,
        "emulationMajor": MAJOR,
        "emulationMinor": emulation.minor().to_string(),
        "minCompatibilityMajor": MAJOR,
        "minCompatibilityMinor": emulation.least().to_string(),
        "gitVersion": git_version(),
        "gitCommit": PARTS[1],
        "gitTreeState": "clean",
        "buildDate": PARTS[2],
        "goVersion": GO_VERSION,
        "compiler": "gc",
        "platform": format!("linux/{ARCH}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_a_stamp_is_upstreams_release() {
        assert_eq!(parts(&IDENTITY).each_ref().map(String::as_str), UNSTAMPED);
        assert_eq!(git_version(), UNSTAMPED[0]);
    }

    #[test]
    fn stamped_fields_are_read_and_bad_ones_are_not() {
        let mut identity = [0; LENGTH];
        let version = copy(&mut identity, MARK.len(), b"v1.35.5+ironclad.2");
        assert!(version < MARK.len() + WIDTHS[0]);
        identity[MARK.len() + WIDTHS[0]] = 0xff;
        copy(&mut identity, MARK.len() + WIDTHS[0] + WIDTHS[1], b"2026-11-27T22:48:44Z");
        assert_eq!(parts(&identity), ["v1.35.5+ironclad.2", UNSTAMPED[1], "2026-11-27T22:48:44Z"]);
    }
}
