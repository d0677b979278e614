//! Impersonation: a user asks to be taken for somebody else, by headers, and must be allowed each part of it. Answers
//! for upstream's `WithImpersonation`, `buildImpersonationRequests`.

use crate::registry::core::service_account::SERVICE_ACCOUNTS;
use std::borrow::Cow;
use std::collections::BTreeMap;

use proto::selector::format::{dns1123_label, dns1123_subdomain};
use shared::authn::{ALL_AUTHENTICATED, ALL_UNAUTHENTICATED, ANONYMOUS, Headers, UserInfo, unescaped_key};
use shared::authz::Attributes;
use shared::status::Status;

const EXTRA_PREFIX: &str = "impersonate-extra-";
/// The group of what is asked about where the core group has nothing like it.
pub(super) const AUTHENTICATION: &str = "authentication.k8s.io";

/// Impersonation that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImpersonationRequest {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

/// The namespace and name of a service account's user name.
pub(crate) fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (dns1123_label(namespace).is_empty() && dns1123_subdomain(name).is_empty()).then_some((namespace, name))
}

/// Reads the headers; an error when parts of a user are asked for without a user.
pub(super) fn requested(headers: &dyn Headers) -> Result<Option<ImpersonationRequest>, Status> {
    let wish = ImpersonationRequest::read(headers);
    if !wish.name.is_empty() {
        return Ok(Some(wish));
    }
    let parts = wish.parts();
    if parts.is_empty() {
        return Ok(None);
    }
    Err(Status::bad_request(&format!("requested [{}] without impersonating a user", parts.join(" "))))
}

impl ImpersonationRequest {
    /// Reads the impersonation headers.
    pub(super) fn read(headers: &dyn Headers) -> Self {
        let one = |name: &str| headers.all(name).first().map(|v| v.clone().into_owned()).unwrap_or_default();
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for header in headers.names() {
            if let Some(key) = header.strip_prefix(EXTRA_PREFIX) {
                let values = headers.all(header).into_iter().map(Cow::into_owned);
                extra.entry(unescaped_key(key)).or_default().extend(values);
            }
        }
        let groups = headers.all("impersonate-group").into_iter().map(Cow::into_owned).collect();
        Self { name: one("impersonate-user"), uid: one("impersonate-uid"), groups, extra }
    }

    /// The parts other than the name, as upstream prints its references to them.
    fn parts(&self) -> Vec<String> {
        let groups = self.groups.iter().map(|g| format!("{{Group  {g}    }}"));
        let extra = self.extra.iter().flat_map(|(key, values)| {
            values.iter().map(move |v| format!("{{UserExtra  {v}  {AUTHENTICATION}/v1  {key}}}"))
        });
        let uid = (!self.uid.is_empty()).then(|| format!("{{UID  {}  {AUTHENTICATION}/v1  }}", self.uid));
        groups.chain(extra).chain(uid).collect()
    }

    /// Lists the permissions that the real user needs.
    pub(super) fn questions(&self, user: &UserInfo) -> Vec<Attributes> {
        let ask = |group: &str, resource: &str, name: &str| Attributes {
            user: user.clone(),
            verb: "impersonate".to_owned(),
            api_group: group.to_owned(),
            api_version: if group.is_empty() { String::new() } else { "v1".to_owned() },
            resource: resource.to_owned(),
            name: name.to_owned(),
            resource_request: true,
            ..Attributes::default()
        };
        let who = match service_account(&self.name) {
            Some((namespace, name)) => Attributes {
                namespace: namespace.to_owned(),
                ..ask(SERVICE_ACCOUNTS.group, SERVICE_ACCOUNTS.plural, name)
            },
            None => ask("", "users", &self.name),
        };
        let mut questions = vec![who];
        questions.extend(self.groups.iter().map(|g| ask("", "groups", g)));
        for (key, values) in &self.extra {
            for value in values {
                questions.push(Attributes { subresource: key.clone(), ..ask(AUTHENTICATION, "userextras", value) });
            }
        }
        if !self.uid.is_empty() {
            questions.push(ask(AUTHENTICATION, "uids", &self.uid));
        }
        questions
    }

    /// The user asked for.
    pub(super) fn user(self) -> UserInfo {
        let mut groups = self.groups;
        if groups.is_empty()
            && let Some((namespace, _)) = service_account(&self.name)
        {
            groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        }
        let everyone = if self.name == ANONYMOUS { ALL_UNAUTHENTICATED } else { ALL_AUTHENTICATED };
        let known = |g: &String| g == everyone || (self.name != ANONYMOUS && g == ALL_UNAUTHENTICATED);
        if !groups.iter().any(known) {
            groups.push(everyone.to_owned());
        }
        UserInfo { name: self.name, uid: self.uid, groups, extra: self.extra }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(pairs: &[(&'static str, &'static str)]) -> Result<Option<ImpersonationRequest>, Status> {
        let mut headers = http::HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, http::HeaderValue::from_static(value));
        }
        requested(&headers)
    }

    #[test]
    fn a_group_needs_a_user() {
        let refused = wish(&[("impersonate-group", "g")]).expect_err("no user");
        assert_eq!(refused.message, "requested [{Group  g    }] without impersonating a user");
        assert_eq!(refused.code, 400);
        assert_eq!(wish(&[("accept", "x")]).expect("fine"), None);
    }

    #[test]
    fn every_impersonated_attribute_must_be_allowed() {
        let wish = wish(&[
            ("impersonate-user", "bob"),
            ("impersonate-group", "dev"),
            ("impersonate-uid", "7"),
            ("impersonate-extra-example.com%2fkey", "v"),
        ]);
        let wish = wish.expect("fine").expect("a user");
        let seen: Vec<String> = wish
            .questions(&UserInfo::default())
            .iter()
            .map(|q| format!("{}/{}/{} {}", q.api_group, q.resource, q.subresource, q.name))
            .collect();
        assert_eq!(
            seen,
            [
                "/users/ bob",
                "/groups/ dev",
                "authentication.k8s.io/userextras/example.com/key v",
                "authentication.k8s.io/uids/ 7"
            ]
        );
        assert_eq!(wish.user().groups, ["dev", "system:authenticated"]);
    }

    #[test]
    fn non_ascii_user_name_is_rejected() {
        let mut headers = http::HeaderMap::new();
        for (name, value) in [("impersonate-user", &b"m\xc3\xbcller"[..]), ("impersonate-group", b"\xff")] {
            headers.insert(name, http::HeaderValue::from_bytes(value).expect("a header"));
        }
        let wish = requested(&headers).expect("fine").expect("a user");
        assert_eq!((wish.name.as_str(), wish.groups.as_slice()), ("m\u{fc}ller", &["\u{fffd}".to_owned()][..]));
    }

    #[test]
    fn a_key_has_the_values_of_all_its_spellings() {
        let pairs = [("impersonate-user", "a"), ("impersonate-extra-k%61", "1"), ("impersonate-extra-ka", "2")];
        let mut values = wish(&pairs).expect("fine").expect("a user").extra["ka"].clone();
        values.sort();
        assert_eq!(values, ["1", "2"]);
    }

    #[test]
    fn a_service_account_brings_its_groups() {
        let wish = wish(&[("impersonate-user", "system:serviceaccount:e:default")]).expect("fine").expect("a user");
        let question = wish.questions(&UserInfo::default()).remove(0);
        assert_eq!(
            (question.resource.as_str(), question.namespace.as_str(), question.name.as_str()),
            ("serviceaccounts", "e", "default")
        );
        assert_eq!(wish.user().groups, ["system:serviceaccounts", "system:serviceaccounts:e", "system:authenticated"]);
    }

    #[test]
    fn names_that_no_account_can_have_are_of_users() {
        for (user, account) in [
            ("system:serviceaccount:e:a.b", Some(("e", "a.b"))),
            ("system:serviceaccount:e:a:b", None),
            ("system:serviceaccount:E:a", None),
            ("system:serviceaccount:e.f:a", None),
            ("system:serviceaccount:e:", None),
        ] {
            assert_eq!(service_account(user), account, "{user}");
        }
    }

    #[test]
    fn impersonated_anonymous_user_is_unauthenticated() {
        let wish = wish(&[("impersonate-user", "system:anonymous")]).expect("fine").expect("a user");
        assert_eq!(wish.user().groups, ["system:unauthenticated"]);
    }
}
