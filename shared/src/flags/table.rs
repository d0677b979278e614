//! The flags of each component as compact text tables: name, type, marks, default, in sections.

/// A flag's type; it decides which texts are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagType {
    Text,
    Bool,
    Version,
    Int {
        bits: u32,
    },
    Uint,
    Float {
        bits: u32,
    },
    Duration,
    List,
    Array,
    Map,
    /// `key=value` pairs, and keys alone.
    Configuration,
    /// `signal<value` pairs.
    Thresholds,
    BoolMap,
    Pairs,
    /// `[component:]gate=bool` pairs.
    Gates,
    /// `name:value` pairs.
    Headers,
    Address,
    AddressPort,
    PortRange,
    Quantity,
    NamedKeys,
    Level,
    Patterns,
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) section: &'static str,
    pub(super) name: &'static str,
    /// Upstream's type name, as help prints it.
    pub(super) type_name: &'static str,
    pub(super) kind: FlagType,
    pub(super) default: &'static str,
    pub(super) deprecated: bool,
    pub(super) hidden: bool,
    /// May stand without a value, and is then `true`.
    pub(super) optional: bool,
    pub(super) shorthand: Option<char>,
}

const COMPONENTS: [(&str, &str); 5] = [
    ("kube-apiserver", include_str!("tables/kube-apiserver.txt")),
    ("kube-controller-manager", include_str!("tables/kube-controller-manager.txt")),
    ("kube-proxy", include_str!("tables/kube-proxy.txt")),
    ("kube-scheduler", include_str!("tables/kube-scheduler.txt")),
    ("kubelet", include_str!("tables/kubelet.txt")),
];

/// The component's own static name and its rows, sorted by name within sections. Empty for an unknown component.
pub(super) fn rows(component: &str) -> (&'static str, Vec<Row>) {
    let Some((name, text)) = COMPONENTS.iter().find(|(name, _)| *name == component) else { return ("", Vec::new()) };
    let mut section = "";
    let mut rows = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = title;
        } else {
            rows.push(row(section, line));
        }
    }
    (name, rows)
}

fn row(section: &'static str, line: &'static str) -> Row {
    let mut cells = line.splitn(4, '\t');
    let mut cell = || cells.next().unwrap_or("");
    let (name, type_name, marks, default) = (cell(), cell(), cell(), cell());
    let (marks, shorthand) = marks.split_once('=').unwrap_or((marks, ""));
    Row {
        section,
        name,
        type_name,
        // Upstream has one type name for several ways to read a map.
        kind: match name {
            "eviction-hard" | "eviction-soft" => FlagType::Thresholds,
            "manifest-url-header" => FlagType::Headers,
            "runtime-config" | "node-labels" => FlagType::Configuration,
            _ => kind(type_name),
        },
        default,
        deprecated: marks.contains('d'),
        hidden: marks.contains('h'),
        optional: marks.contains('o'),
        shorthand: shorthand.chars().next(),
    }
}

fn kind(type_name: &str) -> FlagType {
    match type_name {
        "bool" => FlagType::Bool,
        "version" => FlagType::Version,
        "int" | "int64" => FlagType::Int { bits: 64 },
        "int32" => FlagType::Int { bits: 32 },
        "uint" => FlagType::Uint,
        "float32" => FlagType::Float { bits: 32 },
        "float64" => FlagType::Float { bits: 64 },
        "duration" => FlagType::Duration,
        "stringSlice" => FlagType::List,
        "stringArray" => FlagType::Array,
        "mapStringString" => FlagType::Map,
        "mapStringBool" => FlagType::BoolMap,
        "stringToString" => FlagType::Pairs,
        "colonSeparatedMultimapStringString" => FlagType::Gates,
        "ip" => FlagType::Address,
        "ipport" => FlagType::AddressPort,
        "portRange" => FlagType::PortRange,
        "quantity" => FlagType::Quantity,
        "namedCertKey" => FlagType::NamedKeys,
        "Level" => FlagType::Level,
        "pattern=N,..." => FlagType::Patterns,
        _ => FlagType::Text,
    }
}
