//! Upstream release, and the document of `/version`.

use serde_json::{Value, json};

use crate::flags::Emulation;

/// Version of this build: upstream's release, or `IRONCLAD_VERSION` at build time, such as `v1.35.4+ironclad.2`.
pub const GIT_VERSION: &str = match option_env!("IRONCLAD_VERSION") {
    Some(version) => version,
    None => concat!("v", env!("CARGO_PKG_VERSION")),
};
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
        "gitVersion": GIT_VERSION,
        "gitCommit": option_env!("IRONCLAD_COMMIT").unwrap_or("0000000000000000000000000000000000000000"),
        "gitTreeState": "clean",
        "buildDate": option_env!("IRONCLAD_BUILD_DATE").unwrap_or("1970-01-01T00:00:00Z"),
        "goVersion": GO_VERSION,
        "compiler": "gc",
        "platform": format!("linux/{ARCH}"),
    })
}
