//! Keys of pods, each with the proof that its maker holds it: a signature of the pod's uid.
//! Answers for `generateKeyAndProof` of upstream's `pkg/kubelet/podcertificate`.

use base64::Engine as _;
use ed25519_dalek::Signer as _;
use p256::ecdsa::signature::hazmat::RandomizedPrehashSigner as _;
use p256::elliptic_curve::sec1::ToEncodedPoint as _;
use pkcs8::der::asn1::{BitString, OctetStringRef};
use pkcs8::der::{Any, Encode as _};
use pkcs8::{AlgorithmIdentifierRef, ObjectIdentifier, PrivateKeyInfo};
use rsa::pkcs8::{EncodePrivateKey as _, EncodePublicKey as _};
use rsa::rand_core::{OsRng, RngCore as _};
use rsa::signature::{RandomizedSigner as _, SignatureEncoding as _};
use sec1::EcPrivateKey;
use sha2::{Digest as _, Sha256};
use spki::{AlgorithmIdentifierOwned, SubjectPublicKeyInfoOwned};

const EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const P256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
const P384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.34");
const P521: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.35");
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");
/// Characters of a line of PEM.
const LINE: usize = 64;

/// A key that was made for a request.
pub(super) struct ProvenKey {
    /// PKCS #8 in PEM.
    pub(super) private: String,
    /// The public key as certificates have it.
    pub(super) public: Vec<u8>,
    /// Signature of the text.
    pub(super) proof: Vec<u8>,
}

/// Reasons for which there is no key.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum KeyError {
    /// A kind that the API does not name.
    #[error("unknown key type {0:?}")]
    UnknownType(String),
    /// A failure of a library, in its words.
    #[error("while generating {what}: {error}")]
    Generation {
        /// `RSA key`, `proof`.
        what: &'static str,
        /// Text of the library's error.
        error: String,
    },
}

fn failed(what: &'static str) -> impl Fn(&dyn std::fmt::Display) -> KeyError {
    move |error| KeyError::Generation { what, error: error.to_string() }
}

/// Makes an elliptic key of a curve that signs a text.
macro_rules! elliptic {
    ($curve:ident, $oid:expr, $text:expr) => {{
        let secret = $curve::SecretKey::random(&mut OsRng);
        let (raw, point) = (secret.to_bytes(), secret.public_key().to_encoded_point(false));
        // A digest is a number: one shorter than what the curve counts in begins with zeros, which the library asks for.
        let mut digest = Sha256::digest($text).to_vec();
        digest.splice(..0, std::iter::repeat_n(0, raw.len().saturating_sub(digest.len())));
        let signer = $curve::ecdsa::SigningKey::from_slice(&raw).map_err(|e| failed("ECDSA key")(&e))?;
        let proof: $curve::ecdsa::Signature = signer.sign_prehash_with_rng(&mut OsRng, &digest).map_err(|e| failed("proof")(&e))?;
        (wrapped_elliptic($oid, &raw, point.as_bytes())?, proof.to_der().as_bytes().to_vec())
    }};
}

/// Makes a key of a kind, as projections name them, and signs a text with it.
///
/// # Errors
/// The kind is unknown.
pub(super) fn generate(kind: &str, text: &[u8]) -> Result<ProvenKey, KeyError> {
    let ((private, public), proof) = match kind {
        "RSA3072" => rsa(3072, text)?,
        "RSA4096" => rsa(4096, text)?,
        "ECDSAP256" => elliptic!(p256, P256, text),
        "ECDSAP384" => elliptic!(p384, P384, text),
        "ECDSAP521" => elliptic!(p521, P521, text),
        "ED25519" => ed25519(text)?,
        other => return Err(KeyError::UnknownType(other.to_owned())),
    };
    Ok(ProvenKey { private: pem(&private), public, proof })
}

/// A key in both its forms, and a signature with it.
type Signed = ((Vec<u8>, Vec<u8>), Vec<u8>);

fn rsa(bits: usize, text: &[u8]) -> Result<Signed, KeyError> {
    let failed = failed("RSA key");
    let key = rsa::RsaPrivateKey::new(&mut OsRng, bits).map_err(|e| failed(&e))?;
    let private = key.to_pkcs8_der().map_err(|e| failed(&e))?.as_bytes().to_vec();
    let public = key.to_public_key().to_public_key_der().map_err(|e| failed(&e))?.into_vec();
    let signer = rsa::pss::BlindedSigningKey::<Sha256>::new(key);
    let proof = signer.try_sign_with_rng(&mut OsRng, text).map_err(|e| failed(&e))?;
    Ok(((private, public), proof.to_vec()))
}

fn ed25519(text: &[u8]) -> Result<Signed, KeyError> {
    let failed = failed("Ed25519 key");
    let mut seed = [0; 32];
    OsRng.fill_bytes(&mut seed);
    let key = ed25519_dalek::SigningKey::from_bytes(&seed);
    let algorithm = AlgorithmIdentifierRef { oid: ED25519, parameters: None };
    let inner = OctetStringRef::new(&seed).and_then(|seed| seed.to_der()).map_err(|e| failed(&e))?;
    let private = PrivateKeyInfo::new(algorithm, &inner).to_der().map_err(|e| failed(&e))?;
    let public = public(AlgorithmIdentifierOwned { oid: ED25519, parameters: None }, key.verifying_key().as_bytes())?;
    Ok(((private, public), key.sign(text).to_bytes().to_vec()))
}

fn wrapped_elliptic(curve: ObjectIdentifier, raw: &[u8], point: &[u8]) -> Result<(Vec<u8>, Vec<u8>), KeyError> {
    let failed = failed("ECDSA key");
    let inner = EcPrivateKey { private_key: raw, parameters: None, public_key: Some(point) };
    let inner = inner.to_der().map_err(|e| failed(&e))?;
    let algorithm = AlgorithmIdentifierRef { oid: EC, parameters: Some((&curve).into()) };
    let private = PrivateKeyInfo::new(algorithm, &inner).to_der().map_err(|e| failed(&e))?;
    let public = public(AlgorithmIdentifierOwned { oid: EC, parameters: Some(Any::from(&curve)) }, point)?;
    Ok((private, public))
}

fn public(algorithm: AlgorithmIdentifierOwned, bits: &[u8]) -> Result<Vec<u8>, KeyError> {
    let failed = failed("public key");
    let subject_public_key = BitString::from_bytes(bits).map_err(|e| failed(&e))?;
    SubjectPublicKeyInfoOwned { algorithm, subject_public_key }.to_der().map_err(|e| failed(&e))
}

fn pem(key: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(key);
    let lines = text.as_bytes().chunks(LINE).map(String::from_utf8_lossy);
    let body = lines.fold(String::new(), |body, line| body + &line + "\n");
    format!("-----BEGIN PRIVATE KEY-----\n{body}-----END PRIVATE KEY-----\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ed25519_dalek::Verifier as _;
    use p256::ecdsa::signature::hazmat::PrehashVerifier as _;
    use pkcs8::der::Decode as _;
    use rsa::pkcs8::DecodePublicKey as _;
    use rustls::pki_types::{PrivateKeyDer, pem::PemObject as _};

    /// Reports whether an elliptic key has signed a digest, which is filled up to so many bytes.
    macro_rules! verifies {
        ($curve:ident, $point:expr, $text:expr, $proof:expr, $size:expr) => {{
            let digest = Sha256::digest($text);
            let digest = [vec![0; $size - digest.len()], digest.to_vec()].concat();
            let key = $curve::ecdsa::VerifyingKey::from_sec1_bytes($point).expect("a point");
            let proof = $curve::ecdsa::Signature::from_der($proof).expect("a signature");
            key.verify_prehash(&digest, &proof).is_ok()
        }};
    }

    fn verifies(kind: &str, point: &[u8], text: &[u8], proof: &[u8]) -> bool {
        match kind {
            "ECDSAP256" => verifies!(p256, point, text, proof, 32),
            "ECDSAP384" => verifies!(p384, point, text, proof, 48),
            "ECDSAP521" => verifies!(p521, point, text, proof, 66),
            _ => {
                let key = ed25519_dalek::VerifyingKey::from_bytes(point.try_into().expect("32 bytes")).expect("a key");
                key.verify(text, &ed25519_dalek::Signature::from_slice(proof).expect("a signature")).is_ok()
            }
        }
    }

    #[test]
    fn keys_of_every_kind_are_read_back_and_have_signed_the_text() {
        for (kind, algorithm) in [("ECDSAP256", EC), ("ECDSAP384", EC), ("ECDSAP521", EC), ("ED25519", ED25519)] {
            let key = generate(kind, b"uid").expect("a key");
            let public = SubjectPublicKeyInfoOwned::from_der(&key.public).expect("a public key");
            assert_eq!(public.algorithm.oid, algorithm, "{kind}");
            let point = public.subject_public_key.raw_bytes();
            assert!(verifies(kind, point, b"uid", &key.proof), "{kind}");
            assert!(!verifies(kind, point, b"other", &key.proof), "{kind}");
            let private = PrivateKeyDer::from_pem_slice(key.private.as_bytes()).expect("a private key");
            let signer = rustls::crypto::ring::sign::any_supported_type(&private);
            // The library does not know the largest curve.
            assert!(kind == "ECDSAP521" || signer.is_ok(), "{kind}: {signer:?}");
        }
        let unknown = generate("RSA1024", b"").map(drop).expect_err("refused");
        assert_eq!(unknown.to_string(), "unknown key type \"RSA1024\"");
    }

    #[test]
    fn keys_of_rsa_sign_with_pss() {
        // Of a size that is made quickly; those of projections differ in that alone.
        let ((private, public), proof) = rsa(1024, b"uid").expect("a key");
        let public = rsa::RsaPublicKey::from_public_key_der(&public).expect("a public key");
        public.verify(rsa::Pss::new::<Sha256>(), &Sha256::digest(b"uid"), &proof).expect("a proof");
        let text = pem(&private);
        PrivateKeyDer::from_pem_slice(text.as_bytes()).expect("a private key");
    }
}
