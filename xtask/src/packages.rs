//! Packages of other people: their licences and sources, versions that are built twice, and dependencies that no file uses.

use std::collections::{BTreeMap, BTreeSet};

use crate::budget::Finding;
use crate::tree::Tree;

/// Licences that the product may be distributed with.
const LICENCES: [&str; 11] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];
/// The one place that packages come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Names packages whose licence or source is not on the list.
pub fn foreign(tree: &Tree) -> Vec<Finding> {
    let foreign = tree.packages.iter().filter(|package| {
        let from_elsewhere = package.source.as_deref().is_some_and(|source| source != REGISTRY);
        from_elsewhere || !is_allowed(&package.licence)
    });
    foreign
        .map(|package| Finding { key: package.name.clone(), count: 1, places: vec![package.licence.clone()] })
        .collect()
}

/// Reports whether an SPDX expression can be met by the licences of the list: one of each `OR`, all of each `AND`.
/// Older manifests write `/` for `OR`. An exception (`WITH`) only adds permissions.
fn is_allowed(expression: &str) -> bool {
    let plain = expression.replace('/', " OR ").replace(['(', ')'], " ");
    plain.split(" AND ").all(|part| {
        part.split(" OR ").any(|licence| LICENCES.contains(&licence.split(" WITH ").next().unwrap_or_default().trim()))
    })
}

/// Counts packages that are built in several versions.
pub fn built_twice(tree: &Tree) -> Vec<Finding> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in &tree.packages {
        versions.entry(&package.name).or_default().insert(&package.version);
    }
    let twice = versions.into_iter().filter(|(_, versions)| versions.len() > 1);
    let places = |versions: BTreeSet<&str>| versions.into_iter().map(str::to_owned).collect();
    twice.map(|(name, all)| Finding { key: name.to_owned(), count: all.len(), places: places(all) }).collect()
}

/// Names dependencies of a crate's manifest that none of its files mentions.
pub fn unused(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, manifest) in &tree.manifests {
        let krate = path.trim_end_matches("/Cargo.toml");
        let code: Vec<&str> =
            tree.sources.iter().filter(|file| file.krate() == krate).map(|file| file.text.as_str()).collect();
        for name in dependencies(manifest) {
            let named = name.replace('-', "_");
            let library = named.strip_prefix("ironclad_").unwrap_or(&named).to_owned();
            if !code.iter().any(|text| text.contains(&library)) {
                found.push(Finding { key: format!("{krate}/{name}"), count: 1, places: Vec::new() });
            }
        }
    }
    found
}

/// Yields the names in the dependency tables of a manifest.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    manifest.lines().filter_map(move |line| {
        if line.starts_with('[') {
            inside = line.trim_end_matches(']').ends_with("dependencies");
            return None;
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        (inside && !name.is_empty() && !name.starts_with('#')).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Package;
    use crate::tree::Source;

    fn package(name: &str, version: &str, licence: &str, source: Option<&str>) -> Package {
        let [name, version, licence] = [name, version, licence].map(str::to_owned);
        Package { name, version, licence, source: source.map(str::to_owned) }
    }

    fn keys(findings: Vec<Finding>) -> Vec<String> {
        findings.into_iter().map(|finding| finding.key).collect()
    }

    #[test]
    fn expressions_are_met_by_one_of_each_or_and_all_of_each_and() {
        for (expression, allowed) in [
            ("MIT OR GPL-3.0", true),
            ("MIT/Apache-2.0", true),
            ("(Apache-2.0 OR MIT) AND BSD-3-Clause", true),
            ("MIT AND GPL-3.0", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("GPL-3.0", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(expression), allowed, "{expression}");
        }
    }

    #[test]
    fn foreign_sources_and_second_versions_are_named() {
        let packages = vec![
            package("a", "1.0.0", "MIT", Some(REGISTRY)),
            package("a", "2.0.0", "MIT", Some(REGISTRY)),
            package("b", "1.0.0", "MIT", Some("git+https://example.com/b")),
            package("own", "1.0.0", "Apache-2.0", None),
        ];
        let tree = Tree { packages, ..Tree::default() };
        assert_eq!(keys(foreign(&tree)), ["b"]);
        assert_eq!(keys(built_twice(&tree)), ["a"]);
    }

    #[test]
    fn a_dependency_that_no_file_mentions_is_named() {
        let manifest = "[package]\nname = \"x\"\n\n[dependencies]\nserde_json.workspace = true\n# why\nironclad-shared.workspace = true\n\n[dev-dependencies]\ntempfile = \"3\"\n";
        let sources = vec![Source {
            path: "x/src/lib.rs".to_owned(),
            text: "use shared::run;\nuse serde_json::Value;".to_owned(),
        }];
        let tree =
            Tree { sources, manifests: vec![("x/Cargo.toml".to_owned(), manifest.to_owned())], ..Tree::default() };
        assert_eq!(keys(unused(&tree)), ["x/tempfile"]);
    }
}
