//! Names of types that too many rooms use for different things: a reader who greps for one finds all.

use std::collections::BTreeMap;

use regex::Regex;

use crate::budget::Finding;
use crate::tree::Tree;

/// Definitions of one name that are no reason to ask.
const FREE: usize = 3;
/// Names that mean the same wherever they stand.
const COMMON: [&str; 13] = [
    "Args", "Config", "Error", "Metrics", "Options", "Plan", "Plugin", "Result", "Row", "Settings", "Snapshot",
    "State", "Table",
];

/// Counts definitions of each name beyond those that are free.
pub fn repeated(tree: &Tree) -> Vec<Finding> {
    let mut defined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    #[expect(clippy::expect_used, reason = "the pattern is a constant")]
    let pattern =
        Regex::new(r"^\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|union) ([A-Z]\w*)").expect("a valid pattern");
    for source in tree.sources.iter().filter(|source| source.is_production()) {
        for (at, line) in source.production_lines() {
            if let Some(found) = pattern.captures(line) {
                defined.entry(found[1].to_owned()).or_default().push(format!("{}:{at}", source.path));
            }
        }
    }
    let repeated = defined.into_iter().filter(|(name, places)| places.len() > FREE && !COMMON.contains(&name.as_str()));
    repeated.map(|(key, places)| Finding { key, count: places.len(), places }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Source;

    #[test]
    fn a_fourth_definition_is_found_and_tests_do_not_count() {
        let source = |path: &str| Source {
            path: path.to_owned(),
            text: "pub struct Kept;\nenum Plan {}\n#[cfg(test)]\nmod tests {\n    struct Kept;\n}\n".to_owned(),
        };
        let mut sources: Vec<Source> =
            ["a/src/x.rs", "a/src/y.rs", "b/src/z.rs", "b/src/x_tests.rs"].map(source).into();
        assert!(repeated(&Tree { sources: sources.split_off(0), ..Tree::default() }).is_empty());
        sources = ["a/src/x.rs", "a/src/y.rs", "b/src/z.rs", "b/src/w.rs"].map(source).into();
        let found = repeated(&Tree { sources, ..Tree::default() });
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].key.as_str(), found[0].count), ("Kept", 4));
    }
}
