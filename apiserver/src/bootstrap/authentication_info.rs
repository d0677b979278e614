//! `kube-system/extension-apiserver-authentication`: how other servers of the cluster tell its users apart, and since
//! when tokens kept in secrets are watched for use.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use shared::flags::FlagSet;
use shared::status::Status;

use super::server_user;
use crate::access::tree;
use crate::api::Api;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";

/// What this server has to say.
pub(super) fn data(flags: &FlagSet) -> BTreeMap<String, String> {
    let mut data = BTreeMap::new();
    let mut file = |key: &str, flag: &str| {
        let path = flags.string(flag);
        if path.is_empty() {
            return false;
        }
        match std::fs::read_to_string(&path) {
            Ok(text) => drop(data.insert(key.to_owned(), text)),
            Err(error) => tracing::warn!(path, %error, "a CA file cannot be published"),
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
fn merged(key: &str, theirs: &str, ours: &str) -> String {
    if theirs.trim() == ours.trim() || theirs.is_empty() {
        return ours.to_owned();
    }
    if key.ends_with("client-ca-file") {
        const END: &str = "-----END CERTIFICATE-----";
        let blocks = |text: &str| {
            text.split_inclusive(END).map(|b| b.trim().to_owned()).filter(|b| b.ends_with(END)).collect::<Vec<_>>()
        };
        let mut all = blocks(theirs);
        for block in blocks(ours) {
            if !all.contains(&block) {
                all.push(block);
            }
        }
        return all.join("\n") + "\n";
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

/// Writes both objects where something is missing.
pub(super) async fn reconcile(api: &Api, data: &BTreeMap<String, String>, today: &str) -> Result<(), Status> {
    super::ensure_namespace(api, NAMESPACE).await?;
    write(api, NAME, |stored| {
        let mut changed = stored.is_none();
        let mut object = stored.cloned().unwrap_or_else(|| config_map(NAME));
        for (key, ours) in data {
            let theirs =
                tree::map(&object, "/data").and_then(|d| d.get(key)).and_then(Value::as_str).unwrap_or("").to_owned();
            let value = merged(key, &theirs, ours);
            if value != theirs {
                *tree::field(&mut object, &["data", key]) = json!(value);
                changed = true;
            }
        }
        changed.then_some(object)
    })
    .await?;
    write(api, TRACKING, |stored| {
        stored.is_none().then(|| {
            let mut object = config_map(TRACKING);
            object["data"] = json!({"since": today});
            object
        })
    })
    .await
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}})
}

async fn write(api: &Api, name: &str, plan: impl Fn(Option<&Value>) -> Option<Value> + Send) -> Result<(), Status> {
    let user = server_user();
    match api.get("", "configmaps", NAMESPACE, name).await {
        Ok(stored) => match plan(Some(&stored)) {
            Some(object) => api.update(&user, "", "configmaps", "", object).await.map(drop),
            None => Ok(()),
        },
        Err(status) if status.is_not_found() => match plan(None) {
            Some(object) => match api.create(&user, "", "configmaps", NAMESPACE, object).await {
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
    use std::sync::Arc;

    #[tokio::test]
    async fn written_once_and_merged() {
        let cluster = Arc::new(Fixed::default());
        let api = cluster.api();
        let data = |text: &str| BTreeMap::from([("requestheader-allowed-names".to_owned(), text.to_owned())]);
        let stored = || {
            cluster.get("", "configmaps", NAMESPACE, NAME).expect("there")["data"]["requestheader-allowed-names"]
                .clone()
        };
        reconcile(&api, &data("[\"a\"]"), "2026-11-21").await.expect("written");
        assert_eq!(stored(), "[\"a\"]");
        reconcile(&api, &data("[\"b\"]"), "2026-11-22").await.expect("written");
        assert_eq!(stored(), "[\"a\",\"b\"]");
        let before = cluster.version("", "");
        reconcile(&api, &data("[\"b\"]"), "2026-11-23").await.expect("nothing to do");
        assert_eq!(cluster.version("", ""), before);
        let since = cluster.get("", "configmaps", NAMESPACE, TRACKING).expect("there")["data"]["since"].clone();
        assert_eq!(since, "2026-11-21");
    }

    #[test]
    fn bundles_are_joined_by_certificate() {
        let block = |c: &str| format!("-----BEGIN CERTIFICATE-----\n{c}\n-----END CERTIFICATE-----\n");
        let joined = merged("client-ca-file", &block("a"), &format!("{}{}", block("a"), block("b")));
        assert_eq!(joined, format!("{}{}", block("a"), block("b")));
    }
}
