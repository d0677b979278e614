//! Recipes of CONTRIBUTING.md: what one says of an example is true of the tree. Each place that it names is there and names
//! the example, and no other production file does.
//!
//! A place is a code span with the path of a file or folder. `<…>` in it stands for a part that the example fills in.

use std::collections::BTreeSet;

use crate::budget::Finding;
use crate::tree::Tree;

/// A recipe and the thing in the tree that it is tried on.
struct Recipe {
    /// Heading of its section.
    title: &'static str,
    /// The example as any file names it: in lower case, without `-` and `_`.
    example: &'static str,
    /// Values of the variable parts of paths.
    parts: &'static [(&'static str, &'static str)],
    /// Folders whose files have to be named by the recipe if they name the example.
    within: &'static [&'static str],
}

const RECIPES: [Recipe; 4] = [
    Recipe {
        title: "Add a resource",
        example: "networkpolic",
        parts: &[("<group>", "networking"), ("<version>", "v1"), ("<kind>", "network_policy")],
        within: &["proto/k8s/", "proto/src/", "shared/src/", "apiserver/src/"],
    },
    Recipe {
        title: "Add a controller",
        example: "ttlafterfinished",
        parts: &[("<controller>", "ttl_after_finished")],
        within: &["controller-manager/src/"],
    },
    Recipe {
        title: "Add a scheduler plugin",
        example: "imagelocality",
        parts: &[("<plugin>", "image_locality")],
        within: &["scheduler/src/"],
    },
    Recipe { title: "Add a proxy mode", example: "ipvs", parts: &[("<mode>", "ipvs")], within: &["kube-proxy/src/"] },
];

/// Counts, for each recipe, places that are not as it says.
pub fn untrue(tree: &Tree) -> Vec<Finding> {
    let findings = RECIPES.iter().map(|recipe| {
        let places = recipe.untrue(tree);
        Finding { key: recipe.title.replace(' ', "-"), count: places.len(), places }
    });
    findings.filter(|finding| finding.count > 0).collect()
}

impl Recipe {
    fn untrue(&self, tree: &Tree) -> Vec<String> {
        let Some(section) = section(&tree.contributing, self.title) else {
            return vec![format!("CONTRIBUTING.md has no section {:?}", self.title)];
        };
        let places = self.places(section);
        let naming = self.naming(tree);
        let covers = |place: &str, file: &str| file == place || (place.ends_with('/') && file.starts_with(place));
        let idle = places.iter().filter(|place| !naming.iter().any(|file| covers(place, file)));
        let unnamed = naming.iter().filter(|file| !places.iter().any(|place| covers(place, file)));
        let idle = idle.map(|place| format!("{place}: the example is not there"));
        idle.chain(unnamed.map(|file| format!("{file}: names the example, and the recipe does not say so"))).collect()
    }

    /// The places that a section names.
    fn places(&self, section: &str) -> BTreeSet<String> {
        let spans = section.split('`').skip(1).step_by(2);
        let paths = spans.filter(|span| self.within.iter().any(|folder| span.starts_with(folder)));
        paths.map(|path| self.parts.iter().fold(path.to_owned(), |path, (part, is)| path.replace(part, is))).collect()
    }

    /// The production files that name the example.
    fn naming(&self, tree: &Tree) -> BTreeSet<String> {
        let code = tree.sources.iter().filter(|source| source.is_production());
        let code = code.map(|source| (source.path.as_str(), source.production_code()));
        let data = tree.idl.iter().chain(&tree.data).map(|(path, text)| (path.as_str(), text.clone()));
        let inside = code.chain(data).filter(|(path, _)| self.within.iter().any(|folder| path.starts_with(folder)));
        let naming = inside.filter(|(_, text)| plain(text).contains(self.example));
        naming.map(|(path, _)| path.to_owned()).collect()
    }
}

/// A text in lower case and without what separates words in names.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect()
}

/// The text below a heading, up to the next one.
fn section<'t>(document: &'t str, title: &str) -> Option<&'t str> {
    let below = document.split("\n## ").find_map(|part| part.strip_prefix(title)?.strip_prefix('\n'));
    below.map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Source;

    const MODE: &Recipe = &RECIPES[3];

    fn tree(recipe: &str, files: &[(&str, &str)]) -> Tree {
        let source = |(path, text): &(&str, &str)| Source { path: (*path).to_owned(), text: (*text).to_owned() };
        Tree {
            sources: files.iter().map(source).collect(),
            contributing: format!(
                "# Contributing\n\n## Add a proxy mode\n\n{recipe}\n\n## Rules\n\n`kube-proxy/src/x.rs`\n"
            ),
            ..Tree::default()
        }
    }

    #[test]
    fn a_recipe_that_names_all_places_is_true() {
        let found = MODE.untrue(&tree(
            "A folder `kube-proxy/src/<mode>/`, which implements `Backend`, and a line in `kube-proxy/src/mode.rs`.",
            &[
                ("kube-proxy/src/ipvs/mod.rs", "pub static MODE: Mode = Mode { name: \"ipvs\" };"),
                ("kube-proxy/src/mode.rs", "use crate::ipvs;"),
                ("kube-proxy/src/other.rs", "// ipvs\nfn other() {}"),
                ("kubelet/src/lib.rs", "const IPVS: u8 = 0;"),
            ],
        ));
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn places_that_are_missing_and_places_that_are_not_named_are_found() {
        let found = MODE.untrue(&tree(
            "A folder `kube-proxy/src/<mode>/` and a line in `kube-proxy/src/modes.rs`.",
            &[
                ("kube-proxy/src/ipvs/mod.rs", "const NAME: &str = \"ipvs\";"),
                ("kube-proxy/src/kernel.rs", "fn tune_ip_vs() {}"),
            ],
        ));
        assert_eq!(
            found,
            [
                "kube-proxy/src/modes.rs: the example is not there",
                "kube-proxy/src/kernel.rs: names the example, and the recipe does not say so"
            ]
        );
        assert_eq!(MODE.untrue(&Tree::default()), ["CONTRIBUTING.md has no section \"Add a proxy mode\""]);
    }
}
