//! The map from upstream's tree, `docs/UPSTREAM.md`: its paths are there, and the files of the components are on it.

use std::collections::{BTreeMap, BTreeSet};

use crate::budget::Finding;
use crate::tree::{Tree, UPSTREAM_MAP};

/// Crates whose files have to be on it.
const COMPONENTS: [&str; 5] = ["apiserver", "controller-manager", "kube-proxy", "kubelet", "scheduler"];
/// Lines of a file that need not be on it.
const SMALL: usize = 150;

/// Names paths of the last column that git does not track. A row without a counterpart (`none: ...`) may speak of other
/// things than files.
pub fn missing_paths(tree: &Tree) -> Vec<Finding> {
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (line, cell) in last_cells(&tree.upstream_map) {
        let all = !cell.starts_with("none");
        for path in quoted(cell).filter(|text| all || text.ends_with(".rs")) {
            if !is_tracked(tree, path) {
                found.entry(path).or_default().push(format!("{UPSTREAM_MAP}:{line}"));
            }
        }
    }
    let found = found.into_iter();
    found.map(|(path, places)| Finding { key: path.to_owned(), count: places.len(), places }).collect()
}

/// Counts, for each component, the longer production files that no row names, by themselves or with their folder.
pub fn unmapped_files(tree: &Tree) -> Vec<Finding> {
    let named: BTreeSet<&str> = last_cells(&tree.upstream_map).flat_map(|(_, cell)| quoted(cell)).collect();
    let folders: Vec<&str> = named.iter().copied().filter(|path| path.ends_with('/')).collect();
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let components = tree.sources.iter().filter(|file| file.is_production() && COMPONENTS.contains(&file.krate()));
    for source in components.filter(|file| file.text.lines().count() > SMALL) {
        let path = source.path.as_str();
        if !named.contains(path) && !folders.iter().any(|folder| path.starts_with(folder)) {
            found.entry(source.krate()).or_default().push(path.to_owned());
        }
    }
    let found = found.into_iter();
    found.map(|(krate, places)| Finding { key: krate.to_owned(), count: places.len(), places }).collect()
}

/// Reports whether a file is tracked, or any below a folder.
fn is_tracked(tree: &Tree, path: &str) -> bool {
    match path.ends_with('/') {
        true => tree.paths.range(path.to_owned()..).next().is_some_and(|next| next.starts_with(path)),
        false => tree.paths.contains(path),
    }
}

/// Yields the last cell of each row of the document's tables, with its line.
fn last_cells(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter_map(|(at, line)| {
        let row = line.strip_prefix("| ")?.strip_suffix(" |")?;
        Some((at + 1, row.rsplit_once(" | ")?.1))
    })
}

/// Yields what stands between backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Source;

    const TEXT: &str = "Words of `gone.rs` | count not |\n\n| upstream | grep for | here |\n|---|---|---|\n\
        | `pkg/kubelet` | `NewMainKubelet` | `kubelet/src/run.rs` `kubelet/src/gone.rs` |\n\
        | `pkg/proxy` | `Proxier` | `kube-proxy/src/ipvs/` `kube-proxy/src/none/` |\n\
        | `pkg/kubelet/cm/dra` | `Updates` | none: `v1alpha1` is not asked (`kubelet/src/old.rs`) |\n";

    fn tree() -> Tree {
        let files = [
            ("kubelet/src/run.rs", 151),
            ("kubelet/src/long.rs", 151),
            ("kubelet/src/short.rs", 150),
            ("kubelet/src/long_tests.rs", 151),
            ("kube-proxy/src/ipvs/rules.rs", 151),
            ("shared/src/long.rs", 151),
        ];
        let sources = files.map(|(path, lines)| Source { path: path.to_owned(), text: "\n".repeat(lines) });
        let paths = files.iter().map(|(path, _)| (*path).to_owned()).collect();
        Tree { sources: sources.into(), paths, upstream_map: TEXT.to_owned(), ..Tree::default() }
    }

    #[test]
    fn paths_of_the_last_column_that_are_gone_are_named_with_their_lines() {
        let found: Vec<_> =
            missing_paths(&tree()).into_iter().map(|finding| (finding.key, finding.places.join(" "))).collect();
        let want = [
            ("kube-proxy/src/none/", "docs/UPSTREAM.md:6"),
            ("kubelet/src/gone.rs", "docs/UPSTREAM.md:5"),
            ("kubelet/src/old.rs", "docs/UPSTREAM.md:7"),
        ];
        assert_eq!(found, want.map(|(path, place)| (path.to_owned(), place.to_owned())));
    }

    #[test]
    fn long_files_of_components_are_named_or_below_a_named_folder() {
        let found = unmapped_files(&tree());
        let found: Vec<_> = found.iter().map(|finding| (finding.key.as_str(), finding.places.join(" "))).collect();
        assert_eq!(found, [("kubelet", "kubelet/src/long.rs".to_owned())]);
    }
}
