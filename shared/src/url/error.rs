//! Errors of reading URLs.

use thiserror::Error;

/// Text that is no URL, in the words of Go's `url.Error`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("parse {text}: {problem}")]
pub struct UrlError {
    /// The text in quotes.
    pub(super) text: String,
    /// Problem of it.
    #[source]
    pub(super) problem: UrlProblem,
}

/// Problems of a text that is no URL, in Go's words. Parts of the text are in quotes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UrlProblem {
    /// A control character of ASCII.
    #[error("net/url: invalid control character in URL")]
    ControlCharacter,
    /// Nothing, where a request has to name something.
    #[error("empty url")]
    Empty,
    /// Neither an absolute URI nor an absolute path, where a request needs one.
    #[error("invalid URI for request")]
    NotForRequests,
    /// A relative path that reads like a scheme.
    #[error("first path segment in URL cannot contain colon")]
    FirstSegment,
    /// A colon with nothing before it.
    #[error("missing protocol scheme")]
    NoScheme,
    /// Characters that no name of a user may have.
    #[error("net/url: invalid userinfo")]
    UserInfo,
    /// A bracket at another place than the beginning of a host, or around an address of IPv4.
    #[error("invalid IP-literal")]
    IpLiteral,
    /// A bracket of a host that is not closed.
    #[error("missing ']' in host")]
    OpenLiteral,
    /// No address of IPv6 in brackets.
    #[error("invalid host: ParseAddr({0}): unable to parse IP")]
    Address(String),
    /// A port that is no number.
    #[error("invalid port {0} after host")]
    Port(String),
    /// A character that no host may have.
    #[error("invalid character {0} in host name")]
    HostCharacter(String),
    /// A percent sign without two digits, or an escape where none may be.
    #[error("invalid URL escape {0}")]
    Escape(String),
}
