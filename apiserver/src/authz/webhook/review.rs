//! A request as a SubjectAccessReview, for webhooks and for their match conditions.

use proto::selector::{FieldSelector, Operator, Selector};
use serde_json::{Map, Value, json};
use shared::authz::Attributes;

/// Selectors that could be understood, as lists of requirements: of fields and of labels.
fn requirements(request: &Attributes) -> (Vec<Value>, Vec<Value>) {
    let entry = |key: &str, operator: &str, values: Vec<&str>| {
        if values.is_empty() {
            json!({"key": key, "operator": operator})
        } else {
            json!({"key": key, "operator": operator, "values": values})
        }
    };
    let fields = FieldSelector::parse(&request.field_selector).unwrap_or_default();
    let fields = fields.terms().iter().map(|t| entry(&t.field, if t.equal { "In" } else { "NotIn" }, vec![&t.value]));
    let labels = Selector::parse(&request.label_selector).unwrap_or_else(|_| Selector::everything());
    let labels = labels.requirements().iter().filter_map(|r| {
        let operator = match r.operator() {
            Operator::In | Operator::Equals | Operator::DoubleEquals => "In",
            Operator::NotIn | Operator::NotEquals => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
            // Reviews have no word for the others.
            Operator::GreaterThan | Operator::LessThan => return None,
        };
        Some(entry(r.key(), operator, r.values().collect()))
    });
    (fields.collect(), labels.collect())
}

fn put(map: &mut Map<String, Value>, key: &str, text: &str, empty_too: bool) {
    if empty_too || !text.is_empty() {
        map.insert(key.to_owned(), Value::from(text));
    }
}

/// The spec of a review. `whole` writes empty texts too, as expressions see it.
fn build(request: &Attributes, whole: bool) -> Value {
    let mut spec = Map::new();
    let mut about = Map::new();
    if request.resource_request {
        for (key, text) in [
            ("namespace", &request.namespace),
            ("verb", &request.verb),
            ("group", &request.api_group),
            ("version", &request.api_version),
            ("resource", &request.resource),
            ("subresource", &request.subresource),
            ("name", &request.name),
        ] {
            put(&mut about, key, text, whole);
        }
        let (fields, labels) = requirements(request);
        for (key, list) in [("fieldSelector", fields), ("labelSelector", labels)] {
            if !list.is_empty() {
                about.insert(key.to_owned(), json!({ "requirements": list }));
            }
        }
        spec.insert("resourceAttributes".to_owned(), Value::Object(about));
    } else {
        put(&mut about, "path", &request.path, whole);
        put(&mut about, "verb", &request.verb, whole);
        spec.insert("nonResourceAttributes".to_owned(), Value::Object(about));
    }
    let user = &request.user;
    put(&mut spec, "user", &user.name, whole);
    put(&mut spec, "uid", &user.uid, whole);
    if whole || !user.groups.is_empty() {
        spec.insert("groups".to_owned(), json!(user.groups));
    }
    if whole || !user.extra.is_empty() {
        spec.insert("extra".to_owned(), json!(user.extra));
    }
    Value::Object(spec)
}

/// The spec as it is sent.
pub(super) fn spec(request: &Attributes) -> Value {
    build(request, false)
}

/// The spec as match conditions see it: all texts are there, empty or not.
pub(super) fn for_conditions(request: &Attributes) -> Value {
    build(request, true)
}

/// The review in a version, as sent.
pub(super) fn review(mut spec: Value, version: &str) -> Value {
    // v1beta1 calls the groups by another name.
    if version == "v1beta1"
        && let Some(map) = spec.as_object_mut()
        && let Some(groups) = map.remove("groups")
    {
        map.insert("group".to_owned(), groups);
    }
    json!({
        "apiVersion": format!("authorization.k8s.io/{version}"),
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": spec,
        "status": {"allowed": false},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::authn::UserInfo;

    #[test]
    fn requests_become_reviews() {
        let user = UserInfo { name: "jane".into(), groups: vec!["g".into()], ..UserInfo::default() };
        let mut request = Attributes {
            user,
            verb: "list".into(),
            namespace: "kittensandponies".into(),
            api_group: "unicorn.example.org".into(),
            api_version: "v1".into(),
            resource: "pods".into(),
            resource_request: true,
            field_selector: "spec.nodeName=n1,status.phase!=Running".into(),
            label_selector: "a in (x,y),!b,c,d!=1,e>5".into(),
            ..Attributes::default()
        };
        let sent = spec(&request);
        assert_eq!(
            sent["resourceAttributes"],
            json!({"namespace": "kittensandponies", "verb": "list", "group": "unicorn.example.org", "version": "v1", "resource": "pods",
                "fieldSelector": {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]},
                    {"key": "status.phase", "operator": "NotIn", "values": ["Running"]}]},
                "labelSelector": {"requirements": [{"key": "a", "operator": "In", "values": ["x", "y"]},
                    {"key": "b", "operator": "DoesNotExist"}, {"key": "c", "operator": "Exists"},
                    {"key": "d", "operator": "NotIn", "values": ["1"]}]}})
        );
        let old = review(sent, "v1beta1");
        assert_eq!((&old["spec"]["group"], old["spec"].get("groups")), (&json!(["g"]), None));
        let seen = for_conditions(&request);
        assert_eq!(
            (&seen["uid"], &seen["extra"], &seen["resourceAttributes"]["name"]),
            (&json!(""), &json!({}), &json!(""))
        );
        request.resource_request = false;
        request.path = "/debug".into();
        assert_eq!(spec(&request)["nonResourceAttributes"], json!({"path": "/debug", "verb": "list"}));
    }
}
