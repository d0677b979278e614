//! Homes of kinds in the API server: what is particular about a kind stands in `registry/<group>/<kind>.rs`, and generic
//! code does not ask whether a resource is custom.

use std::collections::{BTreeMap, BTreeSet};

use crate::budget::Finding;
use crate::tree::{Source, Tree};

/// Production files of the API server.
const SOURCES: &str = "apiserver/src/";
/// Folder of the kinds, by group.
const HOMES: &str = "apiserver/src/registry/";
/// Rooms that may ask whether a resource is custom: those that define custom resources, and implement the behaviour of
/// both.
const ASKING: [&str; 2] = [HOMES, "apiserver/src/crd/"];
/// Ways to ask it.
const QUESTIONS: [&str; 5] = [".custom", "crd::served", "version_of(", "is_custom", "downcast_ref::<CrdVersion>"];

/// Files where a plural stands for something else than the resource: path, plurals, and what they are there.
const OTHER_MEANINGS: [(&str, &[&str], &str); 15] = [
    ("admission/pod_security/mod.rs", &["namespaces"], "field of the plugin's configuration"),
    ("admission/resource_quota/usage.rs", &["services"], "names of amounts in a ResourceQuota: `services.nodeports`"),
    (
        "validation/pod/resources.rs",
        &[
            "configmaps",
            "persistentvolumeclaims",
            "pods",
            "replicationcontrollers",
            "resourcequotas",
            "secrets",
            "services",
        ],
        "names of amounts in a ResourceQuota, which are a list of their own (`v1.ResourceName`)",
    ),
    ("validation/quota.rs", &["persistentvolumeclaims", "pods"], "names of amounts in a ResourceQuota"),
    ("negotiate/mod.rs", &["events"], "a package of upstream's Go types"),
    ("printers/policy.rs", &["pods"], "a type of metric source"),
    ("registry/conversion/autoscaler.rs", &["pods"], "a field of a metric source"),
    ("validation/autoscaling.rs", &["pods"], "a field of a metric source"),
    ("registry/discovery.rs", &["endpoints"], "a field of an EndpointSlice"),
    ("rest/kubernetes_service.rs", &["endpoints"], "a field of an EndpointSlice"),
    ("validation/discovery.rs", &["endpoints"], "a field of an EndpointSlice"),
    ("validation/flowcontrol.rs", &["namespaces"], "a field of a flow schema's rule"),
    ("validation/pod/placement.rs", &["namespaces"], "a field of an affinity term"),
    ("validation/volume/source.rs", &["endpoints"], "a field of a volume"),
    ("validation/warnings/networking.rs", &["endpoints"], "a field of an EndpointSlice, and a label's domain"),
];

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
        let named: BTreeSet<&str> = texts(&code).filter(|text| !is_group(tree, text)).map(resource).collect();
        for plural in plurals.iter().filter(|plural| named.contains(**plural) && !means_other(&source.path, plural)) {
            files.entry(plural).or_default().push(source.path.clone());
        }
    }
    files.into_iter().map(|(plural, places)| Finding { key: plural.to_owned(), count: places.len(), places }).collect()
}

/// Reports whether a plural in a file stands for something else than the resource.
fn means_other(path: &str, plural: &str) -> bool {
    let below = path.strip_prefix(SOURCES).unwrap_or_default();
    OTHER_MEANINGS.iter().any(|(file, plurals, _)| *file == below && plurals.contains(&plural))
}

/// Reports whether a text is an API group whose name begins like a resource, as `events.k8s.io` does.
fn is_group(tree: &Tree, text: &str) -> bool {
    let Some(first) = text.strip_suffix(".k8s.io") else { return false };
    tree.idl.iter().any(|(path, _)| path.starts_with(&format!("proto/k8s/{first}/")))
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
    fn groups_and_texts_that_mean_something_else_name_no_kind() {
        let mut tree = tree(&[
            ("validation/pod/placement.rs", r#"texts(term, "namespaces"); f("pods")"#),
            ("verbs/get.rs", r#"g("events.k8s.io"); f("events.events.k8s.io")"#),
        ]);
        let idl = r#"{plural: "pods"} {plural: "namespaces"} {plural: "events"}"#;
        tree.idl = vec![("proto/k8s/events/v1.proto".to_owned(), idl.to_owned())];
        let found: Vec<String> = without_home(&tree).into_iter().map(|finding| finding.key).collect();
        assert_eq!(found, ["events", "pods"]);
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
