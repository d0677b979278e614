//! Runs a target under libFuzzer, guided by coverage: `FUZZ_TARGET` is its name.
#![no_main]

use std::sync::OnceLock;

use fuzz::Target;

static TARGET: OnceLock<&Target> = OnceLock::new();

/// Returns the target that the environment names; ends the program where it names none.
fn chosen() -> &'static Target {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    fuzz::target(&name).unwrap_or_else(|| {
        let names: Vec<_> = fuzz::ALL.iter().map(|target| target.name).collect();
        eprintln!("error: FUZZ_TARGET={name} is no target; use one of {}", names.join(", "));
        std::process::exit(2);
    })
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    (TARGET.get_or_init(chosen).run)(input);
});
