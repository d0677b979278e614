//! Addresses and networks in fields that take any spelling, where the gate `StrictIPCIDRValidation` is on: only what
//! was there before may be spelled oddly, and not even that in some fields.

use proto::Value;
use shared::address::{StrictError, strict_ip, strict_network};
use shared::status::field::{Error, Path};

use super::meta::annotation;
use super::pod_template::PodTemplate;
use super::service::SOURCE_RANGES;
use super::tree::{get, list};

/// A field that takes any spelling.
pub(crate) struct AddressField {
    /// The subresource it is judged with.
    with: &'static str,
    /// `*` stands for all elements of a list; a part `a=b` is read as `a` and told as `b`, which may be nothing.
    path: &'static str,
    judge: fn(&str) -> Option<String>,
    /// Values of the stored object are let through.
    keeps: bool,
}

/// A field with an address.
pub(crate) const fn ip_at(path: &'static str) -> AddressField {
    AddressField { with: "", path, judge: ip, keeps: false }
}

/// A field with a network.
pub(crate) const fn network_at(path: &'static str) -> AddressField {
    AddressField { judge: network, ..ip_at(path) }
}

impl AddressField {
    /// Lets through what was there before.
    pub(crate) const fn kept(mut self) -> Self {
        self.keeps = true;
        self
    }

    /// Judges the field in writes of a subresource.
    pub(crate) const fn with(mut self, subresource: &'static str) -> Self {
        self.with = subresource;
        self
    }
}

/// A rule about a new object, beside the stored one.
type AddressRule = fn(&Value, Option<&Value>, &mut Vec<Error>);

/// Addresses in objects of a kind.
pub(crate) struct AddressRules {
    fields: &'static [AddressField],
    /// Reports whether what an object has in these fields is no address.
    exempts: Option<fn(&Value) -> bool>,
    /// Judges a new object beside the stored one for what is no matter of fields.
    more: Option<AddressRule>,
}

impl AddressRules {
    /// Rules for these fields.
    pub(crate) const fn of(fields: &'static [AddressField]) -> Self {
        Self { fields, exempts: None, more: None }
    }

    /// Exempts some objects.
    pub(crate) const fn exempts(mut self, exempts: fn(&Value) -> bool) -> Self {
        self.exempts = Some(exempts);
        self
    }

    /// Adds a rule for new and updated objects.
    pub(crate) const fn more(mut self, more: AddressRule) -> Self {
        self.more = Some(more);
        self
    }
}

/// Fields of a pod's specification.
const OF_PODS: [&str; 2] = ["hostAliases.*.ip", "dnsConfig.nameservers.*"];

/// Returns the errors of addresses of a built-in kind that are not in canonical form: those of its own fields, and of the
/// pods it describes.
pub(crate) fn check(
    rules: Option<&AddressRules>,
    template: Option<PodTemplate>,
    subresource: &str,
    new: &Value,
    old: Option<&Value>,
) -> Vec<Error> {
    let mut out = Vec::new();
    if let Some(rules) = rules.filter(|rules| !rules.exempts.is_some_and(|exempts| exempts(new))) {
        for field in rules.fields.iter().filter(|field| field.with == subresource) {
            let before = old.filter(|_| field.keeps).map(|old| values(old, field.path)).unwrap_or_default();
            judge(new, field.path, field.judge, &before, &mut out);
        }
        if let Some(more) = rules.more.filter(|_| subresource.is_empty()) {
            more(new, old, &mut out);
        }
    }
    if let Some(template) = template.filter(|_| subresource.is_empty()) {
        for field in OF_PODS {
            judge(new, &format!("{}.{field}", template.keys("spec").join(".")), ip, &[], &mut out);
        }
    }
    out
}

/// The older form of a balancer's ranges, as far as it is new and nothing took its place.
pub(crate) fn annotated_ranges(new: &Value, old: Option<&Value>, out: &mut Vec<Error>) {
    let given = annotation(new, SOURCE_RANGES);
    let ranges = list(get(new, "spec"), "loadBalancerSourceRanges");
    if !ranges.is_empty() || old.is_some_and(|old| annotation(old, SOURCE_RANGES) == given) {
        return;
    }
    let path = Path::of(&["metadata", "annotations"]).key(SOURCE_RANGES);
    for range in given.split(',').map(str::trim) {
        out.extend(network(range).map(|why| Error::invalid(&path, range, &why)));
    }
}

fn judge(object: &Value, path: &str, why: fn(&str) -> Option<String>, before: &[String], out: &mut Vec<Error>) {
    each(object, path, &Path::default(), &mut |at, text| {
        if let Some(why) = why(text.trim()).filter(|_| !before.iter().any(|b| b == text)) {
            out.push(Error::invalid(at, text.trim(), &why));
        }
    });
}

/// Texts at a path.
fn values(object: &Value, path: &str) -> Vec<String> {
    let mut found = Vec::new();
    each(object, path, &Path::default(), &mut |_, text| found.push(text.to_owned()));
    found
}

fn each(value: &Value, path: &str, at: &Path, visit: &mut dyn FnMut(&Path, &str)) {
    if path.is_empty() {
        if let Some(text) = value.as_str() {
            visit(at, text);
        }
        return;
    }
    let (part, rest) = path.split_once('.').unwrap_or((path, ""));
    if part != "*" {
        let (read, told) = part.split_once('=').unwrap_or((part, part));
        let at = if told.is_empty() { at.clone() } else { at.child(told) };
        return each(get(value, read), rest, &at, visit);
    }
    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
        each(item, rest, &at.index(i), visit);
    }
}

fn ip(text: &str) -> Option<String> {
    odd(strict_ip(text))
}

fn network(text: &str) -> Option<String> {
    odd(strict_network(text))
}

/// Explains why a spelling is refused. Text that is no address is refused elsewhere, and these fields need no canonical
/// form.
fn odd<T>(read: Result<T, StrictError>) -> Option<String> {
    match read.err()? {
        StrictError::Network | StrictError::Address | StrictError::NotCanonical(_) => None,
        why => Some(why.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::builtin;
    use serde_json::json;

    #[test]
    fn non_canonical_addresses_are_refused_when_new() {
        let service = |ip: &str, range: &str| json!({"spec": {"clusterIPs": ["None"], "externalIPs": ["1.2.3.4", ip], "loadBalancerSourceRanges": [range]}});
        let aliases =
            json!({"spec": {"hostAliases": [{"ip": "010.1.1.1"}], "dnsConfig": {"nameservers": ["FE80::1", "x"]}}});
        let slice = |kind: &str| json!({"addressType": kind, "endpoints": [{"addresses": ["1.2.3.04"]}]});
        let status = json!({"status": {"podIPs": [{"ip": "::ffff:1.2.3.4"}]}});
        type Row<'a> = (&'a str, &'a str, &'a str, Value, Option<Value>, &'a [&'a str]);
        let annotated = |ranges: &str| json!({"metadata": {"annotations": {SOURCE_RANGES: ranges}}});
        let rows: [Row<'_>; 10] = [
            ("", "services", "", annotated("010.0.0.0/8"), Some(annotated("010.0.0.0/8")), &[]),
            (
                "",
                "services",
                "",
                annotated("1.2.3.0/24, 010.0.0.0/8"),
                Some(annotated("010.0.0.0/8")),
                &[
                    "metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]: Invalid value: \"010.0.0.0/8\": must not have leading 0s in IP or prefix length",
                ],
            ),
            ("", "services", "", service("1.2.3.4", "10.0.0.0/8"), None, &[]),
            (
                "",
                "services",
                "",
                service("::ffff:1.2.3.4", "10.0.0.1/8"),
                None,
                &[
                    "spec.externalIPs[1]: Invalid value: \"::ffff:1.2.3.4\": must not be an IPv4-mapped IPv6 address",
                    "spec.LoadBalancerSourceRanges[0]: Invalid value: \"10.0.0.1/8\": must not have bits set beyond the prefix length",
                ],
            ),
            ("", "services", "", service("01.2.3.4", "10.0.0.0/08"), Some(service("01.2.3.4", "10.0.0.0/08")), &[]),
            (
                "",
                "pods",
                "",
                aliases.clone(),
                Some(aliases),
                &["spec.hostAliases[0].ip: Invalid value: \"010.1.1.1\": must not have leading 0s"],
            ),
            (
                "discovery.k8s.io",
                "endpointslices",
                "",
                slice("IPv4"),
                None,
                &["endpoints[0].addresses[0]: Invalid value: \"1.2.3.04\": must not have leading 0s"],
            ),
            ("discovery.k8s.io", "endpointslices", "", slice("FQDN"), None, &[]),
            ("", "pods", "", status.clone(), None, &[]),
            (
                "",
                "pods",
                "status",
                status,
                Some(json!({})),
                &["status.podIPs[0]: Invalid value: \"::ffff:1.2.3.4\": must not be an IPv4-mapped IPv6 address"],
            ),
        ];
        for (group, plural, subresource, new, old, want) in rows {
            let row = builtin(group, plural).expect("a row");
            let kind = crate::registry::kinds::kind_of(&row);
            let (rules, template) = (kind.and_then(|k| k.addresses.as_ref()), kind.and_then(|k| k.pod_template));
            let found: Vec<String> =
                check(rules, template, subresource, &new, old.as_ref()).iter().map(ToString::to_string).collect();
            assert_eq!(found, want, "{new}");
        }
    }
}
