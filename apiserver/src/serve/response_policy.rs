//! Policies for every response: CORS, HSTS, probabilistic GOAWAY and the deadline. Pure but for the clock. Answers for
//! upstream's `WithCORS`, `WithHSTS`, `WithProbabilisticGoaway`.

use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::http::Version;
use actix_web::http::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue};
use regex::Regex;
use shared::flags::FlagSet;
use shared::status::Status;
use shared::status::field::aggregate;
use shared::version::Emulation;

use crate::machinery::query::Query;

/// From the flags.
#[derive(Default)]
pub struct ResponsePolicy {
    origins: Vec<Regex>,
    transport: Option<HeaderValue>,
    /// `--request-timeout`
    longest: Duration,
    /// `--min-request-timeout` in seconds.
    pub shortest_watch: u64,
    /// `--goaway-chance`
    goaway: f64,
    /// `--profiling`: profilers may look, levels be set and metrics reset.
    pub profiling: bool,
    /// `--enable-logs-handler`: `/logs/` is served.
    pub logs: bool,
    /// `--etcd-count-metric-poll-period` is not 0: `/metrics` says how many objects there are.
    pub counts: bool,
    /// `SizeBasedListCostEstimate`: and how many bytes they take.
    pub sizes: bool,
    /// The page of flags, behind `ComponentFlagz`.
    pub flagz: Option<FlagSet>,
    /// `ComponentStatusz`
    pub statusz: bool,
    /// `APIResponseCompression`
    pub compresses: bool,
    /// `StorageVersionHash`: discovery says in which version objects are stored.
    pub hashes: bool,
    /// The release to behave as.
    pub emulation: Emulation,
    /// `OpenAPIEnums`
    pub enums: bool,
    /// `AuthorizePodWebsocketUpgradeCreatePermission`: who opens a session in a pod must be allowed to create one.
    pub checks_session_create: bool,
    /// `UnauthenticatedHTTP2DOSMitigation`
    closes_unauthenticated: bool,
}

const CORS: [(&str, &str); 4] = [
    ("access-control-allow-methods", "POST, GET, OPTIONS, PUT, DELETE, PATCH"),
    (
        "access-control-allow-headers",
        "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since",
    ),
    ("access-control-expose-headers", "Date"),
    ("access-control-allow-credentials", "true"),
];

/// A flag that cannot be obeyed, in upstream's words.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
enum ResponseFlagError {
    /// Connections would be closed too often.
    #[error("--goaway-chance can not be less than 0 or greater than 0.02")]
    GoawayChance,
    /// A flag is negative.
    #[error("--{0} can not be negative value")]
    Negative(&'static str),
    /// An origin is no pattern.
    #[error("--cors-allowed-origins has an invalid regular expression: {0}")]
    Origin(#[from] regex::Error),
    /// An origin does not say where the host begins and ends.
    #[error(
        "--cors-allowed-origins has an invalid regular expression: regular expression does not pin to start/end of host in the origin header"
    )]
    OpenOrigin,
    /// A directive of transport security is not known.
    #[error(
        "--strict-transport-security-directives invalid, allowed values: max-age=expireTime, includeSubDomains, preload. see https://tools.ietf.org/html/rfc6797#section-6.1 for more information"
    )]
    TransportSecurity,
}

/// All flags that cannot be obeyed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{}", aggregate(.0))]
pub struct ResponseFlagErrors(Vec<ResponseFlagError>);

fn origin_pattern(text: &str) -> Result<Regex, ResponseFlagError> {
    let pattern = Regex::new(text)?;
    // A pattern that does not say where the host begins and ends would let strangers in who chose their names well.
    let begins = text.starts_with('^') || text.contains("//");
    let ends = text.contains(':') || text.contains('$');
    if !begins || !ends {
        return Err(ResponseFlagError::OpenOrigin);
    }
    Ok(pattern)
}

fn transport_security(directives: &[String]) -> Result<Option<HeaderValue>, ResponseFlagError> {
    let known = |d: &String| {
        matches!(d.as_str(), "includeSubDomains" | "preload")
            || d.strip_prefix("max-age=").is_some_and(|n| n.parse::<u64>().is_ok())
    };
    if directives.is_empty() {
        return Ok(None);
    }
    if !directives.iter().all(known) {
        return Err(ResponseFlagError::TransportSecurity);
    }
    HeaderValue::from_str(&directives.join("; ")).map(Some).map_err(|_| ResponseFlagError::TransportSecurity)
}

impl ResponsePolicy {
    /// Reads and checks the flags.
    ///
    /// # Errors
    /// [`ResponseFlagErrors`].
    pub fn from_flags(flags: &FlagSet) -> Result<Self, ResponseFlagErrors> {
        let mut errors = Vec::new();
        let chance = flags.float("goaway-chance");
        if !(0.0..=0.02).contains(&chance) {
            errors.push(ResponseFlagError::GoawayChance);
        }
        let shortest_watch = flags.integer("min-request-timeout");
        if shortest_watch < 0 {
            errors.push(ResponseFlagError::Negative("min-request-timeout"));
        }
        for name in ["max-requests-inflight", "max-mutating-requests-inflight"] {
            if flags.integer(name) < 0 {
                errors.push(ResponseFlagError::Negative(name));
            }
        }
        let mut origins = Vec::new();
        for text in flags.list("cors-allowed-origins") {
            match origin_pattern(&text) {
                Ok(pattern) => origins.push(pattern),
                Err(why) => errors.push(why),
            }
        }
        let transport = transport_security(&flags.list("strict-transport-security-directives"));
        let transport = transport.unwrap_or_else(|why| {
            errors.push(why);
            None
        });
        if !errors.is_empty() {
            return Err(ResponseFlagErrors(errors));
        }
        Ok(Self {
            origins,
            transport,
            longest: flags.duration("request-timeout"),
            shortest_watch: u64::try_from(shortest_watch).unwrap_or(0),
            goaway: chance,
            profiling: flags.boolean("profiling"),
            logs: flags.boolean("enable-logs-handler"),
            emulation: flags.emulation(),
            counts: !flags.duration("etcd-count-metric-poll-period").is_zero(),
            sizes: flags.enabled("SizeBasedListCostEstimate"),
            flagz: flags.enabled("ComponentFlagz").then(|| flags.clone()),
            statusz: flags.enabled("ComponentStatusz"),
            compresses: flags.enabled("APIResponseCompression"),
            hashes: flags.enabled("StorageVersionHash"),
            enums: flags.enabled("OpenAPIEnums"),
            checks_session_create: flags.enabled("AuthorizePodWebsocketUpgradeCreatePermission"),
            closes_unauthenticated: flags.enabled("UnauthenticatedHTTP2DOSMitigation"),
        })
    }

    /// Reports whether pages of an origin may read responses (`--cors-allowed-origins`).
    pub fn allows_origin(&self, origin: &str) -> bool {
        !origin.is_empty() && self.origins.iter().any(|pattern| pattern.is_match(origin))
    }

    /// Reports whether to close the connection of a request, so that its client reconnects to a less busy server
    /// (`--goaway-chance`). `dice` is in 0 to 1 and thrown only where a chance is set. HTTP/2 only, whose connections
    /// last.
    pub fn sends_goaway(&self, version: Version, dice: impl FnOnce() -> f64) -> bool {
        self.goaway > 0.0 && version == Version::HTTP_2 && dice() < self.goaway
    }

    /// Lets nobody unknown keep a connection of HTTP/2, which costs much: it takes one request.
    pub fn close_unauthenticated_http2(&self, response: &mut HttpResponse, version: Version) {
        if self.closes_unauthenticated && version == Version::HTTP_2 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// Adds what every answer carries; `origin` is the one that may read it.
    pub fn add_headers(&self, response: &mut HttpResponse, version: Version, origin: Option<&str>) {
        let headers = response.headers_mut();
        if self.sends_goaway(version, rand::random) {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(value) = &self.transport {
            headers.insert(HeaderName::from_static("strict-transport-security"), value.clone());
        }
        if let Some(origin) = origin {
            share(headers, origin);
        }
    }

    /// Deadline of a request: `?timeout=`, up to `--request-timeout`. An invalid value is a bad request.
    ///
    /// # Errors
    /// `400` when the client's word is no duration.
    pub fn deadline(&self, query: &Query) -> Result<Duration, Status> {
        let Some(text) = query.get("timeout").filter(|t| !t.is_empty()) else { return Ok(self.longest) };
        match shared::flags::parse_nanos(text) {
            Err(why) => Err(Status::bad_request(&format!("invalid timeout specified in the request URL - {why}"))),
            Ok(nanos) if nanos <= 0 => Ok(self.longest),
            Ok(nanos) => Ok(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)).min(self.longest)),
        }
    }
}

fn share(headers: &mut HeaderMap, origin: &str) {
    let Ok(origin) = HeaderValue::from_str(origin) else { return };
    headers.insert(HeaderName::from_static("access-control-allow-origin"), origin);
    for (name, value) in CORS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response_policy(args: &[&str]) -> Result<ResponsePolicy, String> {
        ResponsePolicy::from_flags(&FlagSet::of("kube-apiserver", args).expect("flags")).map_err(|e| e.to_string())
    }

    #[test]
    fn flags_are_checked() {
        for (args, want) in [
            (&["--goaway-chance=0.5"][..], "--goaway-chance can not be less than 0 or greater than 0.02"),
            (&["--min-request-timeout=-1"], "--min-request-timeout can not be negative value"),
            (
                &["--cors-allowed-origins=example.com"],
                "--cors-allowed-origins has an invalid regular expression: regular expression does not pin to start/end of host in the origin header",
            ),
            (
                &["--strict-transport-security-directives=max-age=x"],
                "--strict-transport-security-directives invalid, allowed values: max-age=expireTime, includeSubDomains, preload. see https://tools.ietf.org/html/rfc6797#section-6.1 for more information",
            ),
        ] {
            assert_eq!(response_policy(args).err().as_deref(), Some(want), "{args:?}");
        }
    }

    #[test]
    fn origins() {
        let response_policy = response_policy(&[r"--cors-allowed-origins=//a\.example(:|$)"]).expect("fine");
        for (origin, want) in [
            ("https://a.example", true),
            ("http://a.example:8080", true),
            ("https://a.example.evil", false),
            ("", false),
        ] {
            assert_eq!(response_policy.allows_origin(origin), want, "{origin}");
        }
    }

    #[test]
    fn strangers_keep_no_connection_of_http_2() {
        let closes = |args: &[&str], version| {
            let mut response = HttpResponse::Unauthorized().finish();
            response_policy(args).expect("fine").close_unauthenticated_http2(&mut response, version);
            response.headers().contains_key(CONNECTION)
        };
        assert!(closes(&[], Version::HTTP_2) && !closes(&[], Version::HTTP_11));
        assert!(!closes(&["--feature-gates=UnauthenticatedHTTP2DOSMitigation=false"], Version::HTTP_2));
    }

    #[test]
    fn deadlines() {
        let response_policy = response_policy(&["--request-timeout=60s"]).expect("fine");
        let ask = |query: &str| response_policy.deadline(&Query::parse(query)).map(|d| d.as_secs()).map_err(|s| s.code);
        for (query, want) in [
            ("", Ok(60)),
            ("timeout=10s", Ok(10)),
            ("timeout=10m", Ok(60)),
            ("timeout=0", Ok(60)),
            ("timeout=soon", Err(400)),
        ] {
            assert_eq!(ask(query), want, "{query}");
        }
    }
}
