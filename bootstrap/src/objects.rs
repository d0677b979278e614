//! Single objects of a cluster, as JSON: read, applied and deleted.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result, bail};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use kube::Client;
use pki::secret::Data;
use serde_json::{Value, json};
use shared::client::path;

/// The owner of fields that are applied.
pub const MANAGER: &str = "control-plane-bootstrap";
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;

/// A Secret as it was read.
#[derive(Clone, Debug, Default)]
pub struct StoredSecret {
    /// The decoded data.
    pub data: Data,
    /// Resource version; empty when it is not there.
    pub version: String,
}

/// The objects of one cluster.
pub struct ObjectClient {
    client: Client,
    /// Discovery's answers by kind: the plural, and whether it lies in namespaces.
    kinds: HashMap<(String, String), (String, bool)>,
}

impl ObjectClient {
    /// Over a connection.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, kinds: HashMap::new() }
    }

    /// The object at a path, if it is there.
    ///
    /// # Errors
    /// Any other refusal.
    pub async fn get(&self, path: &str) -> Result<Option<Value>> {
        let request = http::Request::get(path).body(Vec::new())?;
        match self.client.request_text(request).await {
            Ok(text) => Ok(Some(serde_json::from_str(&text)?)),
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {path}")),
        }
    }

    /// The text at a path.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn text(&self, path: &str) -> Result<String> {
        let request = http::Request::get(path).body(Vec::new())?;
        self.client.request_text(request).await.with_context(|| format!("reading {path}"))
    }

    /// Applies an object, taking fields over that others own.
    ///
    /// # Errors
    /// When its kind is not served or it is refused.
    pub async fn apply(&mut self, object: &Value) -> Result<()> {
        let path = self.path(object).await?;
        let query = format!("{path}?fieldManager={MANAGER}&force=true");
        let request = http::Request::patch(&query)
            .header("Content-Type", "application/apply-patch+yaml")
            .body(serde_json::to_vec(object)?)?;
        self.client.request_text(request).await.with_context(|| format!("applying {path}"))?;
        Ok(())
    }

    /// Deletes the object at a path; whether it was there.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn delete(&self, path: &str) -> Result<bool> {
        let request = http::Request::delete(path).body(Vec::new())?;
        match self.client.request_text(request).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(false),
            Err(error) => Err(error).with_context(|| format!("deleting {path}")),
        }
    }

    /// Creates an object, or applies it while it has this resource version; false when it has another one, or is there
    /// although there is none.
    ///
    /// # Errors
    /// When its kind is not served or it is refused for another reason.
    pub async fn write_unless_changed(&mut self, object: &Value, version: &str) -> Result<bool> {
        let path = self.path(object).await?;
        let (mut object, query) = (object.clone(), format!("fieldManager={MANAGER}"));
        let request = if version.is_empty() {
            let collection = path.rsplit_once('/').map_or(path.as_str(), |(collection, _)| collection);
            http::Request::post(format!("{collection}?{query}")).header("Content-Type", "application/json")
        } else {
            object["metadata"]["resourceVersion"] = version.into();
            http::Request::patch(format!("{path}?{query}&force=true"))
                .header("Content-Type", "application/apply-patch+yaml")
        };
        match self.client.request_text(request.body(serde_json::to_vec(&object)?)?).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == CONFLICT => Ok(false),
            Err(error) => Err(error).with_context(|| format!("writing {path}")),
        }
    }

    /// A Secret; without data when it is not there.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn secret(&self, namespace: &str, name: &str) -> Result<StoredSecret> {
        let secret = self.get(&secret_path(namespace, name)).await?.unwrap_or_default();
        let data: BTreeMap<String, String> = match secret.get("data") {
            Some(data) if !data.is_null() => serde_json::from_value(data.clone())?,
            _ => BTreeMap::new(),
        };
        let decode = |(key, value): (String, String)| Ok((key, BASE64_STANDARD.decode(value)?));
        let data: Result<Data> = data.into_iter().map(decode).collect();
        let version = secret.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default();
        Ok(StoredSecret {
            data: data.with_context(|| format!("Secret {namespace}/{name}"))?,
            version: version.to_owned(),
        })
    }

    async fn path(&mut self, object: &Value) -> Result<String> {
        let field = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (version, kind, name) = (field("/apiVersion"), field("/kind"), field("/metadata/name"));
        if version.is_empty() || kind.is_empty() || name.is_empty() {
            bail!("an object without apiVersion, kind or name");
        }
        let key = (version.to_owned(), kind.to_owned());
        if !self.kinds.contains_key(&key) {
            let found = self.discover(version, kind).await?;
            self.kinds.insert(key.clone(), found);
        }
        let (plural, namespaced) = &self.kinds[&key];
        let namespace = Some(field("/metadata/namespace")).filter(|namespace| *namespaced && !namespace.is_empty());
        Ok(path::join(&path::collection(version, namespace.or(namespaced.then_some("default")), plural), name))
    }

    async fn discover(&self, version: &str, kind: &str) -> Result<(String, bool)> {
        let group = self.get(&path::group_version(version)).await?.unwrap_or_default();
        let resources = group["resources"].as_array().cloned().unwrap_or_default();
        let served = resources
            .iter()
            .find(|resource| resource["kind"] == kind && !resource["name"].as_str().unwrap_or_default().contains('/'));
        let served = served.with_context(|| format!("{kind} of {version} is not served"))?;
        Ok((served["name"].as_str().unwrap_or_default().to_owned(), served["namespaced"] == true))
    }
}

/// The path of a Secret.
#[must_use]
pub fn secret_path(namespace: &str, name: &str) -> String {
    path::join(&path::collection("v1", Some(namespace), "secrets"), name)
}

/// A Secret with this data.
#[must_use]
pub fn secret(namespace: &str, name: &str, labels: &BTreeMap<String, String>, data: &Data) -> Value {
    let data: BTreeMap<&String, String> =
        data.iter().map(|(key, value)| (key, BASE64_STANDARD.encode(value))).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "data": data,
    })
}
