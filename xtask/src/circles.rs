//! Circles of files: sets of files of a crate each of which imports, over others, every other.
//!
//! Imports are read as text and followed through facades (`pub use`) to the file that defines what is imported. A `mod`
//! line is no import: a folder's `mod.rs` that only lists and re-exports its files is in no circle.

use std::collections::{BTreeMap, BTreeSet};

use crate::budget::Finding;
use crate::tree::{Source, Tree};

/// Re-exports that are followed from one name.
const MAX_HOPS: usize = 8;

/// A module by its segments below the crate's root.
type Module = Vec<String>;

/// One file's imports.
struct FileImports<'t> {
    path: &'t str,
    /// Paths that are imported or named in code.
    named: Vec<String>,
    /// Names that `use` brings into the file, with their paths.
    brought: BTreeMap<String, String>,
}

/// Counts, for each crate, the files of its largest circle.
pub fn largest(tree: &Tree) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, BTreeMap<Module, FileImports<'_>>> = BTreeMap::new();
    for source in tree.sources.iter().filter(|source| source.is_production()) {
        if let Some(module) = module(source) {
            crates.entry(source.krate()).or_default().insert(module, FileImports::read(source));
        }
    }
    let found = crates.into_iter().map(|(krate, files)| {
        let circle = circles(&files).into_iter().max_by_key(Vec::len).unwrap_or_default();
        Finding { key: krate.to_owned(), count: circle.len(), places: circle }
    });
    found.filter(|finding| finding.count > 1).collect()
}

/// Returns the module that a file of a library is; none for binaries.
fn module(source: &Source) -> Option<Module> {
    let below = source.path.strip_prefix(source.krate())?.strip_prefix("/src/")?.strip_suffix(".rs")?;
    let mut segments: Module = below.split('/').map(str::to_owned).collect();
    if matches!(segments.first().map(String::as_str), Some("main" | "bin")) {
        return None;
    }
    if matches!(segments.last().map(String::as_str), Some("mod" | "lib")) {
        segments.pop();
    }
    Some(segments)
}

impl<'t> FileImports<'t> {
    fn read(source: &'t Source) -> Self {
        let code = source.production_code();
        let mut file = Self { path: &source.path, named: Vec::new(), brought: BTreeMap::new() };
        let mut body = String::new();
        let mut rest = code.as_str();
        while let Some(at) = find_use(rest) {
            body.push_str(&rest[..at]);
            let statement = &rest[at + "use ".len()..];
            let end = statement.find(';').unwrap_or(statement.len());
            for (path, name) in expand(&statement[..end]) {
                file.brought.insert(name, path.clone());
                file.named.push(path);
            }
            rest = statement.get(end + 1..).unwrap_or_default();
        }
        body.push_str(rest);
        file.named.extend(paths_in(&body));
        file
    }
}

/// Returns where the next `use` statement begins.
fn find_use(code: &str) -> Option<usize> {
    code.match_indices("use ").map(|(at, _)| at).find(|at| {
        let line = code[..*at].rfind('\n').map_or(0, |end| end + 1);
        let before = code[line..*at].trim();
        before.is_empty() || (before.starts_with("pub") && !before.contains(';'))
    })
}

/// Returns the paths of a `use` tree with the names that they bring.
fn expand(tree: &str) -> Vec<(String, String)> {
    let tree = tree.trim();
    if let Some((prefix, group)) = tree.split_once('{') {
        let group = group.trim_end().strip_suffix('}').unwrap_or(group);
        let inner = split(group).into_iter().flat_map(expand);
        return inner.map(|(path, name)| (format!("{prefix}{path}"), name)).map(without_self).collect();
    }
    let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias)));
    let name = alias.or_else(|| path.rsplit("::").next()).unwrap_or_default();
    if tree.is_empty() { Vec::new() } else { vec![(path.trim().to_owned(), name.trim().to_owned())] }
}

/// Names a module that is imported as `module::{self}`.
fn without_self((path, name): (String, String)) -> (String, String) {
    let Some(module) = path.strip_suffix("::self") else { return (path, name) };
    let name = if name == "self" { module.rsplit("::").next().unwrap_or_default().to_owned() } else { name };
    (module.to_owned(), name)
}

/// Splits a group at its own commas.
fn split(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_usize, 0, Vec::new());
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&group[start..]);
    parts
}

/// Returns the paths from `crate`, `super` or `self` that code names; those of visibilities (`pub(in …)`) are left out.
fn paths_in(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for root in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(root) {
            let before = &code[..at];
            let inside = before.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ':' | '$'));
            if !inside && !before.ends_with("(in ") {
                let rest = &code[at..];
                let end = rest.find(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | ':')).unwrap_or(rest.len());
                found.push(rest[..end].trim_end_matches(':').to_owned());
            }
        }
    }
    found
}

/// Returns the module whose file defines what a path names.
fn resolve(files: &BTreeMap<Module, FileImports<'_>>, from: &Module, path: &str, hops: usize) -> Option<Module> {
    let mut segments = path.split("::").peekable();
    let mut at = match segments.peek().copied()? {
        "crate" => {
            segments.next();
            Module::new()
        }
        "self" => {
            segments.next();
            from.clone()
        }
        "super" => {
            let mut at = from.clone();
            while segments.next_if(|segment| *segment == "super").is_some() {
                at.pop()?;
            }
            at
        }
        first if files.contains_key(&child(from, first)) => from.clone(),
        _ => return None,
    };
    while let Some(segment) = segments.next_if(|segment| files.contains_key(&child(&at, segment))) {
        at.push(segment.to_owned());
    }
    let file = files.get(&at)?;
    let Some(name) = segments.next().filter(|_| hops < MAX_HOPS) else { return Some(at) };
    let Some(brought) = file.brought.get(name) else { return Some(at) };
    let whole = segments.fold(brought.clone(), |path, segment| path + "::" + segment);
    resolve(files, &at, &whole, hops + 1).or(Some(at))
}

fn child(of: &Module, name: &str) -> Module {
    let mut module = of.clone();
    module.push(name.to_owned());
    module
}

/// Returns the circles of a crate's files, by their paths.
fn circles(files: &BTreeMap<Module, FileImports<'_>>) -> Vec<Vec<String>> {
    let index: BTreeMap<&Module, usize> = files.keys().enumerate().map(|(at, module)| (module, at)).collect();
    let arrows: Vec<BTreeSet<usize>> = files
        .iter()
        .map(|(module, file)| {
            let targets = file.named.iter().filter_map(|path| resolve(files, module, path, 0));
            targets.filter(|target| target != module).filter_map(|target| index.get(&target).copied()).collect()
        })
        .collect();
    let reached: Vec<BTreeSet<usize>> = (0..arrows.len()).map(|from| reach(&arrows, from)).collect();
    let paths: Vec<&str> = files.values().map(|file| file.path).collect();
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for from in 0..arrows.len() {
        if !seen.insert(from) || !reached[from].contains(&from) {
            continue;
        }
        let circle: Vec<usize> = reached[from].iter().copied().filter(|to| reached[*to].contains(&from)).collect();
        seen.extend(&circle);
        circles.push(circle.into_iter().map(|at| paths[at].to_owned()).collect());
    }
    circles
}

/// Returns the files that a file imports, over others, too.
fn reach(arrows: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(next) = left.pop() {
        left.extend(arrows[next].iter().copied().filter(|to| reached.insert(*to)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle(files: &[(&str, &str)]) -> Vec<String> {
        let source = |(path, text): &(&str, &str)| Source { path: format!("c/src/{path}"), text: (*text).to_owned() };
        let tree = Tree { sources: files.iter().map(source).collect(), ..Tree::default() };
        largest(&tree).pop().map(|finding| finding.places).unwrap_or_default()
    }

    #[test]
    fn files_that_import_each_other_over_others_are_a_circle() {
        let found = circle(&[
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::{self, B};"),
            ("b.rs", "fn f() { crate::c::f() }"),
            ("c.rs", "use super::{\n    a::{A},\n    d::D as E,\n};"),
            ("d.rs", "use crate::a::A;\n#[cfg(test)]\nmod tests { use crate::x::Y; }"),
        ]);
        assert_eq!(found, ["c/src/a.rs", "c/src/b.rs", "c/src/c.rs", "c/src/d.rs"]);
    }

    #[test]
    fn a_facade_is_looked_through() {
        let files = [
            ("room/mod.rs", "mod plugin;\nmod table;\nmod one;\npub use plugin::Plugin;\npub use table::all;"),
            ("room/plugin.rs", "pub struct Plugin;"),
            ("room/table.rs", "use super::one::One;"),
            ("room/one.rs", "use super::Plugin;\npub(in crate::room::table) struct One;"),
        ];
        assert!(circle(&files).is_empty());
    }

    #[test]
    fn what_a_folder_defines_ties_it_to_its_files() {
        let files =
            [("room/mod.rs", "mod one;\nuse one::One;\npub struct Plugin;"), ("room/one.rs", "use super::Plugin;")];
        assert_eq!(circle(&files), ["c/src/room/mod.rs", "c/src/room/one.rs"]);
    }
}
