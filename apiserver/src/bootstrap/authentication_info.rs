//! `kube-system/extension-apiserver-authentication`: how other servers of the cluster tell its users apart, and since
//! when tokens kept in secrets are watched for use. Answers for upstream's
//! `pkg/controlplane/controller/clusterauthenticationtrust`.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use shared::cert;
use shared::flags::FlagSet;
use shared::status::Status;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::backoff;
use crate::api::{Api, DeleteArgs};
use crate::machinery::identity::server_user;
use crate::machinery::tree;
use crate::registry::core::config_map::CONFIG_MAPS;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";

/// Intervals at which the files and the stored object are checked.
pub(super) const LOOK: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));
/// Seconds that a certificate may have run out: clocks differ.
const SLACK: i64 = 300;

/// Authentication settings of this server.
fn data(flags: &FlagSet) -> BTreeMap<String, String> {
    let mut data = BTreeMap::new();
    let mut file = |key: &str, flag: &str| {
        let path = flags.string(flag);
        if path.is_empty() {
            return false;
        }
        match std::fs::read_to_string(&path) {
            Ok(text) => drop(data.insert(key.to_owned(), text)),
            Err(error) => tracing::warn!(path, %error, "Failed to read CA file to publish"),
        }
        true
    };
    file("client-ca-file", "client-ca-file");
    if file("requestheader-client-ca-file", "requestheader-client-ca-file") {
        for name in [
            "requestheader-allowed-names",
            "requestheader-username-headers",
            "requestheader-group-headers",
            "requestheader-uid-headers",
        ] {
            data.insert(name.to_owned(), json!(flags.list(name)).to_string());
        }
        let prefixes = json!(flags.list("requestheader-extra-headers-prefix")).to_string();
        data.insert("requestheader-extra-headers-prefix".to_owned(), prefixes);
        if flags.list("requestheader-uid-headers").is_empty() {
            data.remove("requestheader-uid-headers");
        }
    }
    data
}

/// Joins what several servers say: bundles of certificates and lists.
fn merged(key: &str, theirs: &str, ours: &str, now: Timestamp) -> String {
    if key.ends_with("client-ca-file") {
        return bundle(theirs, ours, now);
    }
    if theirs.trim() == ours.trim() || theirs.is_empty() {
        return ours.to_owned();
    }
    let list = |text: &str| serde_json::from_str::<Vec<String>>(text).unwrap_or_default();
    let mut all = list(theirs);
    for entry in list(ours) {
        if !all.contains(&entry) {
            all.push(entry);
        }
    }
    json!(all).to_string()
}

/// The certificates of both that have not run out, each once.
fn bundle(theirs: &str, ours: &str, now: Timestamp) -> String {
    let (mut all, oldest) = (Vec::new(), now.as_second() - SLACK);
    // What cannot be read is nobody's.
    for certificate in [theirs, ours].iter().flat_map(|pem| cert::certificates(pem.as_bytes()).unwrap_or_default()) {
        let holds = X509Certificate::from_der(&certificate)
            .is_ok_and(|(_, parsed)| parsed.validity().not_after.timestamp() > oldest);
        if holds && !all.contains(&certificate) {
            all.push(certificate);
        }
    }
    cert::to_pem(&all)
}

/// Plans the write of the config map; `None` when it is up to date.
fn planned(stored: Option<&Value>, data: &BTreeMap<String, String>, now: Timestamp) -> Option<Value> {
    let mut changed = stored.is_none();
    let mut object = stored.cloned().unwrap_or_else(|| config_map(NAME));
    for (key, ours) in data {
        let theirs = tree::map(&object, "/data").and_then(|d| d.get(key)).and_then(Value::as_str).unwrap_or("");
        let value = merged(key, theirs, ours, now);
        if value != theirs {
            *tree::field(&mut object, &["data", key]) = json!(value);
            changed = true;
        }
    }
    changed.then_some(object)
}

/// Keeps both there, and the first up to date with the files: authorities come and go while the server runs.
pub(super) async fn run(flags: &FlagSet, api: &Api, look: (Duration, Duration)) {
    let mut backoff = backoff();
    loop {
        let today = Timestamp::now().to_string()[..10].to_owned();
        let said = data(flags);
        if let Err(error) = reconcile(api, &said, &today).await {
            tracing::warn!(%error, "Failed to publish cluster authentication config, will retry");
            backoff.wait().await;
            continue;
        }
        backoff.reset();
        tokio::time::timeout(look.1, rewritten(flags, &said, look.0)).await.ok();
    }
}

/// Returns when the files say something else than what was `said`.
async fn rewritten(flags: &FlagSet, said: &BTreeMap<String, String>, look: Duration) {
    while data(flags) == *said {
        tokio::time::sleep(look).await;
    }
}

/// Writes both objects where something is missing.
async fn reconcile(api: &Api, data: &BTreeMap<String, String>, today: &str) -> Result<(), Status> {
    super::ensure_namespace(api, NAMESPACE).await?;
    let written = write(api, NAME, |stored| planned(stored, data, Timestamp::now())).await;
    if written.as_ref().err().is_some_and(is_too_large) {
        // Begun anew, it holds what this server and those that are still there say.
        api.delete(&server_user(), CONFIG_MAPS, NAMESPACE, NAME, DeleteArgs::default()).await?;
    }
    written?;
    write(api, TRACKING, |stored| tracked(stored, today)).await
}

/// Since when use of tokens is noted: a day that stays as it is, where it is one.
fn tracked(stored: Option<&Value>, today: &str) -> Option<Value> {
    let is_day = |object: &Value| tree::text(object, "/data/since").parse::<jiff::civil::Date>().is_ok();
    if stored.is_some_and(is_day) {
        return None;
    }
    let mut object = stored.cloned().unwrap_or_else(|| config_map(TRACKING));
    *tree::field(&mut object, &["data", "since"]) = json!(today);
    Some(object)
}

fn is_too_large(status: &Status) -> bool {
    status.code == 413 || (status.reason == "Invalid" && status.message.contains("Too long"))
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}})
}

async fn write(api: &Api, name: &str, plan: impl Fn(Option<&Value>) -> Option<Value> + Send) -> Result<(), Status> {
    let user = server_user();
    match api.get(CONFIG_MAPS, NAMESPACE, name).await {
        Ok(stored) => match plan(Some(&stored)) {
            Some(object) => api.update(&user, CONFIG_MAPS, "", object).await.map(drop),
            None => Ok(()),
        },
        Err(status) if status.is_not_found() => match plan(None) {
            Some(object) => match api.create(&user, CONFIG_MAPS, NAMESPACE, object).await {
                Err(status) if !status.is_already_exists() => Err(status),
                _ => Ok(()),
            },
            None => Ok(()),
        },
        Err(status) => Err(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::testing::Fixed;
    use crate::api::Reader as _;
    use crate::machinery::GroupResource;
    use std::sync::Arc;

    #[tokio::test]
    async fn written_once_and_merged() {
        let cluster = Arc::new(Fixed::default());
        let api = cluster.api();
        let data = |text: &str| BTreeMap::from([("requestheader-allowed-names".to_owned(), text.to_owned())]);
        let stored = || {
            cluster.get(GroupResource::new("", "configmaps"), NAMESPACE, NAME).expect("there")["data"]["requestheader-allowed-names"]
                .clone()
        };
        reconcile(&api, &data("[\"a\"]"), "2026-11-21").await.expect("written");
        assert_eq!(stored(), "[\"a\"]");
        reconcile(&api, &data("[\"b\"]"), "2026-11-22").await.expect("written");
        assert_eq!(stored(), "[\"a\",\"b\"]");
        let before = cluster.version(GroupResource::new("", ""));
        reconcile(&api, &data("[\"b\"]"), "2026-11-23").await.expect("nothing to do");
        assert_eq!(cluster.version(GroupResource::new("", "")), before);
        let since =
            cluster.get(GroupResource::new("", "configmaps"), NAMESPACE, TRACKING).expect("there")["data"]["since"]
                .clone();
        assert_eq!(since, "2026-11-21");
    }

    #[test]
    fn bundles_are_merged_without_expired_certificates() {
        let authority = |name| cert::self_signed(name, &[], &[]).expect("a pair").certificate.replace('\r', "");
        let (a, b) = (authority("a"), authority("b"));
        let joined = |theirs: &str, now| merged("client-ca-file", theirs, &format!("# ours\n{a}{b}"), now);
        let now = Timestamp::now();
        assert_eq!(joined("", now), format!("{a}{b}"), "certificates and nothing else");
        assert_eq!(joined(&b, now), format!("{b}{a}"));
        assert_eq!(joined("nonsense", now), format!("{a}{b}"));
        let years_later = now + jiff::SignedDuration::from_hours(2 * 366 * 24);
        assert_eq!(joined(&b, years_later), "");
    }

    #[tokio::test]
    async fn config_map_follows_files_and_is_restored() {
        let cluster = Arc::new(Fixed::default());
        let path = std::env::temp_dir().join(format!("ca-{}", uuid::Uuid::new_v4()));
        let authority = |name| cert::self_signed(name, &[], &[]).expect("a pair").certificate;
        let put = |pem: &str| std::fs::write(&path, pem).expect("written");
        let (first, second) = (authority("first"), authority("second"));
        put(&first);
        let flag = format!("--client-ca-file={}", path.display());
        let flags = FlagSet::of("kube-apiserver", &[&flag]).expect("flags");
        // How many authorities are told, and since when tokens are watched.
        let stored = || {
            let text = |name, pointer| {
                let object = cluster.get(GroupResource::new("", "configmaps"), NAMESPACE, name);
                object.map(|object| tree::text(&object, pointer).to_owned()).unwrap_or_default()
            };
            (text(NAME, "/data/client-ca-file").matches("BEGIN").count(), text(TRACKING, "/data/since").len())
        };
        let api = cluster.api();
        let mut keeping = std::pin::pin!(run(&flags, &api, (Duration::from_millis(1), Duration::from_millis(5))));
        let mut until = async |wanted| {
            let seen = async {
                while stored() != wanted {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                () = &mut keeping => panic!("it ended"),
                () = seen => {}
            }
        };
        until((1, 10)).await;
        put(&second);
        // The old one stays until it has run out.
        until((2, 10)).await;
        let user = server_user();
        api.delete(&user, GroupResource::new("", "configmaps"), NAMESPACE, NAME, DeleteArgs::default())
            .await
            .expect("deleted");
        until((1, 10)).await;
        let mut never = config_map(TRACKING);
        never["data"] = json!({"since": "never"});
        api.update(&user, GroupResource::new("", "configmaps"), "", never).await.expect("written");
        until((1, 10)).await;
        std::fs::remove_file(&path).expect("removed");
    }
}
