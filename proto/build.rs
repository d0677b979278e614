//! Compiles the IDL in `k8s/` into `static` tables (`messages.rs`, `resources.rs` in `OUT_DIR`),
//! and into constants of field numbers (`numbers.rs`).
//! The rows of `messages.rs` are declared and read in `src/schema/builtin.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use protox::prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage, Value,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=k8s");
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let mut files = Vec::new();
    find(&root.join("k8s"), &mut files)?;
    files.sort();
    let mut compiler = protox::Compiler::new([&root])?;
    compiler.open_files(files.iter())?;
    let idl = Idl::new(compiler.descriptor_pool())?;
    std::fs::write(out.join("messages.rs"), idl.messages()?)?;
    std::fs::write(out.join("resources.rs"), idl.resources()?)?;
    std::fs::write(out.join("numbers.rs"), idl.numbers())?;
    Ok(())
}

fn find(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "proto") {
            files.push(path);
        }
    }
    Ok(())
}

/// Options of one element, with typed access by name.
struct Options(Option<DynamicMessage>);

impl Options {
    fn of(options: &DynamicMessage, pool: &DescriptorPool, extension: &str) -> Result<Self> {
        let ext = pool.get_extension_by_name(extension).ok_or("unknown extension")?;
        if !options.has_extension(&ext) {
            return Ok(Self(None));
        }
        Ok(Self(options.get_extension(&ext).as_message().cloned()))
    }

    fn get(&self, name: &str) -> Option<Value> {
        let message = self.0.as_ref()?;
        let field = message.descriptor().get_field_by_name(name)?;
        message.has_field(&field).then(|| message.get_field(&field).into_owned())
    }

    fn flag(&self, name: &str) -> bool {
        self.get(name).and_then(|v| v.as_bool()).unwrap_or_default()
    }

    fn text(&self, name: &str) -> Option<String> {
        self.get(name).and_then(|v| v.as_str().map(str::to_owned))
    }

    fn number(&self, name: &str) -> Option<u32> {
        self.get(name).and_then(|v| v.as_u32())
    }

    fn texts(&self, name: &str) -> Vec<String> {
        let value = self.get(name);
        let list = value.as_ref().and_then(Value::as_list).unwrap_or_default();
        list.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect()
    }

    fn children(&self, name: &str) -> Vec<Options> {
        let value = self.get(name);
        let list = value.as_ref().and_then(Value::as_list).unwrap_or_default();
        list.iter().map(|v| Options(v.as_message().cloned())).collect()
    }
}

struct Entry {
    descriptor: MessageDescriptor,
    options: Options,
    index: usize,
}

struct Idl {
    pool: DescriptorPool,
    entries: BTreeMap<String, Entry>,
}

/// Separates the words of a name in camel case; the plural of an abbreviation is one word (`podIPs`, `pod_ips`).
fn snake(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut out = String::new();
    for (at, letter) in letters.iter().enumerate() {
        let after_small = at > 0 && !letters[at - 1].is_uppercase() && letters[at - 1] != '_';
        let plural = letters.get(at + 1) == Some(&'s') && letters.get(at + 2).is_none_or(|next| next.is_uppercase());
        let before_small = at > 0 && letters.get(at + 1).is_some_and(|next| next.is_lowercase()) && !plural;
        if letter.is_uppercase() && (after_small || (before_small && letters[at - 1] != '_')) {
            out.push('_');
        }
        out.extend(letter.to_lowercase());
    }
    out
}

fn cow(text: &str) -> String {
    format!("s({text:?})")
}

fn cows(texts: &[String]) -> String {
    if texts.is_empty() {
        return "Cow::Borrowed(&[])".to_owned();
    }
    let list: Vec<_> = texts.iter().map(|t| cow(t)).collect();
    format!("Cow::Borrowed(const {{ &[{}] }})", list.join(","))
}

/// The tables of `messages.rs` as they grow: texts and lists of texts are stored once, rows refer to them by number.
struct Tables {
    numbers: BTreeMap<String, usize>,
    texts: String,
    ends: Vec<usize>,
    words: Vec<String>,
    fields: Vec<String>,
    wire: Vec<String>,
}

impl Tables {
    fn new() -> Self {
        let numbers = BTreeMap::from([(String::new(), 0)]);
        Self { numbers, texts: String::new(), ends: vec![0], words: Vec::new(), fields: Vec::new(), wire: Vec::new() }
    }

    fn text(&mut self, text: &str) -> String {
        let known = self.numbers.get(text).copied();
        let number = known.unwrap_or_else(|| {
            self.texts.push_str(text);
            self.ends.push(self.texts.len());
            self.numbers.insert(text.to_owned(), self.ends.len() - 1);
            self.ends.len() - 1
        });
        format!("Text({number})")
    }

    fn words(&mut self, list: &[String]) -> String {
        let list: Vec<_> = list.iter().map(|t| self.text(t)).collect();
        span(&mut self.words, list)
    }

    fn print(&self) -> Result<String> {
        let mut text = String::new();
        writeln!(text, "static TEXTS: &str = {:?};", self.texts)?;
        writeln!(text, "static ENDS: [u32; {}] = {:?};", self.ends.len(), self.ends)?;
        for (name, row, rows) in
            [("WORDS", "Text", &self.words), ("FIELDS", "FieldRow", &self.fields), ("WIRE", "WireRow", &self.wire)]
        {
            writeln!(text, "static {name}: [{row}; {}] = [{}];", rows.len(), rows.join(",\n"))?;
        }
        Ok(text)
    }
}

/// Appends rows to a table; the expression of their range. A range that is there already is named again.
fn span(table: &mut Vec<String>, rows: Vec<String>) -> String {
    if rows.is_empty() {
        return "Span(0,0)".to_owned();
    }
    let len = rows.len();
    let known = table.windows(len).position(|w| w == rows);
    let start = known.unwrap_or_else(|| {
        table.extend(rows);
        table.len() - len
    });
    format!("Span({start},{len})")
}

impl Idl {
    fn new(pool: DescriptorPool) -> Result<Self> {
        let mut entries = BTreeMap::new();
        for descriptor in pool.all_messages() {
            let name = descriptor.full_name().to_owned();
            if descriptor.is_map_entry() || name.starts_with("google.") {
                continue;
            }
            if name.starts_with("ironclad.") && name != "ironclad.AnyValue" {
                continue;
            }
            let options = Options::of(&descriptor.options(), &pool, "ironclad.type")?;
            entries.insert(name, Entry { descriptor, options, index: 0 });
        }
        for (index, entry) in entries.values_mut().enumerate() {
            entry.index = index;
        }
        Ok(Self { pool, entries })
    }

    fn file(&self, descriptor: &MessageDescriptor) -> Result<Options> {
        Options::of(&descriptor.parent_file().options(), &self.pool, "ironclad.file")
    }

    /// Go package and type name, as error texts have it.
    fn go_name(&self, entry: &Entry) -> Result<String> {
        let package = self.file(&entry.descriptor)?.text("go_package").unwrap_or_default();
        Ok(format!("{package}.{}", entry.descriptor.name()))
    }

    /// The `Kinds` of a value, and its Go type.
    fn kind(&self, kind: &Kind) -> Result<(String, String)> {
        Ok(match kind {
            Kind::Bool => ("Kinds::Bool".into(), "bool".into()),
            Kind::Int32 => ("Kinds::Int32".into(), "int32".into()),
            Kind::Int64 => ("Kinds::Int64".into(), "int64".into()),
            Kind::Double => ("Kinds::Double".into(), "float64".into()),
            Kind::String => ("Kinds::String".into(), "string".into()),
            Kind::Bytes => ("Kinds::Bytes".into(), "[]uint8".into()),
            Kind::Message(m) => {
                let entry = self.entries.get(m.full_name()).ok_or_else(|| format!("unknown {}", m.full_name()))?;
                let go = self.go_name(entry)?;
                let form = entry.options.text("form").unwrap_or_default();
                let special = match form.as_str() {
                    "" => return Ok((format!("Kinds::Message({})", entry.index), go)),
                    "quantity" => "Quantity",
                    "int_or_string" => "IntOrString",
                    "time" => "Time",
                    "micro_time" => "MicroTime",
                    "raw_extension" => "RawExtension",
                    "fields_v1" => "FieldsV1",
                    "json" => "Json",
                    "schema_or_bool" => "SchemaOrBool",
                    "schema_or_array" => "SchemaOrArray",
                    "schema_or_strings" => "SchemaOrStrings",
                    "string_list" => "StringList",
                    "any" => "Any",
                    other => return Err(format!("form {other}").into()),
                };
                (format!("Kinds::{special}"), go)
            }
            other => return Err(format!("type {other:?} is not used").into()),
        })
    }

    /// Constants of field numbers: a module for each package, in it one for each message.
    fn numbers(&self) -> String {
        let mut packages: BTreeMap<String, String> = BTreeMap::new();
        for entry in self.entries.values() {
            let package: Vec<_> = entry.descriptor.package_name().rsplit('.').take(2).collect();
            let package = package.into_iter().rev().collect::<Vec<_>>().join("_");
            let fields: String = entry
                .descriptor
                .fields()
                .map(|field| format!("pub const {}:u32={};", snake(field.name()).to_uppercase(), field.number()))
                .collect();
            let message = format!("pub mod {}{{{fields}}}\n", snake(entry.descriptor.name()));
            packages.entry(package).or_default().push_str(&message);
        }
        packages
            .iter()
            .fold(String::new(), |all, (package, messages)| all + &format!("pub mod {package}{{\n{messages}}}\n"))
    }

    /// Fields of a message as JSON shows them. `own` is false for spliced ones.
    fn fields(&self, tables: &mut Tables, entry: &Entry, own: bool, out: &mut Vec<String>) -> Result<()> {
        if entry.options.flag("type_meta") {
            for name in ["kind", "apiVersion"] {
                let (json, go, of) = (tables.text(name), tables.text("string"), tables.text("TypeMeta"));
                out.push(format!(
                    "FieldRow{{json:{json},number:0,kind:Kinds::String,card:Card::Single,flags:O,list_keys:Span(0,0),\
                     patch_merge_key:Text(0),default:Text(0),enums:Span(0,0),go_type:{go},go_struct:{of}}}"
                ));
            }
        }
        let mut declared: Vec<FieldDescriptor> = entry.descriptor.fields().collect();
        let order: BTreeMap<u32, usize> = entry
            .descriptor
            .descriptor_proto()
            .field
            .iter()
            .enumerate()
            .map(|(i, f)| (f.number().unsigned_abs(), i))
            .collect();
        declared.sort_by_key(|f| order.get(&f.number()).copied());
        for field in declared {
            let options = Options::of(&field.options(), &self.pool, "ironclad.field")?;
            if options.flag("inline") {
                out.extend(self.inlined(tables, &field)?);
                continue;
            }
            out.push(self.field(tables, entry, &field, &options, own)?);
        }
        Ok(())
    }

    fn inlined(&self, tables: &mut Tables, field: &FieldDescriptor) -> Result<Vec<String>> {
        let Kind::Message(inner) = field.kind() else { return Err("inline scalar".into()) };
        let entry = self.entries.get(inner.full_name()).ok_or("inline")?;
        let mut out = Vec::new();
        self.fields(tables, entry, false, &mut out)?;
        Ok(out)
    }

    fn field(
        &self,
        tables: &mut Tables,
        entry: &Entry,
        field: &FieldDescriptor,
        options: &Options,
        own: bool,
    ) -> Result<String> {
        let (card, value_kind) = match field.kind() {
            Kind::Message(m) if m.is_map_entry() => ("Map", m.map_entry_value_field().kind()),
            kind if field.is_list() => ("Repeated", kind),
            kind => ("Single", kind),
        };
        let (kind, go) = self.kind(&value_kind)?;
        let prefix = match card {
            "Map" => "map[string]",
            "Repeated" => "[]",
            _ => "",
        };
        let json_only = entry.options.flag("json_only");
        let go = match options.text("go") {
            Some(named) if card == "Repeated" => format!("[]{named}"),
            Some(named) => named,
            None => format!("{prefix}{go}"),
        };
        let mut flags = Vec::new();
        for (name, flag) in [
            ("pointer", "P"),
            ("omitempty", "O"),
            ("omitzero", "Z"),
            ("required", "R"),
            ("atomic_map", "A"),
            ("unlisted", "U"),
            ("granular", "G"),
        ] {
            if options.flag(name) {
                flags.push(flag);
            }
        }
        let patch = options.text("patch").unwrap_or_default();
        for (word, flag) in [("merge", "PM"), ("retainKeys", "PK"), ("replace", "PR")] {
            if patch.split(',').any(|p| p == word) {
                flags.push(flag);
            }
        }
        let list = options.text("list").unwrap_or_default();
        for (word, flag) in [("set", "LS"), ("map", "LM")] {
            if list == word {
                flags.push(flag);
            }
        }
        let keys = if list == "map" { options.texts("keys") } else { Vec::new() };
        let json = options.text("json").unwrap_or_else(|| field.name().to_owned());
        let number = if own && !json_only { u16::try_from(field.number())? } else { 0 };
        let flags = if flags.is_empty() { "0".to_owned() } else { flags.join("|") };
        Ok(format!(
            "FieldRow{{json:{},number:{number},kind:{kind},card:Card::{card},flags:{flags},list_keys:{},\
             patch_merge_key:{},default:{},enums:{},go_type:{},go_struct:{}}}",
            tables.text(&json),
            tables.words(&keys),
            tables.text(&options.text("merge_key").unwrap_or_default()),
            tables.text(&options.text("default").unwrap_or_default()),
            tables.words(&options.texts("enum")),
            tables.text(&go),
            tables.text(entry.descriptor.name()),
        ))
    }

    fn wire(&self, tables: &mut Tables, entry: &Entry) -> Result<Vec<String>> {
        if entry.options.flag("json_only") {
            return Ok(Vec::new());
        }
        let mut at = if entry.options.flag("type_meta") { 2 } else { 0 };
        let mut wire = Vec::new();
        for proto in &entry.descriptor.descriptor_proto().field {
            let field = entry.descriptor.get_field(proto.number().unsigned_abs()).ok_or("field")?;
            let options = Options::of(&field.options(), &self.pool, "ironclad.field")?;
            if options.flag("inline") {
                let Kind::Message(inner) = field.kind() else { return Err("inline scalar".into()) };
                let inner = self.entries.get(inner.full_name()).ok_or("inline")?;
                wire.push((field.number(), format!("Place::Inline({})", inner.index)));
                at += self.inlined(tables, &field)?.len();
            } else {
                wire.push((field.number(), format!("Place::Field({at})")));
                at += 1;
            }
        }
        wire.sort_by_key(|(number, _)| *number);
        Ok(wire.into_iter().map(|(number, target)| format!("WireRow{{number:{number},target:{target}}}")).collect())
    }

    fn messages(&self) -> Result<String> {
        let mut tables = Tables::new();
        let (mut rows, mut kinds) = (Vec::new(), Vec::new());
        for (name, entry) in &self.entries {
            let (fields, wire) = self.layout(&mut tables, entry)?;
            let file = self.file(&entry.descriptor)?;
            let kind = entry.descriptor.name();
            let registered = registered(entry, &file);
            let gvk =
                registered.first().map_or_else(Default::default, |(g, v)| (g.clone(), v.clone(), kind.to_owned()));
            rows.push(format!(
                "MessageRow{{name:{},fields:{},wire:{},gvk:({},{},{}),atomic:{},has_protobuf:{},unions:{},go_package:{}}}",
                tables.text(name),
                span(&mut tables.fields, fields),
                span(&mut tables.wire, wire),
                tables.text(&gvk.0),
                tables.text(&gvk.1),
                tables.text(&gvk.2),
                entry.options.flag("atomic"),
                !entry.options.flag("json_only"),
                tables.text(&entry.options.text("unions").unwrap_or_default()),
                tables.text(&file.text("go_package").unwrap_or_default()),
            ));
            kinds.extend(registered.into_iter().map(|(g, v)| (g, v, kind.to_owned(), entry.index)));
        }
        kinds.sort();
        let numbered: Vec<_> = kinds
            .iter()
            .map(|(g, v, k, i)| format!("(({},{},{}),{i})", tables.text(g), tables.text(v), tables.text(k)))
            .collect();
        let mut text = tables.print()?;
        writeln!(text, "static MESSAGES: [MessageRow; {}] = [{}];", rows.len(), rows.join(",\n"))?;
        writeln!(text, "static KINDS: [((Text,Text,Text),u16); {}] = [{}];", numbered.len(), numbered.join(",\n"))?;
        let pod =
            kinds.iter().find(|(g, v, k, _)| g.is_empty() && v == "v1" && k == "Pod").ok_or("no Pod in the IDL")?;
        writeln!(text, "const POD: Builtin = Builtin({});", pod.3)?;
        Ok(text)
    }

    /// Fields and protobuf layout of a message; none of either for types with a form of their own.
    fn layout(&self, tables: &mut Tables, entry: &Entry) -> Result<(Vec<String>, Vec<String>)> {
        if entry.options.text("form").is_some() {
            return Ok((Vec::new(), Vec::new()));
        }
        let mut fields = Vec::new();
        self.fields(tables, entry, true, &mut fields)?;
        Ok((fields, self.wire(tables, entry)?))
    }

    fn resources(&self) -> Result<String> {
        let ext = self.pool.get_extension_by_name("ironclad.resource").ok_or("resource extension")?;
        let (mut on, mut off) = (BTreeSet::new(), BTreeSet::new());
        for entry in self.entries.values() {
            let file = self.file(&entry.descriptor)?;
            let rows = if file.flag("off") { &mut off } else { &mut on };
            let options = entry.descriptor.options();
            let value = options.get_extension(&ext);
            for row in value.as_list().unwrap_or_default() {
                let row = Options(row.as_message().cloned());
                let plural = row.text("plural").unwrap_or_default();
                let key = (file.number("group_order"), file.number("version_order"), plural);
                rows.insert((key, resource_row(&file, entry.descriptor.name(), &row)));
            }
        }
        let sorted = |rows: BTreeSet<(_, String)>| rows.into_iter().map(|(_, row)| row).collect::<Vec<_>>().join(",\n");
        Ok(format!(
            "const fn s(t: &'static str) -> Cow<'static, str> {{ Cow::Borrowed(t) }}\n\
             static RESOURCES: &[Resource] = &[{}];\nstatic OPTIONAL: &[Resource] = &[{}];\n",
            sorted(on),
            sorted(off)
        ))
    }
}

/// The groups and versions in which a message is a root kind.
fn registered(entry: &Entry, file: &Options) -> Vec<(String, String)> {
    let own = entry.options.flag("kind");
    let own = own.then(|| (file.text("group").unwrap_or_default(), file.text("version").unwrap_or_default()));
    let others = entry.options.texts("registered");
    let others = others.iter().map(|other| {
        let (group, version) = other.rsplit_once('/').unwrap_or(("", other));
        (group.to_owned(), version.to_owned())
    });
    own.into_iter().chain(others).collect()
}

fn resource_row(file: &Options, kind: &str, row: &Options) -> String {
    let group = file.text("group").unwrap_or_default();
    let version = file.text("version").unwrap_or_default();
    let storage = row.text("storage").map_or_else(
        || (group.clone(), version.clone()),
        |s| s.rsplit_once('/').map_or_else(|| (String::new(), s.clone()), |(g, v)| (g.to_owned(), v.to_owned())),
    );
    let subs: Vec<_> = row
        .children("sub")
        .iter()
        .map(|sub| {
            let (sub_group, sub_version) = (sub.text("group"), sub.text("version"));
            format!(
                "Subresource{{name:{},kind:{},verbs:{},group:{},version:{},response_group:{},response_version:{}}}",
                cow(&sub.text("name").unwrap_or_default()),
                cow(&sub.text("kind").unwrap_or_default()),
                cows(&sub.texts("verb")),
                cow(sub_version.as_ref().map_or(&group, |_| sub_group.as_ref().unwrap_or(&group))),
                cow(sub_version.as_ref().unwrap_or(&version)),
                cow(&sub_group.clone().unwrap_or_default()),
                cow(&sub_version.clone().unwrap_or_default()),
            )
        })
        .collect();
    let subs = if subs.is_empty() {
        "Cow::Borrowed(&[])".to_owned()
    } else {
        format!("Cow::Borrowed(const {{ &[{}] }})", subs.join(","))
    };
    format!(
        "Resource{{group:{},version:{},kind:{},list_kind:{},plural:{},singular:{},short_names:{},categories:{},\
         namespaced:{},verbs:{},subresources:{subs},storage:({},{}),storage_kind:{},storage_json:{},etcd_prefix:{},\
         storage_version_hash:{},returns_deleted:{},kept:None,custom:None}}",
        cow(&group),
        cow(&version),
        cow(kind),
        cow(&row.text("list_kind").unwrap_or_default()),
        cow(&row.text("plural").unwrap_or_default()),
        cow(&row.text("singular").unwrap_or_default()),
        cows(&row.texts("short")),
        cows(&row.texts("category")),
        row.flag("namespaced"),
        cows(&row.texts("verb")),
        cow(&storage.0),
        cow(&storage.1),
        cow(kind),
        row.flag("json"),
        cow(&row.text("etcd").unwrap_or_default()),
        cow(&row.text("hash").unwrap_or_default()),
        row.flag("returns_deleted"),
    )
}
