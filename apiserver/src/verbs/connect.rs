//! Admission of connections: exec, attach, port-forward and proxies, whose options are the object under admission.
//! Answers for upstream's `ConnectResource`.

use proto::schema::{self, Card, Message, ValueKind};
use proto::{Value, json};
use serde_json::Map;
use shared::authn::UserInfo;
use shared::status::Status;

use super::engine::{Engine, WriteTarget};
use super::{Route, namespace_of};
use crate::admission::Operation;
use crate::api::RequestInfo;
use crate::audit::RequestRecorder;
use crate::machinery::query::{Query, WriteOptions};

/// Asks both rounds of admission, before anything is connected.
///
/// # Errors
/// Somebody refuses.
pub async fn admit(
    engine: &Engine,
    route: &Route,
    (info, query): (&RequestInfo, &Query),
    user: &UserInfo,
    recorder: &RequestRecorder,
) -> Result<(), Status> {
    let Some(sub) = route.subresource() else { return Ok(()) };
    // Logs are read, not connected to.
    let Some(schema) = schema::kind("", "v1", &sub.kind).filter(|_| sub.kind.ends_with("Options")) else {
        return Ok(());
    };
    let mut object = options(schema, &sub.kind, info, query);
    let write = WriteOptions::default();
    let named = (namespace_of(info, &route.row), &*info.name);
    let target = WriteTarget::new(&route.row, named, user, &write);
    let mut target = WriteTarget { subresource: &sub.name, recorder: recorder.clone(), ..target };
    let judged = engine.admit_and_validate(&mut target, Operation::Connect, Some(&mut object), None).await;
    recorder.add_warnings(target.warnings);
    judged
}

/// The options in the query, as an object.
fn options(schema: &Message, kind: &str, info: &RequestInfo, query: &Query) -> Value {
    let mut fields = Map::new();
    for field in &*schema.fields {
        let values = match &*field.json {
            "path" => path_below(info).into_iter().collect(),
            name => query.all(name),
        };
        let Some(first) = values.first() else { continue };
        let value = match (&field.kind, field.card) {
            (ValueKind::Bool, _) => Value::from(query.flag(&field.json)),
            (ValueKind::Int32, _) => values.iter().filter_map(|v| v.parse::<i32>().ok()).collect(),
            (_, Card::Single) => Value::from(first.as_str()),
            _ => Value::from(values),
        };
        fields.insert(field.json.to_string(), value);
    }
    fields.insert("kind".to_owned(), Value::from(kind));
    fields.insert("apiVersion".to_owned(), Value::from("v1"));
    let mut object = Value::Object(fields);
    json::canonicalize(schema, &mut object);
    object
}

/// Path behind `proxy`.
fn path_below(info: &RequestInfo) -> Option<String> {
    let below = info.parts.get(3..).filter(|rest| !rest.is_empty())?;
    let slash = if info.path.ends_with('/') { "/" } else { "" };
    Some(format!("/{}{slash}", below.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn queries_become_objects() {
        let info = |path: &str| RequestInfo {
            path: path.to_owned(),
            parts: path.trim_matches('/').split('/').map(str::to_owned).collect(),
            ..RequestInfo::default()
        };
        for (kind, path, query, want) in [
            (
                "PodExecOptions",
                "pods/p/exec",
                "stdin=true&tty=0&stdout&command=sh&command=-c&container=c",
                json!({"stdin": true, "stdout": true, "command": ["sh", "-c"], "container": "c"}),
            ),
            ("PodPortForwardOptions", "pods/p/portforward", "ports=80&ports=81", json!({"ports": [80, 81]})),
            ("ServiceProxyOptions", "services/s/proxy/a/b/", "x=y", json!({"path": "/a/b/"})),
            ("NodeProxyOptions", "nodes/n/proxy", "path=ignored", json!({})),
        ] {
            let mut want = want;
            (want["kind"], want["apiVersion"]) = (json!(kind), json!("v1"));
            let schema = schema::kind("", "v1", kind).expect("a kind");
            assert_eq!(options(schema, kind, &info(path), &Query::parse(query)), want);
        }
    }
}
