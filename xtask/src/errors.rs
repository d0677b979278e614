//! Results whose error is a text: callers cannot tell one failure from another.

use std::collections::BTreeMap;

use crate::budget::Finding;
use crate::tree::{Source, Tree};

/// Counts `Result<_, String>` in production code, for each crate.
pub fn text_errors(tree: &Tree) -> Vec<Finding> {
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for source in tree.sources.iter().filter(|source| source.is_production()) {
        let code = numbered_code(source);
        let places = results(&code).filter(|(_, arguments)| error_is_text(arguments)).map(|(at, arguments)| {
            let line = code[..at].matches('\n').count() + 1;
            format!("{}:{line} Result<{}>", source.path, arguments.split_whitespace().collect::<Vec<_>>().join(" "))
        });
        found.entry(source.krate()).or_default().extend(places);
    }
    found.into_iter().map(|(krate, places)| Finding { key: krate.to_owned(), count: places.len(), places }).collect()
}

/// Returns the production code with comments emptied, so that lines keep their numbers.
fn numbered_code(source: &Source) -> String {
    source
        .production_lines()
        .flat_map(|(_, line)| [if line.trim_start().starts_with("//") { "" } else { line }, "\n"])
        .collect()
}

/// Finds the types `Result<…>` of a text: where each begins, and its arguments.
fn results(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.match_indices("Result<").filter_map(|(at, name)| {
        let whole = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let arguments = &code[at + name.len()..];
        let end = closing(arguments).filter(|_| whole)?;
        Some((at, &arguments[..end]))
    })
}

/// Returns where the angle bracket that was opened before `text` is closed.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut previous) = (0_usize, ' ');
    for (at, character) in text.char_indices() {
        match character {
            '<' => depth += 1,
            '>' if previous == '-' => {}
            '>' if depth == 0 => return Some(at),
            '>' => depth -= 1,
            ';' | '{' => return None,
            _ => {}
        }
        previous = character;
    }
    None
}

/// Reports whether the last of two arguments is `String`.
fn error_is_text(arguments: &str) -> bool {
    let arguments = arguments.trim_end().trim_end_matches(',');
    let Some(value) = arguments.strip_suffix("String").and_then(|rest| rest.trim_end().strip_suffix(',')) else {
        return false;
    };
    let (mut depth, mut previous) = (0_isize, ' ');
    for character in value.chars() {
        match character {
            '<' | '(' | '[' => depth += 1,
            '>' if previous == '-' => {}
            '>' | ')' | ']' => depth -= 1,
            _ => {}
        }
        previous = character;
    }
    depth == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(text: &str) -> Vec<String> {
        let source = Source { path: "c/src/a.rs".to_owned(), text: text.to_owned() };
        let tree = Tree { sources: vec![source], ..Tree::default() };
        text_errors(&tree).pop().map(|finding| finding.places).unwrap_or_default()
    }

    #[test]
    fn results_with_a_text_as_error_are_counted() {
        for (code, found) in [
            ("fn f() -> Result<(), String> {}", "Result<(), String>"),
            ("fn f(\n) -> Result<\n    Map<String, u8>,\n    String,\n> {}", "Result<Map<String, u8>, String,>"),
            ("type F = Box<dyn Fn(Result<u8, String>) -> u8>;", "Result<u8, String>"),
            ("fn f() -> Result<Box<dyn Fn() -> u8>, String> {}", "Result<Box<dyn Fn() -> u8>, String>"),
        ] {
            let line = 1 + code[..code.find("Result").unwrap_or_default()].matches('\n').count();
            assert_eq!(places(code), [format!("c/src/a.rs:{line} {found}")], "{code}");
        }
    }

    #[test]
    fn other_errors_comments_and_tests_are_not_counted() {
        for code in [
            "fn f() -> Result<(String, String), Error> {}",
            "fn f() -> Result<Map<String, String>> {}",
            "fn f() -> Result<(u8, String)> {}",
            "fn f() -> Result<u8, Map<u8, String>> {}",
            "fn f() -> Result<u8, &'static str> {}",
            "fn f() -> MyResult<u8, String> {}",
            "/// A `Result<u8, String>`.",
            "#[cfg(test)]\nmod tests { fn f() -> Result<u8, String> {} }",
        ] {
            assert!(places(code).is_empty(), "{code}");
        }
    }
}
