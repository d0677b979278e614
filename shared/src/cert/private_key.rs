//! Forms of private keys: PKCS #1, SEC 1 and PKCS #8. Answers for the parsing of Go's `crypto/x509`.

use pkcs8::der::asn1::AnyRef;
use pkcs8::der::{Decode as _, Encode as _, Error};
use pkcs8::{AlgorithmIdentifierRef, ObjectIdentifier, PrivateKeyInfo};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use sec1::EcPrivateKey;

use super::CertError;

const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");

fn bad(error: Error) -> CertError {
    CertError::Pem(error.to_string())
}

/// Wraps a private key as PKCS #8, which signers read.
///
/// # Errors
/// The key is not DER of its form, or a SEC 1 key does not name its curve.
pub fn to_pkcs8(key: &PrivateKeyDer<'_>) -> Result<PrivatePkcs8KeyDer<'static>, CertError> {
    match key {
        PrivateKeyDer::Pkcs8(key) => Ok(key.clone_key()),
        PrivateKeyDer::Pkcs1(key) => {
            wrapped(AlgorithmIdentifierRef { oid: RSA, parameters: Some(AnyRef::NULL) }, key.secret_pkcs1_der())
        }
        PrivateKeyDer::Sec1(key) => {
            let raw = key.secret_sec1_der();
            let parameters = EcPrivateKey::from_der(raw).map_err(bad)?.parameters;
            let curve = parameters.and_then(|parameters| parameters.named_curve());
            let curve = curve.ok_or_else(|| CertError::Pem("unknown elliptic curve".into()))?;
            wrapped(AlgorithmIdentifierRef { oid: EC, parameters: Some((&curve).into()) }, raw)
        }
        _ => Err(CertError::Pem("unknown form of a private key".into())),
    }
}

fn wrapped(algorithm: AlgorithmIdentifierRef<'_>, raw: &[u8]) -> Result<PrivatePkcs8KeyDer<'static>, CertError> {
    PrivateKeyInfo::new(algorithm, raw).to_der().map(Into::into).map_err(bad)
}

/// Returns the named curve of a PKCS #8 key; none for keys of other kinds.
pub fn curve(key: &PrivatePkcs8KeyDer<'_>) -> Option<ObjectIdentifier> {
    let info = PrivateKeyInfo::from_der(key.secret_pkcs8_der()).ok()?;
    (info.algorithm.oid == EC).then(|| info.algorithm.parameters_oid().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sec1_key_without_a_curve_is_refused_and_others_are_wrapped() {
        let p256 = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
        let key = |parameters| {
            let key = EcPrivateKey { private_key: &[7; 32], parameters, public_key: None };
            PrivateKeyDer::Sec1(key.to_der().expect("a key").into())
        };
        let wrapped = to_pkcs8(&key(Some(sec1::EcParameters::NamedCurve(p256)))).expect("PKCS #8");
        assert_eq!(curve(&wrapped), Some(p256));
        assert!(to_pkcs8(&key(None)).is_err());
        assert!(to_pkcs8(&PrivateKeyDer::Sec1(vec![0x30, 0x85, 1, 1].into())).is_err());
    }
}
