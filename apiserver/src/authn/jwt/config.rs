//! Issuers as configured: from the `--oidc-*` flags or from an `AuthenticationConfiguration`, checked with upstream's
//! messages. Answers for upstream's `ValidateAuthenticationConfiguration`.

mod error;
mod issuer;
mod mappings;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use serde_json::Value;
use shared::config::{self, Unknown};
use shared::flags::FlagSet;
use shared::os;
use shared::status::field::{Error, Path};

use crate::egress::NetworkContext;
use crate::machinery::tree;
pub use error::IssuersError;
use issuer::{check_issuer, check_url};
use mappings::{check_email, read_extra, read_mapping, read_rules, read_uid, read_user_rules};

/// Most issuers.
const ISSUERS: usize = 64;
/// Signing algorithms that `--authentication-config` allows. (`ES512` has no implementation in the libraries used.)
const ALGORITHMS: [&str; 9] = ["ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512"];

/// Source of a part of the user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Mapping {
    /// Nowhere.
    #[default]
    None,
    /// From a claim, with a prefix.
    Claim {
        /// The claim.
        claim: String,
        /// Prefix of the value.
        prefix: String,
    },
    /// From an expression.
    Expression(String),
}

/// Validation rule for claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimRule {
    /// A claim has a value.
    Claim {
        /// The claim.
        claim: String,
        /// Value of the claim.
        value: String,
    },
    /// An expression is true.
    Expression {
        /// The expression.
        expression: String,
        /// Said when it is not.
        message: String,
    },
}

/// One issuer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Issuer {
    /// Name of the issuer, which is a URL.
    pub url: String,
    /// URL of the discovery document, when it differs from the issuer's.
    pub discovery: Option<String>,
    /// Certificate authority of the issuer (PEM); the system's when absent.
    pub ca: Option<String>,
    /// The network it is reached through.
    pub egress: Option<NetworkContext>,
    /// A token must be for one of these.
    pub audiences: Vec<String>,
    /// Signature algorithms.
    pub algorithms: Vec<String>,
    /// User name.
    pub username: Mapping,
    /// Groups.
    pub groups: Mapping,
    /// Uid.
    pub uid: Mapping,
    /// Extra: key and expression.
    pub extra: Vec<(String, String)>,
    /// Of the claims.
    pub rules: Vec<ClaimRule>,
    /// Of the user: expression and message.
    pub user_rules: Vec<(String, String)>,
}

/// Configuration of anonymous requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anonymous {
    /// Anonymous requests are enabled.
    pub enabled: bool,
    /// For which paths only; all when empty.
    pub paths: Vec<String>,
}

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configured {
    /// Issuers of tokens.
    pub issuers: Vec<Issuer>,
    /// Anonymous requests, if configured in the file.
    pub anonymous: Option<Anonymous>,
}

const OIDC: [&str; 9] = [
    "oidc-issuer-url",
    "oidc-client-id",
    "oidc-ca-file",
    "oidc-username-claim",
    "oidc-username-prefix",
    "oidc-groups-claim",
    "oidc-groups-prefix",
    "oidc-signing-algs",
    "oidc-required-claim",
];

/// Conditions that a file is validated under.
#[derive(Clone, Copy)]
pub struct ConfigConditions<'a> {
    /// The issuers of this server's own tokens.
    pub own: &'a [String],
    /// The file may set the egress of an issuer (`StructuredAuthenticationConfigurationEgressSelector`).
    pub egress: bool,
}

impl<'a> ConfigConditions<'a> {
    /// Builds the conditions of a server from its flags.
    pub fn from_flags(flags: &FlagSet, own: &'a [String]) -> Self {
        Self { own, egress: flags.enabled("StructuredAuthenticationConfigurationEgressSelector") }
    }
}

/// From the command line; `own` are the issuers of this server's own tokens.
pub fn from_flags(flags: &FlagSet, own: &[String]) -> Result<Configured, IssuersError> {
    let file = flags.string("authentication-config");
    let oidc = OIDC.iter().any(|name| flags.is_set(name));
    if !file.is_empty() {
        if oidc {
            return Err(IssuersError::FileAndFlags);
        }
        let content = os::read(&file)?;
        let configured = load(&content, ConfigConditions::from_flags(flags, own))?;
        if configured.anonymous.is_some() && flags.is_set("anonymous-auth") {
            return Err(IssuersError::AnonymousTwice);
        }
        return Ok(configured);
    }
    if !oidc {
        return Ok(Configured::default());
    }
    let issuer = from_oidc(flags)?;
    let mut errors = Vec::new();
    check_url(&issuer.url, own, &Path::new("issuer").child("url"), &mut errors);
    if !errors.is_empty() {
        return Err(IssuersError::Invalid(errors));
    }
    Ok(Configured { issuers: vec![issuer], anonymous: None })
}

fn from_oidc(flags: &FlagSet) -> Result<Issuer, IssuersError> {
    let text = |name: &str| flags.string(&format!("oidc-{name}"));
    let (url, client) = (text("issuer-url"), text("client-id"));
    if url.is_empty() || client.is_empty() {
        return Err(IssuersError::Incomplete);
    }
    let algorithms = flags.list("oidc-signing-algs");
    for algorithm in &algorithms {
        if !ALGORITHMS.contains(&algorithm.as_str()) {
            return Err(IssuersError::Algorithm(algorithm.clone()));
        }
    }
    let ca_file = text("ca-file");
    let ca = if ca_file.is_empty() { None } else { Some(String::from_utf8_lossy(&os::read(&ca_file)?).into_owned()) };
    let claim = text("username-claim");
    // Names of different issuers must not be the same by accident, but addresses are unique.
    let prefix = match (text("username-prefix").as_str(), claim.as_str()) {
        ("-", _) | ("", "email") => String::new(),
        ("", _) => format!("{url}#"),
        (prefix, _) => prefix.to_owned(),
    };
    let groups_claim = text("groups-claim");
    let groups = match groups_claim.as_str() {
        "" => Mapping::None,
        claim => Mapping::Claim { claim: claim.to_owned(), prefix: text("groups-prefix") },
    };
    let rules = flags.map("oidc-required-claim").into_iter().map(|(claim, value)| ClaimRule::Claim { claim, value });
    Ok(Issuer {
        url,
        ca,
        audiences: vec![client],
        algorithms,
        username: Mapping::Claim { claim, prefix },
        groups,
        rules: rules.collect(),
        ..Issuer::default()
    })
}

/// From the bytes of a file.
pub fn load(content: &[u8], terms: ConfigConditions<'_>) -> Result<Configured, IssuersError> {
    let tree = config::decode(content, "AuthenticationConfiguration", Unknown::Refuse)?;
    let mut errors = Vec::new();
    let root = Path::new("jwt");
    let entries = tree::list(&tree, "/jwt");
    if entries.len() > ISSUERS {
        return Err(IssuersError::Invalid(vec![Error::too_many(root, entries.len(), ISSUERS)]));
    }
    let (mut urls, mut discoveries) = (HashSet::new(), HashSet::new());
    let mut issuers: Vec<Issuer> = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let path = root.index(at);
        issuers.push(read_issuer(entry, terms, &path, &mut errors));
        let url = tree::text(entry, "/issuer/url");
        if !urls.insert(url) {
            errors.push(Error::duplicate(path.child("issuer").child("url"), url));
        }
        let discovery = tree::text(entry, "/issuer/discoveryURL");
        if !discovery.is_empty() && !discoveries.insert(discovery) {
            errors.push(Error::duplicate(path.child("issuer").child("discoveryURL"), discovery));
        }
    }
    let anonymous = tree.get("anonymous").filter(|a| !a.is_null()).map(|a| Anonymous {
        enabled: tree::flag(a, "/enabled"),
        paths: tree::list(a, "/conditions").iter().map(|c| tree::text(c, "/path").to_owned()).collect(),
    });
    if let Some(a) = &anonymous
        && !a.enabled
        && !a.paths.is_empty()
    {
        let shown: Vec<Value> = a.paths.iter().map(|p| serde_json::json!({"Path": p})).collect();
        let text = "enabled should be set to true when conditions are defined";
        errors.push(Error::invalid(Path::of(&["anonymous", "conditions"]), Value::from(shown), text));
    }
    if errors.is_empty() { Ok(Configured { issuers, anonymous }) } else { Err(IssuersError::Invalid(errors)) }
}

fn read_issuer(entry: &Value, terms: ConfigConditions<'_>, path: &Path, errors: &mut Vec<Error>) -> Issuer {
    let text = |field: &str| tree::text(entry, field).to_owned();
    check_issuer(entry, terms, &path.child("issuer"), errors);
    let rules = read_rules(entry, &path.child("claimValidationRules"), errors);
    let mappings = path.child("claimMappings");
    let username = read_mapping(entry, "username", true, &mappings, errors);
    let groups = read_mapping(entry, "groups", false, &mappings, errors);
    let uid = read_uid(entry, &mappings.child("uid"), errors);
    let extra = read_extra(entry, &mappings.child("extra"), errors);
    check_email(&username, &extra, &rules, &mappings, errors);
    let user_rules = read_user_rules(entry, &path.child("userValidationRules"), errors);
    let some = |text: String| (!text.is_empty()).then_some(text);
    Issuer {
        url: text("/issuer/url"),
        discovery: some(text("/issuer/discoveryURL")),
        ca: some(text("/issuer/certificateAuthority")),
        egress: issuer::egress(entry),
        audiences: tree::strings(entry, "/issuer/audiences"),
        algorithms: ALGORITHMS.map(str::to_owned).into(),
        username,
        groups,
        uid,
        extra,
        rules,
        user_rules,
    }
}
