//! Credentials of registries: which of those that are known fit an image, the most specific first.
//!
//! In: docker configurations of the node and of a pod's secrets. Out: credentials to try, in order, each with where it
//! comes from. Answers for upstream's `pkg/credentialprovider` keyring. Pure.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::service_account::ServiceAccountSource;
use crate::cri::v1;

/// Key of the registry that images without a host are in.
const DEFAULT_REGISTRY: &str = "index.docker.io";

/// Decoder of `auth`, which some tools write without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Secret that credentials were read from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretSource {
    /// UID of the secret.
    pub uid: String,
    /// Namespace of the secret.
    pub namespace: String,
    /// Name of the secret.
    pub name: String,
}

/// Origin of credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The node, whose credentials every pod may use.
    Node,
    /// A secret that the pod names.
    Secret(SecretSource),
    /// A plugin that was asked for the pod's service account.
    ServiceAccount(ServiceAccountSource),
}

/// Credentials with their origin.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Credentials in the runtime's words.
    pub auth: v1::AuthConfig,
    /// Owner of the credentials.
    pub origin: Origin,
}

impl Credentials {
    /// SHA-256 in hexadecimal over what is secret about them, to tell whether they are the same as others.
    pub fn hash(&self) -> String {
        let auth = &self.auth;
        let mut digest = Sha256::new();
        for part in [&auth.username, &auth.password, &auth.identity_token, &auth.registry_token] {
            digest.update(part.len().to_be_bytes());
            digest.update(part.as_bytes());
        }
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Credentials by the registry, or the part of one, that they are for.
#[derive(Debug, Default)]
pub(super) struct Keyring(BTreeMap<String, Vec<Credentials>>);

impl Keyring {
    /// Adds a docker configuration: `{"auths": {…}}` or the bare map of `.dockercfg`. What cannot be read is left out.
    pub(super) fn add(&mut self, config: &[u8], origin: &Origin) {
        let Ok(value) = serde_json::from_slice::<Value>(config) else { return };
        let Some(auths) = value.get("auths").unwrap_or(&value).as_object() else { return };
        for (server, entry) in auths {
            let Some(auth) = auth(server, entry) else { continue };
            self.0.entry(key(server)).or_default().push(Credentials { auth, origin: origin.clone() });
        }
    }

    /// The credentials for an image, longest path first (`BasicDockerKeyring.Lookup`).
    pub(super) fn lookup(&self, image: &str) -> Vec<Credentials> {
        let fitting = self.0.iter().rev().filter(|(key, _)| fits(key, image));
        let found: Vec<Credentials> = fitting.flat_map(|(_, credentials)| credentials.clone()).collect();
        if found.is_empty() && is_of_default_registry(image) {
            return self.0.get(DEFAULT_REGISTRY).cloned().unwrap_or_default();
        }
        found
    }
}

fn auth(server: &str, entry: &Value) -> Option<v1::AuthConfig> {
    let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (mut username, mut password) = (text("username"), text("password"));
    let packed = text("auth");
    if !packed.is_empty() {
        // Go's decoder skips the ends of lines.
        let packed: String = packed.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
        let plain = BASE64.decode(packed.trim()).ok()?;
        let plain = String::from_utf8(plain).ok()?;
        let (user, secret) = plain.split_once(':')?;
        (username, password) = (user.to_owned(), secret.to_owned());
    }
    Some(v1::AuthConfig {
        username,
        password,
        server_address: server.to_owned(),
        identity_token: text("identitytoken"),
        registry_token: text("registrytoken"),
        ..v1::AuthConfig::default()
    })
}

/// The host of a server's address with the path below it, without the version that old configurations name.
fn key(server: &str) -> String {
    let bare = server.strip_prefix("https://").or_else(|| server.strip_prefix("http://")).unwrap_or(server);
    let (host, path) = bare.split_once('/').map_or((bare, String::new()), |(host, path)| (host, format!("/{path}")));
    let path = match path.get(..4) {
        Some("/v1/" | "/v2/") => &path[3..],
        _ => path.as_str(),
    };
    if path == "/" { host.to_owned() } else { format!("{host}{path}") }
}

/// True for an image at the host that a key names, where `*` stands for a part of its name, below its path.
pub(super) fn fits(key: &str, image: &str) -> bool {
    let split = |text: &str| -> (String, String, String) {
        let (authority, path) = text.split_once('/').unwrap_or((text, ""));
        let (host, port) = authority.rsplit_once(':').unwrap_or((authority, ""));
        (host.to_owned(), port.to_owned(), if path.is_empty() { String::new() } else { format!("/{path}") })
    };
    let ((host, port, path), (wanted_host, wanted_port, wanted_path)) = (split(key), split(image));
    let (parts, wanted): (Vec<_>, Vec<_>) = (host.split('.').collect(), wanted_host.split('.').collect());
    port == wanted_port
        && parts.len() == wanted.len()
        && parts.iter().zip(&wanted).all(|(pattern, part)| matches(pattern.as_bytes(), part.as_bytes()))
        && wanted_path.starts_with(&path)
}

/// A name against a pattern with `*` and `?`, in time linear to their product.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, from)) => {
                    (p, n) = (at + 1, from + 1);
                    star = Some((at, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

fn is_of_default_registry(image: &str) -> bool {
    match image.split_once('/') {
        None => true,
        Some(("", _)) => false,
        Some(("docker.io" | "index.docker.io", _)) => true,
        Some((host, _)) => !host.contains(['.', ':']),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(config: &str, image: &str) -> Vec<String> {
        let mut keyring = Keyring::default();
        keyring.add(config.as_bytes(), &Origin::Node);
        keyring.lookup(image).into_iter().map(|found| found.auth.username).collect()
    }

    #[test]
    fn the_most_specific_credentials_come_first() {
        let config = r#"{"auths": {
            "r.io": {"username": "host"}, "r.io/team": {"username": "team"}, "https://r.io/team/app/": {"username": "app"},
            "*.example.com": {"username": "any"}, "r.io:5000": {"username": "port"},
            "https://index.docker.io/v1/": {"auth": "dTpw"}, "quay.io/v2/": {"username": "old"}}}"#;
        for (image, expected) in [
            ("r.io/team/app/x:1", vec!["app", "team", "host"]),
            ("r.io/team/other", vec!["team", "host"]),
            ("r.io/else:1", vec!["host"]),
            ("r.io:5000/x", vec!["port"]),
            ("a.example.com/x", vec!["any"]),
            ("a.b.example.com/x", vec![]),
            ("busybox:latest", vec!["u"]),
            ("library/busybox", vec!["u"]),
            ("docker.io/library/busybox", vec!["u"]),
            ("quay.io/x/y@sha256:00", vec!["old"]),
            ("other.io/x:1", vec![]),
        ] {
            assert_eq!(users(config, image), expected, "{image}");
        }
    }

    #[test]
    fn unreadable_entries_hide_no_others() {
        let config = r#"{"r.io": {"auth": "%%%"}, "r.io/x": {"auth": 5, "username": "a"}, "r.io/y": null}"#;
        assert_eq!(users(config, "r.io/x:1"), ["a"]);
        assert_eq!(users("{", "r.io/x:1"), Vec::<String>::new());
        assert_eq!(users("[]", "r.io/x:1"), Vec::<String>::new());
    }

    #[test]
    fn logins_are_decoded_with_and_without_padding() {
        for (packed, user) in
            [("dTpw", "u"), ("dXM6cA==", "us"), ("dXM6cA", "us"), ("dXNlOn\\nA=", "use"), ("dXNlOnA", "use")]
        {
            let config = format!(r#"{{"r.io": {{"auth": "{packed}"}}}}"#);
            assert_eq!(users(&config, "r.io/x"), [user], "{packed}");
        }
        assert_eq!(users(r#"{"r.io": {"auth": "dXNl"}}"#, "r.io/x"), Vec::<String>::new(), "no colon");
    }

    #[test]
    fn patterns_match_parts_of_hosts() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*", "abc", true),
            ("a*c", "abbc", true),
            ("a*c", "ab", false),
            ("?b", "ab", true),
            ("**a", "ba", true),
            ("a", "b", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }
}
