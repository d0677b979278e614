//! The tables of `docs/COMPATIBILITY.md`: upstream's flags, feature gates, configuration and metrics, and which of them the
//! components name.
//!
//! In: the tables of upstream's surface that the repository carries, and the production code of the components. Out: the part
//! of the document between its marks. A name counts when the component has it as a literal, or composes it by a format string
//! whose parts are literals. Never: a claim about how well it acts, which tests make.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use regex::Regex;
use serde_json::Value;

use crate::tree::Tree;

const DOCUMENT: &str = "docs/COMPATIBILITY.md";
const BEGIN: &str = "<!-- Made by `cargo xtask compatibility`; do not edit. -->\n";
const END: &str = "<!-- End of what is made. -->\n";
/// Programs, and the crates that they are.
const PROGRAMS: [(&str, &str); 5] = [
    ("kube-apiserver", "apiserver"),
    ("kube-controller-manager", "controller-manager"),
    ("kube-scheduler", "scheduler"),
    ("kubelet", "kubelet"),
    ("kube-proxy", "kube-proxy"),
];
/// API groups of configuration that is a program's; all others are the API server's.
const GROUPS: [(&str, &str); 5] = [
    ("kubelet.config.k8s.io", "kubelet"),
    ("kubescheduler.config.k8s.io", "scheduler"),
    ("kubeproxy.config.k8s.io", "kube-proxy"),
    ("kubecontrollermanager.config.k8s.io", "controller-manager"),
    ("controllermanager.config.k8s.io", "controller-manager"),
];
/// The crate whose code is every program's.
const SHARED: &str = "shared";
/// Lists of names that do nothing, which therefore are no sign of an effect.
const EFFECTS: &str = "kubelet/src/config/effects.rs";

/// Writes the tables into the document.
///
/// # Errors
/// When a file cannot be read or written, or the document has no marks.
pub fn write(root: &Path, tree: &Tree) -> Result<()> {
    let file = root.join(DOCUMENT);
    let text = read(root, DOCUMENT)?;
    std::fs::write(&file, replaced(&text, &render(root, tree)?)?).with_context(|| file.display().to_string())
}

fn read(root: &Path, path: &str) -> Result<String> {
    std::fs::read_to_string(root.join(path)).with_context(|| path.to_owned())
}

fn replaced(document: &str, tables: &str) -> Result<String> {
    let begin = document.find(BEGIN).with_context(|| format!("{DOCUMENT} has no {BEGIN}"))? + BEGIN.len();
    let end = document.find(END).with_context(|| format!("{DOCUMENT} has no {END}"))?;
    ensure!(begin <= end, "the marks of {DOCUMENT} are in disorder");
    Ok([&document[..begin], tables, &document[end..]].concat())
}

fn render(root: &Path, tree: &Tree) -> Result<String> {
    let names = PROGRAMS.iter().map(|(_, krate)| Ok((*krate, CodeNames::of(tree, krate)?))).collect::<Result<_>>()?;
    let mut text = flags(root, &names)?;
    text += &gates(root, &names)?;
    text += &configuration(root, &names)?;
    text += &metrics(root, &names)?;
    Ok(text)
}

/// Format strings that make a name together, one within another.
const NESTED: usize = 2;

type NamesByCrate = BTreeMap<&'static str, CodeNames>;

/// The names that a program's code has.
#[derive(Default)]
struct CodeNames {
    literals: BTreeSet<String>,
    words: BTreeSet<String>,
    formats: Vec<Regex>,
}

impl CodeNames {
    fn of(tree: &Tree, krate: &str) -> Result<Self> {
        let is_its =
            |path: &str| path != EFFECTS && [krate, SHARED].iter().any(|k| path.starts_with(&format!("{k}/src/")));
        let mut names = Self::default();
        for source in tree.sources.iter().filter(|source| source.is_production() && is_its(&source.path)) {
            // A module of tests may be declared anywhere, and ends a file where it is written out.
            let text = source.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let lines: Vec<&str> = text.lines().filter(|line| !is_comment(line)).collect();
            names.add(&lines.join("\n"))?;
        }
        Ok(names)
    }

    fn add(&mut self, text: &str) -> Result<()> {
        let literal = Regex::new(r#""([A-Za-z0-9_./:{}-]+)""#)?;
        for found in literal.captures_iter(text) {
            let found = &found[1];
            self.literals.insert(found.to_owned());
            // Fields are also named by their paths.
            self.literals.extend(found.split(['.', '/']).map(str::to_owned));
            if found.contains('{') {
                self.formats.extend(format_of(found));
            }
        }
        let word = Regex::new("[A-Za-z_][A-Za-z0-9_]*")?;
        self.words.extend(word.find_iter(text).map(|word| word.as_str().to_owned()));
        Ok(())
    }

    /// Reports whether a flag, gate or metric is named.
    fn has(&self, name: &str) -> bool {
        self.makes(name, NESTED)
    }

    /// Reports whether a name is written out, or made of parts that are, by format strings of this depth.
    fn makes(&self, name: &str, depth: usize) -> bool {
        let is_made = |part: &str| self.makes(part.trim_matches(['-', '_']), depth - 1);
        self.literals.contains(name)
            || depth > 0
                && self
                    .formats
                    .iter()
                    .filter_map(|format| format.captures(name))
                    .any(|parts| parts.iter().skip(1).flatten().all(|part| is_made(part.as_str())))
    }

    /// Reports whether a field is named, also as one of a structure.
    fn has_field(&self, name: &str) -> bool {
        self.has(name) || self.words.contains(&snake_case(name)) || self.words.contains(name)
    }
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// The names that a format string makes: each `{…}` is a part. None for one that has too little text of its own.
fn format_of(literal: &str) -> Option<Regex> {
    let mut pattern = String::from("^");
    let mut own = 0;
    for (at, piece) in literal.split('{').enumerate() {
        let text = match at {
            0 => piece,
            _ => piece.split_once('}')?.1,
        };
        own += text.len();
        if at > 0 {
            // The shortest: a part that is a word, and a last one of any length.
            pattern.push_str("([A-Za-z0-9_-]+?)");
        }
        pattern.push_str(&regex::escape(text));
    }
    (own > 3).then(|| Regex::new(&(pattern + "$")).ok()).flatten()
}

fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for (at, letter) in name.char_indices() {
        let after_small = at > 0 && name[..at].ends_with(|before: char| !before.is_uppercase());
        if letter.is_uppercase() && after_small {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

/// CodeNames for a cell: in a row, or a dash.
fn cell<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "–".to_owned() } else { names.join(", ") }
}

/// The strings of a list of the kubelet's effects, the first of each element.
fn listed(effects: &str, list: &str) -> Result<BTreeSet<String>> {
    let body = Regex::new(&format!(r"(?s)const {list}: \[[^=]*= \[\n(.*?)\n\];"))?;
    let body = body.captures(effects).with_context(|| format!("{EFFECTS} has no {list}"))?;
    let first = Regex::new(r#"(?m)^\s*\(?"([^"]+)""#)?;
    Ok(first.captures_iter(&body[1]).map(|name| name[1].to_owned()).collect())
}

fn flags(root: &Path, names: &NamesByCrate) -> Result<String> {
    let moot = listed(&read(root, EFFECTS)?, "MOOT_FLAGS")?;
    let mut text = "\n## Flags\n\nEvery flag of upstream is accepted. One without effect says so once at start.\n\n\
         | program | flags | without effect here | without effect upstream either |\n|---|---|---|---|\n"
        .to_owned();
    for (program, krate) in PROGRAMS {
        let table = read(root, &format!("shared/src/flags/tables/{program}.txt"))?;
        let flags: Vec<&str> =
            table.lines().filter(|line| !line.starts_with('[')).filter_map(|line| line.split('\t').next()).collect();
        let is_moot = |flag: &str| krate == "kubelet" && moot.contains(flag);
        let idle = flags.iter().copied().filter(|flag| !is_moot(flag) && !names[krate].has(flag));
        let moot = flags.iter().copied().filter(|flag| is_moot(flag));
        writeln!(text, "| {program} | {} | {} | {} |", flags.len(), cell(idle), cell(moot))?;
    }
    Ok(text)
}

fn gates(root: &Path, names: &NamesByCrate) -> Result<String> {
    let table = read(root, "shared/src/flags/tables/feature-gates.txt")?;
    let mut stages: BTreeMap<&str, (usize, Vec<&str>, usize)> = BTreeMap::new();
    for line in table.lines() {
        let mut words = line.split(' ');
        let (Some(name), Some(stage)) = (words.next(), words.next()) else { continue };
        let (count, idle, locked) = stages.entry(stage).or_default();
        *count += 1;
        let asked = names.values().any(|names| names.has_field(name));
        if words.nth(1) == Some("locked") {
            *locked += 1;
        } else if !asked {
            idle.push(name);
        }
    }
    let mut text =
        "\n## Feature gates\n\nEvery gate of upstream is known with its stage, default and lock. The setting of one \
         that no component asks for changes nothing, and a warning says so where it is not the default.\n\n\
         | stage | gates | of them locked | not locked, and asked for by no component |\n|---|---|---|---|\n"
            .to_owned();
    for (stage, (count, idle, locked)) in stages {
        writeln!(text, "| {stage} | {count} | {locked} | {} |", cell(idle))?;
    }
    Ok(text)
}

/// Fields of a kind and of all types below it.
fn fields_below<'t>(types: &BTreeMap<&str, Vec<(&'t str, &'t str)>>, kind: &str) -> BTreeSet<&'t str> {
    let (mut fields, mut seen, mut next) = (BTreeSet::new(), BTreeSet::new(), vec![kind.to_owned()]);
    while let Some(at) = next.pop() {
        if !seen.insert(at.clone()) {
            continue;
        }
        for (name, of) in types.get(at.as_str()).into_iter().flatten() {
            fields.insert(*name);
            let of = of.rsplit(['*', ']']).next().unwrap_or_default();
            next.push(of.to_owned());
        }
    }
    fields.remove("");
    fields
}

fn configuration(root: &Path, names: &NamesByCrate) -> Result<String> {
    let (types, kinds) =
        (read(root, "shared/src/config/tables/types.txt")?, read(root, "shared/src/config/tables/kinds.txt")?);
    let mut fields: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    let mut of = "";
    for line in types.lines() {
        match (line.strip_prefix("= "), line.split_once('\t')) {
            (Some(name), _) => of = name.split('\t').next().unwrap_or_default(),
            (None, Some(field)) => fields.entry(of).or_default().push(field),
            (None, None) => {}
        }
    }
    let idle_kubelet = listed(&read(root, EFFECTS)?, "IDLE")?;
    let mut text =
        "\n## Configuration files\n\nEvery field of upstream's is read and checked as upstream does it. The kubelet \
         and kube-proxy name those without effect in their logs when they are set.\n\n| kind | fields | without effect |\n|---|---|---|\n"
            .to_owned();
    for line in kinds.lines() {
        let &[group, version, kind, of] = line.split('\t').collect::<Vec<_>>().as_slice() else { continue };
        let krate = GROUPS.iter().find(|(known, _)| *known == group).map_or("apiserver", |(_, krate)| *krate);
        let all = fields_below(&fields, of);
        let is_idle = |field: &str| {
            (kind == "KubeletConfiguration" && idle_kubelet.contains(field)) || !names[krate].has_field(field)
        };
        let version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let idle = all.iter().copied().filter(|field| is_idle(field));
        writeln!(text, "| {version} {kind} | {} | {} |", all.len(), cell(idle))?;
    }
    Ok(text)
}

fn metrics(root: &Path, names: &NamesByCrate) -> Result<String> {
    let mut text =
        "\n## Metrics\n\nThe metrics that upstream shows in a small cluster. Tests compare types, labels and buckets.\n\n\
         | program | metrics | missing |\n|---|---|---|\n"
            .to_owned();
    for (program, krate) in PROGRAMS {
        let file = format!("{krate}/testdata/metrics.json");
        if !root.join(&file).exists() {
            continue;
        }
        let known: BTreeMap<String, Value> = serde_json::from_str(&read(root, &file)?).with_context(|| file.clone())?;
        let missing = known.keys().map(String::as_str).filter(|name| !names[krate].has_field(name));
        writeln!(text, "| {program} | {} | {} |", known.len(), cell(missing))?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_has_the_tables_of_this_tree() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace");
        let tree = Tree::read(root).expect("a tree");
        let text = read(root, DOCUMENT).expect("a document");
        let current = replaced(&text, &render(root, &tree).expect("tables")).expect("marks");
        assert!(text == current, "{DOCUMENT} is stale; run: cargo xtask compatibility");
    }

    #[test]
    fn names_are_literals_or_composed_of_literals() {
        let mut names = CodeNames::default();
        let code = r#"read("cors"); read(format!("audit-{what}-{rest}")); ["log", "batch"]; at("eviction.hard"); self.max_pods;
            count(format!("pages_{name}")); format!("asked_{how}")"#;
        names.add(code).expect("names");
        for (name, expected) in [
            ("cors", true),
            ("audit-log-batch", true),
            ("audit-log-mode", false),
            ("audit", false),
            ("cor", false),
            ("pages_asked_log", true),
            ("pages_asked_once", false),
        ] {
            assert_eq!(names.has(name), expected, "{name}");
        }
        for (field, expected) in [("hard", true), ("maxPods", true), ("minPods", false)] {
            assert_eq!(names.has_field(field), expected, "{field}");
        }
    }

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let document = format!("a\n{BEGIN}old\n{END}b\n");
        assert_eq!(replaced(&document, "new\n").expect("marks"), format!("a\n{BEGIN}new\n{END}b\n"));
        assert!(replaced("no marks", "new\n").is_err());
    }

    #[test]
    fn words_of_field_names_are_told_apart() {
        for (name, expected) in [("maxPods", "max_pods"), ("enableDSR", "enable_dsr"), ("cpuCFSQuota", "cpu_cfsquota")]
        {
            assert_eq!(snake_case(name), expected);
        }
    }

    #[test]
    fn lists_of_effects_are_read() {
        let text = "const IDLE: [(&str, &str); 2] = [\n    (\"a\", \"why\"),\n    (\"b\", \"why\"),\n];\n";
        assert_eq!(listed(text, "IDLE").expect("a list"), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        assert!(listed(text, "MOOT").is_err());
    }
}
