//! Issuers as configured: from the `--oidc-*` flags or from an `AuthenticationConfiguration`, checked with upstream's
//! messages.

use std::collections::HashSet;

use regex::Regex;
use serde_json::Value;
use shared::config::{self, Unknown};
use shared::flags::FlagSet;
use shared::status::field::{Error, Path, aggregate};

use crate::access::tree;
use crate::expressions::{self, Dialect, Wanted};

/// Most issuers.
const ISSUERS: usize = 64;
/// What `--authentication-config` allows. (`ES512` has no implementation in the libraries used.)
const ALGORITHMS: [&str; 8] = ["RS256", "RS384", "RS512", "ES256", "ES384", "PS256", "PS384", "PS512"];

/// Where a part of a user comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Mapping {
    /// Nowhere.
    #[default]
    None,
    /// From a claim, with a prefix.
    Claim {
        /// The claim.
        claim: String,
        /// What is put before its value.
        prefix: String,
    },
    /// From an expression.
    Expression(String),
}

/// What must hold of the claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// A claim has a value.
    Claim {
        /// The claim.
        claim: String,
        /// Its value.
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
    /// Its name, which is a URL.
    pub url: String,
    /// Where its document is, when not in the usual place.
    pub discovery: Option<String>,
    /// Whom to trust for its certificate (PEM); the system's authorities when absent.
    pub ca: Option<String>,
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
    pub rules: Vec<Rule>,
    /// Of the user: expression and message.
    pub user_rules: Vec<(String, String)>,
}

/// Who may ask without a credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anonymous {
    /// Whether anybody.
    pub enabled: bool,
    /// For which paths only; all when empty.
    pub paths: Vec<String>,
}

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configured {
    /// Issuers of tokens.
    pub issuers: Vec<Issuer>,
    /// When the file says something of it.
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

/// From the command line; `own` are the issuers of this server's own tokens.
pub fn from_flags(flags: &FlagSet, own: &[String]) -> Result<Configured, String> {
    let file = flags.string("authentication-config");
    let oidc = OIDC.iter().any(|name| flags.is_set(name));
    if !file.is_empty() {
        if oidc {
            return Err("authentication-config file and oidc-* flags are mutually exclusive".to_owned());
        }
        let content = std::fs::read(&file).map_err(|e| format!("open {file}: {e}"))?;
        let configured = load(&content, own)?;
        if configured.anonymous.is_some() && flags.is_set("anonymous-auth") {
            return Err("--anonymous-auth flag cannot be set when anonymous field is configured in authentication configuration file".to_owned());
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
        return Err(aggregate(&errors));
    }
    Ok(Configured { issuers: vec![issuer], anonymous: None })
}

fn from_oidc(flags: &FlagSet) -> Result<Issuer, String> {
    let text = |name: &str| flags.string(&format!("oidc-{name}"));
    let (url, client) = (text("issuer-url"), text("client-id"));
    if url.is_empty() || client.is_empty() {
        return Err(
            "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set".to_owned()
        );
    }
    let algorithms = flags.list("oidc-signing-algs");
    for algorithm in &algorithms {
        if !ALGORITHMS.contains(&algorithm.as_str()) {
            return Err(format!("oidc: unsupported signing alg: {algorithm:?}"));
        }
    }
    let ca_file = text("ca-file");
    let ca = if ca_file.is_empty() {
        None
    } else {
        Some(std::fs::read_to_string(&ca_file).map_err(|e| format!("open {ca_file}: {e}"))?)
    };
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
    let rules = flags.map("oidc-required-claim").into_iter().map(|(claim, value)| Rule::Claim { claim, value });
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
pub fn load(content: &[u8], own: &[String]) -> Result<Configured, String> {
    let tree = config::decode(content, "AuthenticationConfiguration", Unknown::Refuse).map_err(|e| e.to_string())?;
    let mut errors = Vec::new();
    let root = Path::new("jwt");
    let entries = tree::list(&tree, "/jwt");
    if entries.len() > ISSUERS {
        return Err(Error::too_many(root, entries.len(), ISSUERS).to_string());
    }
    let (mut urls, mut discoveries) = (HashSet::new(), HashSet::new());
    let mut issuers: Vec<Issuer> = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let path = root.index(at);
        issuers.push(read_issuer(entry, own, &path, &mut errors));
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
    if errors.is_empty() { Ok(Configured { issuers, anonymous }) } else { Err(aggregate(&errors)) }
}

fn read_issuer(entry: &Value, own: &[String], path: &Path, errors: &mut Vec<Error>) -> Issuer {
    let text = |field: &str| tree::text(entry, field).to_owned();
    check_issuer(entry, own, &path.child("issuer"), errors);
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

fn check_issuer(entry: &Value, own: &[String], path: &Path, errors: &mut Vec<Error>) {
    let text = |field: &str| tree::text(entry, &format!("/issuer/{field}"));
    let (url, discovery) = (text("url"), text("discoveryURL"));
    check_url(url, own, &path.child("url"), errors);
    if !discovery.is_empty() {
        let at = path.child("discoveryURL");
        if !url.is_empty() && url.trim_end_matches('/') == discovery.trim_end_matches('/') {
            errors.push(Error::invalid(at.clone(), discovery, "discoveryURL must be different from URL"));
        }
        check_url(discovery, &[], &at, errors);
    }
    check_audiences(&tree::strings(entry, "/issuer/audiences"), text("audienceMatchPolicy"), path, errors);
    let ca = text("certificateAuthority");
    if !ca.is_empty() && shared::cert::root_store(ca.as_bytes()).is_err() {
        let why = "data does not contain any valid RSA or ECDSA certificates";
        errors.push(Error::invalid(path.child("certificateAuthority"), "<omitted>", why));
    }
    let egress = text("egressSelectorType");
    if !matches!(egress, "" | "controlplane" | "cluster") {
        let why = "egress selector must be either controlplane or cluster";
        errors.push(Error::invalid(path.child("egressSelectorType"), egress, why));
    }
}

fn check_url(url: &str, own: &[String], path: &Path, errors: &mut Vec<Error>) {
    if url.is_empty() {
        errors.push(Error::required(path.clone(), ""));
        return;
    }
    let mut wrong = |why: &str| errors.push(Error::invalid(path.clone(), url, why));
    if own.iter().any(|o| o == url) {
        let mut own = own.to_vec();
        own.sort();
        wrong(&format!("URL must not overlap with disallowed issuers: [{}]", own.join(" ")));
    }
    let (before, fragment) = url.split_once('#').unwrap_or((url, ""));
    let (before, query) = before.split_once('?').unwrap_or((before, ""));
    let Some((scheme, rest)) = before.split_once("://") else { return wrong("URL scheme must be https") };
    if scheme != "https" {
        wrong("URL scheme must be https");
    }
    if rest.split('/').next().is_some_and(|authority| authority.contains('@')) {
        wrong("URL must not contain a username or password");
    }
    if !query.is_empty() {
        wrong("URL must not contain a query");
    }
    if !fragment.is_empty() {
        wrong("URL must not contain a fragment");
    }
}

fn check_audiences(audiences: &[String], policy: &str, path: &Path, errors: &mut Vec<Error>) {
    let (at, policy_at) = (path.child("audiences"), path.child("audienceMatchPolicy"));
    if audiences.is_empty() {
        let text = format!("at least one {} is required", at.as_str());
        errors.push(Error::required(at, &text));
        return;
    }
    let mut seen = HashSet::new();
    for (i, audience) in audiences.iter().enumerate() {
        if audience.is_empty() {
            errors.push(Error::required(at.index(i), ""));
        }
        if !seen.insert(audience) {
            errors.push(Error::duplicate(at.index(i), audience.as_str()));
        }
    }
    if audiences.len() > 1 && policy != "MatchAny" {
        errors.push(Error::invalid(policy_at, policy, "audienceMatchPolicy must be MatchAny for multiple audiences"));
    } else if audiences.len() == 1 && !matches!(policy, "" | "MatchAny") {
        let text = "audienceMatchPolicy must be empty or MatchAny for single audience";
        errors.push(Error::invalid(policy_at, policy, text));
    }
}

/// Whether an expression can be compiled; a message where not.
fn compiles(dialect: Dialect, expression: &str, wanted: Wanted, path: Path, errors: &mut Vec<Error>) -> bool {
    match expressions::problem(dialect, expression, wanted) {
        None => true,
        Some(why) => {
            errors.push(Error::invalid(path, expression, &why));
            false
        }
    }
}

fn read_rules(entry: &Value, path: &Path, errors: &mut Vec<Error>) -> Vec<Rule> {
    let (mut claims, mut expressions) = (HashSet::new(), HashSet::new());
    let mut rules = Vec::new();
    for (at, rule) in tree::list(entry, "/claimValidationRules").iter().enumerate() {
        let at = path.index(at);
        let text = |field: &str| tree::text(rule, field);
        let (claim, expression) = (text("/claim"), text("/expression"));
        match (claim.is_empty(), expression.is_empty()) {
            (false, false) => errors.push(Error::invalid(at, claim, "claim and expression can't both be set")),
            (true, true) => errors.push(Error::required(at, "claim or expression is required")),
            (false, true) => {
                if !text("/message").is_empty() {
                    let why = "may not be specified when claim is set";
                    errors.push(Error::invalid(at.child("message"), text("/message"), why));
                }
                if !claims.insert(claim) {
                    errors.push(Error::duplicate(at.child("claim"), claim));
                }
                rules.push(Rule::Claim { claim: claim.to_owned(), value: text("/requiredValue").to_owned() });
            }
            (true, false) => {
                if !text("/requiredValue").is_empty() {
                    let why = "may not be specified when expression is set";
                    errors.push(Error::invalid(at.child("requiredValue"), text("/requiredValue"), why));
                }
                if !expressions.insert(expression) {
                    errors.push(Error::duplicate(at.child("expression"), expression));
                } else if compiles(Dialect::Claims, expression, Wanted::Bool, at.child("expression"), errors) {
                    let (expression, message) = (expression.to_owned(), text("/message").to_owned());
                    rules.push(Rule::Expression { expression, message });
                }
            }
        }
    }
    rules
}

fn read_mapping(entry: &Value, name: &str, needed: bool, path: &Path, errors: &mut Vec<Error>) -> Mapping {
    let at = path.child(name);
    let mapping = entry.pointer(&format!("/claimMappings/{name}")).unwrap_or(&Value::Null);
    let (claim, expression) = (tree::text(mapping, "/claim"), tree::text(mapping, "/expression"));
    let prefix = mapping.get("prefix").and_then(Value::as_str);
    match (claim.is_empty(), expression.is_empty()) {
        (false, false) => errors.push(Error::invalid(at, "", "claim and expression can't both be set")),
        (true, true) if needed => errors.push(Error::required(at, "claim or expression is required")),
        (true, true) => {}
        (true, false) => {
            if let Some(prefix) = prefix {
                let why = "may not be specified when expression is set";
                errors.push(Error::invalid(at.child("prefix"), prefix, why));
            }
            compiles(Dialect::Claims, expression, Wanted::Any, at.child("expression"), errors);
            return Mapping::Expression(expression.to_owned());
        }
        (false, true) => {
            if prefix.is_none() {
                let why = "prefix is required when claim is set. It can be set to an empty string to disable prefixing";
                errors.push(Error::required(at.child("prefix"), why));
            }
            return Mapping::Claim { claim: claim.to_owned(), prefix: prefix.unwrap_or("").to_owned() };
        }
    }
    Mapping::None
}

fn read_uid(entry: &Value, path: &Path, errors: &mut Vec<Error>) -> Mapping {
    let text = |field: &str| tree::text(entry, &format!("/claimMappings/uid/{field}")).to_owned();
    let (claim, expression) = (text("claim"), text("expression"));
    match (claim.is_empty(), expression.is_empty()) {
        (false, false) => {
            errors.push(Error::invalid(path.clone(), "", "claim and expression can't both be set"));
            Mapping::None
        }
        (true, true) => Mapping::None,
        (false, true) => Mapping::Claim { claim, prefix: String::new() },
        (true, false) => {
            compiles(Dialect::Claims, &expression, Wanted::Any, path.child("expression"), errors);
            Mapping::Expression(expression)
        }
    }
}

/// Whether a key belongs to a name only Kubernetes may use.
fn reserved(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    ["kubernetes.io", "k8s.io"].iter().any(|own| domain == *own || domain.ends_with(&format!(".{own}")))
}

fn check_extra_key(key: &str, path: &Path, errors: &mut Vec<Error>) {
    let mut wrong = |why: &str| errors.push(Error::invalid(path.clone(), key, why));
    match key.split_once('/') {
        _ if key.is_empty() => {
            errors.push(Error::required(path.clone(), ""));
            return;
        }
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            for complaint in proto::selector::format::dns1123_subdomain(domain) {
                wrong(&complaint);
            }
        }
        _ => wrong("must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
    if key != key.to_lowercase() {
        wrong("must be lowercase");
    }
    if reserved(key) {
        wrong("k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use");
    }
}

fn read_extra(entry: &Value, path: &Path, errors: &mut Vec<Error>) -> Vec<(String, String)> {
    let mut seen = HashSet::new();
    let mut extra = Vec::new();
    for (at, mapping) in tree::list(entry, "/claimMappings/extra").iter().enumerate() {
        let at = path.index(at);
        let (key, expression) = (tree::text(mapping, "/key"), tree::text(mapping, "/valueExpression"));
        check_extra_key(key, &at.child("key"), errors);
        if !seen.insert(key) {
            errors.push(Error::duplicate(at.child("key"), key));
        } else if expression.is_empty() {
            errors.push(Error::required(at.child("valueExpression"), ""));
        } else if compiles(Dialect::Claims, expression, Wanted::Any, at.child("valueExpression"), errors) {
            extra.push((key.to_owned(), expression.to_owned()));
        }
    }
    extra
}

fn read_user_rules(entry: &Value, path: &Path, errors: &mut Vec<Error>) -> Vec<(String, String)> {
    let mut rules: Vec<(String, String)> = Vec::new();
    for (at, rule) in tree::list(entry, "/userValidationRules").iter().enumerate() {
        let at = path.index(at).child("expression");
        let expression = tree::text(rule, "/expression");
        if expression.is_empty() {
            errors.push(Error::required(at, ""));
        } else if rules.iter().any(|(e, _)| e == expression) {
            errors.push(Error::duplicate(at, expression));
        } else if compiles(Dialect::User, expression, Wanted::Bool, at, errors) {
            rules.push((expression.to_owned(), tree::text(rule, "/message").to_owned()));
        }
    }
    rules
}

/// Whether an expression reads a claim by its name.
fn reads(expression: &str, claim: &str) -> bool {
    Regex::new(&format!(r"\bclaims\s*\.\s*\??\s*{claim}\b")).is_ok_and(|pattern| pattern.is_match(expression))
}

/// Whoever is named by an address must have shown that it is his.
fn check_email(username: &Mapping, extra: &[(String, String)], rules: &[Rule], path: &Path, errors: &mut Vec<Error>) {
    let Mapping::Expression(expression) = username else { return };
    if !reads(expression, "email") {
        return;
    }
    let in_rules = rules.iter().filter_map(|r| match r {
        Rule::Expression { expression, .. } => Some(expression),
        Rule::Claim { .. } => None,
    });
    let mut all = std::iter::once(expression).chain(extra.iter().map(|(_, e)| e)).chain(in_rules);
    if !all.any(|e| reads(e, "email_verified")) {
        let why = "claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression";
        errors.push(Error::invalid(path.child("username").child("expression"), expression.as_str(), why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(jwt: &str) -> Result<Configured, String> {
        let text = format!("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n{jwt}");
        load(text.as_bytes(), &["https://own".to_owned()])
    }

    fn issuer(issuer: &str, rest: &str) -> String {
        format!("jwt:\n- issuer: {{{issuer}}}\n{rest}")
    }

    const GOOD: &str = "url: 'https://i', audiences: [a]";
    const SUB: &str = "  claimMappings: {username: {claim: sub, prefix: ''}}\n";

    #[test]
    fn files_are_checked() {
        for (text, want) in [
            (issuer("audiences: [a]", SUB), "jwt[0].issuer.url: Required value"),
            (
                issuer("url: 'http://i', audiences: [a]", SUB),
                r#"jwt[0].issuer.url: Invalid value: "http://i": URL scheme must be https"#,
            ),
            (
                issuer("url: 'https://own', audiences: [a]", SUB),
                r#"jwt[0].issuer.url: Invalid value: "https://own": URL must not overlap with disallowed issuers: [https://own]"#,
            ),
            (
                issuer("url: 'https://u:p@i', audiences: [a]", SUB),
                r#"jwt[0].issuer.url: Invalid value: "https://u:p@i": URL must not contain a username or password"#,
            ),
            (
                issuer("url: 'https://i?x=1', audiences: [a]", SUB),
                r#"jwt[0].issuer.url: Invalid value: "https://i?x=1": URL must not contain a query"#,
            ),
            (
                issuer("url: 'https://i'", SUB),
                "jwt[0].issuer.audiences: Required value: at least one jwt[0].issuer.audiences is required",
            ),
            (
                issuer("url: 'https://i', audiences: [a, b]", SUB),
                r#"jwt[0].issuer.audienceMatchPolicy: Invalid value: "": audienceMatchPolicy must be MatchAny for multiple audiences"#,
            ),
            (
                issuer("url: 'https://i', discoveryURL: 'https://i/', audiences: [a]", SUB),
                r#"jwt[0].issuer.discoveryURL: Invalid value: "https://i/": discoveryURL must be different from URL"#,
            ),
            (issuer(GOOD, ""), "jwt[0].claimMappings.username: Required value: claim or expression is required"),
            (
                issuer(GOOD, "  claimMappings: {username: {claim: sub}}\n"),
                "jwt[0].claimMappings.username.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing",
            ),
            (
                issuer(GOOD, "  claimMappings: {username: {expression: 'claims.email'}}\n"),
                r#"jwt[0].claimMappings.username.expression: Invalid value: "claims.email": claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression"#,
            ),
            (
                issuer(
                    GOOD,
                    "  claimMappings: {username: {claim: sub, prefix: ''}, extra: [{key: 'x.k8s.io/a', valueExpression: 'claims.a'}]}\n",
                ),
                r#"jwt[0].claimMappings.extra[0].key: Invalid value: "x.k8s.io/a": k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use"#,
            ),
            (
                issuer(GOOD, &format!("{SUB}  claimValidationRules: [{{claim: a, message: m}}]\n")),
                r#"jwt[0].claimValidationRules[0].message: Invalid value: "m": may not be specified when claim is set"#,
            ),
            (
                issuer(
                    GOOD,
                    &format!("{SUB}  userValidationRules: [{{expression: 'true'}}, {{expression: 'true'}}]\n"),
                ),
                r#"jwt[0].userValidationRules[1].expression: Duplicate value: "true""#,
            ),
            (
                "anonymous: {enabled: false, conditions: [{path: /livez}]}\n".to_owned(),
                r#"anonymous.conditions: Invalid value: [{"Path":"/livez"}]: enabled should be set to true when conditions are defined"#,
            ),
        ] {
            assert_eq!(file(&text).expect_err("refused"), want, "{text}");
        }
        let two = format!("{}{}", issuer(GOOD, SUB), issuer(GOOD, SUB).replace("jwt:\n", ""));
        assert_eq!(file(&two).expect_err("refused"), r#"jwt[1].issuer.url: Duplicate value: "https://i""#);
        let good =
            file(&format!("{}anonymous: {{enabled: true, conditions: [{{path: /livez}}]}}\n", issuer(GOOD, SUB)))
                .expect("fine");
        assert_eq!(good.anonymous, Some(Anonymous { enabled: true, paths: vec!["/livez".into()] }));
        assert_eq!(good.issuers[0].username, Mapping::Claim { claim: "sub".into(), prefix: String::new() });
    }

    fn flags(args: &[&str]) -> Result<Configured, String> {
        from_flags(&FlagSet::of("kube-apiserver", args).expect("flags"), &[])
    }

    #[test]
    fn flags_make_one_issuer() {
        assert_eq!(flags(&[]), Ok(Configured::default()));
        let both = "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set";
        assert_eq!(flags(&["--oidc-issuer-url=https://i"]), Err(both.into()));
        let base = ["--oidc-issuer-url=https://i", "--oidc-client-id=c"];
        let prefix = |more: &[&str]| {
            let args: Vec<&str> = base.iter().chain(more).copied().collect();
            match flags(&args).expect("fine").issuers.remove(0).username {
                Mapping::Claim { claim, prefix } => format!("{claim}|{prefix}"),
                other => format!("{other:?}"),
            }
        };
        assert_eq!(prefix(&[]), "sub|https://i#");
        assert_eq!(prefix(&["--oidc-username-claim=email"]), "email|");
        assert_eq!(prefix(&["--oidc-username-prefix=-"]), "sub|");
        assert_eq!(prefix(&["--oidc-username-prefix=o:"]), "sub|o:");
        assert_eq!(
            flags(&["--oidc-client-id=c", "--oidc-issuer-url=https://i", "--authentication-config=/x"]),
            Err("authentication-config file and oidc-* flags are mutually exclusive".into())
        );
        let alg = flags(&["--oidc-client-id=c", "--oidc-issuer-url=https://i", "--oidc-signing-algs=HS256"]);
        assert_eq!(alg, Err("oidc: unsupported signing alg: \"HS256\"".into()));
    }
}
