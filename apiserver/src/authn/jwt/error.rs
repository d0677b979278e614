//! Errors of tokens of other issuers, in upstream's words.

use std::sync::Arc;

use http::StatusCode;
use shared::client::RemoteError;

use super::source::REDIRECTS;
use crate::authz::rbac::quoted_list;
use crate::expressions::EvaluationError;

/// A claim of another type than it is read as, in Go's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("json: cannot unmarshal {found} into Go value of type {wanted}")]
pub(super) struct ClaimTypeError {
    /// Type of the claim.
    pub(super) found: &'static str,
    /// Type that it is read as.
    pub(super) wanted: &'static str,
}

/// Refusal by a validation rule of an issuer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RuleError {
    /// The expression cannot be evaluated.
    #[error(transparent)]
    Evaluation(#[from] EvaluationError),
    /// The expression is false.
    #[error("validation expression '{expression}' failed: {message}")]
    Refused {
        /// The expression.
        expression: String,
        /// Text that the rule gives for it.
        message: String,
    },
}

/// Claims that make no user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClaimsError {
    /// No name is mapped.
    #[error("oidc: no username mapping")]
    NoUsernameMapping,
    /// The expression of the name fails.
    #[error("oidc: error evaluating username claim expression: {0}")]
    Username(#[source] EvaluationError),
    /// The expression of the name returns nothing.
    #[error("oidc: empty username via CEL expression is not allowed")]
    EmptyUsername,
    /// The expression of the name returns no text.
    #[error("oidc: error evaluating username claim expression: username claim expression must return a string")]
    UsernameNotText,
    /// The claim with the name is absent.
    #[error("oidc: parse username claims {0:?}: claim not present")]
    NoUsername(String),
    /// The claim with the name is no text.
    #[error("oidc: parse username claims {claim:?}: {source}")]
    UsernameType {
        /// The claim.
        claim: String,
        /// Cause.
        source: ClaimTypeError,
    },
    /// The address that is the name is not verified.
    #[error("oidc: email not verified")]
    EmailNotVerified,
    /// The claim that says whether the address is verified is not a truth value.
    #[error("oidc: parse 'email_verified' claim: {0}")]
    EmailVerifiedType(#[source] ClaimTypeError),
    /// The expression of the groups fails.
    #[error("oidc: error evaluating group claim expression: {0}")]
    Groups(#[source] EvaluationError),
    /// The expression of the groups returns something else than texts.
    #[error("oidc: error evaluating group claim expression: expression must return a string or a list of strings")]
    GroupsNotTexts,
    /// The claim with the groups is neither a text nor a list of texts.
    #[error("oidc: parse groups claim {claim:?}: {source}")]
    GroupsType {
        /// The claim.
        claim: String,
        /// Cause.
        source: ClaimTypeError,
    },
    /// The expression of the UID fails.
    #[error("oidc: error evaluating uid claim expression: {0}")]
    Uid(#[source] EvaluationError),
    /// The expression of the UID returns no text.
    #[error("oidc: error evaluating uid claim expression: uid claim expression must return a string")]
    UidNotText,
    /// The claim with the UID is absent.
    #[error("oidc: parse uid claim {0:?}: claim not present")]
    NoUid(String),
    /// The claim with the UID is no text.
    #[error("oidc: parse uid claim {claim:?}: {source}")]
    UidType {
        /// The claim.
        claim: String,
        /// Cause.
        source: ClaimTypeError,
    },
    /// The expression of an extra fails.
    #[error(transparent)]
    Extra(EvaluationError),
    /// The expression of an extra returns something else than texts.
    #[error("oidc: error evaluating extra claim expression: {0}: expression must return a string or a list of strings")]
    ExtraNotTexts(String),
    /// A required claim is absent.
    #[error("oidc: required claim {0} not present in ID token")]
    NoRequired(String),
    /// A required claim is no text.
    #[error("oidc: parse claim {claim}: {source}")]
    RequiredType {
        /// The claim.
        claim: String,
        /// Cause.
        source: ClaimTypeError,
    },
    /// A required claim has another value.
    #[error("oidc: required claim {claim} value does not match. Got = {value}, want = {wanted}")]
    RequiredValue {
        /// The claim.
        claim: String,
        /// Value of the claim.
        value: String,
        /// The required value.
        wanted: String,
    },
    /// A rule for claims refuses them.
    #[error("oidc: error evaluating claim validation expression: {0}")]
    ClaimRule(#[source] RuleError),
    /// A rule for users refuses this one.
    #[error("oidc: error evaluating user info validation rule: {0}")]
    UserRule(#[source] RuleError),
}

/// Claims of a token that do not have the types that every token's have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RegisteredError {
    /// A claim of another type.
    #[error("failed to unmarshal claims: json: cannot unmarshal {found} into Go struct field {field} of type {wanted}")]
    Type {
        /// Type of the claim.
        found: &'static str,
        /// Field that upstream reads it into.
        field: String,
        /// Type of the field.
        wanted: &'static str,
    },
    /// A text that is no number where one has to be; this is the text in quotes, as JSON.
    #[error("failed to unmarshal claims: json: invalid number literal, trying to unmarshal {0} into Number")]
    Number(String),
    /// A distributed claim names a source that is not there.
    #[error("source does not exist")]
    NoSource,
}

/// An issuer, or another server with claims, that does not give what it is asked for.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum IssuerError {
    /// No answer.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// Redirects without end; this is the last URL.
    #[error("Get \"{0}\": stopped after {REDIRECTS} redirects")]
    Redirects(String),
    /// A discovery document that is refused.
    #[error("{status}: {body}")]
    Discovery {
        /// Status of the answer.
        status: StatusCode,
        /// Beginning of the answer.
        body: String,
    },
    /// A discovery document that is no JSON.
    #[error("oidc: failed to decode provider discovery object: {0}")]
    DiscoveryDocument(#[source] Arc<serde_json::Error>),
    /// A discovery document of another issuer.
    #[error("oidc: issuer did not match the issuer returned by provider, expected {expected:?} got {found:?}")]
    OtherIssuer {
        /// The issuer.
        expected: String,
        /// The name that it gives.
        found: String,
    },
    /// A discovery document that does not say where the keys are.
    #[error("provider did not return JWKS URL")]
    NoKeysUrl,
    /// No answer to the question for its keys.
    #[error("oidc: get keys failed {0}")]
    Keys(#[source] Box<IssuerError>),
    /// Keys that are refused.
    #[error("oidc: get keys failed: {status} {body}")]
    KeysRefused {
        /// Status of the answer.
        status: StatusCode,
        /// Beginning of the answer.
        body: String,
    },
    /// Keys that are no JSON.
    #[error("oidc: failed to decode keys: {source} {body}")]
    KeySet {
        /// Cause.
        source: Arc<serde_json::Error>,
        /// Beginning of the answer.
        body: String,
    },
    /// A server refuses a distributed claim; this is its status.
    #[error("error while getting distributed claim JWT: {0}")]
    DistributedClaim(String),
}

/// A signature that is not verified.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum SignatureError {
    /// The keys of the issuer cannot be had.
    #[error("failed to verify signature: fetching keys {0}")]
    Keys(#[from] IssuerError),
    /// No key of the issuer has made it.
    #[error("failed to verify signature: failed to verify id token signature")]
    Unknown,
}

/// A distributed claim that cannot be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum DistributedError {
    /// The names of sources are no texts.
    #[error("oidc: error parsing distributed claim names: not a map of strings")]
    Names,
    /// There are names of sources, and no sources.
    #[error("oidc: no claim sources")]
    NoSources,
    /// The sources are not maps of texts.
    #[error("oidc: could not parse claim sources: not a map of sources")]
    Sources,
    /// This source is not among the sources.
    #[error("id token _claim_names contained a source {0} missing in _claims_sources")]
    NoSource(String),
    /// The token with the claim cannot be fetched.
    #[error("while getting distributed claim {claim:?}: {source}")]
    Fetch {
        /// The claim.
        claim: String,
        /// Cause.
        source: IssuerError,
    },
    /// The answer is no token.
    #[error("getting untrusted issuer from endpoint {url} failed for claim {claim:?}: malformed token")]
    Malformed {
        /// The claim.
        claim: String,
        /// URL of the source.
        url: String,
    },
    /// Tokens with claims have too many issuers; this is one more.
    #[error("verifier for untrusted issuer {0} failed: too many issuers")]
    TooManyIssuers(String),
    /// This issuer of the token with the claim has not been reached.
    #[error("verifier for untrusted issuer {0} failed: verifier not initialized for issuer: {0:?}")]
    Uninitialized(String),
    /// The token with the claim is refused.
    #[error("verify distributed claim token: {0}")]
    Token(#[source] InvalidToken),
    /// The token does not have the claim.
    #[error("jwt returned by distributed claim endpoint {url} did not contain claim: {claim}")]
    Absent {
        /// The claim.
        claim: String,
        /// URL of the source.
        url: String,
    },
}

/// A token that is not from its issuer, not for this server, or not valid now.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidToken {
    /// Claims of other types.
    #[error("oidc: {0}")]
    Registered(#[from] RegisteredError),
    /// Other audiences.
    #[error("oidc: expected audience {}{} got {}", if .wanted.len() == 1 { "" } else { "in " }, audiences(.wanted), quoted_list(.found))]
    Audience {
        /// The audiences of this server.
        wanted: Vec<String>,
        /// The audiences of the token.
        found: Vec<String>,
    },
    /// The time until which the token was valid.
    #[error("oidc: token is expired (Token Expiry: {0})")]
    Expired(String),
    /// A token that is valid later.
    #[error("oidc: current time {now} before the nbf (not before) time: {since}")]
    NotYet {
        /// The time.
        now: String,
        /// The time since which it is valid.
        since: String,
    },
    /// A signature by another algorithm than the issuer may use.
    #[error("oidc: id token signed with unsupported algorithm, expected {} got {found:?}", quoted_list(.wanted))]
    Algorithm {
        /// Algorithms of the issuer.
        wanted: Vec<String>,
        /// Algorithm of the token.
        found: String,
    },
    /// A signature that is not verified.
    #[error(transparent)]
    Signature(#[from] SignatureError),
}

/// Formats one audience as it is, and several as a sorted list.
fn audiences(wanted: &[String]) -> String {
    match wanted {
        [one] => format!("{one:?}"),
        many => {
            let mut many = many.to_vec();
            many.sort();
            quoted_list(&many)
        }
    }
}

/// A token that authenticates nobody.
#[derive(Debug, thiserror::Error)]
pub(super) enum TokenError {
    /// The issuer has not been reached.
    #[error("oidc: authenticator not initialized")]
    Uninitialized,
    /// A token that is not valid.
    #[error("oidc: verify token: {0}")]
    Invalid(#[from] InvalidToken),
    /// A claim that is elsewhere cannot be had.
    #[error("oidc: could not expand distributed claims: {0}")]
    Distributed(#[from] DistributedError),
    /// Claims that make no user.
    #[error(transparent)]
    Claims(#[from] ClaimsError),
}
