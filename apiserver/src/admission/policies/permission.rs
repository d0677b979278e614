//! Authorization of policies' parameters: the author of a policy must be allowed to read all objects of its
//! `paramKind`, and the author of a binding the objects it names. Answers for upstream's
//! `pkg/registry/admissionregistration/*/authz.go`.

use serde_json::{Value, json};
use shared::authn::SYSTEM_MASTERS;
use shared::authz::Attributes as Question;
use shared::status::Status;
use shared::status::field::{Error, Path};

use super::super::{Attributes, Operation};
use super::plurals::{GROUP, MUTATING, VALIDATING};
use crate::api::Reader;
use crate::authz::Authorization;
use crate::machinery::tree;
use crate::rows::Rows;

/// Refuses a policy or binding that would read what its writer may not.
pub(in crate::admission) async fn check(
    authorization: &Authorization,
    rows: &Rows,
    reader: &dyn Reader,
    a: &Attributes<'_>,
) -> Result<(), Status> {
    let writes = matches!(a.operation, Operation::Create | Operation::Update) && a.subresource.is_empty();
    if !writes || a.resource.group != GROUP || a.user.in_group(SYSTEM_MASTERS) {
        return Ok(());
    }
    let Some(new) = a.object() else { return Ok(()) };
    let Some((question, field)) = question(rows, reader, a, new) else { return Ok(()) };
    let question = Question { user: a.user.clone(), resource_request: true, ..question };
    if authorization.allows(&question).await {
        return Ok(());
    }
    let user = shown(a);
    let why = if field == "paramKind" {
        let kind = &new["spec"]["paramKind"];
        let (kind, version) = (tree::text(kind, "/kind"), tree::text(kind, "/apiVersion"));
        format!(
            "user {user} must have \"get\" permission on all objects of the referenced paramKind (kind={kind}, apiVersion={version})"
        )
    } else {
        format!("user {user} does not have \"{}\" permission on the object referenced by paramRef", question.verb)
    };
    let error = Error::forbidden(Path::of(&["spec", field]), &why);
    Err(Status::invalid(&a.resource.group, &a.resource.kind, tree::name(new), [error]))
}

/// Attributes to authorize for a write of a policy or binding, and the field they are about.
fn question(rows: &Rows, reader: &dyn Reader, a: &Attributes<'_>, new: &Value) -> Option<(Question, &'static str)> {
    let plurals = [VALIDATING, MUTATING].into_iter().find(|(p, b)| a.of(*p) || a.of(*b))?;
    if a.of(plurals.0) {
        let kind = new.pointer("/spec/paramKind").filter(|k| k.is_object())?;
        let unchanged = a.old_object.is_some_and(|old| old.pointer("/spec/paramKind") == Some(kind));
        let question = Question { verb: "get".into(), name: "*".into(), namespace: "*".into(), ..of_kind(rows, kind) };
        return (!unchanged).then_some((question, "paramKind"));
    }
    let reference = new.pointer("/spec/paramRef").filter(|r| r.is_object())?;
    let same = |old: &Value| {
        old.pointer("/spec/paramRef") == Some(reference)
            && tree::text(old, "/spec/policyName") == tree::text(new, "/spec/policyName")
    };
    if a.old_object.is_some_and(same) {
        return None;
    }
    let policy = reader.get(plurals.0, "", tree::text(new, "/spec/policyName"));
    let kind = policy.as_ref().and_then(|p| p.pointer("/spec/paramKind"));
    let or_all = |text: &str| if text.is_empty() { "*".to_owned() } else { text.to_owned() };
    let name = tree::text(reference, "/name");
    let question = Question {
        verb: if name.is_empty() { "list" } else { "get" }.into(),
        name: or_all(name),
        namespace: or_all(tree::text(reference, "/namespace")),
        ..kind.map_or_else(everything, |kind| of_kind(rows, kind))
    };
    Some((question, "paramRef"))
}

fn everything() -> Question {
    let all = || "*".to_owned();
    Question { api_group: all(), api_version: all(), resource: all(), ..Question::default() }
}

/// The resource of a kind; all of its group and version when nobody knows it.
fn of_kind(rows: &Rows, kind: &Value) -> Question {
    let api_version = tree::text(kind, "/apiVersion");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let row = rows.find_kind(group, version, tree::text(kind, "/kind"));
    Question {
        api_group: group.to_owned(),
        api_version: version.to_owned(),
        resource: row.map_or_else(|| "*".to_owned(), |r| r.plural.to_string()),
        ..Question::default()
    }
}

/// A user as upstream prints one.
fn shown(a: &Attributes<'_>) -> String {
    let extra = proto::merge::go_print(&json!(a.user.extra));
    format!("&{{{} {} [{}] {extra}}}", a.user.name, a.user.uid, a.user.groups.join(" "))
}
