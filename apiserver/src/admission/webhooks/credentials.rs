//! How the server shows webhooks who it is: the users of a kubeconfig, each named after the hosts they are for.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use serde_json::Value;
use shared::cert::{PemPair, ReloadingKey};

use crate::access::tree;

/// What is shown to one host.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Identity {
    /// Names the certificate among the TLS set-ups.
    pub(super) id: usize,
    pub(super) pair: Option<Arc<ReloadingKey>>,
    /// `Authorization`
    pub(super) authorization: Option<String>,
}

/// Users by the hosts they are for.
#[derive(Debug, Default)]
pub(in super::super) struct Credentials {
    users: Vec<(String, Identity)>,
}

fn content(user: &Value, field: &str, folder: &Path) -> Result<Option<Vec<u8>>, String> {
    let data = tree::text(user, &format!("/{field}-data"));
    if !data.is_empty() {
        return base64::engine::general_purpose::STANDARD
            .decode(data)
            .map(Some)
            .map_err(|e| format!("{field}-data: {e}"));
    }
    match tree::text(user, &format!("/{field}")) {
        "" => Ok(None),
        path => std::fs::read(folder.join(path)).map(Some).map_err(|e| format!("unable to read {field} {path}: {e}")),
    }
}

fn identity(id: usize, user: &Value, folder: &Path) -> Result<Identity, String> {
    let encode = |text: String| base64::engine::general_purpose::STANDARD.encode(text);
    let pair = match (content(user, "client-certificate", folder)?, content(user, "client-key", folder)?) {
        (Some(certificate), Some(key)) => {
            let text = |pem| String::from_utf8(pem).map_err(|e| e.to_string());
            let pair = PemPair { certificate: text(certificate)?, key: text(key)? };
            Some(Arc::new(ReloadingKey::from_pem(&pair).map_err(|e| e.to_string())?))
        }
        _ => None,
    };
    let token = match (tree::text(user, "/token"), tree::text(user, "/tokenFile")) {
        ("", "") => None,
        ("", path) => {
            let token = std::fs::read_to_string(folder.join(path))
                .map_err(|e| format!("unable to read tokenFile {path}: {e}"))?;
            Some(token.trim().to_owned())
        }
        (token, _) => Some(token.to_owned()),
    };
    let name = tree::text(user, "/username");
    let basic =
        || (!name.is_empty()).then(|| format!("Basic {}", encode(format!("{name}:{}", tree::text(user, "/password")))));
    Ok(Identity { id, pair, authorization: token.map(|t| format!("Bearer {t}")).or_else(basic) })
}

impl Credentials {
    /// Reads the kubeconfig; an empty path has no users.
    pub(in super::super) fn read(path: &str) -> Result<Self, String> {
        if path.is_empty() {
            return Ok(Self::default());
        }
        let file = kubeconfig(path)?;
        let folder = Path::new(path).parent().unwrap_or(Path::new(""));
        let users = tree::list(&file, "/users").iter().enumerate().map(|(at, entry)| {
            let user = entry.get("user").unwrap_or(&Value::Null);
            Ok((tree::name_field(entry).to_owned(), identity(at + 1, user, folder)?))
        });
        Ok(Self { users: users.collect::<Result<_, String>>()? })
    }

    /// Who to be for a host: its own name with or without the port, `*` for its first labels, or `*` alone.
    pub(super) fn of(&self, host: &str, port: &str) -> Identity {
        let full = format!("{host}:{port}");
        let exact = [full.as_str(), host];
        let wild = host.match_indices('.').map(|(at, _)| format!("*{}", &host[at..]));
        let names = exact.iter().map(|n| (*n).to_owned()).chain(wild).chain(["*".to_owned()]);
        let find = |name: String| self.users.iter().find(|(n, _)| *n == name).map(|(_, identity)| identity.clone());
        names.into_iter().find_map(find).unwrap_or_default()
    }
}

/// A kubeconfig as a tree.
fn kubeconfig(path: &str) -> Result<Value, String> {
    let text = std::fs::read(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => format!("stat {path}: no such file or directory"),
        _ => format!("{path}: {e}"),
    })?;
    serde_norway::from_slice(&text).map_err(|e| format!("error loading config file {path:?}: {e}"))
}

/// The one server a kubeconfig is about: its address, the bundle to trust (PEM) and who to be.
pub(in super::super) fn server(path: &str) -> Result<(String, Option<Vec<u8>>, Identity), String> {
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
        return Err(format!("invalid configuration: no server found in {path:?}"));
    }
    Ok((url, content(&cluster, "certificate-authority", folder)?, identity(usize::MAX, &of(&user, "user"), folder)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_their_users() {
        let path = std::env::temp_dir().join(format!("kubeconfig-{}", uuid::Uuid::new_v4()));
        let text = "users:\n- name: hook.ns.svc\n  user: {token: a}\n- name: '*.example.com'\n  user: {token: b}\n- name: other.ns.svc:8443\n  user: {username: u, password: p}\n- name: '*'\n  user: {token: d}\n";
        std::fs::write(&path, text).expect("a file");
        let credentials = Credentials::read(&path.display().to_string()).expect("read");
        for (host, port, want) in [
            ("hook.ns.svc", "443", "Bearer a"),
            ("x.example.com", "443", "Bearer b"),
            ("a.b.example.com", "443", "Bearer b"),
            ("other.ns.svc", "8443", "Basic dTpw"),
            ("other.ns.svc", "443", "Bearer d"),
        ] {
            assert_eq!(credentials.of(host, port).authorization.as_deref(), Some(want), "{host}");
        }
        assert!(Credentials::default().of("x", "1").authorization.is_none());
        std::fs::remove_file(&path).expect("removed");
        assert!(Credentials::read("/nope").is_err_and(|e| e == "stat /nope: no such file or directory"));
    }
}
