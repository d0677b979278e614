//! Checks of the tree that rustc and clippy do not make (`cargo xtask tidy`), and documents that are generated
//! (`cargo xtask specification`, `cargo xtask compatibility`, `cargo xtask order`).
//!
//! In: the tracked files of the repository. Out: findings, or a document. Never: a change of a source file.

mod allows;
mod arrows;
mod budget;
mod circles;
mod compatibility;
mod docs;
mod errors;
mod kinds;
mod length;
mod lock;
mod monitoring;
mod names;
mod order;
mod packages;
mod recipes;
mod specification;
mod testdata;
mod tree;
mod upstream;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::budget::{Budgets, Finding};
use crate::tree::Tree;

/// A check over the whole tree: its name in `budgets.txt`, and the function that counts.
type Check = (&'static str, fn(&Tree) -> Vec<Finding>);

/// All checks, in the order in which they are printed.
const CHECKS: [Check; 18] = [
    ("crate-arrows", arrows::between_crates),
    ("folder-circles", arrows::between_folders),
    ("file-circles", circles::largest),
    ("custom-questions", kinds::custom_questions),
    ("kind-homes", kinds::without_home),
    ("recipes", recipes::untrue),
    ("doc-openings", docs::relative_openings),
    ("string-errors", errors::text_errors),
    ("type-names", names::repeated),
    ("allow-reasons", allows::without_reason),
    ("file-length", length::long_files),
    ("twin-testdata", testdata::twins),
    ("unknown-metrics", monitoring::unknown_metrics),
    ("foreign-packages", packages::foreign),
    ("package-versions", packages::built_twice),
    ("unused-dependencies", packages::unused),
    ("upstream-paths", upstream::missing_paths),
    ("upstream-map", upstream::unmapped_files),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<bool> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the crate lies in the workspace")?;
    match arguments {
        ["tidy"] => tidy(root),
        ["specification", figures] => specification::write(root, Path::new(figures)).map(|()| true),
        ["order", files @ ..] => order::write(root, files).map(|()| true),
        ["compatibility"] => compatibility::write(root, &Tree::read(root)?).map(|()| true),
        _ => bail!(
            "usage: cargo xtask tidy | cargo xtask specification FIGURES | cargo xtask compatibility | cargo xtask order \
             (BINARY CALLGRIND)..."
        ),
    }
}

/// Runs all checks against their budgets. With `UPDATE=1` in the environment budgets fall to what was counted; they never
/// rise by themselves.
fn tidy(root: &Path) -> Result<bool> {
    let file = root.join("xtask/budgets.txt");
    let mut budgets = Budgets::read(&file)?;
    let tree = Tree::read(root)?;
    let mut clean = true;
    for (name, check) in CHECKS {
        let excess = budgets.exceeded(name, check(&tree));
        for line in &excess {
            println!("{name}: {line}");
        }
        clean &= excess.is_empty();
    }
    if std::env::var_os("UPDATE").is_some() {
        budgets.write(&file)?;
    }
    println!("tidy: {}", if clean { "nothing to say" } else { "see above; what a check wants is said in xtask/src" });
    Ok(clean)
}
