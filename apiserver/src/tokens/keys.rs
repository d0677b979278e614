//! Keys of service-account tokens: PEM files in, JSON web keys and signatures out. Answers for upstream's
//! `pkg/serviceaccount/{jwt`,openidmetadata}.go.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};
use pkcs1::{RsaPrivateKey, RsaPublicKey, UintRef};
use pkcs8::PrivateKeyInfo;
use rustls_pki_types::PrivateKeyDer;
use sec1::EcPrivateKey;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use spki::der::asn1::{AnyRef, BitStringRef};
use spki::der::{self, Decode as _, Encode as _};
use spki::{AlgorithmIdentifierRef, ObjectIdentifier, SubjectPublicKeyInfoRef};
use x509_parser::prelude::{FromDer as _, X509Certificate};

const RSA_OID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const EC_OID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const P256_OID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
const P384_OID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.34");

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
    fn by_oid(oid: ObjectIdentifier) -> Option<Self> {
        match oid {
            P256_OID => Some(Self::P256),
            P384_OID => Some(Self::P384),
            _ => None,
        }
    }

    fn oid(self) -> ObjectIdentifier {
        match self {
            Self::P256 => P256_OID,
            Self::P384 => P384_OID,
        }
    }

    /// Computes the public point, uncompressed, as Go does whether or not the file has one.
    fn public_point(self, scalar: &[u8]) -> Option<Vec<u8>> {
        let point = match self {
            Self::P256 => {
                p256::ecdsa::SigningKey::from_slice(scalar).ok()?.verifying_key().to_encoded_point(false).to_bytes()
            }
            Self::P384 => {
                p384::ecdsa::SigningKey::from_slice(scalar).ok()?.verifying_key().to_encoded_point(false).to_bytes()
            }
        };
        Some(point.into())
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
    fn new(numbers: Numbers) -> Option<Self> {
        let id = URL_SAFE_NO_PAD.encode(Sha256::digest(numbers.spki().ok()?));
        let decoding = match &numbers {
            Numbers::Rsa { n, e } => DecodingKey::from_rsa_raw_components(n, e),
            Numbers::Ec { point, .. } => DecodingKey::from_ec_der(point),
        };
        Some(Self { numbers, id, published: true, decoding })
    }

    /// A key in the form of certificates (PKIX), under a name of somebody else's choice.
    pub fn from_pkix(bytes: &[u8], id: String) -> Option<Self> {
        Some(Self { id, ..Self::new(Numbers::from_spki(bytes)?)? })
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
    /// Encodes the key as certificates hold it (PKIX).
    fn spki(&self) -> der::Result<Vec<u8>> {
        match self {
            Self::Rsa { n, e } => {
                let key = RsaPublicKey { modulus: UintRef::new(n)?, public_exponent: UintRef::new(e)? }.to_der()?;
                encode_spki(AlgorithmIdentifierRef { oid: RSA_OID, parameters: Some(AnyRef::NULL) }, &key)
            }
            Self::Ec { curve, point } => {
                let curve = curve.oid();
                encode_spki(AlgorithmIdentifierRef { oid: EC_OID, parameters: Some((&curve).into()) }, point)
            }
        }
    }

    fn from_spki(bytes: &[u8]) -> Option<Self> {
        let spki = SubjectPublicKeyInfoRef::from_der(bytes).ok()?;
        let key = spki.subject_public_key.as_bytes()?;
        match spki.algorithm.oid {
            RSA_OID => Self::from_pkcs1_public(key),
            EC_OID => Self::ec(spki.algorithm.parameters_oid().ok()?, key),
            _ => None,
        }
    }

    fn ec(oid: ObjectIdentifier, point: &[u8]) -> Option<Self> {
        let curve = Curve::by_oid(oid)?;
        let length = match curve {
            Curve::P256 => 65,
            Curve::P384 => 97,
        };
        (point.len() == length && point[0] == 4).then(|| Self::Ec { curve, point: point.to_vec() })
    }

    fn from_pkcs1_public(bytes: &[u8]) -> Option<Self> {
        let key = RsaPublicKey::from_der(bytes).ok()?;
        Some(Self::rsa(key.modulus, key.public_exponent))
    }

    fn rsa(modulus: UintRef<'_>, exponent: UintRef<'_>) -> Self {
        Self::Rsa { n: modulus.as_bytes().to_vec(), e: exponent.as_bytes().to_vec() }
    }
}

fn encode_spki(algorithm: AlgorithmIdentifierRef<'_>, key: &[u8]) -> der::Result<Vec<u8>> {
    SubjectPublicKeyInfoRef { algorithm, subject_public_key: BitStringRef::from_bytes(key)? }.to_der()
}

/// A key that signs.
pub struct SigningKey {
    /// Public half of the key.
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
        keys.extend(numbers.and_then(PublicKey::new));
    }
    if keys.is_empty() {
        return Err(KeyError("data does not contain any valid RSA or ECDSA public keys".to_owned()));
    }
    Ok(keys)
}

fn private(label: &str, body: &[u8]) -> Option<SigningKey> {
    let key = match label {
        "RSA PRIVATE KEY" => PrivateKeyDer::Pkcs1(body.to_vec().into()),
        "EC PRIVATE KEY" => PrivateKeyDer::Sec1(body.to_vec().into()),
        "PRIVATE KEY" => PrivateKeyDer::Pkcs8(body.to_vec().into()),
        _ => return None,
    };
    let pkcs8 = shared::cert::to_pkcs8(&key).ok()?;
    let info = PrivateKeyInfo::from_der(pkcs8.secret_pkcs8_der()).ok()?;
    let (numbers, encoding) = match info.algorithm.oid {
        RSA_OID => {
            let key = RsaPrivateKey::from_der(info.private_key).ok()?;
            (Numbers::rsa(key.modulus, key.public_exponent), EncodingKey::from_rsa_der(info.private_key))
        }
        EC_OID => {
            let scalar = EcPrivateKey::from_der(info.private_key).ok()?.private_key;
            let curve = Curve::by_oid(info.algorithm.parameters_oid().ok()?)?;
            let point = curve.public_point(scalar)?;
            (Numbers::Ec { curve, point }, EncodingKey::from_ec_der(pkcs8.secret_pkcs8_der()))
        }
        _ => return None,
    };
    Some(SigningKey { public: PublicKey::new(numbers)?, encoding })
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
