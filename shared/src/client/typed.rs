//! Requests whose answers are read from their bytes, as informers read objects. kube's own methods read them as text, and
//! a program that does both carries two decoders of each API type.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::Client;
use kube::api::ListParams;
use kube::core::Request;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::informer::Cached;
use crate::typed::{self, ReadError};

/// A page of a list.
#[derive(Debug, Deserialize)]
pub struct Page<K> {
    /// List metadata with the continue token.
    pub metadata: ListMeta,
    /// Objects of the page.
    pub items: Vec<K>,
}

/// Sends a request; what it is answered.
///
/// # Errors
/// The server's refusal, or an answer of another type.
pub async fn request<T: DeserializeOwned>(client: &Client, request: http::Request<Vec<u8>>) -> kube::Result<T> {
    let text = client.request_text(request).await?;
    serde_json::from_slice(text.as_bytes()).map_err(kube::Error::SerdeError)
}

/// Objects of all namespaces.
///
/// # Errors
/// As [`request`].
pub async fn page<K: Cached + DeserializeOwned>(client: &Client, params: &ListParams) -> kube::Result<Page<K>> {
    let list = Request::new(K::collection_path(None)).list(params).map_err(kube::Error::BuildRequest)?;
    let page: Page<Box<RawValue>> = request(client, list).await?;
    let read = |item: &RawValue| typed::from_json(K::schema, item.get().as_bytes()).map_err(unreadable);
    let items = page.items.iter().map(|item| read(item)).collect::<kube::Result<_>>()?;
    Ok(Page { metadata: page.metadata, items })
}

fn unreadable(why: ReadError) -> kube::Error {
    kube::Error::SerdeError(serde::de::Error::custom(why))
}

/// One object; an empty namespace for what is in none.
///
/// # Errors
/// As [`request`].
pub async fn get<K: Cached + DeserializeOwned>(client: &Client, namespace: &str, name: &str) -> kube::Result<K> {
    let namespace = Some(namespace).filter(|ns| !ns.is_empty());
    let get = Request::new(K::collection_path(namespace)).get(name, &Default::default());
    let text = client.request_text(get.map_err(kube::Error::BuildRequest)?).await?;
    typed::from_json(K::schema, text.as_bytes()).map_err(unreadable)
}
