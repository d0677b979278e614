//! `format.*`: named formats that check texts.

use ::cel::Value;
use ::cel::objects::Opaque;

use super::{ANY, Answer, Entry, TEXT, entry, inside, opaque, overload, string, text};
use proto::selector::format as names;

#[derive(Debug, PartialEq, Eq)]
struct Format(&'static str);

impl Opaque for Format {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.NamedFormat"
    }
}

const NAMES: [&str; 12] = [
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
];

pub(super) const TABLE: &[Entry] = &[
    entry!("format.named", false, [TEXT], by_name),
    entry!("validate", true, [ANY, TEXT], validate),
    entry!("format.dns1123Label", false, [], dns1123_label),
    entry!("format.dns1123Subdomain", false, [], dns1123_subdomain),
    entry!("format.dns1035Label", false, [], dns1035_label),
    entry!("format.qualifiedName", false, [], qualified_name),
    entry!("format.dns1123LabelPrefix", false, [], dns1123_label_prefix),
    entry!("format.dns1123SubdomainPrefix", false, [], dns1123_subdomain_prefix),
    entry!("format.dns1035LabelPrefix", false, [], dns1035_label_prefix),
    entry!("format.labelValue", false, [], label_value),
    entry!("format.uri", false, [], uri),
    entry!("format.uuid", false, [], uuid),
    entry!("format.byte", false, [], byte),
    entry!("format.date", false, [], date),
    entry!("format.datetime", false, [], datetime),
];

macro_rules! constructors {
    ($($function:ident $name:literal),* $(,)?) => {
        $(fn $function(_: &[Value]) -> Answer { Ok(opaque(Format($name))) })*
    };
}

constructors! {
    dns1123_label "dns1123Label", dns1123_subdomain "dns1123Subdomain", dns1035_label "dns1035Label",
    qualified_name "qualifiedName", dns1123_label_prefix "dns1123LabelPrefix",
    dns1123_subdomain_prefix "dns1123SubdomainPrefix", dns1035_label_prefix "dns1035LabelPrefix",
    label_value "labelValue", uri "uri", uuid "uuid", byte "byte", date "date", datetime "datetime",
}

fn by_name(args: &[Value]) -> Answer {
    let wanted = text(args, 0)?;
    let found = NAMES.iter().copied().chain(["datetime"]).find(|n| *n == wanted);
    Ok(found.map_or_else(crate::cel::none, |n| crate::cel::some(opaque(Format(n)))))
}

/// What is wrong with a text, or nothing.
fn validate(args: &[Value]) -> Answer {
    let Format(name) = inside::<Format>(args, 0).ok_or_else(|| overload("validate"))?;
    let value = text(args, 1)?;
    let plain = |fits: bool, what: &str| if fits { Vec::new() } else { vec![what.to_owned()] };
    let masked = |value: &str| value.strip_suffix('-').map_or_else(|| value.to_owned(), |v| format!("{v}a"));
    let problems: Vec<String> = match *name {
        "dns1123Label" => names::dns1123_label(value),
        "dns1123LabelPrefix" => names::dns1123_label(&masked(value)),
        "dns1123Subdomain" => names::dns1123_subdomain(value),
        "dns1123SubdomainPrefix" => names::dns1123_subdomain(&masked(value)),
        "dns1035Label" => names::dns1035_label(value),
        "dns1035LabelPrefix" => names::dns1035_label(&masked(value)),
        "qualifiedName" => names::qualified_name(value),
        "labelValue" => names::label_value(value),
        "uri" => plain(crate::crd::fits("uri", value), "invalid URI"),
        "uuid" => plain(crate::crd::fits("uuid", value), "does not match the UUID format"),
        "byte" => plain(crate::crd::fits("byte", value), "invalid base64"),
        "date" => plain(crate::crd::fits("date", value), "invalid date"),
        _ => plain(crate::crd::fits("date-time", value), "invalid datetime"),
    };
    Ok(if problems.is_empty() {
        crate::cel::none()
    } else {
        crate::cel::some(crate::cel::list(problems.into_iter().map(string)))
    })
}
