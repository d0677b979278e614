//! Encryption at rest: between the bytes objects are encoded to and the bytes etcd holds.
//!
//! Answers for upstream's value transformers: the same prefixes, layouts and additional data, so either side reads what
//! the other wrote. The first provider of a resource seals, every one of them opens. What was sealed by another than
//! the first, or with another than its first key, is stale: the next write of the object seals it anew, also when
//! nothing else changes.
//!
//! Knows keys of etcd and bytes; no kinds, no HTTP. Secrets never reach logs.

mod ciphers;
mod config;
mod errors;
mod kms;
mod meters;
mod reload;

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;

pub use config::{ConfigError, TransformRule};
pub use errors::{Error, Transformed};
pub use kms::Kms;
pub use reload::{Loaded, load, watch};

use ciphers::Cipher;
use meters::Transformation;
pub use meters::publish;

/// Prefix of all encrypted values.
const ENCRYPTED_PREFIX: &[u8] = b"k8s:enc:";

/// A named key with its cipher.
struct NamedKey {
    /// `name:`
    prefix: Box<[u8]>,
    cipher: Cipher,
}

/// One way to seal.
pub(in crate::storage) struct Provider {
    /// `k8s:enc:aescbc:v1:` and the like; empty for identity.
    prefix: Box<[u8]>,
    kind: TransformerKind,
}

enum TransformerKind {
    Identity,
    Keys(Vec<NamedKey>),
    Kms(Arc<Kms>),
}

impl Provider {
    async fn transform_to_storage(&self, path: &str, plain: &[u8]) -> Result<Vec<u8>, Error> {
        let mut out = self.prefix.to_vec();
        match &self.kind {
            TransformerKind::Identity => out.extend_from_slice(plain),
            TransformerKind::Keys(keys) => {
                let Some(key) = keys.first() else { return Err(Error::NoPrefix) };
                out.extend_from_slice(&key.prefix);
                key.cipher.seal(path, plain, &mut out)?;
            }
            TransformerKind::Kms(kms) => out.extend_from_slice(&kms.transform_to_storage(path, plain).await?),
        }
        Ok(out)
    }

    async fn transform_from_storage(&self, path: &str, sealed: &[u8]) -> Result<Transformed, Error> {
        match &self.kind {
            TransformerKind::Identity if sealed.starts_with(ENCRYPTED_PREFIX) => Err(Error::Identity),
            TransformerKind::Identity => Ok(Transformed { bytes: sealed.to_vec(), stale: false }),
            TransformerKind::Keys(keys) => {
                let mut failed = None;
                for (i, key) in keys.iter().enumerate() {
                    let Some(rest) = sealed.strip_prefix(&*key.prefix) else { continue };
                    match key.cipher.open(path, rest) {
                        Ok(bytes) => return Ok(Transformed { bytes, stale: i > 0 }),
                        Err(e) => failed = Some(e),
                    }
                }
                Err(failed.unwrap_or(Error::NoKey(keys.first().map_or("", |k| k.cipher.name()))))
            }
            TransformerKind::Kms(kms) => kms.transform_from_storage(path, sealed).await,
        }
    }
}

/// The providers of some resources, the one that seals first.
pub(in crate::storage) type Chain = Arc<[Provider]>;

async fn transform_from_storage(chain: &[Provider], path: &str, sealed: &[u8]) -> Result<Transformed, Error> {
    let mut failed = None;
    for (i, provider) in chain.iter().enumerate() {
        let Some(rest) = sealed.strip_prefix(&*provider.prefix) else { continue };
        // Identity has no prefix and would take everything.
        if provider.prefix.is_empty() && sealed.starts_with(ENCRYPTED_PREFIX) {
            failed.get_or_insert(Error::Identity);
            continue;
        }
        match provider.transform_from_storage(path, rest).await {
            Ok(opened) => return Ok(Transformed { stale: opened.stale || i > 0, ..opened }),
            Err(e) => failed = Some(e),
        }
    }
    Err(failed.filter(|e| *e != Error::Identity || chain.len() == 1).unwrap_or(Error::NoPrefix))
}

/// The prefix of the provider that a value was sealed by; none when nobody knows.
fn prefix_of<'c>(chain: &'c [Provider], sealed: &[u8]) -> &'c [u8] {
    let of = |p: &&Provider| !p.prefix.is_empty() && sealed.starts_with(&p.prefix);
    chain.iter().find(of).map_or(&[], |p| &p.prefix)
}

/// Resource of a key: its first segment, or the first two of a custom resource.
fn resource_of(tail: &str) -> &str {
    let path = tail.trim_start_matches('/');
    let first = path.split('/').next().unwrap_or(path);
    if !first.contains('.') {
        return first;
    }
    path.match_indices('/').nth(1).map_or(path, |(at, _)| &path[..at])
}

/// Chains by what they are for.
#[derive(Default)]
pub(in crate::storage) struct Table {
    rules: Vec<(TransformRule, Chain)>,
}

impl Table {
    fn find(&self, tail: &str) -> Option<&Chain> {
        self.rules.iter().find(|(rule, _)| rule.covers(tail)).map(|(_, chain)| chain)
    }
}

/// The transformers of a store. Clones share them; a reload replaces all at once.
#[derive(Clone, Default)]
pub struct Transformers {
    table: Arc<ArcSwap<Table>>,
}

impl Transformers {
    pub(in crate::storage) fn set(&self, table: Table) {
        self.table.store(Arc::new(table));
    }

    /// True when nothing is ever sealed here.
    pub fn none(&self) -> bool {
        self.table.load().rules.is_empty()
    }

    /// Seals what is written to a key. `tail` is the key below the store's prefix, with a slash in front.
    pub async fn transform_to_storage(&self, key: &str, tail: &str, plain: Vec<u8>) -> Result<Vec<u8>, Error> {
        let chain = self.table.load().find(tail).cloned();
        match chain.as_ref().and_then(|c| c.first()) {
            Some(first) => {
                let since = Instant::now();
                let sealed = first.transform_to_storage(key, &plain).await;
                meters::transformed(resource_of(tail), Transformation::ToStorage, &first.prefix, since, sealed.is_ok());
                sealed
            }
            None => Ok(plain),
        }
    }

    /// Opens what was read from a key.
    pub async fn transform_from_storage(&self, key: &str, tail: &str, sealed: Vec<u8>) -> Result<Transformed, Error> {
        let chain = self.table.load().find(tail).cloned();
        match chain {
            Some(chain) => {
                let (since, prefix) = (Instant::now(), prefix_of(&chain, &sealed).to_vec());
                let opened = transform_from_storage(&chain, key, &sealed).await;
                meters::transformed(resource_of(tail), Transformation::FromStorage, &prefix, since, opened.is_ok());
                opened
            }
            None => Ok(Transformed { bytes: sealed, stale: false }),
        }
    }
}

#[cfg(test)]
mod tests;
