//! Operations of a resource, independent of the document's version.

use serde_json::Value;

use super::media::{Accepts, Media};
use super::types::{META, name};
use crate::discovery::{Group, Version};
use crate::resources::{Resource, Subresource};
use crate::schema;

/// Location of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum In {
    Path,
    Query,
}

/// A parameter besides the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Parameter {
    pub name: &'static str,
    pub place: In,
    pub kind: &'static str,
}

/// Type of a request or response body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Body {
    Named(String),
    Text,
}

/// One operation.
#[derive(Debug, Clone)]
pub(super) struct ApiOperation {
    pub method: &'static str,
    pub id: String,
    pub tag: String,
    pub action: Option<(&'static str, [String; 3])>,
    pub parameters: Vec<Parameter>,
    pub request: Option<(Body, bool)>,
    pub accepts: Accepts,
    pub responses: Vec<(&'static str, Body)>,
    pub media: Media,
}

/// One path.
#[derive(Debug, Clone)]
pub(super) struct Path {
    pub path: String,
    pub operations: Vec<ApiOperation>,
}

impl Path {
    /// Parameters that all operations share; they are taken out of those.
    pub(super) fn hoist(&mut self) -> Vec<Parameter> {
        let mut shared = match self.operations.first() {
            Some(first) => first.parameters.clone(),
            None => return Vec::new(),
        };
        shared.retain(|p| self.operations.iter().all(|o| o.parameters.contains(p)));
        for operation in &mut self.operations {
            operation.parameters.retain(|p| !shared.contains(p));
            operation.parameters.sort();
        }
        shared.sort();
        shared
    }
}

const fn query(name: &'static str, kind: &'static str) -> Parameter {
    Parameter { name, place: In::Query, kind }
}

const fn in_path(name: &'static str) -> Parameter {
    Parameter { name, place: In::Path, kind: "string" }
}

const PRETTY: Parameter = query("pretty", "string");
const LIST: &[Parameter] = &[
    query("allowWatchBookmarks", "boolean"),
    query("continue", "string"),
    query("fieldSelector", "string"),
    query("labelSelector", "string"),
    query("limit", "integer"),
    query("resourceVersion", "string"),
    query("resourceVersionMatch", "string"),
    query("sendInitialEvents", "boolean"),
    query("timeoutSeconds", "integer"),
    query("watch", "boolean"),
];
const DELETE: &[Parameter] = &[
    query("dryRun", "string"),
    query("gracePeriodSeconds", "integer"),
    query("ignoreStoreReadErrorWithClusterBreakingPotential", "boolean"),
    query("orphanDependents", "boolean"),
    query("propagationPolicy", "string"),
];
const WRITE: &[Parameter] =
    &[query("dryRun", "string"), query("fieldManager", "string"), query("fieldValidation", "string")];
const LOG: &[Parameter] = &[
    query("container", "string"),
    query("follow", "boolean"),
    query("insecureSkipTLSVerifyBackend", "boolean"),
    query("limitBytes", "integer"),
    query("previous", "boolean"),
    query("sinceSeconds", "integer"),
    query("stream", "string"),
    query("tailLines", "integer"),
    query("timestamps", "boolean"),
];
const ATTACH: &[Parameter] = &[
    query("container", "string"),
    query("stderr", "boolean"),
    query("stdin", "boolean"),
    query("stdout", "boolean"),
    query("tty", "boolean"),
];

fn upper(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |c| c.to_ascii_uppercase().to_string() + chars.as_str())
}

/// `rbac.authorization.k8s.io` → `RbacAuthorization`.
fn group_word(group: &str) -> String {
    if group.is_empty() {
        return "Core".to_owned();
    }
    group.strip_suffix(".k8s.io").unwrap_or(group).split('.').map(upper).collect()
}

fn tag(group: &str) -> String {
    let word = group_word(group);
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |c| c.to_ascii_lowercase().to_string() + chars.as_str())
}

fn simple(method: &'static str, id: String, tag: String, body: Body) -> ApiOperation {
    ApiOperation {
        method,
        id,
        tag,
        action: None,
        parameters: Vec::new(),
        request: None,
        accepts: Accepts::Objects,
        responses: vec![("200", body)],
        media: Media::Objects,
    }
}

fn meta(kind: &str) -> Body {
    Body::Named(format!("{META}{kind}"))
}

/// The paths that are not about resources of one version.
pub(super) fn fixed(path: &str) -> Option<Path> {
    let one = |path: &str, operation: ApiOperation| Some(Path { path: path.to_owned(), operations: vec![operation] });
    match path {
        "api" => one("/api/", simple("get", "getCoreAPIVersions".into(), "core".into(), meta("APIVersions"))),
        "apis" => one("/apis/", simple("get", "getAPIVersions".into(), "apis".into(), meta("APIGroupList"))),
        "version" => {
            let info = Body::Named("io.k8s.apimachinery.pkg.version.Info".to_owned());
            let mut operation = simple("get", "getCodeVersion".into(), "version".into(), info);
            (operation.media, operation.accepts) = (Media::Json, Accepts::Json);
            one("/version/", operation)
        }
        "openid/v1/jwks" => {
            let id = "getServiceAccountIssuerOpenIDKeyset".to_owned();
            let mut operation = simple("get", id, "openid".into(), Body::Text);
            (operation.media, operation.accepts) = (Media::Keys, Accepts::Nothing);
            one("/openid/v1/jwks/", operation)
        }
        ".well-known/openid-configuration" => {
            let id = "getServiceAccountIssuerOpenIDConfiguration".to_owned();
            let mut operation = simple("get", id, "WellKnown".into(), Body::Text);
            (operation.media, operation.accepts) = (Media::Json, Accepts::Nothing);
            one("/.well-known/openid-configuration/", operation)
        }
        _ => None,
    }
}

/// The path of a group's own document.
pub(super) fn group(group: &Group<'_>) -> Path {
    let id = format!("get{}APIGroup", group_word(group.name));
    Path {
        path: format!("/apis/{}/", group.name),
        operations: vec![simple("get", id, tag(group.name), meta("APIGroup"))],
    }
}

/// All paths of a version.
pub(super) fn version(group: &Group<'_>, version: &Version<'_>) -> Vec<Path> {
    let base = if group.name.is_empty() {
        format!("/api/{}", version.name)
    } else {
        format!("/apis/{}/{}", group.name, version.name)
    };
    let words = format!("{}{}", group_word(group.name), upper(version.name));
    let tag = format!("{}_{}", tag(group.name), version.name);
    let id = format!("get{words}APIResources");
    let list =
        Path { path: format!("{base}/"), operations: vec![simple("get", id, tag.clone(), meta("APIResourceList"))] };
    let mut paths = vec![list];
    for row in &version.resources {
        Builder { row, base: &base, words: &words, tag: &tag }.paths(&mut paths);
    }
    paths.sort_by(|a, b| a.path.cmp(&b.path));
    paths
}

struct Builder<'b> {
    row: &'b Resource,
    base: &'b str,
    words: &'b str,
    tag: &'b str,
}

fn body(group: &str, version: &str, kind: &str) -> Body {
    schema::kind(group, version, kind).map_or(Body::Text, |message| Body::Named(name(message)))
}

impl Builder<'_> {
    fn object(&self) -> Body {
        body(&self.row.group, &self.row.version, &self.row.kind)
    }

    fn list(&self) -> Body {
        body(&self.row.group, &self.row.version, &self.row.list_kind)
    }

    fn gvk(&self) -> [String; 3] {
        [self.row.group.to_string(), self.row.version.to_string(), self.row.kind.to_string()]
    }

    fn namespaced(&self) -> &'static str {
        if self.row.namespaced { "Namespaced" } else { "" }
    }

    fn operation(
        &self,
        method: &'static str,
        id: String,
        action: &'static str,
        responses: Vec<(&'static str, Body)>,
    ) -> ApiOperation {
        ApiOperation {
            method,
            id,
            tag: self.tag.to_owned(),
            action: Some((action, self.gvk())),
            parameters: Vec::new(),
            request: None,
            accepts: Accepts::Anything,
            responses,
            media: Media::Objects,
        }
    }

    /// Parameters in the path of a collection or of one object.
    fn place(&self, named: bool) -> Vec<Parameter> {
        let mut list = vec![PRETTY];
        if self.row.namespaced {
            list.push(in_path("namespace"));
        }
        if named {
            list.push(in_path("name"));
        }
        list
    }

    fn paths(&self, out: &mut Vec<Path>) {
        let row = self.row;
        let (base, plural) = (self.base, row.plural.as_ref());
        let own = if row.namespaced { format!("namespaces/{{namespace}}/{plural}") } else { plural.to_owned() };
        let mut push = |path: String, operations: Vec<ApiOperation>| {
            if !operations.is_empty() {
                out.push(Path { path, operations });
            }
        };
        push(format!("{base}/{own}"), self.collection());
        push(format!("{base}/{own}/{{name}}"), self.single());
        if row.namespaced && row.has_verb("list") {
            let id = format!("list{}{}ForAllNamespaces", self.words, row.kind);
            let mut operation = self.operation("get", id, "list", vec![("200", self.list())]);
            operation.parameters = [LIST, &[PRETTY]].concat();
            operation.media = Media::Watchable;
            push(format!("{base}/{plural}"), vec![operation]);
        }
        if row.has_verb("watch") {
            let (words, namespaced, kind) = (self.words, self.namespaced(), &row.kind);
            let place = self.place(false);
            let list = self.watch(format!("watch{words}{namespaced}{kind}List"), "watchlist", &place);
            push(format!("{base}/watch/{own}"), vec![list]);
            let one = self.watch(format!("watch{words}{namespaced}{kind}"), "watch", &self.place(true));
            push(format!("{base}/watch/{own}/{{name}}"), vec![one]);
            if row.namespaced {
                let id = format!("watch{words}{kind}ListForAllNamespaces");
                push(format!("{base}/watch/{plural}"), vec![self.watch(id, "watchlist", &[PRETTY])]);
            }
        }
        for sub in row.subresources.iter() {
            let path = format!("{base}/{own}/{{name}}/{}", sub.name);
            push(path.clone(), self.subresource(sub, false));
            if sub.name == "proxy" {
                push(format!("{path}/{{path}}"), self.subresource(sub, true));
            }
        }
    }

    fn watch(&self, id: String, action: &'static str, place: &[Parameter]) -> ApiOperation {
        let mut operation = self.operation("get", id, action, vec![("200", meta("WatchEvent"))]);
        operation.parameters = [LIST, place].concat();
        operation.media = Media::Watchable;
        operation
    }

    fn collection(&self) -> Vec<ApiOperation> {
        let row = self.row;
        let (words, namespaced, kind) = (self.words, self.namespaced(), &row.kind);
        let place = self.place(false);
        let mut out = Vec::new();
        if row.has_verb("list") {
            let id = format!("list{words}{namespaced}{kind}");
            let mut operation = self.operation("get", id, "list", vec![("200", self.list())]);
            operation.parameters = [LIST, place.as_slice()].concat();
            operation.media = Media::Watchable;
            out.push(operation);
        }
        if row.has_verb("create") {
            out.push(self.create(format!("create{words}{namespaced}{kind}"), self.object(), place.clone()));
        }
        if row.has_verb("deletecollection") {
            let id = format!("delete{words}Collection{namespaced}{kind}");
            let mut operation = self.operation("delete", id, "deletecollection", vec![("200", meta("Status"))]);
            let selection = LIST.iter().filter(|p| !matches!(p.name, "allowWatchBookmarks" | "watch")).copied();
            operation.parameters = [DELETE, place.as_slice()].concat();
            operation.parameters.extend(selection);
            operation.request = Some((meta("DeleteOptions"), false));
            out.push(operation);
        }
        out
    }

    fn create(&self, id: String, object: Body, place: Vec<Parameter>) -> ApiOperation {
        let responses = ["200", "201", "202"].map(|code| (code, object.clone())).to_vec();
        let mut operation = self.operation("post", id, "post", responses);
        operation.parameters = [WRITE, place.as_slice()].concat();
        operation.request = Some((object, true));
        operation
    }

    fn single(&self) -> Vec<ApiOperation> {
        let row = self.row;
        let suffix = format!("{}{}{}", self.words, self.namespaced(), row.kind);
        let verbs: Vec<&str> = row.verbs.iter().map(AsRef::as_ref).collect();
        let mut out = self.reads_and_writes(&suffix, &self.object(), &verbs);
        if row.has_verb("delete") {
            let answer = if row.returns_deleted { self.object() } else { meta("Status") };
            let responses = vec![("200", answer.clone()), ("202", answer)];
            let mut operation = self.operation("delete", format!("delete{suffix}"), "delete", responses);
            operation.parameters = [DELETE, self.place(true).as_slice()].concat();
            operation.request = Some((meta("DeleteOptions"), false));
            out.push(operation);
        }
        out
    }

    fn reads_and_writes(&self, suffix: &str, object: &Body, verbs: &[&str]) -> Vec<ApiOperation> {
        let place = self.place(true);
        let mut out = Vec::new();
        if verbs.contains(&"get") {
            let mut operation = self.operation("get", format!("read{suffix}"), "get", vec![("200", object.clone())]);
            operation.parameters.clone_from(&place);
            out.push(operation);
        }
        let written = || vec![("200", object.clone()), ("201", object.clone())];
        if verbs.contains(&"patch") {
            let mut operation = self.operation("patch", format!("patch{suffix}"), "patch", written());
            operation.parameters = [WRITE, place.as_slice(), &[query("force", "boolean")]].concat();
            operation.request = Some((meta("Patch"), true));
            operation.accepts = Accepts::Patches;
            out.push(operation);
        }
        if verbs.contains(&"update") {
            let mut operation = self.operation("put", format!("replace{suffix}"), "put", written());
            operation.parameters = [WRITE, place.as_slice()].concat();
            operation.request = Some((object.clone(), true));
            out.push(operation);
        }
        out
    }

    fn subresource(&self, sub: &Subresource, with_path: bool) -> Vec<ApiOperation> {
        let kind = &self.row.kind;
        let suffix = format!("{}{}{kind}{}", self.words, self.namespaced(), upper(&sub.name));
        let object = body(&sub.group, &sub.version, &sub.kind);
        let gvk = [sub.group.to_string(), sub.version.to_string(), sub.kind.to_string()];
        let verbs: Vec<&str> = sub.verbs.iter().map(AsRef::as_ref).collect();
        let mut operations = match sub.name.as_ref() {
            "attach" | "exec" | "portforward" | "proxy" => self.connect(sub, with_path),
            "log" => {
                let id = format!("read{suffix}");
                let mut operation = self.operation("get", id, "get", vec![("200", Body::Text)]);
                operation.parameters = [LOG, self.place(true).as_slice()].concat();
                operation.media = Media::Log;
                vec![operation]
            }
            _ if verbs == ["create"] => vec![self.create(format!("create{suffix}"), object, self.place(true))],
            _ => self.reads_and_writes(&suffix, &object, &verbs),
        };
        for operation in &mut operations {
            if let Some((_, kind)) = &mut operation.action {
                kind.clone_from(&gvk);
            }
        }
        operations
    }

    fn connect(&self, sub: &Subresource, with_path: bool) -> Vec<ApiOperation> {
        let methods: &[&'static str] = match sub.name.as_ref() {
            "proxy" => &["delete", "get", "head", "options", "patch", "post", "put"],
            _ => &["get", "post"],
        };
        let mut parameters: Vec<Parameter> = self.place(true).into_iter().filter(|p| p.place == In::Path).collect();
        match sub.name.as_ref() {
            "proxy" => parameters.push(query("path", "string")),
            "portforward" => parameters.push(query("ports", "integer")),
            "exec" => {
                parameters.extend(ATTACH);
                parameters.push(query("command", "string"));
            }
            _ => parameters.extend(ATTACH),
        }
        if with_path {
            parameters.push(in_path("path"));
        }
        let tail = if with_path { "WithPath" } else { "" };
        methods
            .iter()
            .map(|method| {
                let (words, namespaced, kind) = (self.words, self.namespaced(), &self.row.kind);
                let id = format!("connect{words}{}{namespaced}{kind}{}{tail}", upper(method), upper(&sub.name));
                let mut operation = self.operation(method, id, "connect", vec![("200", Body::Text)]);
                operation.parameters.clone_from(&parameters);
                operation.media = Media::Anything;
                operation
            })
            .collect()
    }
}

/// Names of all schemas that paths mention.
pub(super) fn mentioned(paths: &[Path]) -> std::collections::BTreeSet<String> {
    let mut names = std::collections::BTreeSet::new();
    for operation in paths.iter().flat_map(|p| &p.operations) {
        let request = operation.request.iter().map(|(body, _)| body);
        for body in operation.responses.iter().map(|(_, body)| body).chain(request) {
            if let Body::Named(name) = body {
                super::types::close_over(name, &mut names);
            }
        }
    }
    names
}

/// `x-kubernetes-group-version-kind` of an operation.
pub(super) fn kind_value(gvk: &[String; 3]) -> Value {
    serde_json::json!({"group": gvk[0], "version": gvk[1], "kind": gvk[2]})
}

/// Description of a status code.
pub(super) fn reason(code: &str) -> &'static str {
    match code {
        "200" => "OK",
        "201" => "Created",
        "202" => "Accepted",
        _ => "Unauthorized",
    }
}
