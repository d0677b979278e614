//! Client credentials for webhooks: the users of a kubeconfig, each named after the hosts they are for. Answers for
//! upstream's `pkg/util/webhook` (`AuthenticationInfoResolver`).

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use shared::cert::{PemPair, ReloadingKey};
use shared::client::TokenFile;

use crate::machinery::tree;

/// Error of a kubeconfig of webhooks.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The file cannot be read.
    #[error("stat {path}: {}", shared::os::explain(.error))]
    Read {
        /// The file.
        path: String,
        /// Cause.
        error: std::io::Error,
    },
    /// The file is neither YAML nor JSON.
    #[error("error loading config file {path:?}: {source}")]
    Syntax {
        /// The file.
        path: String,
        /// Cause.
        source: proto::json::DecodeError,
    },
    /// The file names no server.
    #[error("invalid configuration: no server found in {0:?}")]
    NoServer(String),
    /// Data in a field are not encoded as they must be.
    #[error("{field}-data: {source}")]
    Data {
        /// The field.
        field: &'static str,
        /// Cause.
        source: base64::DecodeError,
    },
    /// A file that a field names cannot be read.
    #[error("unable to read {field} {path}: {}", shared::os::explain(.error))]
    File {
        /// The field.
        field: &'static str,
        /// The file.
        path: String,
        /// Cause.
        error: std::io::Error,
    },
    /// A certificate or key is no text.
    #[error(transparent)]
    Utf8(#[from] std::string::FromUtf8Error),
    /// A certificate or key cannot be used.
    #[error(transparent)]
    Certificate(#[from] shared::cert::CertError),
    /// The file of a token cannot be used.
    #[error("unable to read tokenFile {path}: {source:#}")]
    Token {
        /// The file.
        path: String,
        /// Cause.
        source: anyhow::Error,
    },
}

/// Client identity for one host.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct HostIdentity {
    /// Names the certificate among the TLS set-ups.
    pub(super) id: usize,
    pub(super) pair: Option<Arc<ReloadingKey>>,
    secret: Secret,
}

/// Source of the `Authorization` header.
#[derive(Debug, Clone, Default)]
enum Secret {
    #[default]
    None,
    Fixed(String),
    File(Arc<TokenFile>),
}

impl HostIdentity {
    /// `Authorization`, as it is now.
    pub(super) fn authorization(&self) -> Option<Vec<u8>> {
        match &self.secret {
            Secret::None => None,
            Secret::Fixed(value) => Some(value.clone().into_bytes()),
            Secret::File(file) => Some(file.header().as_bytes().to_vec()),
        }
    }

    /// Names the certificate that is shown now; connections are kept for that one.
    pub(super) fn shown(&self) -> Vec<u8> {
        let pair = self.pair.as_ref().and_then(|pair| pair.current());
        pair.and_then(|pair| pair.cert.first().map(|leaf| Sha256::digest(leaf).to_vec())).unwrap_or_default()
    }
}

/// Users by the hosts they are for.
#[derive(Debug, Default)]
pub(in super::super) struct WebhookCredentials {
    users: Vec<(String, HostIdentity)>,
}

fn content(user: &Value, field: &'static str, folder: &Path) -> Result<Option<Vec<u8>>, CredentialsError> {
    let data = tree::text(user, &format!("/{field}-data"));
    if !data.is_empty() {
        return base64::engine::general_purpose::STANDARD
            .decode(data)
            .map(Some)
            .map_err(|source| CredentialsError::Data { field, source });
    }
    match tree::text(user, &format!("/{field}")) {
        "" => Ok(None),
        path => std::fs::read(folder.join(path)).map(Some).map_err(|error| CredentialsError::File {
            field,
            path: path.to_owned(),
            error,
        }),
    }
}

/// The client certificate. What is in files may change.
fn pair(user: &Value, folder: &Path) -> Result<Option<Arc<ReloadingKey>>, CredentialsError> {
    let file = |field: &str| {
        let (path, data) = (tree::text(user, &format!("/{field}")), tree::text(user, &format!("/{field}-data")));
        (data.is_empty() && !path.is_empty()).then(|| folder.join(path))
    };
    if let (Some(certificate), Some(key)) = (file("client-certificate"), file("client-key")) {
        return Ok(Some(Arc::new(ReloadingKey::from_files(certificate, key)?)));
    }
    let (Some(certificate), Some(key)) =
        (content(user, "client-certificate", folder)?, content(user, "client-key", folder)?)
    else {
        return Ok(None);
    };
    let pair = PemPair { certificate: String::from_utf8(certificate)?, key: String::from_utf8(key)? };
    Ok(Some(Arc::new(ReloadingKey::from_pem(&pair)?)))
}

fn identity(id: usize, user: &Value, folder: &Path) -> Result<HostIdentity, CredentialsError> {
    let (token, file, name) =
        (tree::text(user, "/token"), tree::text(user, "/tokenFile"), tree::text(user, "/username"));
    let secret = match (file, token, name) {
        ("", "", "") => Secret::None,
        ("", "", name) => {
            let both = format!("{name}:{}", tree::text(user, "/password"));
            Secret::Fixed(format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(both)))
        }
        ("", token, _) => Secret::Fixed(format!("Bearer {token}")),
        (path, ..) => {
            let file = TokenFile::read(&folder.join(path).to_string_lossy());
            let file = file.map_err(|source| CredentialsError::Token { path: path.to_owned(), source })?;
            Secret::File(Arc::new(file))
        }
    };
    Ok(HostIdentity { id, pair: pair(user, folder)?, secret })
}

impl WebhookCredentials {
    /// Reads the kubeconfig; an empty path has no users.
    pub(in super::super) fn read(path: &str) -> Result<Self, CredentialsError> {
        if path.is_empty() {
            return Ok(Self::default());
        }
        let file = kubeconfig(path)?;
        let folder = Path::new(path).parent().unwrap_or(Path::new(""));
        let users = tree::list(&file, "/users").iter().enumerate().map(|(at, entry)| {
            let user = entry.get("user").unwrap_or(&Value::Null);
            Ok((tree::name_field(entry).to_owned(), identity(at + 1, user, folder)?))
        });
        Ok(Self { users: users.collect::<Result<_, CredentialsError>>()? })
    }

    /// Finds the identity for a host: by its own name with or without the port, by `*` for its first labels, or by `*`
    /// alone.
    pub(super) fn of(&self, host: &str, port: &str) -> HostIdentity {
        let full = format!("{host}:{port}");
        let exact = [full.as_str(), host];
        let wild = host.match_indices('.').map(|(at, _)| format!("*{}", &host[at..]));
        let names = exact.iter().map(|n| (*n).to_owned()).chain(wild).chain(["*".to_owned()]);
        let find = |name: String| self.users.iter().find(|(n, _)| *n == name).map(|(_, identity)| identity.clone());
        names.into_iter().find_map(find).unwrap_or_default()
    }
}

/// A kubeconfig as a tree.
fn kubeconfig(path: &str) -> Result<Value, CredentialsError> {
    let file = || path.to_owned();
    let text = std::fs::read(path).map_err(|error| CredentialsError::Read { path: file(), error })?;
    proto::yaml::decode_any(&text).map_err(|source| CredentialsError::Syntax { path: file(), source })
}

/// The one server a kubeconfig is about: its address, the bundle to trust (PEM) and who to be.
pub(in super::super) fn server(path: &str) -> Result<(String, Option<Vec<u8>>, HostIdentity), CredentialsError> {
    let file = kubeconfig(path)?;
    let folder = Path::new(path).parent().unwrap_or(Path::new(""));
    let named = |list: &str, name: &str| {
        tree::list(&file, list)
            .iter()
            .find(|e| name.is_empty() || tree::name_field(e) == name)
            .cloned()
            .unwrap_or_default()
    };
    let context = named("/contexts", tree::text(&file, "/current-context"));
    let cluster = named("/clusters", tree::text(&context, "/context/cluster"));
    let user = named("/users", tree::text(&context, "/context/user"));
    let of = |entry: &Value, field: &str| entry.get(field).cloned().unwrap_or_default();
    let cluster = of(&cluster, "cluster");
    let url = tree::text(&cluster, "/server").to_owned();
    if url.is_empty() {
        return Err(CredentialsError::NoServer(path.to_owned()));
    }
    Ok((url, content(&cluster, "certificate-authority", folder)?, identity(usize::MAX, &of(&user, "user"), folder)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_read_again_from_files() {
        let folder = std::env::temp_dir().join(format!("webhook-user-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let [first, second] = ["a", "b"].map(|name| shared::cert::self_signed(name, &[], &[]).expect("a pair"));
        for (name, text) in [("tls.crt", first.certificate.as_str()), ("tls.key", &first.key), ("token", "one\n")] {
            std::fs::write(folder.join(name), text).expect("written");
        }
        let user = serde_json::json!({"client-certificate": "tls.crt", "client-key": "tls.key", "tokenFile": "token"});
        let us = identity(1, &user, &folder).expect("read");
        assert!(matches!(&us.secret, Secret::File(_)));
        assert_eq!(us.authorization().as_deref(), Some(&b"Bearer one"[..]));
        let shown = us.shown();
        us.pair.as_ref().expect("a pair").replace(&second).expect("replaced");
        assert_ne!(us.shown(), shown, "other connections are for another certificate");
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn hosts_have_their_users() {
        let path = std::env::temp_dir().join(format!("kubeconfig-{}", uuid::Uuid::new_v4()));
        let text = "users:\n- name: hook.ns.svc\n  user: {token: a}\n- name: '*.example.com'\n  user: {token: b}\n- name: other.ns.svc:8443\n  user: {username: u, password: p}\n- name: '*'\n  user: {token: d}\n";
        std::fs::write(&path, text).expect("a file");
        let credentials = WebhookCredentials::read(&path.display().to_string()).expect("read");
        for (host, port, want) in [
            ("hook.ns.svc", "443", "Bearer a"),
            ("x.example.com", "443", "Bearer b"),
            ("a.b.example.com", "443", "Bearer b"),
            ("other.ns.svc", "8443", "Basic dTpw"),
            ("other.ns.svc", "443", "Bearer d"),
        ] {
            assert_eq!(credentials.of(host, port).authorization().as_deref(), Some(want.as_bytes()), "{host}");
        }
        assert!(WebhookCredentials::default().of("x", "1").authorization().is_none());
        std::fs::remove_file(&path).expect("removed");
        assert!(
            WebhookCredentials::read("/nope").is_err_and(|e| e.to_string() == "stat /nope: no such file or directory")
        );
    }
}
