//! Keys and names of the issuer of service-account tokens, which may change while the server runs. Answers for the
//! key loading of upstream's `serviceaccount` package.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::external::Signer;
use super::keys;
use super::keys::{KeyError, PublicKey, SigningKey};

/// Options of service-account tokens.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// `--service-account-issuer`; the first issues, all are believed.
    pub issuers: Vec<String>,
    /// `--service-account-key-file`
    pub key_files: Vec<String>,
    /// `--service-account-signing-key-file`
    pub signing_key_file: String,
    /// `--api-audiences`; the issuers when empty.
    pub audiences: Vec<String>,
    /// `--service-account-jwks-uri`
    pub jwks_uri: String,
    /// Default URL of the key set.
    pub default_jwks_uri: String,
    /// `--service-account-max-token-expiration` in seconds, 0 for none.
    pub max_expiration: i64,
    /// `--service-account-extend-token-expiration`
    pub extend_expiration: bool,
    /// `--service-account-lookup`
    pub lookup: bool,
    /// `TokenRequestServiceAccountUIDValidation` is off: whoever asks for a token may name another uid.
    pub any_uid: bool,
    /// `--service-account-signing-endpoint`: the socket of who signs instead of us.
    pub signing_endpoint: String,
    /// `ExternalServiceAccountTokenSigner`: there may be one.
    pub signs_elsewhere: bool,
    /// Seconds a token's life may be extended to at most, where a signer has a word in it.
    pub longest_extended: Option<i64>,
}

/// Errors of the setup of tokens.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] shared::os::FileError),
    /// A file holds no usable key.
    #[error("failed to parse key file {path}: {why}")]
    Key {
        /// The file.
        path: String,
        /// Cause.
        why: KeyError,
    },
    /// Flags contradict one another.
    #[error("{0}")]
    Flags(&'static str),
    /// The external signer.
    #[error("{0}")]
    Signer(#[from] KeyError),
}

/// Keys and names of the service-account token issuer.
pub struct ServiceAccounts {
    config: Config,
    material: ArcSwap<Material>,
    /// Counts exchanges of the keys.
    generation: AtomicU64,
    /// External signer, if configured.
    external: Option<Signer>,
}

/// The keys in force.
struct Material {
    /// None where somebody else signs.
    signer: Option<SigningKey>,
    keys: Vec<PublicKey>,
}

impl Material {
    fn read(config: &Config) -> Result<Self, Error> {
        let path = &config.signing_key_file;
        let signer = SigningKey::parse(&read(path)?).map_err(|why| Error::Key { path: path.clone(), why })?;
        let mut keys: Vec<PublicKey> = Vec::new();
        for path in &config.key_files {
            let found = keys::public_keys(&read(path)?).map_err(|why| Error::Key { path: path.clone(), why })?;
            for key in found {
                if !keys.iter().any(|k| k.id == key.id) {
                    keys.push(key);
                }
            }
        }
        Ok(Self { signer: Some(signer), keys })
    }
}

fn read(path: &str) -> Result<Vec<u8>, Error> {
    shared::os::read(path).map_err(Error::Read)
}

impl ServiceAccounts {
    /// Reads the keys.
    pub fn load(mut config: Config) -> Result<Self, Error> {
        if config.issuers.is_empty() || config.issuers.iter().any(String::is_empty) {
            return Err(Error::Flags("service-account-issuer is a required flag"));
        }
        if config.signing_key_file.is_empty() {
            return Err(Error::Flags(
                "--service-account-signing-key-file and --service-account-issuer are required flags",
            ));
        }
        if config.key_files.is_empty() {
            return Err(Error::Flags("service-account-key-file is a required flag"));
        }
        if config.audiences.is_empty() {
            config.audiences.clone_from(&config.issuers);
        }
        let material = Material::read(&config)?;
        Ok(Self::with(config, material, None))
    }

    /// With a key given, for tests of other rooms.
    #[cfg(test)]
    pub(crate) fn with_key(pem: &str, config: Config) -> Self {
        let signer = SigningKey::parse(pem.as_bytes()).expect("a key");
        let mut config = config;
        if config.audiences.is_empty() {
            config.audiences.clone_from(&config.issuers);
        }
        let material = Material { keys: vec![signer.public.clone()], signer: Some(signer) };
        Self::with(config, material, None)
    }

    fn with(config: Config, material: Material, external: Option<Signer>) -> Self {
        Self { config, material: ArcSwap::from_pointee(material), generation: AtomicU64::new(0), external }
    }

    /// Over a process that signs for us; it must answer now.
    ///
    /// # Errors
    /// Flags that contradict one another or the signer, and a signer that does not answer.
    pub async fn connect(mut config: Config) -> Result<Self, Error> {
        if config.issuers.is_empty() || config.issuers.iter().any(String::is_empty) {
            return Err(Error::Flags("service-account-issuer is a required flag"));
        }
        if !config.signs_elsewhere {
            return Err(Error::Flags(
                "setting `--service-account-signing-endpoint` requires enabling ExternalServiceAccountTokenSigner feature gate",
            ));
        }
        if !config.signing_key_file.is_empty() || !config.key_files.is_empty() {
            return Err(Error::Flags(
                "can't set `--service-account-signing-key-file` and/or `--service-account-key-file` while `--service-account-signing-endpoint` is set",
            ));
        }
        if config.audiences.is_empty() {
            config.audiences.clone_from(&config.issuers);
        }
        let signer = Signer::new(&config.signing_endpoint)?;
        let longest = signer.longest_life().await?;
        if config.max_expiration > longest {
            return Err(Error::Flags(
                "service-account-max-token-expiration cannot be set longer than the max token lifetime supported by the external signer",
            ));
        }
        if config.max_expiration == 0 {
            config.max_expiration = longest;
        }
        config.longest_extended = Some(longest);
        let accounts = Self::with(config, Material { signer: None, keys: Vec::new() }, Some(signer));
        accounts.refresh(true).await?;
        Ok(accounts)
    }

    /// Takes over the keys of the external signer: when to do it again, or nothing where it was done just now.
    ///
    /// # Errors
    /// The signer's.
    pub async fn refresh(&self, at_once: bool) -> Result<Option<Duration>, Error> {
        let Some(signer) = &self.external else { return Ok(None) };
        let Some(fetched) = signer.keys(at_once).await? else { return Ok(None) };
        let same = {
            let known = self.material.load();
            let shown = |k: &PublicKey| (k.id.clone(), k.published);
            known.keys.iter().map(shown).eq(fetched.keys.iter().map(shown))
        };
        if !same {
            self.material.store(Material { signer: None, keys: fetched.keys }.into());
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        Ok(Some(fetched.refresh))
    }

    /// Reports whether tokens are signed externally.
    pub fn is_external(&self) -> bool {
        self.external.is_some()
    }

    /// The files keys come from.
    pub fn files(&self) -> impl Iterator<Item = &String> {
        let signing = Some(&self.config.signing_key_file).filter(|path| !path.is_empty());
        self.config.key_files.iter().chain(signing)
    }

    /// Reads the keys again: tokens of keys that are gone are no longer believed.
    pub fn reload(&self) -> Result<(), Error> {
        self.material.store(Material::read(&self.config)?.into());
        self.generation.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Differs after each exchange of the keys.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the options with defaults filled in.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A signed token.
    pub(super) async fn sign(&self, claims: &Value) -> Result<String, KeyError> {
        let claims = URL_SAFE_NO_PAD.encode(claims.to_string());
        if let Some(signer) = &self.external {
            return signer.sign(&claims).await;
        }
        let material = self.material.load();
        let signer = material.signer.as_ref().ok_or_else(|| KeyError("no signing key".to_owned()))?;
        let header = json!({"alg": signer.public.algorithm_name(), "kid": signer.public.id});
        let message = format!("{}.{claims}", URL_SAFE_NO_PAD.encode(header.to_string()));
        let signature = signer.sign(&message)?;
        Ok(format!("{message}.{signature}"))
    }

    /// Verifies that one of the keys signed a token.
    pub(super) fn verify(&self, message: &str, signature: &str, key_id: &str) -> bool {
        let material = self.material.load();
        let named = material.keys.iter().filter(|k| k.id == key_id);
        let others = material.keys.iter().filter(|k| k.id != key_id);
        named.chain(others).any(|k| k.verify(message, signature))
    }

    /// The discovery document, when the issuer is an https URL.
    pub fn openid_configuration(&self) -> Option<Vec<u8>> {
        let issuer = self.config.issuers.first()?;
        if !issuer.starts_with("https://") || issuer.contains(['?', '#']) {
            return None;
        }
        let uri = if self.config.jwks_uri.is_empty() { &self.config.default_jwks_uri } else { &self.config.jwks_uri };
        let material = self.material.load();
        let mut algorithms: Vec<&str> = material.keys.iter().map(PublicKey::algorithm_name).collect();
        algorithms.sort_unstable();
        algorithms.dedup();
        let document = json!({
            "issuer": issuer,
            "jwks_uri": uri,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        });
        serde_json::to_vec(&document).ok()
    }

    /// The key set.
    pub fn jwks(&self) -> Vec<u8> {
        let keys: Vec<Value> = self.material.load().keys.iter().filter(|k| k.published).map(PublicKey::jwk).collect();
        json!({ "keys": keys }).to_string().into_bytes()
    }
}

/// `system:serviceaccount:<namespace>:<name>`
pub fn user_name(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::keys::tests::RSA_PEM;

    #[test]
    fn the_documents_name_issuer_and_keys() {
        let config = Config {
            issuers: vec!["https://kubernetes.default.svc.cluster.local".into()],
            default_jwks_uri: "https://192.0.2.10:26443/openid/v1/jwks".into(),
            ..Config::default()
        };
        let accounts = ServiceAccounts::with_key(RSA_PEM, config);
        let document: Value =
            serde_json::from_slice(&accounts.openid_configuration().expect("a document")).expect("json");
        assert_eq!(
            document,
            json!({"id_token_signing_alg_values_supported": ["RS256"], "issuer": "https://kubernetes.default.svc.cluster.local",
                "jwks_uri": "https://192.0.2.10:26443/openid/v1/jwks", "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"]})
        );
        let set: Value = serde_json::from_slice(&accounts.jwks()).expect("json");
        let fields: Vec<&String> = set["keys"][0].as_object().expect("a key").keys().collect();
        assert_eq!(fields, ["alg", "e", "kid", "kty", "n", "use"]);
    }

    #[tokio::test]
    async fn keys_are_read_again() {
        let folder = std::env::temp_dir().join(format!("keys-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("sa.key").display().to_string();
        std::fs::write(&file, RSA_PEM).expect("written");
        let config = Config {
            issuers: vec!["https://k".into()],
            key_files: vec![file.clone()],
            signing_key_file: file.clone(),
            ..Config::default()
        };
        let accounts = ServiceAccounts::load(config).expect("keys");
        let before = accounts.sign(&json!({"iss": "https://k"})).await.expect("signed");
        let verified = |token: &str| {
            let (message, signature) = token.rsplit_once('.').expect("a token");
            accounts.verify(message, signature, "")
        };
        assert!(verified(&before));
        std::fs::write(&file, include_str!("../../testdata/tokens/ec.pem")).expect("written");
        accounts.reload().expect("keys");
        assert!(!verified(&before), "the old key is gone");
        assert!(verified(&accounts.sign(&json!({})).await.expect("signed")));
        std::fs::write(&file, "nonsense").expect("written");
        assert!(accounts.reload().is_err());
        assert!(verified(&accounts.sign(&json!({})).await.expect("signed")), "what cannot be used changes nothing");
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn flags_that_must_be_there() {
        let error = |config: Config| ServiceAccounts::load(config).err().map(|e| e.to_string());
        assert_eq!(error(Config::default()).as_deref(), Some("service-account-issuer is a required flag"));
        let issuer = Config { issuers: vec!["x".into()], ..Config::default() };
        assert_eq!(
            error(issuer).as_deref(),
            Some("--service-account-signing-key-file and --service-account-issuer are required flags")
        );
    }
}
