//! Keys of service-account tokens: PEM files in, JSON web keys and signatures out. Answers for upstream's
//! `pkg/serviceaccount/{jwt`,openidmetadata}.go.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::der::{self, BIT_STRING, Der, OCTET_STRING, OID, SEQUENCE};

const RSA_OID: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const EC_OID: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const P256_OID: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384_OID: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];
const NULL: &[u8] = &[0x05, 0x00];

/// A key cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct KeyError(pub String);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Curve {
    P256,
    P384,
}

impl Curve {
    fn by_oid(oid: &[u8]) -> Option<Self> {
        match oid {
            P256_OID => Some(Self::P256),
            P384_OID => Some(Self::P384),
            _ => None,
        }
    }

    fn oid(self) -> &'static [u8] {
        match self {
            Self::P256 => P256_OID,
            Self::P384 => P384_OID,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::P256 => "P-256",
            Self::P384 => "P-384",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Numbers {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    Ec { curve: Curve, point: Vec<u8> },
}

/// A key that verifies.
#[derive(Clone)]
pub struct PublicKey {
    numbers: Numbers,
    /// Upstream's key id: the hash of the public key, or what an external signer calls it.
    pub id: String,
    /// Told to others in the key set.
    pub published: bool,
    decoding: DecodingKey,
}

impl PublicKey {
    fn new(numbers: Numbers) -> Self {
        let id = URL_SAFE_NO_PAD.encode(Sha256::digest(numbers.spki()));
        let decoding = match &numbers {
            Numbers::Rsa { n, e } => DecodingKey::from_rsa_raw_components(n, e),
            Numbers::Ec { point, .. } => DecodingKey::from_ec_der(point),
        };
        Self { numbers, id, published: true, decoding }
    }

    /// A key in the form of certificates (PKIX), under a name of somebody else's choice.
    pub fn from_pkix(bytes: &[u8], id: String) -> Option<Self> {
        Some(Self { id, ..Self::new(Numbers::from_spki(bytes)?) })
    }

    /// `RS256`, `ES256` or `ES384`.
    pub fn algorithm(&self) -> Algorithm {
        match &self.numbers {
            Numbers::Rsa { .. } => Algorithm::RS256,
            Numbers::Ec { curve: Curve::P256, .. } => Algorithm::ES256,
            Numbers::Ec { curve: Curve::P384, .. } => Algorithm::ES384,
        }
    }

    /// Upstream's name of the algorithm.
    pub fn algorithm_name(&self) -> &'static str {
        match self.algorithm() {
            Algorithm::ES256 => "ES256",
            Algorithm::ES384 => "ES384",
            _ => "RS256",
        }
    }

    /// Verifies that `signature` (base64) is this key's over `message`.
    pub fn verify(&self, message: &str, signature: &str) -> bool {
        jsonwebtoken::crypto::verify(signature, message.as_bytes(), &self.decoding, self.algorithm()).unwrap_or(false)
    }

    /// The key as a JSON web key.
    pub fn jwk(&self) -> Value {
        let alg = self.algorithm_name();
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match &self.numbers {
            Numbers::Rsa { n, e } => {
                json!({"use": "sig", "kty": "RSA", "kid": self.id, "alg": alg, "n": text(n), "e": text(e)})
            }
            Numbers::Ec { curve, point } => {
                let (x, y) = point[1..].split_at((point.len() - 1) / 2);
                json!({"use": "sig", "kty": "EC", "kid": self.id, "crv": curve.name(), "alg": alg, "x": text(x), "y": text(y)})
            }
        }
    }
}

impl Numbers {
    fn spki(&self) -> Vec<u8> {
        let (algorithm, key) = match self {
            Numbers::Rsa { n, e } => (
                der::element(SEQUENCE, &[&der::element(OID, &[RSA_OID]), NULL]),
                der::element(SEQUENCE, &[&der::unsigned(n), &der::unsigned(e)]),
            ),
            Numbers::Ec { curve, point } => (
                der::element(SEQUENCE, &[&der::element(OID, &[EC_OID]), &der::element(OID, &[curve.oid()])]),
                point.clone(),
            ),
        };
        der::element(SEQUENCE, &[&algorithm, &der::element(BIT_STRING, &[&[0], &key])])
    }

    fn from_spki(bytes: &[u8]) -> Option<Self> {
        let mut spki = Der::new(bytes).enter()?;
        let mut algorithm = spki.enter()?;
        let kind = algorithm.take(OID)?;
        let key = spki.take(BIT_STRING)?.strip_prefix(&[0])?;
        match kind {
            RSA_OID => Self::from_pkcs1_public(key),
            EC_OID => Self::ec(algorithm.take(OID)?, key),
            _ => None,
        }
    }

    fn ec(oid: &[u8], point: &[u8]) -> Option<Self> {
        let curve = Curve::by_oid(oid)?;
        let length = match curve {
            Curve::P256 => 65,
            Curve::P384 => 97,
        };
        (point.len() == length && point[0] == 4).then(|| Self::Ec { curve, point: point.to_vec() })
    }

    fn from_pkcs1_public(bytes: &[u8]) -> Option<Self> {
        let mut key = Der::new(bytes).enter()?;
        Some(Self::Rsa { n: key.unsigned()?.to_vec(), e: key.unsigned()?.to_vec() })
    }
}

/// A key that signs.
pub struct SigningKey {
    /// Its public half.
    pub public: PublicKey,
    encoding: EncodingKey,
}

impl SigningKey {
    /// The first private key of a PEM text.
    pub fn parse(pem: &[u8]) -> Result<Self, KeyError> {
        blocks(pem)
            .find_map(|(label, body)| private(&label, &body))
            .ok_or_else(|| KeyError("data does not contain a valid RSA or ECDSA private key".to_owned()))
    }

    /// The signature (base64) of a message.
    pub fn sign(&self, message: &str) -> Result<String, KeyError> {
        jsonwebtoken::crypto::sign(message.as_bytes(), &self.encoding, self.public.algorithm())
            .map_err(|e| KeyError(e.to_string()))
    }
}

/// All keys of a PEM text that verify: public keys, certificates, and the public halves of private keys.
pub(super) fn public_keys(pem: &[u8]) -> Result<Vec<PublicKey>, KeyError> {
    let mut keys = Vec::new();
    for (label, body) in blocks(pem) {
        let numbers = match label.as_str() {
            "PUBLIC KEY" => Numbers::from_spki(&body),
            "RSA PUBLIC KEY" => Numbers::from_pkcs1_public(&body),
            "CERTIFICATE" => {
                X509Certificate::from_der(&body).ok().and_then(|(_, c)| Numbers::from_spki(c.public_key().raw))
            }
            label => private(label, &body).map(|k| k.public.numbers),
        };
        keys.extend(numbers.map(PublicKey::new));
    }
    if keys.is_empty() {
        return Err(KeyError("data does not contain any valid RSA or ECDSA public keys".to_owned()));
    }
    Ok(keys)
}

fn private(label: &str, body: &[u8]) -> Option<SigningKey> {
    match label {
        "RSA PRIVATE KEY" => rsa(body),
        "EC PRIVATE KEY" => ec(body, None),
        "PRIVATE KEY" => {
            let mut info = Der::new(body).enter()?;
            info.unsigned()?;
            let mut algorithm = info.enter()?;
            let kind = algorithm.take(OID)?;
            let key = info.take(OCTET_STRING)?;
            match kind {
                RSA_OID => rsa(key),
                EC_OID => ec(key, algorithm.take(OID)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// From a PKCS#1 private key.
fn rsa(body: &[u8]) -> Option<SigningKey> {
    let mut key = Der::new(body).enter()?;
    key.unsigned()?;
    let numbers = Numbers::Rsa { n: key.unsigned()?.to_vec(), e: key.unsigned()?.to_vec() };
    Some(SigningKey { public: PublicKey::new(numbers), encoding: EncodingKey::from_rsa_der(body) })
}

/// From a SEC 1 private key, which must hold its public point.
fn ec(body: &[u8], outer: Option<&[u8]>) -> Option<SigningKey> {
    let mut key = Der::new(body).enter()?;
    key.unsigned()?;
    key.take(OCTET_STRING)?;
    let (mut oid, mut point) = (outer, None);
    while let Some((tag, value)) = key.next() {
        match tag {
            0xa0 => oid = Der::new(value).take(OID),
            0xa1 => point = Der::new(value).take(BIT_STRING).and_then(|b| b.strip_prefix(&[0])),
            _ => {}
        }
    }
    let numbers = Numbers::ec(oid?, point?)?;
    let algorithm = der::element(SEQUENCE, &[&der::element(OID, &[EC_OID]), &der::element(OID, &[oid?])]);
    let pkcs8 = der::element(SEQUENCE, &[&der::unsigned(&[0]), &algorithm, &der::element(OCTET_STRING, &[body])]);
    Some(SigningKey { public: PublicKey::new(numbers), encoding: EncodingKey::from_ec_der(&pkcs8) })
}

fn blocks(pem: &[u8]) -> impl Iterator<Item = (String, Vec<u8>)> {
    x509_parser::pem::Pem::iter_from_buffer(pem).filter_map(Result::ok).map(|p| (p.label, p.contents))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A 2048-bit RSA key made for these tests alone.
    pub(crate) const RSA_PEM: &str = include_str!("../../testdata/tokens/rsa.pem");
    const EC_PEM: &str = include_str!("../../testdata/tokens/ec.pem");
    const RSA_PUBLIC: &str = include_str!("../../testdata/tokens/rsa.pub");

    #[test]
    fn signatures_verify_with_the_public_half() {
        for (pem, algorithm) in [(RSA_PEM, "RS256"), (EC_PEM, "ES256")] {
            let key = SigningKey::parse(pem.as_bytes()).expect("key");
            assert_eq!(key.public.algorithm_name(), algorithm);
            let signature = key.sign("a.b").expect("signs");
            assert!(key.public.verify("a.b", &signature), "{algorithm}");
            assert!(!key.public.verify("a.c", &signature), "{algorithm}");
        }
    }

    #[test]
    fn key_ids_are_the_hash_of_the_public_key() {
        let from_private = &public_keys(RSA_PEM.as_bytes()).expect("keys")[0];
        let from_public = &public_keys(RSA_PUBLIC.as_bytes()).expect("keys")[0];
        assert_eq!(from_private.id, from_public.id);
        let (_, body) = blocks(RSA_PUBLIC.as_bytes()).next().expect("a block");
        assert_eq!(from_public.id, URL_SAFE_NO_PAD.encode(Sha256::digest(&body)));
        let jwk = from_public.jwk();
        assert_eq!((jwk["kty"].as_str(), jwk["e"].as_str()), (Some("RSA"), Some("AQAB")));
    }

    #[test]
    fn garbage_is_refused() {
        assert!(SigningKey::parse(b"nonsense").is_err());
        assert!(public_keys(b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n").is_err());
    }
}
