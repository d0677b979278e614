//! Usage, help and version texts.

use std::fmt::Write;

use super::table::{FlagType, Row};

/// `--version`
pub(super) fn version() -> String {
    format!("Kubernetes {}\n", crate::version::git_version())
}

/// `--version=raw`, in Go's syntax.
pub(super) fn raw_version() -> String {
    let info = crate::version::info();
    let field = |name: &&str| {
        let mut key = (*name).to_owned();
        key[..1].make_ascii_lowercase();
        format!("{name}:{}", crate::status::go_quote(info[key.as_str()].as_str().unwrap_or("")))
    };
    let fields: Vec<String> = VERSION_FIELDS.iter().map(field).collect();
    format!("version.Info{{{}}}\n", fields.join(", "))
}

const VERSION_FIELDS: [&str; 13] = [
    "Major",
    "Minor",
    "EmulationMajor",
    "EmulationMinor",
    "MinCompatibilityMajor",
    "MinCompatibilityMinor",
    "GitVersion",
    "GitCommit",
    "GitTreeState",
    "BuildDate",
    "GoVersion",
    "Compiler",
    "Platform",
];

fn about(component: &str) -> &'static str {
    match component {
        "kube-apiserver" => "Serves the Kubernetes API over HTTPS and keeps its objects in etcd.",
        "kube-controller-manager" => "Runs the control loops that bring the cluster to the state its objects ask for.",
        "kube-scheduler" => "Assigns pods to nodes.",
        "kubelet" => "Runs the pods of one node through a CRI runtime.",
        "kube-proxy" => "Programs one node's packet rules for Services.",
        _ => "",
    }
}

/// Usage text for stderr after a bad flag.
pub(super) fn usage(component: &str, rows: &[Row]) -> String {
    let mut out = format!("Usage:\n  {component} [flags]\n");
    let mut section = None;
    for row in rows.iter().filter(|r| !r.hidden) {
        if section != Some(row.section) {
            section = Some(row.section);
            let mut title = row.section.to_owned();
            if let Some(first) = title.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            let heading = if row.section == "flags" { "Flags".to_owned() } else { format!("{title} flags") };
            let _ = write!(out, "\n{heading}:\n\n");
        }
        line(&mut out, row);
    }
    out
}

/// `--help`
pub(super) fn text(component: &str, rows: &[Row]) -> String {
    format!("{}\n\n{}", about(component), usage(component, rows))
}

fn line(out: &mut String, row: &Row) {
    let dashes = match row.shorthand {
        Some(letter) => format!("  -{letter}, --{}", row.name),
        None => format!("      --{}", row.name),
    };
    let kind = match row.kind {
        FlagType::Bool => String::new(),
        FlagType::Version => " version[=true]".to_owned(),
        FlagType::List => " strings".to_owned(),
        FlagType::Float { bits: 64 } => " float".to_owned(),
        FlagType::Int { bits: 64 } => " int".to_owned(),
        _ => format!(" {}", row.type_name),
    };
    let default = match (row.kind, row.default) {
        (_, "" | "[]" | "<nil>" | "0" | "0s" | "false") => String::new(),
        (FlagType::Text | FlagType::Map | FlagType::Configuration, text) => {
            format!("   (default {})", crate::status::go_quote(text))
        }
        (_, text) => format!("   (default {text})"),
    };
    let deprecated = if row.deprecated { "   (DEPRECATED)" } else { "" };
    let _ = writeln!(out, "{dashes}{kind}{default}{deprecated}");
}
