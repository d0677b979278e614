//! Proof of possession: the requester holds the key that a certificate is for.

use rsa::BigUint;
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::signature::{ecdsa, ed25519};

/// Bits of the modulus of RSA keys that may be used.
const MODULI: [usize; 2] = [3072, 4096];

/// Reasons to refuse a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyError {
    /// The bytes are not a public key.
    NoKey,
    /// The key cannot sign, or only with an unsupported algorithm.
    Type,
    /// A curve that is too weak.
    Curve(&'static str),
    /// A modulus of so many bits.
    Modulus(usize),
    /// The proof is not a signature of the key.
    Unproven,
}

/// A key as certificates and their requests have it.
pub(super) fn key(der: &[u8]) -> Result<SubjectPublicKeyInfo<'_>, KeyError> {
    let Ok(([], key)) = SubjectPublicKeyInfo::from_der(der) else { return Err(KeyError::NoKey) };
    let point = &*key.subject_public_key.data;
    match (&*key.algorithm.algorithm.to_id_string(), &*curve(&key)) {
        ("1.2.840.113549.1.1.1", _) if modulus(&key).is_some() => Ok(key),
        ("1.2.840.10045.2.1", curve) if is_point(curve, point) => Ok(key),
        ("1.3.101.112", _) if point.len() == 32 => Ok(key),
        // X25519 and DSA.
        ("1.3.101.110" | "1.2.840.10040.4.1", _) => Err(KeyError::Type),
        _ => Err(KeyError::NoKey),
    }
}

/// Reports whether two keys are equal.
pub(super) fn same(a: &SubjectPublicKeyInfo<'_>, b: &SubjectPublicKeyInfo<'_>) -> bool {
    let kind = |key: &SubjectPublicKeyInfo<'_>| (key.algorithm.algorithm.to_id_string(), curve(key));
    kind(a) == kind(b) && a.subject_public_key.data == b.subject_public_key.data
}

/// Checks a key, and that a text was signed with it.
pub(super) fn proven(der: &[u8], text: &[u8], signature: &[u8]) -> Result<(), KeyError> {
    let key = key(der)?;
    let digest = Sha256::digest(text);
    let fits = match (modulus(&key), &*curve(&key)) {
        (Some((n, e)), _) => {
            let bits = n.bits().div_ceil(8) * 8;
            if !MODULI.contains(&bits) {
                return Err(KeyError::Modulus(bits));
            }
            pss(&n, &e, &digest, signature)
        }
        (_, P224) => return Err(KeyError::Curve("P-224")),
        (_, "") => ed25519(&key, text, signature).is_some(),
        _ => ecdsa(&key, digest.to_vec(), signature) == Ok(true),
    };
    if fits { Ok(()) } else { Err(KeyError::Unproven) }
}

const P224: &str = "1.3.132.0.33";

/// The curve of a key that has one.
fn curve(key: &SubjectPublicKeyInfo<'_>) -> String {
    let curve = key.algorithm.parameters.as_ref().and_then(|p| p.as_oid().ok());
    curve.map(|oid| oid.to_id_string()).unwrap_or_default()
}

/// Reports whether bytes are an uncompressed point of a curve.
fn is_point(curve: &str, point: &[u8]) -> bool {
    point.first() == Some(&4)
        && match curve {
            P224 => p224::PublicKey::from_sec1_bytes(point).is_ok(),
            "1.2.840.10045.3.1.7" => p256::PublicKey::from_sec1_bytes(point).is_ok(),
            "1.3.132.0.34" => p384::PublicKey::from_sec1_bytes(point).is_ok(),
            "1.3.132.0.35" => p521::PublicKey::from_sec1_bytes(point).is_ok(),
            _ => false,
        }
}

/// Modulus and exponent of a key of RSA.
fn modulus(key: &SubjectPublicKeyInfo<'_>) -> Option<(BigUint, BigUint)> {
    const LARGEST_EXPONENT: u32 = u32::MAX >> 1;
    let Ok(PublicKey::RSA(parts)) = key.parsed() else { return None };
    let (n, e) = (BigUint::from_bytes_be(parts.modulus), BigUint::from_bytes_be(parts.exponent));
    let fits = n.bits() > 0 && e.bits() > 0 && e <= BigUint::from(LARGEST_EXPONENT);
    fits.then_some((n, e))
}

/// A signature with PSS and SHA-256 whose salt may have any length: signers use what has room. (RFC 8017, 9.1.2; the
/// library wants to know the length.)
fn pss(n: &BigUint, e: &BigUint, digest: &[u8], signature: &[u8]) -> bool {
    const SIZE: usize = 32;
    let bits = n.bits() - 1;
    let (length, number) = (bits.div_ceil(8), BigUint::from_bytes_be(signature));
    if signature.len() != n.bits().div_ceil(8) || number >= *n || length < 2 * SIZE + 2 {
        return false;
    }
    let message = number.modpow(e, n).to_bytes_be();
    let Some(missing) = length.checked_sub(message.len()) else { return false };
    let message = [vec![0; missing], message].concat();
    let (masked, rest) = message.split_at(length - SIZE - 1);
    let (hash, unused) = (&rest[..SIZE], 8 * length - bits);
    if rest[SIZE] != 0xbc || unused > 0 && masked[0] >> (8 - unused) != 0 {
        return false;
    }
    let mask = (0u32..).flat_map(|count| Sha256::new().chain_update(hash).chain_update(count.to_be_bytes()).finalize());
    let mut data: Vec<u8> = masked.iter().zip(mask).map(|(byte, mask)| byte ^ mask).collect();
    data[0] &= 0xff >> unused;
    let Some(start) = data.iter().position(|byte| *byte != 0).filter(|at| data[*at] == 1) else { return false };
    let again = Sha256::new().chain_update([0; 8]).chain_update(digest).chain_update(&data[start + 1..]).finalize();
    again[..] == *hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::PublicKeyData as _;
    use rcgen::SigningKey as _;

    const UID: &[u8] = b"6a1c1d5c-0000-4000-8000-000000000001";

    #[test]
    fn keys_prove_that_they_are_there() {
        for algorithm in [&rcgen::PKCS_ED25519, &rcgen::PKCS_ECDSA_P256_SHA256] {
            let pair = rcgen::KeyPair::generate_for(algorithm).expect("a key");
            let (der, signature) = (pair.subject_public_key_info(), pair.sign(UID).expect("signed"));
            assert_eq!(proven(&der, UID, &signature), Ok(()), "{algorithm:?}");
            assert_eq!(proven(&der, b"another", &signature), Err(KeyError::Unproven));
            assert_eq!(proven(&[&der[..], &[0]].concat(), UID, &signature), Err(KeyError::NoKey));
            assert_eq!(proven(&der[..der.len() - 1], UID, &signature), Err(KeyError::NoKey));
        }
    }

    #[test]
    fn keys_of_rsa_have_salts_of_any_length() {
        use rsa::pkcs8::EncodePublicKey as _;
        use rsa::traits::PublicKeyParts as _;
        let mut random = rsa::rand_core::OsRng;
        let private = rsa::RsaPrivateKey::new(&mut random, 3072).expect("a key");
        let der = private.to_public_key().to_public_key_der().expect("DER");
        let digest = Sha256::digest(UID);
        for salt in [0, 20, 32, private.size() - 32 - 2] {
            let scheme = rsa::Pss::new_with_salt::<Sha256>(salt);
            let signature = private.sign_with_rng(&mut random, scheme, &digest).expect("signed");
            assert_eq!(proven(der.as_bytes(), UID, &signature), Ok(()), "{salt}");
            assert_eq!(proven(der.as_bytes(), b"another", &signature), Err(KeyError::Unproven), "{salt}");
        }
        let weak = rsa::RsaPrivateKey::new(&mut random, 1024).expect("a key").to_public_key();
        let der = weak.to_public_key_der().expect("DER");
        assert_eq!(proven(der.as_bytes(), UID, &[]), Err(KeyError::Modulus(1024)));
    }

    #[test]
    fn different_keys_are_distinguished() {
        let x25519 = [&[0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x6e, 3, 0x21, 0][..], &[7; 32]].concat();
        assert_eq!(proven(&x25519, UID, &[]), Err(KeyError::Type));
        let request = include_str!("tests/requests/p224.pem");
        let der = x509_parser::pem::parse_x509_pem(request.as_bytes()).expect("PEM").1.contents;
        let (_, request) = x509_parser::prelude::X509CertificationRequest::from_der(&der).expect("a request");
        let key = request.certification_request_info.subject_pki.raw;
        assert_eq!(proven(key, UID, &[]), Err(KeyError::Curve("P-224")));
    }
}
