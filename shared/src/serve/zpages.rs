//! `/flagz` and `/statusz`: what a component was started with and since when it runs, as text for people or, where a
//! client asks for it by name, as JSON.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::flags::FlagSet;
use crate::status::Status;
use crate::version::Emulation;

const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
                       guarantees and is for debugging purposes only.";
const API_VERSION: &str = "config.k8s.io/v1alpha1";
const MEDIA: [&str; 4] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "text/plain"];

/// An answer with code 200.
#[derive(Debug, PartialEq, Eq)]
pub struct ZPage {
    /// Media type of the page.
    pub content_type: String,
    /// Text of the page.
    pub body: String,
}

/// Form of a page that a client asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageForm<'a> {
    /// `Accept`.
    pub accept: Option<&'a str>,
    /// Indented JSON.
    pub pretty: bool,
}

impl PageForm<'_> {
    fn page(self, kind: &str, text: String, tree: &impl Serialize) -> Result<ZPage, Box<Status>> {
        let structured = format!("application/json;g=config.k8s.io;v=v1alpha1;as={kind}");
        let accept = self.accept.unwrap_or_default();
        // Upstream's serializer of the one says less of itself than its page for those who do not ask.
        let bare = kind == "Statusz" && !accept.trim().is_empty();
        let plain = if bare { "text/plain" } else { "text/plain; charset=utf-8" };
        match form(accept, kind)? {
            Form::Text => Ok(ZPage { content_type: plain.to_owned(), body: text }),
            Form::Json => Ok(ZPage { content_type: structured, body: json(tree, self.pretty) }),
        }
    }
}

fn json(tree: &impl Serialize, pretty: bool) -> String {
    match pretty {
        true => serde_json::to_string_pretty(tree).unwrap_or_default(),
        false => serde_json::to_string(tree).unwrap_or_default() + "\n",
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Form {
    Text,
    Json,
}

/// One media type of an `Accept` header.
struct Clause<'a> {
    kind: &'a str,
    sub: &'a str,
    /// Type that an object is shown as: group, version, kind.
    of: Option<[&'a str; 3]>,
    weight: f64,
}

impl<'a> Clause<'a> {
    fn read(clause: &'a str) -> Option<Self> {
        let mut parts = clause.split(';').map(str::trim);
        let (kind, sub) = match parts.next()?.split_once('/') {
            Some((kind, sub)) => (kind.trim(), sub.trim()),
            None if clause.trim() == "*" => ("*", "*"),
            None => return None,
        };
        let mut read = Self { kind, sub, of: None, weight: 1.0 };
        let (mut of, mut converts) = (["", "", ""], false);
        for (name, value) in parts.filter_map(|p| p.split_once('=')) {
            match name.trim() {
                "q" => read.weight = value.trim().parse().unwrap_or(1.0),
                "g" => of[0] = value.trim(),
                "v" => of[1] = value.trim(),
                "as" => (of[2], converts) = (value.trim(), true),
                _ => {}
            }
        }
        read.of = converts.then_some(of);
        Some(read)
    }

    fn takes(&self, media: &str) -> bool {
        let (kind, sub) = media.split_once('/').unwrap_or_default();
        (self.kind == kind && (self.sub == sub || self.sub == "*")) || (self.kind == "*" && self.sub == "*")
    }
}

/// The form that a client takes: text, unless it names the object. What it cannot have is not there as YAML or protobuf
/// either; upstream finds that out late.
fn form(accept: &str, kind: &str) -> Result<Form, Box<Status>> {
    if accept.trim().is_empty() {
        return Ok(Form::Text);
    }
    let mut clauses: Vec<Clause<'_>> = accept.split(',').filter_map(Clause::read).collect();
    let wide = |c: &Clause<'_>| (c.kind == "*", c.sub == "*");
    clauses.sort_by(|a, b| b.weight.total_cmp(&a.weight).then_with(|| wide(a).cmp(&wide(b))));
    let object = ["config.k8s.io", "v1alpha1", kind];
    for clause in &clauses {
        for media in MEDIA.into_iter().filter(|media| clause.takes(media)) {
            match (media, clause.of) {
                ("text/plain", None) => return Ok(Form::Text),
                ("text/plain", _) => {}
                ("application/json", Some(of)) if of == object => return Ok(Form::Json),
                (_, Some(of)) if of == object => {
                    let why = format!("content negotiation failed: unsupported media type '{media}'");
                    return Err(Box::new(Status::unknown(&why)));
                }
                _ => {}
            }
        }
    }
    Err(Box::new(Status::not_acceptable(&MEDIA)))
}

#[derive(Serialize)]
struct Named<'a> {
    name: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Flagz<'a> {
    kind: &'a str,
    api_version: &'a str,
    metadata: Named<'a>,
    flags: BTreeMap<String, String>,
}

/// The page of flags and their values.
///
/// # Errors
/// The client takes nothing that there is.
pub fn flagz(flags: &FlagSet, wanted: PageForm<'_>) -> Result<ZPage, Box<Status>> {
    let name = flags.component();
    let all: BTreeMap<String, String> = flags.all().into_iter().collect();
    let lines: Vec<String> = all.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    let text = format!("\n{name} flagz\n{WARNING}\n{}", lines.concat());
    let tree = Flagz { kind: "Flagz", api_version: API_VERSION, metadata: Named { name }, flags: all };
    wanted.page("Flagz", text, &tree)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Statusz<'a> {
    kind: &'a str,
    api_version: &'a str,
    metadata: Named<'a>,
    start_time: String,
    uptime_seconds: u64,
    go_version: &'a str,
    binary_version: &'a str,
    emulation_version: String,
    paths: Vec<String>,
}

/// The page of what runs since when, and where else to look.
///
/// # Errors
/// The client takes nothing that there is.
pub fn statusz(
    (component, emulation): (&str, Emulation),
    paths: &[String],
    wanted: PageForm<'_>,
) -> Result<ZPage, Box<Status>> {
    let up = crate::metrics::uptime();
    let seconds = up.as_secs();
    let started = jiff::Timestamp::now().checked_sub(up).unwrap_or_default();
    let tree = Statusz {
        kind: "Statusz",
        api_version: API_VERSION,
        metadata: Named { name: component },
        start_time: started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        uptime_seconds: seconds,
        go_version: crate::version::GO_VERSION,
        binary_version: crate::version::git_version().trim_start_matches('v'),
        emulation_version: format!("{}.{}", crate::version::MAJOR, emulation.minor()),
        paths: folders(paths),
    };
    let text = format!(
        "\n{component} statusz\n{WARNING}\n\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nGo version: {}\n\
         Binary version: {}\nEmulation version: {}\nPaths: {}\n",
        started.strftime("%a %b %e %H:%M:%S UTC %Y"),
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        tree.go_version,
        tree.binary_version,
        tree.emulation_version,
        tree.paths.join(" "),
    );
    wanted.page("Statusz", text, &tree)
}

/// The first parts of paths where somebody who looks for a fault may look.
fn folders(paths: &[String]) -> Vec<String> {
    const OTHERS: [&str; 5] = ["apis", "api", "openid", "openapi", ".well-known"];
    let first = paths.iter().filter_map(|path| path.split('/').nth(1));
    let folders: BTreeSet<&str> = first.filter(|f| !f.is_empty() && !OTHERS.contains(f)).collect();
    folders.into_iter().map(|f| format!("/{f}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let object = "v=v1alpha1;g=config.k8s.io;as=Flagz";
        let refused = || {
            Err("only the following media types are accepted: application/json, application/yaml, \
                           application/vnd.kubernetes.protobuf, text/plain")
        };
        let late = Err("content negotiation failed: unsupported media type 'application/yaml'");
        for (accept, want) in [
            ("", Ok(Form::Text)),
            (" ", Ok(Form::Text)),
            ("text/plain", Ok(Form::Text)),
            ("text/plain;charset=utf-8", Ok(Form::Text)),
            ("text/*", Ok(Form::Text)),
            ("*/*", Ok(Form::Text)),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Ok(Form::Text)),
            ("application/json, */*", Ok(Form::Text)),
            ("text/html", refused()),
            ("application/json", refused()),
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", refused()),
            (&format!("application/json;{object}"), Ok(Form::Json)),
            (&format!("application/json;{object},text/plain"), Ok(Form::Json)),
            (&format!("application/json;{object};q=0.5,text/plain"), Ok(Form::Text)),
            (&format!("application/json;v=v1;g=config.k8s.io;as=Flagz,application/json;{object}"), Ok(Form::Json)),
            ("application/json;v=v1;g=config.k8s.io;as=Flagz", refused()),
            (&format!("application/yaml;{object}"), late),
            (&format!("application/cbor;{object}"), refused()),
        ] {
            let got = form(accept, "Flagz").map_err(|status| status.message);
            assert_eq!(got, want.map_err(str::to_owned), "{accept}");
        }
    }

    #[test]
    fn pages() {
        let flags = FlagSet::of("kube-scheduler", &["--v=2"]).expect("flags");
        let text = flagz(&flags, PageForm::default()).expect("text").body;
        assert!(text.starts_with(&format!("\nkube-scheduler flagz\n{WARNING}\n")), "{text}");
        assert!(text.contains("\nv=2\n") && !text.contains("\n\n"), "{text}");
        let accept = Some("application/json;v=v1alpha1;g=config.k8s.io;as=Flagz");
        let page = flagz(&flags, PageForm { accept, pretty: false }).expect("json");
        assert_eq!(page.content_type, "application/json;g=config.k8s.io;v=v1alpha1;as=Flagz");
        let start =
            r#"{"kind":"Flagz","apiVersion":"config.k8s.io/v1alpha1","metadata":{"name":"kube-scheduler"},"flags":{""#;
        assert!(page.body.starts_with(start) && page.body.ends_with("}}\n"), "{}", page.body);
        let paths: Vec<String> =
            ["/", "/api", "/apis/apps/v1", "/healthz", "/healthz/ping", "/openapi/v2", "/metrics/slis"]
                .map(str::to_owned)
                .into();
        let accept = Some("application/json;v=v1alpha1;g=config.k8s.io;as=Statusz");
        let page = statusz(("kube-apiserver", Emulation::default()), &paths, PageForm { accept, pretty: true })
            .expect("json")
            .body;
        assert!(page.contains("\"paths\": [\n    \"/healthz\",\n    \"/metrics\"\n  ]\n}"), "{page}");
        let text = statusz(("kube-apiserver", Emulation::default()), &paths, PageForm::default()).expect("text").body;
        assert!(text.ends_with("\nEmulation version: 1.35\nPaths: /healthz /metrics\n"), "{text}");
    }
}
