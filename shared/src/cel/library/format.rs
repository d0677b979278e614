//! `format.*`: named formats that check texts.

use base64::Engine as _;
use proto::selector::format as names;

use super::{Args, Entry, ONE, function, method};
use crate::cel::cost::Cost;
use crate::cel::named_format::Format;
use crate::cel::value::{Answer, Value};

const OF: &str = "kubernetes.NamedFormat";

/// Rows of the formats; a format's function is called like it.
macro_rules! formats {
    ($($name:literal $made:ident),* $(,)?) => {
        /// The names.
        const NAMES: &[&str] = &[$($name),*];
        $(fn $made<'a>(_: &mut Args<'_, 'a>) -> Answer<'a> {
            Ok(Value::opaque(Format($name)))
        })*
        pub(super) const TABLE: &[Entry] = &[
            function("format.named", "string", "optional(kubernetes.NamedFormat)", ONE, by_name),
            method("validate", "kubernetes.NamedFormat, string", "optional(list(string))", Cost::Validate, validate),
            $(function(concat!("format.", $name), "", OF, ONE, $made)),*
        ];
    };
}

formats! {
    "dns1123Label" dns1123_label,
    "dns1123Subdomain" dns1123_subdomain,
    "dns1035Label" dns1035_label,
    "qualifiedName" qualified_name,
    "dns1123LabelPrefix" dns1123_label_prefix,
    "dns1123SubdomainPrefix" dns1123_subdomain_prefix,
    "dns1035LabelPrefix" dns1035_label_prefix,
    "labelValue" label_value,
    "uri" uri,
    "uuid" uuid,
    "byte" byte,
    "date" date,
    "datetime" datetime,
}

fn by_name<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let wanted = args.text(0)?;
    let found = NAMES.iter().copied().find(|n| *n == wanted);
    Ok(found.map_or(Value::Optional(None), |n| Value::some(Value::opaque(Format(n)))))
}

/// Validates a text by a named format; `None` when the format is unknown.
#[must_use]
pub fn fits(name: &str, value: &str) -> Option<Vec<String>> {
    let plain = |fits: bool, what: &str| if fits { Vec::new() } else { vec![what.to_owned()] };
    // A dash at the end, and what stands before it, is as good as a letter.
    let masked = |value: &str| match value.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => format!("{}a", &rest[..rest.floor_char_boundary(rest.len() - 1)]),
        _ => value.to_owned(),
    };
    Some(match name {
        "dns1123Label" => names::dns1123_label(value),
        "dns1123LabelPrefix" => names::dns1123_label(&masked(value)),
        "dns1123Subdomain" => names::dns1123_subdomain(value),
        "dns1123SubdomainPrefix" => names::dns1123_subdomain(&masked(value)),
        "dns1035Label" => names::dns1035_label(value),
        "dns1035LabelPrefix" => names::dns1035_label(&masked(value)),
        "qualifiedName" => names::qualified_name(value),
        "labelValue" => names::label_value(value),
        "uri" => super::url::check(value).err().map(|e| e.to_string()).into_iter().collect(),
        "uuid" => plain(is_uuid(value), "does not match the UUID format"),
        "byte" => plain(
            !value.is_empty() && base64::engine::general_purpose::STANDARD.decode(value).is_ok(),
            "invalid base64",
        ),
        "date" => plain(value.len() == 10 && value.parse::<jiff::civil::Date>().is_ok(), "invalid date"),
        "datetime" => plain(super::timestamp(value).is_some(), "invalid datetime"),
        _ => return None,
    })
}

/// 32 hexadecimal digits; the dashes between them may be missing.
fn is_uuid(text: &str) -> bool {
    let mut rest = text.as_bytes();
    for (i, digits) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if i > 0 {
            rest = rest.strip_prefix(b"-").unwrap_or(rest);
        }
        let Some((part, tail)) = rest.split_at_checked(digits) else { return false };
        if !part.iter().all(u8::is_ascii_hexdigit) {
            return false;
        }
        rest = tail;
    }
    rest.is_empty()
}

/// Validates a text by a format; an empty optional when it is valid.
fn validate<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let Format(name) = args.inside::<Format>(0)?;
    let problems = fits(name, args.text(1)?).unwrap_or_default();
    Ok(if problems.is_empty() {
        Value::Optional(None)
    } else {
        Value::some(Value::list(problems.into_iter().map(Value::text)))
    })
}
