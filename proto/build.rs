//! Compiles the IDL in `k8s/` into `static` tables (`messages.rs`, `resources.rs` in `OUT_DIR`).

use std::collections::BTreeMap;
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

fn option(text: Option<&String>) -> String {
    text.map_or_else(|| "None".to_owned(), |t| format!("Some({})", cow(t)))
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

    /// Rust expression of a value's kind, and its Go type.
    fn kind(&self, kind: &Kind) -> Result<(String, String)> {
        Ok(match kind {
            Kind::Bool => ("Kind::Bool".into(), "bool".into()),
            Kind::Int32 => ("Kind::Int32".into(), "int32".into()),
            Kind::Int64 => ("Kind::Int64".into(), "int64".into()),
            Kind::Double => ("Kind::Double".into(), "float64".into()),
            Kind::String => ("Kind::String".into(), "string".into()),
            Kind::Bytes => ("Kind::Bytes".into(), "[]uint8".into()),
            Kind::Message(m) => {
                let entry = self.entries.get(m.full_name()).ok_or_else(|| format!("unknown {}", m.full_name()))?;
                let go = self.go_name(entry)?;
                let form = entry.options.text("form").unwrap_or_default();
                let special = match form.as_str() {
                    "" => return Ok((format!("Kind::Message(MessageRef::Static(&M{}))", entry.index), go)),
                    "quantity" => "Quantity",
                    "int_or_string" => "IntOrString",
                    "time" => "Time",
                    "micro_time" => "MicroTime",
                    "duration" => "Duration",
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
                (format!("Kind::{special}"), go)
            }
            other => return Err(format!("type {other:?} is not used").into()),
        })
    }

    /// Fields of a message as JSON shows them. `own` is false for spliced ones.
    fn fields(&self, entry: &Entry, own: bool, out: &mut Vec<String>) -> Result<()> {
        if entry.options.flag("type_meta") {
            for name in ["kind", "apiVersion"] {
                out.push(format!(
                    "f({name:?},0,Kind::String,Card::Single,O,ListType::Atomic,None,None,Cow::Borrowed(&[]),\"string\",\"TypeMeta\")"
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
                out.extend(self.inlined(&field)?);
                continue;
            }
            out.push(self.field(entry, &field, &options, own)?);
        }
        Ok(())
    }

    fn inlined(&self, field: &FieldDescriptor) -> Result<Vec<String>> {
        let Kind::Message(inner) = field.kind() else { return Err("inline scalar".into()) };
        let entry = self.entries.get(inner.full_name()).ok_or("inline")?;
        let mut out = Vec::new();
        self.fields(entry, false, &mut out)?;
        Ok(out)
    }

    fn field(&self, entry: &Entry, field: &FieldDescriptor, options: &Options, own: bool) -> Result<String> {
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
        let list = match options.text("list").as_deref() {
            Some("set") => "ListType::Set".to_owned(),
            Some("map") => format!("ListType::Map({})", cows(&options.texts("keys"))),
            _ => "ListType::Atomic".to_owned(),
        };
        let json = options.text("json").unwrap_or_else(|| field.name().to_owned());
        Ok(format!(
            "f({json:?},{},{kind},Card::{card},{},{list},{},{},{},{go:?},{:?})",
            if own && !json_only { field.number() } else { 0 },
            if flags.is_empty() { "0".to_owned() } else { flags.join("|") },
            option(options.text("merge_key").as_ref()),
            option(options.text("default").as_ref()),
            cows(&options.texts("enum")),
            entry.descriptor.name(),
        ))
    }

    fn wire(&self, entry: &Entry) -> Result<Vec<String>> {
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
                wire.push((field.number(), format!("Target::Inline(MessageRef::Static(&M{}))", inner.index)));
                at += self.inlined(&field)?.len();
            } else {
                wire.push((field.number(), format!("Target::Field({at})")));
                at += 1;
            }
        }
        wire.sort_by_key(|(number, _)| *number);
        Ok(wire.into_iter().map(|(number, target)| format!("WireField{{number:{number},target:{target}}}")).collect())
    }

    fn messages(&self) -> Result<String> {
        let mut text = String::from(HEAD);
        let mut kinds = Vec::new();
        for (name, entry) in &self.entries {
            let index = entry.index;
            let mut fields = Vec::new();
            let form = entry.options.text("form");
            let wire = if form.is_none() {
                self.fields(entry, true, &mut fields)?;
                self.wire(entry)?
            } else {
                Vec::new()
            };
            let file = self.file(&entry.descriptor)?;
            let kind = entry.descriptor.name();
            let mut registered = Vec::new();
            if entry.options.flag("kind") {
                registered.push((file.text("group").unwrap_or_default(), file.text("version").unwrap_or_default()));
            }
            for other in entry.options.texts("registered") {
                let (group, version) = other.rsplit_once('/').unwrap_or(("", &other));
                registered.push((group.to_owned(), version.to_owned()));
            }
            let gvk = registered.first().map_or_else(
                || "None".to_owned(),
                |(g, v)| format!("Some(Gvk{{group:{},version:{},kind:{}}})", cow(g), cow(v), cow(kind)),
            );
            for (group, version) in registered {
                kinds.push((group, version, kind.to_owned(), index));
            }
            writeln!(text, "static F{index}: [Field; {}] = [{}];", fields.len(), fields.join(","))?;
            writeln!(text, "static W{index}: [WireField; {}] = [{}];", wire.len(), wire.join(","))?;
            writeln!(
                text,
                "static M{index}: Message = Message{{name:{},fields:Cow::Borrowed(&F{index}),wire:Cow::Borrowed(&W{index}),\
                 gvk:{gvk},atomic:{},preserve_unknown:false,embedded_resource:false,has_protobuf:{},unions:{:?},\
                 go_package:{:?},derived:Derived::new()}};",
                cow(name),
                entry.options.flag("atomic"),
                !entry.options.flag("json_only"),
                entry.options.text("unions").unwrap_or_default(),
                file.text("go_package").unwrap_or_default(),
            )?;
        }
        let table: Vec<_> =
            self.entries.values().map(|e| format!("({:?},&M{})", e.descriptor.full_name(), e.index)).collect();
        writeln!(text, "static MESSAGES: &[(&str, &Message)] = &[{}];", table.join(",\n"))?;
        kinds.sort();
        let table: Vec<_> = kinds.iter().map(|(g, v, k, i)| format!("(({g:?},{v:?},{k:?}),&M{i})")).collect();
        writeln!(text, "static KINDS: &[((&str, &str, &str), &Message)] = &[{}];", table.join(",\n"))?;
        let pod =
            kinds.iter().find(|(g, v, k, _)| g.is_empty() && v == "v1" && k == "Pod").ok_or("no Pod in the IDL")?;
        writeln!(
            text,
            "/// A Pod's message. A program that names this one and looks none up does not carry the others."
        )?;
        writeln!(text, "pub static POD: &Message = &M{};", pod.3)?;
        Ok(text)
    }

    fn resources(&self) -> Result<String> {
        let ext = self.pool.get_extension_by_name("ironclad.resource").ok_or("resource extension")?;
        let mut rows = Vec::new();
        for entry in self.entries.values() {
            let file = self.file(&entry.descriptor)?;
            let options = entry.descriptor.options();
            let value = options.get_extension(&ext);
            for row in value.as_list().unwrap_or_default() {
                let row = Options(row.as_message().cloned());
                let plural = row.text("plural").unwrap_or_default();
                let key = (file.number("group_order"), file.number("version_order"), plural);
                rows.push((key, resource_row(&file, entry.descriptor.name(), &row)));
            }
        }
        rows.sort();
        let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
        Ok(format!(
            "const fn s(t: &'static str) -> Cow<'static, str> {{ Cow::Borrowed(t) }}\nstatic RESOURCES: &[Resource] = &[{}];\n",
            rows.join(",\n")
        ))
    }
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
         storage_version_hash:{},custom:None}}",
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
    )
}

const HEAD: &str = r#"
const fn s(t: &'static str) -> Cow<'static, str> { Cow::Borrowed(t) }
const P: u16 = 1;
const O: u16 = 2;
const Z: u16 = 4;
const R: u16 = 8;
const A: u16 = 16;
const PM: u16 = 32;
const PK: u16 = 64;
const PR: u16 = 128;
const U: u16 = 256;
const G: u16 = 512;
#[allow(clippy::too_many_arguments)]
const fn f(
    json: &'static str, number: u32, kind: Kind, card: Card, flags: u16, list_type: ListType,
    patch_merge_key: Option<Cow<'static, str>>, default: Option<Cow<'static, str>>,
    enums: Cow<'static, [Cow<'static, str>]>, go_type: &'static str, go_struct: &'static str,
) -> Field {
    Field {
        json: s(json), number, kind, card, pointer: flags & P != 0, omit_empty: flags & O != 0, omit_zero: flags & Z != 0,
        list_type, map_type: if flags & A != 0 { MapType::Atomic } else { MapType::Granular },
        patch: Patch { merge: flags & PM != 0, retain_keys: flags & PK != 0, replace: flags & PR != 0 },
        patch_merge_key, default, required: flags & R != 0, nullable: false, enums, unlisted: flags & U != 0, granular: flags & G != 0,
        go_type: s(go_type), go_struct: s(go_struct),
    }
}
"#;
