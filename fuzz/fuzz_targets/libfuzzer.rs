//! Runs a target under libFuzzer, guided by coverage: `FUZZ_TARGET` is its name, and `FUZZ_SEEDS` the folder into which
//! its first inputs are written. Lists the targets without a name.
#![no_main]

use std::sync::OnceLock;

use fuzz::Target;

static TARGET: OnceLock<&Target> = OnceLock::new();

/// Returns the target that the environment names; ends the program where it names none.
fn chosen() -> &'static Target {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let names: Vec<_> = fuzz::ALL.iter().map(|target| target.name).collect();
    if name.is_empty() {
        println!("{}", names.join("\n"));
        std::process::exit(0);
    }
    fuzz::target(&name).unwrap_or_else(|| {
        eprintln!("error: FUZZ_TARGET={name} is no target; use one of {}", names.join(", "));
        std::process::exit(2);
    })
}

/// Writes the inputs with which a target begins, before libFuzzer reads that folder.
fn write_seeds(target: &Target) -> std::io::Result<()> {
    let Some(folder) = std::env::var_os("FUZZ_SEEDS") else { return Ok(()) };
    (target.seeds)()
        .iter()
        .enumerate()
        .try_for_each(|(at, seed)| std::fs::write(std::path::Path::new(&folder).join(at.to_string()), seed))
}

libfuzzer_sys::fuzz_target!(
    init: {
        let target = TARGET.get_or_init(chosen);
        if let Err(error) = write_seeds(target) {
            eprintln!("error: cannot write the seeds of {}: {error}", target.name);
            std::process::exit(2);
        }
    },
    |input: &[u8]| {
        (TARGET.get_or_init(chosen).run)(input);
    }
);
