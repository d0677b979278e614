//! Openings of doc comments: a noun phrase or a verb, never a relative clause or a pronoun that stands for nothing.

use std::collections::BTreeMap;

use crate::budget::Finding;
use crate::tree::Tree;

/// First words that make a reader guess what is spoken of.
const RIDDLES: [&str; 20] = [
    "What", "Whatever", "Whether", "Who", "Whoever", "Whose", "Whom", "Which", "Where", "When", "Why", "How", "Those",
    "It", "They", "That", "These", "Its", "Their", "As",
];

/// Counts such openings for each crate.
pub fn relative_openings(tree: &Tree) -> Vec<Finding> {
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for source in &tree.sources {
        let places = found.entry(source.krate()).or_default();
        places.extend(openings(&source.text).filter(|(_, text)| is_riddle(text)).map(|(line, text)| {
            let start: String = text.chars().take(60).collect();
            format!("{}:{line} {start}", source.path)
        }));
    }
    found.into_iter().map(|(krate, places)| Finding { key: krate.to_owned(), count: places.len(), places }).collect()
}

/// Yields the first line of each block of doc comments, with its number.
fn openings(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut inside = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let doc = doc_text(line.trim_start());
        let opens = doc.is_some() && !inside;
        inside = doc.is_some();
        doc.filter(|_| opens).map(|text| (at + 1, text))
    })
}

fn doc_text(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("//!").or_else(|| line.strip_prefix("///").filter(|rest| !rest.starts_with('/')))?;
    Some(rest.trim_start())
}

fn is_riddle(text: &str) -> bool {
    let word = text.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
    RIDDLES.contains(&word) || text.starts_with("The same")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_first_lines_of_blocks_are_judged() {
        let text = "//! Reads leases.\n//! What they hold.\n\n/// What is there.\nfn a() {}\n    /// Returns it.\n//// What\n// What\n";
        let found: Vec<_> = openings(text).collect();
        assert_eq!(found, [(1, "Reads leases."), (4, "What is there."), (6, "Returns it.")]);
        assert_eq!(found.iter().filter(|(_, text)| is_riddle(text)).count(), 1);
    }

    #[test]
    fn riddles_are_whole_words() {
        for (text, riddle) in [
            ("Whether it is so.", true),
            ("The same for pods.", true),
            ("It.", true),
            ("Items of a list.", false),
            ("Whereabouts of a node.", false),
            ("", false),
        ] {
            assert_eq!(is_riddle(text), riddle, "{text}");
        }
    }
}
