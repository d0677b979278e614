//! Arrows between rooms: crates depend on one another in one direction, and folders of a crate do not import each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::budget::Finding;
use crate::tree::{Source, Tree};

/// Crates that a crate may name, by the names that code uses.
const MAY_NAME: [(&str, &[&str]); 10] = [
    ("proto", &[]),
    ("shared", &["proto"]),
    ("apiserver", &["proto", "shared"]),
    ("controller-manager", &["proto", "shared"]),
    ("scheduler", &["proto", "shared"]),
    ("kubelet", &["proto", "shared"]),
    ("kube-proxy", &["proto", "shared"]),
    ("pki", &["proto"]),
    ("bootstrap", &["proto", "shared", "pki"]),
    ("xtask", &[]),
];
/// Names of the workspace's libraries in code.
const LIBRARIES: [&str; 12] = [
    "proto",
    "shared",
    "apiserver",
    "controller_manager",
    "scheduler",
    "kubelet",
    "kube_proxy",
    "pki",
    "bootstrap",
    "e2e",
    "testkit",
    "fuzz",
];

/// Counts lines of production code that name a library which the crate must not know. `MAY_NAME` says which it may;
/// crates that it does not list (the harness) may name all.
pub fn between_crates(tree: &Tree) -> Vec<Finding> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in tree.sources.iter().filter(|source| source.is_production()) {
        let Some((_, allowed)) = MAY_NAME.iter().find(|(krate, _)| *krate == source.krate()) else { continue };
        let own = source.krate().replace('-', "_");
        for (at, line) in source.production_lines().filter(|(_, line)| line.trim_start().starts_with("use ")) {
            let named = line.trim_start().trim_start_matches("use ").split("::").next().unwrap_or_default();
            if LIBRARIES.contains(&named)
                && named != own
                && !allowed.contains(&named)
                && !is_module(tree, source, named)
            {
                found.entry(format!("{}->{named}", source.krate())).or_default().push(format!("{}:{at}", source.path));
            }
        }
    }
    found.into_iter().map(|(key, places)| Finding { key, count: places.len(), places }).collect()
}

/// Reports whether `use name::` means a module beside the file and not a library.
fn is_module(tree: &Tree, source: &Source, name: &str) -> bool {
    let folder = source.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let candidates = [format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")];
    tree.sources.iter().any(|other| candidates.contains(&other.path))
}

/// Counts, for each crate, pairs of folders (or files) directly below `src/` that import each other.
pub fn between_folders(tree: &Tree) -> Vec<Finding> {
    let mut arrows: BTreeMap<&str, BTreeSet<(String, String)>> = BTreeMap::new();
    for source in tree.sources.iter().filter(|source| source.is_production()) {
        let Some(room) = room(source) else { continue };
        let targets = named_rooms(&source.production_code()).into_iter().filter(|target| *target != room);
        arrows.entry(source.krate()).or_default().extend(targets.map(|target| (room.clone(), target)));
    }
    let pairs = |arrows: &BTreeSet<(String, String)>| -> Vec<String> {
        let both = arrows.iter().filter(|(from, to)| from < to && arrows.contains(&(to.clone(), from.clone())));
        both.map(|(from, to)| format!("{from} <-> {to}")).collect()
    };
    let counted = arrows.into_iter().map(|(krate, arrows)| (krate, pairs(&arrows)));
    counted.map(|(krate, places)| Finding { key: krate.to_owned(), count: places.len(), places }).collect()
}

/// Returns the folder or file directly below `src/` that a source is in; none for the crate's root files, which put the
/// rooms together.
fn room(source: &Source) -> Option<String> {
    let below = source.path.strip_prefix(source.krate())?.strip_prefix("/src/")?;
    let room = below.split('/').next()?.trim_end_matches(".rs");
    (!matches!(room, "lib" | "main" | "bin" | "run" | "manager")).then(|| room.to_owned())
}

/// Returns the rooms that stand behind `crate::` in code, also in braces (`crate::{a, b::c}`).
fn named_rooms(code: &str) -> BTreeSet<String> {
    let mut rooms = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let outside = code[..at]
            .chars()
            .next_back()
            .is_none_or(|before| !before.is_alphanumeric() && before != '_' && before != '$');
        let rest = &code[at + "crate::".len()..];
        if !outside {
            continue;
        }
        match rest.strip_prefix('{') {
            Some(group) => rooms.extend(first_segments(group)),
            None => rooms.extend(identifier(rest)),
        }
    }
    rooms
}

/// Returns the first segments of a braced import, up to its closing brace.
fn first_segments(group: &str) -> Vec<String> {
    let (mut depth, mut fresh, mut found) = (0_usize, true, Vec::new());
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            _ if fresh && !character.is_whitespace() => {
                found.extend(identifier(&group[at..]));
                fresh = false;
            }
            _ => {}
        }
    }
    found
}

/// Returns the name that text begins with, when it is one of a module.
fn identifier(text: &str) -> Option<String> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let name = &text[..end];
    name.starts_with(|c: char| c.is_lowercase()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let sources =
            files.iter().map(|(path, text)| Source { path: (*path).to_owned(), text: (*text).to_owned() }).collect();
        Tree { sources, ..Tree::default() }
    }

    #[test]
    fn rooms_are_found_behind_crate_and_in_braces() {
        let code =
            "use crate::cache::Entry;\nuse crate::{api, registry::{meta, Row}, verbs};\nlet x = crate::audit::log();";
        let expected = ["api", "audit", "cache", "registry", "verbs"].map(str::to_owned);
        assert_eq!(named_rooms(code).into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn folders_that_import_each_other_are_one_pair() {
        let found = between_folders(&tree(&[
            ("apiserver/src/cache/a.rs", "use crate::storage::X;"),
            ("apiserver/src/storage/b.rs", "use crate::cache::Y;"),
            (
                "apiserver/src/verbs/c.rs",
                "use crate::cache::Y;\n// crate::serve::Z\n#[cfg(test)]\nmod tests { use crate::serve::Z; }",
            ),
            ("apiserver/src/serve/d.rs", "use crate::verbs::Z;"),
        ]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].places, ["cache <-> storage"]);
    }

    #[test]
    fn a_library_above_is_refused_and_a_module_of_that_name_is_not() {
        let found = between_crates(&tree(&[
            ("shared/src/a.rs", "use apiserver::Engine;\nuse proto::Value;"),
            ("shared/src/x/mod.rs", "use scheduler::Line;"),
            ("shared/src/x/scheduler.rs", ""),
            ("e2e/src/a.rs", "use apiserver::Engine;"),
        ]));
        assert_eq!(found.iter().map(|finding| finding.key.as_str()).collect::<Vec<_>>(), ["shared->apiserver"]);
    }
}
