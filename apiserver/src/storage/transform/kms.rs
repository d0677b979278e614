//! A key management service, version 2: seeds are sealed by a plugin behind a unix socket, objects by keys derived from
//! a seed. Answers for upstream's `pkg/storage/value/encrypt/envelope/kmsv2`.
//!
//! A seed is used for all writes until the service names another key; what it was sealed to stands beside every object.
//! Seeds that were opened are remembered, so reading ten thousand objects costs one call. Writes stop when the service
//! has not confirmed its key for some minutes: after that it may have been revoked.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hkdf::Hkdf;
use http::uri::PathAndQuery;
use parking_lot::Mutex;
use prost::Message as _;
use rand::Rng as _;
use sha2::{Digest as _, Sha256};
use shared::grpc;
use tonic::Code;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::ciphers::{Aes, gcm_open, gcm_seal};
use super::meters::{Metrics, Transformation, made_key};
use super::{Error, Transformed};

/// Duration for which writes go on after the service last confirmed its key.
const CONFIRMED_FOR: Duration = Duration::from_secs(3 * 60);
/// Between two questions for the service's health when it is well.
pub(super) const ASK_EVERY: Duration = Duration::from_secs(60);
/// And when it is not.
pub(super) const ASK_EVERY_WHEN_UNWELL: Duration = Duration::from_secs(10);
/// Seeds that are remembered.
const REMEMBERED: usize = 1000;
/// Until when: a key that was revoked at the service opens nothing here for longer.
const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 3600);
const SEED: usize = 32;
const INFO: usize = 32;
/// Bounds of what a service may answer.
const LONGEST_KEY_ID: usize = 1 << 10;
const LONGEST_SEALED_SEED: usize = 1 << 10;

/// Deadline of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeout(pub(super) Duration);

impl Default for Timeout {
    fn default() -> Self {
        Self(Duration::from_secs(3))
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    healthz: String,
    #[prost(string, tag = "3")]
    key_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DecryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "4")]
    annotations: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DecryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    plaintext: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EncryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    plaintext: Vec<u8>,
    #[prost(string, tag = "2")]
    uid: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EncryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "3")]
    annotations: BTreeMap<String, Vec<u8>>,
}

/// Stored form behind the prefix.
#[derive(Clone, PartialEq, prost::Message)]
struct Envelope {
    #[prost(bytes = "vec", tag = "1")]
    data: Vec<u8>,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(bytes = "vec", tag = "3")]
    source: Vec<u8>,
    #[prost(btree_map = "string, bytes", tag = "4")]
    annotations: BTreeMap<String, Vec<u8>>,
    /// 0: `source` is a sealed AES key; 1: a sealed seed that keys are derived from.
    #[prost(int32, tag = "5")]
    source_type: i32,
}

const FROM_SEED: i32 = 1;

/// An opened seed and when it was opened.
type CachedSource = (Instant, Arc<OpenedSeed>);

/// A seed, or a key, as the service opened it.
struct OpenedSeed {
    secret: Vec<u8>,
    from_seed: bool,
}

impl OpenedSeed {
    /// Validates the seed or key.
    fn check(&self) -> Result<(), Error> {
        let length = self.secret.len();
        match self.from_seed {
            true if length < SEED => Err(failed("invalid seed length", format!("{length} used for key generation"))),
            false if Aes::new(&self.secret).is_none() => Err(Error::Cipher("invalid key size")),
            _ => Ok(()),
        }
    }

    fn derived(&self, info: &[u8]) -> Result<Aes, Error> {
        let mut key = [0; 32];
        let expand = Hkdf::<Sha256>::from_prk(&self.secret).map_err(|_| Error::Cipher("the seed is too short"))?;
        expand.expand(info, &mut key).map_err(|_| Error::Cipher("no key can be derived"))?;
        Aes::new(&key).ok_or(Error::Cipher("no key can be derived"))
    }

    fn transform_to_storage(&self, path: &str, plain: &[u8]) -> Result<Vec<u8>, Error> {
        let mut info = [0_u8; INFO];
        rand::rng().fill(&mut info[..]);
        let mut out = info.to_vec();
        gcm_seal(&self.derived(&info)?, path, plain, &mut out)?;
        Ok(out)
    }

    fn transform_from_storage(&self, path: &str, sealed: &[u8]) -> Result<Vec<u8>, Error> {
        if !self.from_seed {
            return gcm_open(&Aes::new(&self.secret).ok_or(Error::Cipher("invalid key size"))?, path, sealed);
        }
        let Some((info, rest)) = sealed.split_first_chunk::<INFO>() else {
            return Err(Error::Cipher("the stored data was shorter than the required size"));
        };
        gcm_open(&self.derived(info)?, path, rest)
    }
}

#[derive(Clone)]
struct Current {
    source: Arc<OpenedSeed>,
    /// All but the data.
    envelope: Envelope,
    until: Instant,
}

/// A key management service that is not well.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KmsUnhealthy {
    /// A service that has not been asked.
    #[error("not asked yet")]
    NotAsked,
    /// A service that was asked for its status, without success.
    #[error(transparent)]
    Status(#[from] Error),
}

/// KMS v2 provider of encryption at rest.
pub struct Kms {
    name: String,
    channel: Result<Channel, Error>,
    timeout: Duration,
    current: Mutex<Option<Current>>,
    opened: Mutex<HashMap<[u8; 32], CachedSource>>,
    health: Mutex<Result<(), KmsUnhealthy>>,
    asking: tokio::sync::Mutex<()>,
    meters: Metrics,
}

fn failed(what: &str, why: impl std::fmt::Display) -> Error {
    Error::Kms(format!("{what}: {why}"))
}

/// Names a sealed seed together with how it was sealed.
fn cache_key(envelope: &Envelope) -> [u8; 32] {
    let whole = Envelope { data: Vec::new(), ..envelope.clone() };
    Sha256::digest(whole.encode_to_vec()).into()
}

fn check(envelope: &Envelope) -> Result<(), Error> {
    if envelope.key_id.is_empty() || envelope.key_id.len() > LONGEST_KEY_ID {
        return Err(Error::Kms("keyID is empty or too long".to_owned()));
    }
    if envelope.source.is_empty() || envelope.source.len() > LONGEST_SEALED_SEED {
        return Err(Error::Kms("encrypted DEK source is empty or too long".to_owned()));
    }
    Ok(())
}

impl Kms {
    pub(super) fn new(name: &str, socket: &str, timeout: Timeout) -> Self {
        let channel = Endpoint::from_shared(format!("unix://{socket}"))
            .map(|e| e.connect_timeout(timeout.0).connect_lazy())
            .map_err(|e| Error::Kms(e.to_string()));
        Self {
            name: name.to_owned(),
            channel,
            timeout: timeout.0,
            current: Mutex::default(),
            opened: Mutex::default(),
            health: Mutex::new(Err(KmsUnhealthy::NotAsked)),
            asking: tokio::sync::Mutex::default(),
            meters: Metrics::new(),
        }
    }

    /// Name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Health of the service at the last check.
    pub fn health(&self) -> Result<(), KmsUnhealthy> {
        self.health.lock().clone()
    }

    async fn call<Q, A>(&self, method: &'static str, question: Q) -> Result<A, Error>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let channel = self.channel.clone()?;
        let mut grpc = Grpc::new(channel);
        let call = async {
            grpc.ready().await.map_err(|e| failed("kms", e))?;
            let path = PathAndQuery::from_static(method);
            let codec = ProstCodec::<Q, A>::default();
            let answer = grpc.unary(tonic::Request::new(question), path, codec).await;
            Ok(answer.map(tonic::Response::into_inner))
        };
        let started = Instant::now();
        let outcome: Result<Result<Result<A, tonic::Status>, Error>, _> =
            tokio::time::timeout(self.timeout, call).await;
        let code = match &outcome {
            Ok(Ok(Ok(_))) => Code::Ok,
            Ok(Ok(Err(status))) => status.code(),
            Ok(Err(_)) => Code::Unavailable,
            Err(_) => Code::DeadlineExceeded,
        };
        self.meters.observe_call(&self.name, method, grpc::name(code), started.elapsed());
        match outcome {
            Ok(answer) => answer?.map_err(|e| failed("kms", e.message())),
            Err(_) => Err(failed("kms", "context deadline exceeded")),
        }
    }

    /// Asks the service how it is, and takes a new seed when it has a new key.
    pub(super) async fn check_status(&self) -> Result<(), Error> {
        let _one = self.asking.lock().await;
        let outcome = self.refresh().await;
        *self.health.lock() = outcome.clone().map_err(KmsUnhealthy::Status);
        outcome
    }

    async fn refresh(&self) -> Result<(), Error> {
        let asked = Instant::now();
        let status: StatusResponse = self.call("/v2.KeyManagementService/Status", StatusRequest {}).await?;
        if status.version != "v2" && status.version != "v2beta1" {
            return Err(Error::Kms(format!("expected KMSv2 API version v2, got {}", status.version)));
        }
        if status.healthz != "ok" {
            return Err(Error::Kms(format!("got unexpected healthz status: {}", status.healthz)));
        }
        if status.key_id.is_empty() || status.key_id.len() > LONGEST_KEY_ID {
            self.meters.invalid_key(&self.name, if status.key_id.is_empty() { "empty" } else { "too_long" });
            return Err(Error::Kms("expected KMSv2 KeyID to be set, got an empty or too long one".to_owned()));
        }
        self.meters.named_key(&self.name, &status.key_id);
        let until = asked + CONFIRMED_FOR;
        if let Some(current) = self.current.lock().as_mut()
            && current.envelope.key_id == status.key_id
        {
            current.until = until;
            return Ok(());
        }
        let begun = Instant::now();
        let mut seed = vec![0; SEED];
        rand::rng().fill(&mut seed[..]);
        made_key(Some(begun));
        let request = EncryptRequest { plaintext: seed.clone(), uid: uuid::Uuid::new_v4().to_string() };
        let sealed: EncryptResponse = self.call("/v2.KeyManagementService/Encrypt", request).await?;
        let envelope = Envelope {
            data: Vec::new(),
            key_id: sealed.key_id,
            source: sealed.ciphertext,
            annotations: sealed.annotations,
            source_type: FROM_SEED,
        };
        check(&envelope)?;
        let source = Arc::new(OpenedSeed { secret: seed, from_seed: true });
        self.remember(cache_key(&envelope), source.clone());
        tracing::info!(provider = self.name, "Generated a new data encryption seed");
        *self.current.lock() = Some(Current { source, envelope, until });
        Ok(())
    }

    fn remember(&self, key: [u8; 32], source: Arc<OpenedSeed>) {
        let mut opened = self.opened.lock();
        if opened.len() >= REMEMBERED {
            opened.retain(|_, (since, _)| since.elapsed() < REMEMBERED_FOR);
        }
        if opened.len() >= REMEMBERED {
            opened.clear();
        }
        opened.insert(key, (Instant::now(), source));
        self.meters.remembers(&self.name, opened.len());
    }

    fn remembered(&self, key: &[u8; 32]) -> Option<Arc<OpenedSeed>> {
        let opened = self.opened.lock();
        let (since, source) = opened.get(key)?;
        (since.elapsed() < REMEMBERED_FOR).then(|| source.clone())
    }

    pub(super) async fn transform_to_storage(&self, path: &str, plain: &[u8]) -> Result<Vec<u8>, Error> {
        let valid = |current: &Option<Current>| current.clone().filter(|c| Instant::now() < c.until);
        let mut current = valid(&self.current.lock());
        if current.is_none() {
            self.check_status().await?;
            current = valid(&self.current.lock());
        }
        let Some(current) = current else {
            return Err(Error::Kms("the key of the service is not confirmed".to_owned()));
        };
        let data = current.source.transform_to_storage(path, plain)?;
        self.meters.used_key(Transformation::ToStorage, &self.name, &current.envelope.key_id);
        Ok(Envelope { data, ..current.envelope }.encode_to_vec())
    }

    pub(super) async fn transform_from_storage(&self, path: &str, sealed: &[u8]) -> Result<Transformed, Error> {
        let envelope =
            Envelope::decode(sealed).map_err(|_| Error::Cipher("the stored data is not an encrypted object"))?;
        check(&envelope)?;
        let key = cache_key(&envelope);
        let known = self.remembered(&key);
        let source = match known {
            Some(source) => source,
            None => {
                let request = DecryptRequest {
                    ciphertext: envelope.source.clone(),
                    uid: uuid::Uuid::new_v4().to_string(),
                    key_id: envelope.key_id.clone(),
                    annotations: envelope.annotations.clone(),
                };
                let answer: DecryptResponse = self
                    .call("/v2.KeyManagementService/Decrypt", request)
                    .await
                    .map_err(|e| failed("failed to decrypt DEK", e))?;
                let source =
                    Arc::new(OpenedSeed { secret: answer.plaintext, from_seed: envelope.source_type == FROM_SEED });
                // What a service makes up when it is not well is asked for again.
                source.check()?;
                self.remember(key, source.clone());
                source
            }
        };
        let stale = self.current.lock().as_ref().is_some_and(|c| c.envelope.key_id != envelope.key_id)
            || envelope.source_type != FROM_SEED;
        let bytes = source.transform_from_storage(path, &envelope.data)?;
        self.meters.used_key(Transformation::FromStorage, &self.name, &envelope.key_id);
        Ok(Transformed { bytes, stale })
    }
}
