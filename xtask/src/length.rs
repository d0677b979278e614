//! Lengths of files: a file past the limit is two files.

use crate::budget::Finding;
use crate::tree::Tree;

/// Lines of a production file that nobody asks about.
const LIMIT: usize = 550;

/// Counts the lines of files that are longer.
pub fn long_files(tree: &Tree) -> Vec<Finding> {
    let production = tree.sources.iter().filter(|source| source.is_production());
    let counted = production.map(|source| (source, source.text.lines().count()));
    let long = counted.filter(|(_, lines)| *lines > LIMIT);
    long.map(|(source, count)| Finding { key: source.path.clone(), count, places: Vec::new() }).collect()
}
