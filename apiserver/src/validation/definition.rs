//! Custom resource definitions: names, versions, conversions, and what has to stay of an old one. Answers for
//! upstream's `ValidateCustomResourceDefinition`.

use proto::Value;
use shared::status::field::{Error, Path};
use shared::url::Url;

use super::bundle;
use super::definition_parts::{self, Before};
use super::fields::choice;
use super::meta::annotation;
use super::names::{complain, dns1035_label, dns1123_subdomain};
use super::tree::{at, flag, get, list, text, texts};
use crate::crd::schema_options::{self, SchemaOptions};
use crate::rules::options::FieldErrors;

const APPROVED: &str = "api-approved.kubernetes.io";
const POLICY: &str = "https://github.com/kubernetes/enhancements/pull/1111";

/// A new definition.
pub(crate) fn definition(object: &Value, out: &mut FieldErrors) {
    let spec = get(object, "spec");
    let (plural, name) = (text(get(spec, "names"), "plural"), text(get(object, "metadata"), "name"));
    if name != format!("{plural}.{}", text(spec, "group")) {
        let message = "must be spec.names.plural+\".\"+spec.group";
        out.push(Error::invalid(Path::of(&["metadata", "name"]), name, message));
    }
    specification(spec, Allowed { bundle: true, ..Allowed::default() }, out);
    the_rest(object, None, out);
}

/// A changed definition: what defines the resource stays.
pub(crate) fn definition_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    specification(spec, Allowed::beside(old, spec), out);
    let established = is_true(old, "Established");
    let kept: [(&[&str], bool); 4] = [
        (&["scope"], established),
        (&["names", "kind"], established),
        (&["group"], true),
        (&["names", "plural"], true),
    ];
    for (keys, _) in kept.into_iter().filter(|(_, kept)| *kept) {
        let value = |from: &Value| at(from, keys).clone();
        if value(spec) != value(before) {
            let path = keys.iter().fold(Path::new("spec"), |p, k| p.child(k));
            out.push(Error::invalid(path, value(spec), "field is immutable"));
        }
    }
    the_rest(new, Some(old), out);
}

/// A definition's status.
pub(crate) fn definition_status(new: &Value, _: &Value, out: &mut FieldErrors) {
    names(at(new, &["status", "acceptedNames"]), &Path::of(&["status", "acceptedNames"]), out);
}

/// Invalid values that are allowed because the stored definition has them.
#[derive(Clone, Copy, Default)]
struct Allowed<'o> {
    /// Certificates that are none.
    bundle: bool,
    /// Versions without a schema.
    no_schema: bool,
    /// Reviews of versions that nobody knows.
    reviews: bool,
    /// Invalid values of versions that are allowed.
    before: Before<'o>,
}

impl<'o> Allowed<'o> {
    fn beside(old: &'o Value, spec: &Value) -> Self {
        let (versions, conversion) = (list(get(old, "spec"), "versions"), at(old, &["spec", "conversion"]));
        let (client, reviews) = (at(conversion, &["webhook", "clientConfig"]), reviews(conversion));
        let schemas: Vec<&Value> = versions.iter().map(schema).filter(|schema| !schema.is_null()).collect();
        let structure =
            prunes_nothing(spec) && !schemas.iter().all(|schema| crate::crd::validate::is_structural(schema));
        let options = SchemaOptions { structure, ..SchemaOptions::beside(&schemas) };
        Self {
            before: Before { options, versions },
            bundle: !is_true(old, "Established") || bundle::refused(text(client, "caBundle")).is_some(),
            no_schema: versions.iter().any(|v| schema(v).is_null()),
            reviews: !reviews.is_empty() && !knows_reviews(&reviews),
        }
    }
}

fn is_true(object: &Value, condition: &str) -> bool {
    let all = list(get(object, "status"), "conditions");
    all.iter().any(|c| text(c, "type") == condition && text(c, "status") == "True")
}

fn schema(version: &Value) -> &Value {
    at(version, &["schema", "openAPIV3Schema"])
}

fn specification(spec: &Value, allowed: Allowed<'_>, out: &mut FieldErrors) {
    let path = Path::new("spec");
    let group = text(spec, "group");
    let wrong = dns1123_subdomain(group);
    if group.is_empty() {
        out.push(Error::required(path.child("group"), ""));
    } else if !wrong.is_empty() {
        out.push(Error::invalid(path.child("group"), group, &wrong.join(",")));
    } else if !group.contains('.') {
        out.push(Error::invalid(path.child("group"), group, "should be a domain with at least one dot"));
    }
    choice(spec, "scope", &["Cluster", "Namespaced"], &path, out);
    versions(spec, &path, allowed, out);
    let own = get(spec, "names");
    for key in ["plural", "singular", "kind", "listKind"] {
        if text(own, key).is_empty() {
            out.push(Error::required(path.child("names").child(key), ""));
        }
    }
    names(own, &path.child("names"), out);
    definition_parts::of_all(spec, allowed.before, &path, out);
    conversion(spec, &path, allowed, out);
}

/// Names, asked for or accepted.
fn names(names: &Value, path: &Path, out: &mut FieldErrors) {
    let mut complain = |path: Path, name: &str, prefix: &str, wrong: Vec<String>| {
        if !wrong.is_empty() {
            out.push(Error::invalid(path, name, &format!("{prefix}{}", wrong.join(","))));
        }
    };
    for key in ["plural", "singular"] {
        let name = text(names, key);
        if !name.is_empty() {
            complain(path.child(key), name, "", dns1035_label(name));
        }
    }
    for key in ["kind", "listKind"] {
        let name = text(names, key);
        if !name.is_empty() {
            let prefix = "may have mixed case, but should otherwise match: ";
            complain(path.child(key), name, prefix, dns1035_label(&name.to_lowercase()));
        }
    }
    for key in ["shortNames", "categories"] {
        for (i, name) in texts(names, key).into_iter().enumerate() {
            complain(path.child(key).index(i), name, "", dns1035_label(name));
        }
    }
    let kind = text(names, "kind");
    if !kind.is_empty() && kind == text(names, "listKind") {
        out.push(Error::invalid(path.child("listKind"), kind, "kind and listKind may not be the same"));
    }
}

/// Validates the parts of a definition outside its specification.
fn the_rest(object: &Value, old: Option<&Value>, out: &mut FieldErrors) {
    let spec = get(object, "spec");
    definition_status(object, &Value::Null, out);
    stored_versions(get(object, "status"), list(spec, "versions"), out);
    approval(object, old, out);
    if flag(spec, "preserveUnknownFields") && !old.is_some_and(|old| flag(get(old, "spec"), "preserveUnknownFields")) {
        let message =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        out.push(Error::invalid(Path::of(&["spec", "preserveUnknownFields"]), true, message));
    }
}

/// Validates `status.storedVersions`: every version that etcd may hold must be in the specification.
fn stored_versions(status: &Value, versions: &[Value], out: &mut FieldErrors) {
    let path = Path::of(&["status", "storedVersions"]);
    let (stored, shown) = (texts(status, "storedVersions"), get(status, "storedVersions"));
    if stored.is_empty() {
        out.push(Error::invalid(path, shown.clone(), "must have at least one stored version"));
        return;
    }
    // Each is good for one version: of two with the same name the second one is not there.
    let mut left: Vec<(usize, &str)> = stored.into_iter().enumerate().collect();
    for version in versions {
        let name = text(version, "name");
        let before = left.len();
        left.retain(|(_, stored)| *stored != name);
        if flag(version, "storage") && left.len() == before {
            out.push(Error::invalid(&path, shown.clone(), &format!("must have the storage version {name}")));
        }
    }
    for (i, name) in left {
        let message = format!(
            "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
        );
        out.push(Error::invalid(path.index(i), name, &message));
    }
}

/// Groups of the project itself are approved by somebody; what was said before may stay as it is.
fn approval(object: &Value, old: Option<&Value>, out: &mut FieldErrors) {
    let group = text(get(object, "spec"), "group");
    let protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|g| group.strip_suffix(g).is_some_and(|r| r.is_empty() || r.ends_with('.')));
    let said = annotation(object, APPROVED);
    let kind = |said: &str| match said {
        "" => "missing",
        said if said.starts_with("unapproved") => "bypassed",
        said => match Url::parse(said.as_bytes()) {
            Ok(url) if !said.contains('#') && !url.host.is_empty() && !url.scheme.is_empty() => "approved",
            _ => "invalid",
        },
    };
    if !protected || old.is_some_and(|old| kind(annotation(old, APPROVED)) == kind(said)) {
        return;
    }
    let path = Path::of(&["metadata", "annotations"]).key(APPROVED);
    let needed = format!("protected groups must have approval annotation \"{APPROVED}\"");
    match kind(said) {
        "missing" => out.push(Error::required(path, &format!("{needed}, see {POLICY}"))),
        "invalid" => {
            let message = format!("{needed} with either a URL or a reason starting with \"unapproved\", see {POLICY}");
            out.push(Error::invalid(path, said, &message));
        }
        _ => {}
    }
}

fn versions(spec: &Value, path: &Path, allowed: Allowed<'_>, out: &mut FieldErrors) {
    let all = list(spec, "versions");
    let path = path.child("versions");
    let preserves = flag(spec, "preserveUnknownFields");
    for (i, version) in all.iter().enumerate().filter(|(_, version)| schema(version).is_null()) {
        let at = path.index(i).child("schema").child("openAPIV3Schema");
        if !allowed.no_schema {
            out.push(Error::required(at, ""));
        } else if !preserves && flag(version, "served") {
            out.push(Error::required(at, "because otherwise all fields are pruned"));
        }
    }
    if preserves && all.iter().any(|version| schema_options::has_default(schema(version))) {
        let message = "must be false in order to use defaults in the schema";
        out.push(Error::invalid(Path::of(&["spec", "preserveUnknownFields"]), true, message));
    }
    for (i, version) in all.iter().enumerate() {
        let path = path.index(i);
        let wrong = dns1035_label(text(version, "name"));
        if !wrong.is_empty() {
            out.push(Error::invalid(path.child("name"), text(version, "name"), &wrong.join(",")));
        }
        definition_parts::of_one(all, version, allowed.before, &path, out);
    }
    let is_missing = get(spec, "versions").is_null();
    let shown = || if is_missing { Value::Null } else { definition_parts::apart(all) };
    let mut seen = std::collections::BTreeSet::new();
    if all.iter().any(|v| !seen.insert(text(v, "name"))) {
        out.push(Error::invalid(&path, shown(), "must contain unique version names"));
    }
    if all.iter().filter(|v| flag(v, "storage")).count() != 1 {
        out.push(Error::invalid(&path, shown(), "must have exactly one version marked as storage version"));
    }
    // The first one is the whole definition's in upstream's internal form.
    let first = all.first().map_or("", |version| text(version, "name"));
    let wrong = dns1035_label(first);
    if !first.is_empty() && !wrong.is_empty() {
        out.push(Error::invalid(Path::of(&["spec", "version"]), first, &wrong.join(",")));
    }
}

/// Versions of reviews that a conversion's webhook understands.
fn reviews(conversion: &Value) -> Vec<&str> {
    texts(get(conversion, "webhook"), "conversionReviewVersions")
}

fn knows_reviews(versions: &[&str]) -> bool {
    versions.iter().any(|v| matches!(*v, "v1" | "v1beta1"))
}

/// Unknown fields stay, and no schema asks for anything else: the only definitions whose schemas need not be
/// structural.
fn prunes_nothing(spec: &Value) -> bool {
    let special =
        |version: &Value| schema_options::has_default(schema(version)) || schema_options::is_extended(schema(version));
    flag(spec, "preserveUnknownFields") && !list(spec, "versions").iter().any(special)
}

/// Conversion between versions. Paths are those of upstream's internal form.
fn conversion(spec: &Value, path: &Path, allowed: Allowed<'_>, out: &mut FieldErrors) {
    let (conversion, path) = (get(spec, "conversion"), path.child("conversion"));
    let strategy = text(conversion, "strategy");
    if conversion.is_object() && strategy != "None" && flag(spec, "preserveUnknownFields") {
        let message = "must be None if spec.preserveUnknownFields is true";
        out.push(Error::invalid(path.child("strategy"), strategy, message));
    }
    if strategy.is_empty() && conversion.is_object() {
        out.push(Error::required(path.child("strategy"), ""));
    } else if !matches!(strategy, "" | "None" | "Webhook") {
        out.push(Error::not_supported(path.child("strategy"), strategy, &["None", "Webhook"]));
    }
    let client = at(conversion, &["webhook", "clientConfig"]);
    let (at_client, at_reviews) = (path.child("webhookClientConfig"), path.child("conversionReviewVersions"));
    if strategy != "Webhook" {
        let message = "should not be set when strategy is not set to Webhook";
        if client.is_object() {
            out.push(Error::forbidden(at_client, message));
        }
        if !reviews(conversion).is_empty() {
            out.push(Error::forbidden(at_reviews, message));
        }
        return;
    }
    if client.is_object() {
        super::admissionregistration::client(client, &at_client, out);
        let trusted = text(client, "caBundle");
        if let Some(why) = bundle::refused(trusted).filter(|_| !allowed.bundle) {
            out.push(Error::invalid(at_client.child("caBundle"), trusted, &why));
        }
    } else {
        out.push(Error::required(at_client, "required when strategy is set to Webhook"));
    }
    review_versions(&reviews(conversion), &at_reviews, allowed, out);
}

fn review_versions(versions: &[&str], path: &Path, allowed: Allowed<'_>, out: &mut FieldErrors) {
    if versions.is_empty() {
        out.push(Error::required(path, ""));
        return;
    }
    for (i, version) in versions.iter().enumerate() {
        if versions[..i].contains(version) {
            out.push(Error::invalid(path.index(i), *version, "duplicate version"));
            continue;
        }
        complain(out, &path.index(i), version, dns1035_label(version));
    }
    if !allowed.reviews && !knows_reviews(versions) {
        out.push(Error::invalid(path, Value::from(versions), "must include at least one of v1, v1beta1"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::in_order;
    use serde_json::json;

    fn crd(name: &str, group: &str, schema: Value) -> Value {
        json!({"metadata": {"name": name}, "status": {"storedVersions": ["v1"]}, "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": "bars", "singular": "bar", "kind": "Bar", "listKind": "BarList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        }})
    }

    #[test]
    fn definitions() {
        let check = |object: Value| -> Vec<String> {
            let mut out = FieldErrors::default();
            definition(&object, &mut out);
            out.iter().map(ToString::to_string).collect()
        };
        let object = || json!({"type": "object"});
        assert!(check(crd("bars.ex.com", "ex.com", object())).is_empty());
        let open = json!({"x-kubernetes-preserve-unknown-fields": true});
        assert!(check(crd("bars.ex.com", "ex.com", open)).is_empty());
        assert_eq!(
            check(crd("x", "ex.com", Value::Null)),
            [
                r#"metadata.name: Invalid value: "x": must be spec.names.plural+"."+spec.group"#,
                "spec.versions[0].schema.openAPIV3Schema: Required value"
            ]
        );
        assert_eq!(
            check(crd("bars.ex.com", "ex.com", json!({"properties": {"a": {"type": "strin"}, "b": {}}}))),
            [
                "spec.validation.openAPIV3Schema.properties[b].type: Required value: must not be empty for specified object fields",
                "spec.validation.openAPIV3Schema.type: Required value: must not be empty at the root",
                r#"spec.validation.openAPIV3Schema.properties[a].type: Unsupported value: "strin": supported values: "array", "boolean", "integer", "number", "object", "string""#,
            ]
        );
        let protected = check(crd("bars.x.k8s.io", "x.k8s.io", object()));
        assert!(protected.len() == 1 && protected[0].starts_with("metadata.annotations[api-approved.kubernetes.io]"));
        assert!(check(crd("bars.xk8s.io", "xk8s.io", object())).is_empty());
        let any = json!({"type": "object", "properties": {"a": {"x-kubernetes-preserve-unknown-fields": true}}});
        assert!(check(crd("bars.ex.com", "ex.com", any)).is_empty());
    }

    #[test]
    fn definition_scope_is_immutable() {
        let old = crd("bars.ex.com", "ex.com", json!({"type": "object"}));
        let mut new = old.clone();
        new["spec"]["scope"] = json!("Cluster");
        let mut out = FieldErrors::default();
        definition_update(&new, &old, &mut out);
        assert!(out.is_empty(), "nothing is served yet: {out:?}");
        let mut old = old;
        old["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
        definition_update(&new, &old, &mut out);
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].to_string(), r#"spec.scope: Invalid value: "Cluster": field is immutable"#);
    }

    /// Definitions, alone and beside old ones, with what upstream's own validation says of them.
    #[test]
    fn definitions_are_judged_as_upstream_judges_them() {
        let rows: Value = serde_json::from_str(include_str!("../../testdata/definitions.json")).expect("rows");
        let schema = proto::schema::kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition").expect("a kind");
        let mut wrong = Vec::new();
        for row in rows.as_array().expect("rows") {
            let mut out = FieldErrors::default();
            match &row["old"] {
                Value::Null => definition(&row["new"], &mut out),
                old => definition_update(&row["new"], old, &mut out),
            }
            let found: Vec<String> = in_order(schema, out.into_vec()).iter().map(ToString::to_string).collect();
            if json!(found) != row["errors"] {
                wrong.push(format!("{row}\n  found {found:#?}\n  wanted {:#}", row["errors"]));
            }
        }
        assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
    }
}
