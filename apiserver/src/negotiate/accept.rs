//! Reading the `Accept` header: the format of the answer and the form of the objects in it. Answers for upstream's
//! `pkg/endpoints/handlers/negotiation` (`NegotiateOutputMediaType`).

/// Reports whether a client receives indented JSON: `?pretty=`, read as Go's `ParseBool` reads, or a user agent that
/// people look at.
pub fn for_people(asked: Option<&str>, user_agent: &str) -> bool {
    match asked.filter(|text| !text.is_empty()) {
        Some(text) => matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True"),
        None => ["curl", "Wget", "Mozilla/5.0"].iter().any(|client| user_agent.starts_with(client)),
    }
}

/// The media types a server speaks: those that all do, and CBOR behind its feature gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Media {
    /// CBOR is spoken, and custom resources are stored in it.
    pub cbor: bool,
    /// `--storage-media-type=application/json`: built-in objects are stored as JSON, too.
    pub stores_json: bool,
}

impl Media {
    /// Media types of request bodies.
    pub fn bodies(self) -> &'static [&'static str] {
        const ALL: [&str; 4] =
            ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/cbor"];
        if self.cbor { &ALL } else { &ALL[..3] }
    }

    fn format(self, media: &str) -> Option<Format> {
        match media {
            "application/json" => Some(Format::Json),
            "application/yaml" => Some(Format::Yaml),
            "application/vnd.kubernetes.protobuf" => Some(Format::Protobuf),
            "application/cbor" if self.cbor => Some(Format::Cbor),
            _ => None,
        }
    }

    /// The format of a body; `None` when unknown.
    pub fn body_format(self, content_type: &str) -> Option<Format> {
        if content_type.is_empty() {
            return Some(Format::Json);
        }
        let (media, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
        let all = parameters.trim_end().strip_suffix(';').unwrap_or(parameters);
        let readable = parameters.contains('"') || parameters.trim().is_empty() || all.split(';').all(is_parameter);
        self.format(&media.trim().to_ascii_lowercase()).filter(|_| readable)
    }
}

/// Reports whether a text is a name with a value.
fn is_parameter(text: &str) -> bool {
    text.split_once('=').is_some_and(|(name, _)| !name.trim().is_empty())
}

/// Encoding of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `application/json`
    Json,
    /// `application/yaml`
    Yaml,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
    /// `application/cbor`
    Cbor,
}

impl Format {
    /// The `Content-Type` of an answer.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
            Self::Cbor => "application/cbor",
        }
    }

    /// The `Content-Type` of a watch.
    pub fn stream_content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
            Self::Cbor => "application/cbor-seq",
        }
    }
}

/// Form of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectForm {
    /// Plain objects.
    Object,
    /// Rows of columns, in the given version of `meta.k8s.io`.
    Table(&'static str),
    /// Metadata only, of one object.
    Metadata(&'static str),
    /// Metadata only, of a list.
    MetadataList(&'static str),
}

/// Negotiated form of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Encoding.
    pub format: Format,
    /// Form.
    pub shape: ObjectForm,
    /// Indented JSON.
    pub pretty: bool,
}

/// Reasons for which no form is acceptable.
#[derive(Debug, PartialEq, Eq)]
pub enum NotAcceptable {
    /// No such encoding.
    Format,
    /// The encoding is known, the form is not.
    Shape,
    /// The encoding has no stream.
    Stream,
}

/// Reports whether a client names one of these media types, or accepts any: the check of upstream's go-restful router
/// before a handler. It reads neither parameters nor `application/*`.
pub fn names_any(offered: &[&str], header: Option<&str>) -> bool {
    let named = |clause: &str| {
        let media = clause.split(';').next().unwrap_or_default().trim();
        media == "*/*" || offered.contains(&media)
    };
    header.is_none_or(|header| header.is_empty() || header.split(',').any(named))
}

/// Reads an `Accept` header for an endpoint that answers with a single object, a list or a watch.
pub fn parse(media: Media, header: Option<&str>, watch: bool) -> Result<Accepted, NotAcceptable> {
    choose(media, header, watch, true)
}

/// Negotiates like [`parse`] for objects that have neither tables nor partial forms.
pub fn parse_plain(media: Media, header: Option<&str>) -> Result<Accepted, NotAcceptable> {
    choose(media, header, false, false)
}

fn choose(media: Media, header: Option<&str>, watch: bool, forms: bool) -> Result<Accepted, NotAcceptable> {
    let accepted = |format, shape| Accepted { format, shape, pretty: false };
    let header = header.unwrap_or("").trim();
    if header.is_empty() {
        return Ok(accepted(Format::Json, ObjectForm::Object));
    }
    for clause in clauses(header) {
        let format = match (clause.media, media.format(clause.media)) {
            ("*" | "*/*" | "application/*", _) => Format::Json,
            (_, Some(format)) => format,
            (_, None) => continue,
        };
        let (mut r#as, mut group, mut version, mut pretty) = ("", "", "", false);
        let (mut plain, mut known) = (true, true);
        for (key, value) in &clause.parameters {
            plain &= !matches!(*key, "as" | "g" | "v");
            match *key {
                "as" => r#as = value,
                "g" => group = value,
                "v" => version = value,
                "pretty" => pretty = *value == "1",
                "stream" => known &= value.is_empty() || (*value == "watch" && format != Format::Yaml),
                "sv" => known &= matches!(*value, "" | "v1"),
                _ => {}
            }
        }
        let version = match version {
            "v1" => "v1",
            "v1beta1" => "v1beta1",
            _ => "",
        };
        let shape = match r#as {
            _ if !known => continue,
            "" if plain => ObjectForm::Object,
            "Table" if group == "meta.k8s.io" && !version.is_empty() => ObjectForm::Table(version),
            "PartialObjectMetadata" if group == "meta.k8s.io" && !version.is_empty() => ObjectForm::Metadata(version),
            "PartialObjectMetadataList" if group == "meta.k8s.io" && !version.is_empty() => {
                ObjectForm::MetadataList(version)
            }
            _ => continue,
        };
        let unoffered = !forms && shape != ObjectForm::Object;
        if unoffered || matches!(shape, ObjectForm::Table(_)) && format == Format::Protobuf {
            // Table has no protobuf form.
            continue;
        }
        // What the client would rather have is known, and no stream of it.
        if watch && format == Format::Yaml {
            return Err(NotAcceptable::Stream);
        }
        return Ok(Accepted { format, shape, pretty });
    }
    Err(NotAcceptable::Shape)
}

/// Negotiated form of aggregated discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AggregatedForm {
    /// Encoding.
    pub format: Format,
    /// Indented JSON.
    pub pretty: bool,
    /// Of this server alone, without its peers.
    pub alone: bool,
}

/// Reads an `Accept` header for the aggregated form of discovery: it comes before any other form the client takes. It
/// has no CBOR.
pub fn parse_aggregated(header: Option<&str>) -> Option<AggregatedForm> {
    clauses(header.unwrap_or("")).iter().find_map(|clause| {
        let format = match clause.media {
            "*" | "*/*" | "application/*" => Format::Json,
            media => Media::default().format(media)?,
        };
        let given =
            |name: &str| clause.parameters.iter().rfind(|(key, _)| *key == name).map_or("", |(_, value)| *value);
        let form = (given("g"), given("v"), given("as")) == ("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList");
        let stream = given("stream");
        let known = given("sv").is_empty() && (stream.is_empty() || (stream == "watch" && format != Format::Yaml));
        let alone = given("profile") == "nopeer";
        (form && known).then(|| AggregatedForm { format, pretty: given("pretty") == "1", alone })
    })
}

struct Clause<'a> {
    media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
    quality: u16,
    specificity: u8,
}

/// A parameter that says something.
fn parameter(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    (!value.is_empty() && !value.contains('=')).then(|| (name.trim(), value.trim()))
}

/// Clauses by descending quality; those of equal quality keep their order, wildcards last.
fn clauses(header: &str) -> Vec<Clause<'_>> {
    let mut out: Vec<Clause<'_>> = header
        .split(',')
        .filter_map(|c| {
            let mut parts = c.split(';').map(str::trim);
            let media = parts.next()?;
            let parameters: Vec<_> = parts.filter_map(parameter).collect();
            // What is no number is none, as Go has it.
            let q = parameters.iter().rfind(|(k, _)| *k == "q").map_or(1.0, |(_, v)| v.parse::<f32>().unwrap_or(0.0));
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0..=1000")]
            let quality = (q.clamp(0.0, 1.0) * 1000.0) as u16;
            let specificity = if matches!(media, "*" | "*/*") {
                0
            } else if media.ends_with("/*") {
                1
            } else {
                2
            };
            Some(Clause { media, parameters, quality, specificity })
        })
        .collect();
    out.sort_by(|a, b| b.quality.cmp(&a.quality).then(b.specificity.cmp(&a.specificity)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people() {
        for (asked, agent, indented) in [
            (None, "curl/8.0", true),
            (Some(""), "Mozilla/5.0 (X11)", true),
            (Some("0"), "Wget", false),
            (Some("T"), "kubectl", true),
            (None, "kubectl", false),
        ] {
            assert_eq!(for_people(asked, agent), indented, "{asked:?} {agent}");
        }
    }

    #[test]
    fn accept_headers() {
        let ok = |format, shape| Ok(Accepted { format, shape, pretty: false });
        for (header, want) in [
            ("", ok(Format::Json, ObjectForm::Object)),
            ("*/*", ok(Format::Json, ObjectForm::Object)),
            ("application/vnd.kubernetes.protobuf,application/json", ok(Format::Protobuf, ObjectForm::Object)),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                ok(Format::Json, ObjectForm::Table("v1")),
            ),
            ("application/json;as=Table;v=v9;g=meta.k8s.io", Err(NotAcceptable::Shape)),
            ("application/json;g=meta.k8s.io;v=v1", Err(NotAcceptable::Shape)),
            ("application/json;v=v1", Err(NotAcceptable::Shape)),
            ("application/json;v=v1, application/yaml", ok(Format::Yaml, ObjectForm::Object)),
            ("application/json;stream=watch;sv=v1", ok(Format::Json, ObjectForm::Object)),
            ("application/json;stream=other", Err(NotAcceptable::Shape)),
            ("application/yaml;stream=watch", Err(NotAcceptable::Shape)),
            ("application/json;sv=v2", Err(NotAcceptable::Shape)),
            ("application/json;other=1", ok(Format::Json, ObjectForm::Object)),
            (
                "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/json",
                ok(Format::Json, ObjectForm::Object),
            ),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                ok(Format::Protobuf, ObjectForm::MetadataList("v1")),
            ),
            ("text/html", Err(NotAcceptable::Shape)),
            ("application/*", ok(Format::Json, ObjectForm::Object)),
            ("application/*;as=Table;v=v1;g=meta.k8s.io", ok(Format::Json, ObjectForm::Table("v1"))),
            ("application/json;as=;x=y=z", ok(Format::Json, ObjectForm::Object)),
            ("application/json;as=\"Table\";v=v1;g=meta.k8s.io", Err(NotAcceptable::Shape)),
            ("application/json;q=x,application/yaml;q=0.1", ok(Format::Yaml, ObjectForm::Object)),
            ("application/cbor", Err(NotAcceptable::Shape)),
            ("text/html, */*;q=0.1", ok(Format::Json, ObjectForm::Object)),
            ("application/json;q=0.2,application/yaml", ok(Format::Yaml, ObjectForm::Object)),
        ] {
            assert_eq!(parse(Media::default(), Some(header), false), want, "{header}");
        }
        for (header, want) in [
            ("application/yaml,application/json", Err(NotAcceptable::Stream)),
            ("application/json,application/yaml", ok(Format::Json, ObjectForm::Object)),
            ("*/*", ok(Format::Json, ObjectForm::Object)),
        ] {
            assert_eq!(parse(Media::default(), Some(header), true), want, "{header}");
        }
        for (header, named) in [
            ("", true),
            ("text/html, application/json;q=0", true),
            ("text/html;x=1,*/*", true),
            ("application/*", false),
            ("*", false),
            ("APPLICATION/JSON", false),
            ("application/cbor", false),
        ] {
            assert_eq!(names_any(Media::default().bodies(), Some(header)), named, "{header}");
        }
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        assert_eq!(parse_plain(Media::default(), Some(table)), Err(NotAcceptable::Shape));
        let otherwise = format!("{table},application/yaml");
        assert_eq!(parse_plain(Media::default(), Some(&otherwise)), ok(Format::Yaml, ObjectForm::Object));
        let aggregated = |format, pretty, alone| Some(AggregatedForm { format, pretty, alone });
        for (header, want) in [
            (
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                aggregated(Format::Json, false, false),
            ),
            (
                "*/*;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io;profile=nopeer",
                aggregated(Format::Json, false, true),
            ),
            (
                "application/json,application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                aggregated(Format::Protobuf, false, false),
            ),
            (
                "application/json;q=0.1;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                 application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;pretty=1",
                aggregated(Format::Yaml, true, false),
            ),
            ("application/cbor;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", None),
            ("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList", None),
            ("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;sv=v1", None),
            ("application/json", None),
            ("", None),
        ] {
            assert_eq!(parse_aggregated(Some(header)), want, "{header}");
        }
        let cbor = parse(
            Media { cbor: true, ..Media::default() },
            Some("application/cbor;q=0.9,application/json;q=0.5"),
            true,
        );
        assert_eq!(cbor, ok(Format::Cbor, ObjectForm::Object));
    }
}
