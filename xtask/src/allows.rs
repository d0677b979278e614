//! Lints that are switched off in place: each says why.

use std::collections::BTreeMap;

use crate::budget::Finding;
use crate::tree::Tree;

/// Counts `allow` attributes without a reason, for each crate. A comment on the same or the preceding line is one.
pub fn without_reason(tree: &Tree) -> Vec<Finding> {
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for source in tree.sources.iter().filter(|source| source.is_production()) {
        let places = found.entry(source.krate()).or_default();
        let mut previous = "";
        for (at, line) in source.production_lines() {
            if is_bare(line, previous) {
                places.push(format!("{}:{at} {}", source.path, line.trim()));
            }
            previous = line;
        }
    }
    found.into_iter().map(|(krate, places)| Finding { key: krate.to_owned(), count: places.len(), places }).collect()
}

fn is_bare(line: &str, previous: &str) -> bool {
    let code = line.trim_start();
    let switches = code.starts_with("#[allow(") || code.starts_with("#![allow(");
    let explained = line.contains("reason =") || line.contains("//") || previous.trim_start().starts_with("// ");
    switches && !explained
}

#[cfg(test)]
mod tests {
    use super::is_bare;

    #[test]
    fn reasons_stand_in_the_attribute_beside_it_or_above() {
        for (line, previous, bare) in [
            ("#[allow(clippy::float_cmp)]", "", true),
            ("    #![allow(dead_code)]", "/// A type.", true),
            ("#[allow(clippy::float_cmp)] // both were rounded", "", false),
            ("#[allow(clippy::float_cmp, reason = \"rounded\")]", "", false),
            ("#[allow(clippy::float_cmp)]", "// Both were rounded.", false),
            ("let allow = 1;", "", false),
        ] {
            assert_eq!(is_bare(line, previous), bare, "{line}");
        }
    }
}
