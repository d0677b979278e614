//! Named formats as values.

use super::opaque::opaque;
use super::value::Value;

/// A format by its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Format(pub(super) &'static str);

opaque!(Format, "kubernetes.NamedFormat");

/// Characters of the regular expression behind a format, or of one that would be.
pub(super) fn pattern_size(format: &Value<'_>) -> Option<u64> {
    let Format(name) = format.inside::<Format>()?;
    Some(match *name {
        "dns1123Label" | "dns1123LabelPrefix" | "dns1035Label" | "dns1035LabelPrefix" => 30,
        "dns1123Subdomain" | "dns1123SubdomainPrefix" | "qualifiedName" => 60,
        "labelValue" => 40,
        "uri" => 1103,
        "uuid" => 70,
        "byte" => 84,
        _ => 71,
    })
}
