//! Test data that lies in two places and will differ one day.

use std::collections::BTreeMap;

use crate::budget::Finding;
use crate::tree::Tree;

/// Bytes below which files are alike by chance.
const SMALL: usize = 512;

/// Names files whose bytes another has, too.
pub fn twins(tree: &Tree) -> Vec<Finding> {
    let mut by_content: BTreeMap<&[u8], Vec<&str>> = BTreeMap::new();
    for (path, bytes) in tree.testdata.iter().filter(|(_, bytes)| bytes.len() >= SMALL) {
        by_content.entry(bytes).or_default().push(path);
    }
    let twins = by_content.into_values().filter(|paths| paths.len() > 1);
    let finding = |paths: Vec<&str>| Finding {
        key: paths[0].to_owned(),
        count: paths.len() - 1,
        places: paths.iter().map(|path| (*path).to_owned()).collect(),
    };
    twins.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_files_are_named_once_and_small_ones_not_at_all() {
        let file = |path: &str, byte: u8, size: usize| (path.to_owned(), vec![byte; size]);
        let testdata =
            vec![file("a", 1, SMALL), file("b", 1, SMALL), file("c", 2, SMALL), file("d", 3, 3), file("e", 3, 3)];
        let found = twins(&Tree { testdata, ..Tree::default() });
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].key.as_str(), found[0].count), ("a", 1));
    }
}
