//! Build script of the binary crates: how their release programs are linked.
//!
//! Without relocations at start, tables stay pages of the file, which cost memory only where they are read; identical
//! code, of which generics make plenty, is kept once.

/// Tells Cargo the linker's arguments.
pub fn main() {
    println!("cargo:rerun-if-env-changed=PROFILE");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|v| v == value);
    // The linker that Rust brings along on this target knows them.
    let known = is("CARGO_CFG_TARGET_ARCH", "x86_64") && is("CARGO_CFG_TARGET_OS", "linux");
    if known && is("PROFILE", "release") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
    }
}
