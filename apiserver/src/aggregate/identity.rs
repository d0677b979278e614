//! Identity headers of the front proxy: the user of a proxied request. Answers for upstream's
//! `NewAuthProxyRoundTripper`.

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use shared::authn::UserInfo;
use shared::flags::FlagSet;

use super::error::ForwardError;
use crate::authn::FrontProxyHeaders;
use crate::authn::front_proxy::{EXTRA, GROUP, UID, USER};

/// Header names of the front proxy.
#[derive(Debug, Clone)]
pub(super) struct Headers {
    /// Such as callers may not set.
    pub(super) own: FrontProxyHeaders,
    /// The uid is told, too.
    uid: bool,
}

impl Headers {
    pub(super) fn from_flags(flags: &FlagSet) -> Self {
        Self { own: FrontProxyHeaders::from_flags(flags), uid: flags.enabled("RemoteRequestHeaderUID") }
    }

    /// Takes away what the caller says of itself, and says who it is.
    ///
    /// # Errors
    /// Something of it fits into no header: the server behind would take the caller for less than it is.
    pub(super) fn set(&self, headers: &mut HeaderMap, user: &UserInfo) -> Result<(), ForwardError> {
        let theirs: Vec<HeaderName> = headers.keys().filter(|name| self.own.has(name.as_str())).cloned().collect();
        for name in theirs {
            headers.remove(name);
        }
        let mut add = |name: &str, value: &str| {
            let invalid = || ForwardError::Header(canonical(name));
            let named = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
            // Any byte but control characters, as Go sends names and groups of any language.
            let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| invalid())?;
            headers.append(named, value);
            Ok::<(), ForwardError>(())
        };
        add(USER, &user.name)?;
        if self.uid && !user.uid.is_empty() {
            add(UID, &user.uid)?;
        }
        for group in &user.groups {
            add(GROUP, group)?;
        }
        for (key, values) in &user.extra {
            let name = format!("{EXTRA}{}", escaped(key));
            for value in values {
                add(&name, value)?;
            }
        }
        Ok(())
    }
}

/// A header's name as Go writes it: `X-Remote-Group`.
fn canonical(name: &str) -> String {
    let words = name.split('-').map(|word| {
        let (first, rest) = word.split_at_checked(1).unwrap_or((word, ""));
        format!("{}{}", first.to_ascii_uppercase(), rest.to_ascii_lowercase())
    });
    words.collect::<Vec<_>>().join("-")
}

/// A key as part of a header's name: what no name may hold is percent-encoded, and so is `%`.
fn escaped(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn identity_headers_of_callers_are_dropped() {
        let flags = ["--requestheader-client-ca-file=f", "--requestheader-username-headers=X-Other-User"];
        let own = Headers {
            own: FrontProxyHeaders::from_flags(&FlagSet::of("kube-apiserver", &flags).expect("flags")),
            uid: true,
        };
        let mut headers = HeaderMap::new();
        for name in [USER, GROUP, "x-other-user", "x-remote-extra-scopes", "accept"] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static("forged"));
        }
        let extra = BTreeMap::from([("example.com/scopes".to_owned(), vec!["a".to_owned(), "b".to_owned()])]);
        let user = UserInfo {
            name: "jane".to_owned(),
            uid: "u1".to_owned(),
            groups: vec!["one".to_owned(), "two".to_owned()],
            extra,
        };
        own.set(&mut headers, &user).expect("told");
        let all = |name: &str| headers.get_all(name).filter_map(|v| v.to_str().ok()).collect::<Vec<_>>();
        assert_eq!((all(USER), all(GROUP), all(UID)), (vec!["jane"], vec!["one", "two"], vec!["u1"]));
        assert_eq!(all("x-remote-extra-example.com%2fscopes"), ["a", "b"]);
        assert_eq!(
            (all("x-other-user"), all("x-remote-extra-scopes"), all("accept")),
            (vec![], vec![], vec!["forged"])
        );
        let user = UserInfo { groups: vec!["équipe".to_owned()], ..user };
        let mut headers = HeaderMap::new();
        own.set(&mut headers, &user).expect("told");
        assert_eq!(headers.get(GROUP).map(HeaderValue::as_bytes), Some("équipe".as_bytes()));
        let user = UserInfo { groups: vec!["a\nb".to_owned()], ..user };
        let refused = own.set(&mut HeaderMap::new(), &user).map_err(|e| e.to_string());
        assert_eq!(refused, Err("net/http: invalid header field value for \"X-Remote-Group\"".to_owned()));
    }
}
