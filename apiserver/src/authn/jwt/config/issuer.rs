//! Validation of issuers: URL, discovery URL, audiences. Answers for upstream's `validateIssuer`.

use std::collections::HashSet;

use serde_json::Value;
use shared::status::field::{Error, Path};
use shared::url::Url;

use super::ConfigConditions;
use crate::egress::NetworkContext;
use crate::machinery::tree;

pub(super) fn check_issuer(entry: &Value, terms: ConfigConditions<'_>, path: &Path, errors: &mut Vec<Error>) {
    let text = |field: &str| tree::text(entry, &format!("/issuer/{field}"));
    let (url, discovery) = (text("url"), text("discoveryURL"));
    check_url(url, terms.own, &path.child("url"), errors);
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
    let selector = text("egressSelectorType");
    if !selector.is_empty() && !terms.egress {
        let why = "egress selector is not supported when StructuredAuthenticationConfigurationEgressSelector feature gate is disabled";
        errors.push(Error::invalid(path.child("egressSelectorType"), selector, why));
    }
    if !selector.is_empty() && egress(entry).is_none() {
        let why = "egress selector must be either controlplane or cluster";
        errors.push(Error::invalid(path.child("egressSelectorType"), selector, why));
    }
}

/// The network an issuer is reached through, where it is named.
pub(super) fn egress(entry: &Value) -> Option<NetworkContext> {
    match tree::text(entry, "/issuer/egressSelectorType") {
        "controlplane" => Some(NetworkContext::ControlPlane),
        "cluster" => Some(NetworkContext::Cluster),
        _ => None,
    }
}

pub(super) fn check_url(url: &str, own: &[String], path: &Path, errors: &mut Vec<Error>) {
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
    let parsed = match Url::parse(url.as_bytes()) {
        Ok(parsed) => parsed,
        Err(why) => return wrong(&why.to_string()),
    };
    for (bad, why) in [
        (parsed.scheme != "https", "URL scheme must be https"),
        (parsed.user.is_some(), "URL must not contain a username or password"),
        (!parsed.query.is_empty(), "URL must not contain a query"),
        (!parsed.fragment.is_empty(), "URL must not contain a fragment"),
    ] {
        if bad {
            wrong(why);
        }
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
