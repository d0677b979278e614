//! Homes of kinds in the API server: what is particular about a kind stands in `registry/<group>/<kind>.rs`, and generic
//! code does not ask whether a resource is custom.

use std::collections::{BTreeMap, BTreeSet};

use crate::budget::Finding;
use crate::tree::{Source, Tree};

/// Production files of the API server.
const SOURCES: &str = "apiserver/src/";
/// Folder of the kinds, by group.
const HOMES: &str = "apiserver/src/registry/";
/// Rooms that may ask whether a resource is custom: those that define custom resources, serve rows, and implement the
/// behaviour of both.
const ASKING: [&str; 3] = [HOMES, "apiserver/src/crd/", "apiserver/src/rows/"];
/// Ways to ask it.
const QUESTIONS: [&str; 5] = [".custom", "crd::served", "version_of(", "is_custom", "downcast_ref::<CrdVersion>"];

fn production(tree: &Tree) -> impl Iterator<Item = &Source> {
    tree.sources.iter().filter(|source| source.path.starts_with(SOURCES) && source.is_production())
}

/// Counts the lines of generic code that ask whether a resource is custom.
pub fn custom_questions(tree: &Tree) -> Vec<Finding> {
    let generic = production(tree).filter(|source| !ASKING.iter().any(|room| source.path.starts_with(room)));
    let mut places = Vec::new();
    for source in generic {
        let code = source.production_lines().filter(|(_, line)| !line.trim_start().starts_with("//"));
        let asking = code.filter(|(_, line)| QUESTIONS.iter().any(|question| line.contains(question)));
        places.extend(asking.map(|(number, _)| format!("{}:{number}", source.path)));
    }
    if places.is_empty() {
        return Vec::new();
    }
    vec![Finding { key: "apiserver".to_owned(), count: places.len(), places }]
}

/// Counts, for each kind that the IDL defines, the production files with its plural in a text that are not in its home.
pub fn without_home(tree: &Tree) -> Vec<Finding> {
    let plurals: BTreeSet<&str> = tree.idl.iter().flat_map(|(_, text)| plurals(text)).collect();
    let mut files: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for source in production(tree).filter(|source| !is_home(source)) {
        let code = source.production_code();
        let named: BTreeSet<&str> = texts(&code).map(resource).collect();
        for plural in plurals.iter().filter(|plural| named.contains(**plural)) {
            files.entry(plural).or_default().push(source.path.clone());
        }
    }
    files.into_iter().map(|(plural, places)| Finding { key: plural.to_owned(), count: places.len(), places }).collect()
}

/// Reports whether a file is the home of a kind: `registry/<group>/<kind>.rs`, which declares it.
fn is_home(source: &Source) -> bool {
    let placed = source.path.strip_prefix(HOMES).is_some_and(|below| below.split('/').count() == 2);
    placed && source.text.contains("static KIND: Kind")
}

/// The plurals of resources in the text of an IDL.
fn plurals(idl: &str) -> impl Iterator<Item = &str> {
    idl.split("plural: \"").skip(1).filter_map(|rest| rest.split('"').next())
}

/// The plain string literals of code.
fn texts(code: &str) -> impl Iterator<Item = &str> {
    code.lines().flat_map(|line| line.split('"').skip(1).step_by(2))
}

/// The plural of a text that names a resource: alone, with its group (`plural.group`) or a subresource.
fn resource(text: &str) -> &str {
    text.split(['.', '/']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let source =
            |(path, text): &(&str, &str)| Source { path: format!("apiserver/src/{path}"), text: (*text).to_owned() };
        let idl = r#"option (resource) = {plural: "pods" short: "po"}; option (resource) = {plural: "jobs"};"#;
        Tree {
            sources: files.iter().map(source).collect(),
            idl: vec![("core.proto".to_owned(), idl.to_owned())],
            ..Tree::default()
        }
    }

    #[test]
    fn generic_code_that_asks_is_counted_and_rooms_of_custom_resources_are_not() {
        let found = custom_questions(&tree(&[
            ("verbs/get.rs", "// row.custom\nif row.custom.is_some() {}\nlet a = crd::version_of(row);"),
            ("crd/version.rs", "row.custom.is_some()"),
            ("registry/behavior/mod.rs", "match version_of(row) {}"),
        ]));
        assert_eq!(found[0].places, ["apiserver/src/verbs/get.rs:2", "apiserver/src/verbs/get.rs:3"]);
        assert!(custom_questions(&tree(&[("verbs/get.rs", "behavior(row).columns(row)")])).is_empty());
    }

    #[test]
    fn files_that_name_a_kind_outside_its_home_are_counted_once() {
        let found = without_home(&tree(&[
            ("registry/core/pod.rs", r#"pub static KIND: Kind = Kind::new("", "pods");"#),
            ("registry/strategy/table.rs", r#"("", "jobs", PLAIN)"#),
            ("admission/quota.rs", r#"("", "pods"); ("", "pods"); ("batch", "jobs.batch")"#),
            (
                "verbs/get.rs",
                r#"// "pods"
                f("pods/status"); g("some pods");"#,
            ),
        ]));
        let counts: Vec<(&str, usize)> = found.iter().map(|finding| (finding.key.as_str(), finding.count)).collect();
        assert_eq!(counts, [("jobs", 2), ("pods", 2)]);
    }
}
