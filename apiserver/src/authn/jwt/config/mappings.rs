//! Validation of claim mappings: the parts of a user, and the rules for claims and user. Answers for upstream's
//! `validateClaimMappings`, `validateUserValidationRules`.

use std::collections::HashSet;

use regex::Regex;
use serde_json::Value;
use shared::status::field::{Error, Path};

use super::{ClaimRule, Mapping};
use crate::expressions::{self, Dialect, ExpressionError, ResultType};
use crate::machinery::tree;

/// Compiles an expression; reports whether it can be, and an error when not.
fn compiles(dialect: Dialect, expression: &str, wanted: ResultType, path: Path, errors: &mut Vec<Error>) -> bool {
    match expressions::problem(dialect, expression, wanted) {
        None => true,
        Some(why) => {
            let why = match why {
                // Of another type it is not said here which.
                ExpressionError::ResultType { wanted, .. } => format!("must evaluate to {wanted}"),
                why => why.to_string(),
            };
            errors.push(Error::invalid(path, expression, &why));
            false
        }
    }
}

pub(super) fn read_rules(entry: &Value, path: &Path, errors: &mut Vec<Error>) -> Vec<ClaimRule> {
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
                rules.push(ClaimRule::Claim { claim: claim.to_owned(), value: text("/requiredValue").to_owned() });
            }
            (true, false) => {
                if !text("/requiredValue").is_empty() {
                    let why = "may not be specified when expression is set";
                    errors.push(Error::invalid(at.child("requiredValue"), text("/requiredValue"), why));
                }
                if !expressions.insert(expression) {
                    errors.push(Error::duplicate(at.child("expression"), expression));
                } else if compiles(Dialect::Claims, expression, ResultType::Bool, at.child("expression"), errors) {
                    let (expression, message) = (expression.to_owned(), text("/message").to_owned());
                    rules.push(ClaimRule::Expression { expression, message });
                }
            }
        }
    }
    rules
}

pub(super) fn read_mapping(entry: &Value, name: &str, needed: bool, path: &Path, errors: &mut Vec<Error>) -> Mapping {
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
            compiles(Dialect::Claims, expression, ResultType::Any, at.child("expression"), errors);
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

pub(super) fn read_uid(entry: &Value, path: &Path, errors: &mut Vec<Error>) -> Mapping {
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
            compiles(Dialect::Claims, &expression, ResultType::Any, path.child("expression"), errors);
            Mapping::Expression(expression)
        }
    }
}

/// Reports whether a key is in a domain reserved for Kubernetes.
fn reserved(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    ["kubernetes.io", "k8s.io"].iter().any(|own| domain == *own || domain.ends_with(&format!(".{own}")))
}

fn check_extra_key(key: &str, path: &Path, errors: &mut Vec<Error>) {
    match key.split_once('/') {
        _ if key.is_empty() => {
            errors.push(Error::required(path.clone(), ""));
            return;
        }
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            for complaint in proto::selector::format::dns1123_subdomain(domain) {
                errors.push(Error::invalid(path.clone(), domain, &complaint));
            }
            let plain = |c: char| c.is_ascii_alphanumeric() || "/-._~%!$&'()*+,;=:".contains(c);
            if !rest.chars().all(plain) {
                let why = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
                errors.push(Error::invalid(path.clone(), rest, why));
            }
        }
        _ => errors.push(Error::invalid(path.clone(), key, "must be a domain-prefixed path (such as \"acme.io/foo\")")),
    }
    let mut wrong = |why: &str| errors.push(Error::invalid(path.clone(), key, why));
    if key != key.to_lowercase() {
        wrong("must be lowercase");
    }
    if reserved(key) {
        wrong("k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use");
    }
}

pub(super) fn read_extra(entry: &Value, path: &Path, errors: &mut Vec<Error>) -> Vec<(String, String)> {
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
        } else if compiles(Dialect::Claims, expression, ResultType::Any, at.child("valueExpression"), errors) {
            extra.push((key.to_owned(), expression.to_owned()));
        }
    }
    extra
}

pub(super) fn read_user_rules(entry: &Value, path: &Path, errors: &mut Vec<Error>) -> Vec<(String, String)> {
    let mut rules: Vec<(String, String)> = Vec::new();
    for (at, rule) in tree::list(entry, "/userValidationRules").iter().enumerate() {
        let at = path.index(at).child("expression");
        let expression = tree::text(rule, "/expression");
        if expression.is_empty() {
            errors.push(Error::required(at, ""));
        } else if rules.iter().any(|(e, _)| e == expression) {
            errors.push(Error::duplicate(at, expression));
        } else if compiles(Dialect::User, expression, ResultType::Bool, at, errors) {
            rules.push((expression.to_owned(), tree::text(rule, "/message").to_owned()));
        }
    }
    rules
}

/// Reports whether an expression reads a claim by name.
fn reads(expression: &str, claim: &str) -> bool {
    Regex::new(&format!(r"\bclaims\s*\.\s*\??\s*{claim}\b")).is_ok_and(|pattern| pattern.is_match(expression))
}

/// Requires `email_verified` where the username comes from `email`.
pub(super) fn check_email(
    username: &Mapping,
    extra: &[(String, String)],
    rules: &[ClaimRule],
    path: &Path,
    errors: &mut Vec<Error>,
) {
    let Mapping::Expression(expression) = username else { return };
    if !reads(expression, "email") {
        return;
    }
    let in_rules = rules.iter().filter_map(|r| match r {
        ClaimRule::Expression { expression, .. } => Some(expression),
        ClaimRule::Claim { .. } => None,
    });
    let mut all = std::iter::once(expression).chain(extra.iter().map(|(_, e)| e)).chain(in_rules);
    if !all.any(|e| reads(e, "email_verified")) {
        let why = "claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression";
        errors.push(Error::invalid(path.child("username").child("expression"), expression.as_str(), why));
    }
}
