//! Rewriting of links in proxied pages: the links that lead through the proxy again, and their new form. Answers for
//! upstream's `apimachinery/pkg/util/proxy/transport.go` (`rewriteHTML`).

use shared::url::{Url, joined};

/// Origin of a page, and its path at this server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Links {
    /// Scheme of the client's request line; empty unless another proxy wrote one.
    pub scheme: String,
    /// See there.
    pub host: String,
    /// The path of the proxy itself.
    pub prefix: Vec<u8>,
    /// The other side's own host.
    pub theirs: Vec<u8>,
    /// The host as the client calls it.
    pub asked: Vec<u8>,
}

impl Links {
    /// A link as it is written in an answer. What leads elsewhere, or is relative, only loses oddities of its form.
    pub(super) fn rewritten(&self, mut url: Url) -> Vec<u8> {
        let elsewhere = !url.host.is_empty() && url.host != self.theirs && url.host != self.asked;
        if elsewhere || !url.path.starts_with(b"/") {
            return url.write();
        }
        // A client that knows no other host goes on with the one that it calls.
        if !(url.host == self.asked && self.scheme.is_empty() && self.host.is_empty()) {
            url.scheme.clone_from(&self.scheme);
            url.host = self.host.clone().into_bytes();
        }
        if !url.path.starts_with(&self.prefix) {
            url.path = joined(&self.prefix, &url.path);
        }
        url.write()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_through_the_proxy_again() {
        let links = Links {
            prefix: b"/p/proxy".to_vec(),
            theirs: b"10.0.0.1:80".to_vec(),
            asked: b"api:6443".to_vec(),
            ..Links::default()
        };
        for (to, want) in [
            ("/other?x=1", "/p/proxy/other?x=1"),
            ("/a//b/../c/", "/p/proxy/a/c/"),
            ("http://10.0.0.1:80/a#b", "/p/proxy/a#b"),
            ("https://10.0.0.1:80/", "/p/proxy/"),
            ("//10.0.0.1:80/a", "/p/proxy/a"),
            ("https://api:6443/a", "https://api:6443/p/proxy/a"),
            ("/p/proxy/a", "/p/proxy/a"),
            ("/p/proxyish", "/p/proxyish"),
            ("https://example.com/a", "https://example.com/a"),
            ("a/b c", "a/b%20c"),
            ("http://10.0.0.1:80", "http://10.0.0.1:80"),
            ("mailto:a@b", "mailto:a@b"),
        ] {
            let got = links.rewritten(Url::parse(to.as_bytes()).expect("a URL"));
            assert_eq!(String::from_utf8_lossy(&got), want, "{to}");
        }
    }
}
