//! Signature check of a certificate request against its own key.

use ed25519_dalek::Verifier as _;
use p256::ecdsa::signature::hazmat::PrehashVerifier as _;
use rsa::{BigUint, Pkcs1v15Sign, Pss, RsaPublicKey};
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha384, Sha512};
use x509_parser::prelude::X509CertificationRequest;
use x509_parser::public_key::{PublicKey, RSAPublicKey};
use x509_parser::x509::SubjectPublicKeyInfo;

/// Keys of RSA below this are no protection.
const SHORTEST_RSA: usize = 1024;

/// Keys of RSA above this take too long.
const LONGEST_RSA: usize = 16_384;

/// Fault of a request's signature or key, in Go's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SignatureFault {
    /// A signature over MD5.
    #[error("x509: cannot verify signature: insecure algorithm MD5-RSA")]
    Md5,
    /// Nobody knows how it is made.
    #[error("x509: cannot verify signature: algorithm unimplemented")]
    Unimplemented,
    /// A signature with a key of another family.
    #[error(
        "x509: signature algorithm specifies {} public key, but have public key of type {}",
        .wanted.words().0,
        .found.words().1
    )]
    OtherFamily {
        /// Family of the signature.
        wanted: KeyFamily,
        /// Family of the key.
        found: KeyFamily,
    },
    /// The key of RSA cannot be read.
    #[error("x509: invalid RSA public key")]
    RsaKey,
    /// The key of RSA has so many bits, which are too few.
    #[error("crypto/rsa: {0}-bit keys are insecure (see https://go.dev/pkg/crypto/rsa#hdr-Minimum_key_size)")]
    ShortKey(usize),
    /// The curve of the key is not known.
    #[error("x509: unsupported elliptic curve")]
    Curve,
    /// A signature with another key.
    #[error("{}", .0.failure())]
    Unverified(KeyFamily),
}

/// A family of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyFamily {
    Rsa,
    Ecdsa,
    Ed25519,
}

impl KeyFamily {
    /// The key's, by the object identifier of its algorithm.
    fn of_key(oid: &str) -> Option<Self> {
        match oid {
            "1.2.840.113549.1.1.1" => Some(Self::Rsa),
            "1.2.840.10045.2.1" => Some(Self::Ecdsa),
            "1.3.101.112" => Some(Self::Ed25519),
            _ => None,
        }
    }

    /// Upstream's words for the family in "specifies … public key", and the Go type of its keys.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Rsa => ("an RSA", "*rsa.PublicKey"),
            Self::Ecdsa => ("an ECDSA", "*ecdsa.PublicKey"),
            Self::Ed25519 => ("an Ed25519", "ed25519.PublicKey"),
        }
    }

    fn failure(self) -> &'static str {
        match self {
            Self::Rsa => "crypto/rsa: verification error",
            Self::Ecdsa => "x509: ECDSA verification failure",
            Self::Ed25519 => "x509: Ed25519 verification failure",
        }
    }
}

/// Digest that is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hash {
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    fn of(self, text: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha1 => Sha1::digest(text).to_vec(),
            Self::Sha256 => Sha256::digest(text).to_vec(),
            Self::Sha384 => Sha384::digest(text).to_vec(),
            Self::Sha512 => Sha512::digest(text).to_vec(),
        }
    }

    fn pkcs1(self) -> Pkcs1v15Sign {
        match self {
            Self::Sha1 => Pkcs1v15Sign::new::<Sha1>(),
            Self::Sha256 => Pkcs1v15Sign::new::<Sha256>(),
            Self::Sha384 => Pkcs1v15Sign::new::<Sha384>(),
            Self::Sha512 => Pkcs1v15Sign::new::<Sha512>(),
        }
    }
}

/// Signature algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Pkcs1(Hash),
    /// RSA-PSS, whose parameters name the hash.
    Pss,
    Ecdsa(Hash),
    Ed25519,
}

impl Algorithm {
    /// By object identifier. The certificate that is asked for is signed anew: a request may still use SHA-1.
    fn of(oid: &str) -> Result<Self, SignatureFault> {
        Ok(match oid {
            "1.2.840.113549.1.1.5" | "1.3.14.3.2.29" => Self::Pkcs1(Hash::Sha1),
            "1.2.840.113549.1.1.11" => Self::Pkcs1(Hash::Sha256),
            "1.2.840.113549.1.1.12" => Self::Pkcs1(Hash::Sha384),
            "1.2.840.113549.1.1.13" => Self::Pkcs1(Hash::Sha512),
            "1.2.840.113549.1.1.10" => Self::Pss,
            "1.2.840.10045.4.1" => Self::Ecdsa(Hash::Sha1),
            "1.2.840.10045.4.3.2" => Self::Ecdsa(Hash::Sha256),
            "1.2.840.10045.4.3.3" => Self::Ecdsa(Hash::Sha384),
            "1.2.840.10045.4.3.4" => Self::Ecdsa(Hash::Sha512),
            "1.3.101.112" => Self::Ed25519,
            "1.2.840.113549.1.1.4" => return Err(SignatureFault::Md5),
            _ => return Err(SignatureFault::Unimplemented),
        })
    }

    fn family(self) -> KeyFamily {
        match self {
            Self::Pkcs1(_) | Self::Pss => KeyFamily::Rsa,
            Self::Ecdsa(_) => KeyFamily::Ecdsa,
            Self::Ed25519 => KeyFamily::Ed25519,
        }
    }
}

/// Verifies that a request is signed with its own key.
pub(super) fn check(request: &X509CertificationRequest<'_>) -> Result<(), SignatureFault> {
    let info = &request.certification_request_info;
    let key = &info.subject_pki;
    let algorithm = Algorithm::of(&request.signature_algorithm.algorithm.to_id_string())?;
    let own = KeyFamily::of_key(&key.algorithm.algorithm.to_id_string()).ok_or(SignatureFault::Unimplemented)?;
    let family = algorithm.family();
    if own != family {
        return Err(SignatureFault::OtherFamily { wanted: family, found: own });
    }
    let (text, signature) = (info.raw, &*request.signature_value.data);
    let fits = match algorithm {
        Algorithm::Pkcs1(hash) => rsa(key)?.verify(hash.pkcs1(), &hash.of(text), signature).is_ok(),
        Algorithm::Pss => pss(&rsa(key)?, text, signature),
        Algorithm::Ecdsa(hash) => ecdsa(key, hash.of(text), signature)?,
        Algorithm::Ed25519 => ed25519(key, text, signature).is_some(),
    };
    if fits { Ok(()) } else { Err(SignatureFault::Unverified(family)) }
}

/// A key of RSA that is neither too short nor too long.
fn rsa(key: &SubjectPublicKeyInfo<'_>) -> Result<RsaPublicKey, SignatureFault> {
    let Ok(PublicKey::RSA(RSAPublicKey { modulus, exponent })) = key.parsed() else {
        return Err(SignatureFault::RsaKey);
    };
    let (n, e) = (BigUint::from_bytes_be(modulus), BigUint::from_bytes_be(exponent));
    let bits = n.bits();
    if bits < SHORTEST_RSA {
        return Err(SignatureFault::ShortKey(bits));
    }
    RsaPublicKey::new_with_max_size(n, e, LONGEST_RSA).map_err(|_| SignatureFault::Unverified(KeyFamily::Rsa))
}

fn pss(key: &RsaPublicKey, text: &[u8], signature: &[u8]) -> bool {
    let schemes = [
        (Hash::Sha256, Pss::new::<Sha256>()),
        (Hash::Sha384, Pss::new::<Sha384>()),
        (Hash::Sha512, Pss::new::<Sha512>()),
    ];
    schemes.into_iter().any(|(hash, scheme)| key.verify(scheme, &hash.of(text), signature).is_ok())
}

/// Verifies an ECDSA signature with the types of a curve's module.
macro_rules! on_curve {
    ($curve:ident, $point:expr, $digest:expr, $signature:expr) => {{
        let key = $curve::ecdsa::VerifyingKey::from_sec1_bytes($point);
        let signature = $curve::ecdsa::Signature::from_der($signature);
        matches!((key, signature), (Ok(key), Ok(signature)) if key.verify_prehash($digest, &signature).is_ok())
    }};
}

/// Verifies an ECDSA signature of a digest; false for one of another key, an error for an unsupported curve.
pub(super) fn ecdsa(
    key: &SubjectPublicKeyInfo<'_>,
    mut digest: Vec<u8>,
    signature: &[u8],
) -> Result<bool, SignatureFault> {
    let curve = key.algorithm.parameters.as_ref().and_then(|p| p.as_oid().ok()).map(|oid| oid.to_id_string());
    let point = &*key.subject_public_key.data;
    // A digest is a number: one shorter than what the curve counts in begins with zeros, which the library asks for.
    let size = point.len() / 2;
    if digest.len() < size {
        digest.splice(..0, std::iter::repeat_n(0, size - digest.len()));
    }
    match curve.as_deref() {
        Some("1.3.132.0.33") => Ok(on_curve!(p224, point, &digest, signature)),
        Some("1.2.840.10045.3.1.7") => Ok(on_curve!(p256, point, &digest, signature)),
        Some("1.3.132.0.34") => Ok(on_curve!(p384, point, &digest, signature)),
        Some("1.3.132.0.35") => Ok(on_curve!(p521, point, &digest, signature)),
        _ => Err(SignatureFault::Curve),
    }
}

/// Verifies an Ed25519 signature of a text; `None` when it does not fit.
pub(super) fn ed25519(key: &SubjectPublicKeyInfo<'_>, text: &[u8], signature: &[u8]) -> Option<()> {
    let bytes = key.subject_public_key.data.as_ref().try_into().ok()?;
    let key = ed25519_dalek::VerifyingKey::from_bytes(bytes).ok()?;
    key.verify(text, &ed25519_dalek::Signature::from_slice(signature).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::prelude::FromDer as _;

    /// Requests for `a.example.com`, made by openssl.
    const REQUESTS: [(&str, &str); 7] = [
        ("rsa-1024-sha1", include_str!("tests/requests/rsa-1024-sha1.pem")),
        ("rsa-2048", include_str!("tests/requests/rsa-2048.pem")),
        ("rsa-pss", include_str!("tests/requests/rsa-pss.pem")),
        ("p224", include_str!("tests/requests/p224.pem")),
        ("p256-sha1", include_str!("tests/requests/p256-sha1.pem")),
        ("p521", include_str!("tests/requests/p521.pem")),
        ("ed25519", include_str!("tests/requests/ed25519.pem")),
    ];

    fn der(pem: &str) -> Vec<u8> {
        x509_parser::pem::parse_x509_pem(pem.as_bytes()).expect("PEM").1.contents
    }

    fn judged(der: &[u8]) -> Result<(), String> {
        check(&X509CertificationRequest::from_der(der).expect("a request").1).map_err(|e| e.to_string())
    }

    #[test]
    fn requests_are_signed_with_their_own_key() {
        for (name, pem) in REQUESTS {
            let mut der = der(pem);
            assert_eq!(judged(&der), Ok(()), "{name}");
            // The name is part of what is signed.
            let at = der.windows(9).position(|w| w == b"a.example").expect("the name");
            der[at] = b'b';
            let failure = judged(&der).expect_err(name);
            assert!(failure.contains("verification"), "{name}: {failure}");
        }
    }

    #[test]
    fn a_digest_longer_than_the_curve_is_cut() {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).expect("a key");
        let parameters = rcgen::CertificateParams::new(vec!["a.example.com".to_owned()]).expect("parameters");
        assert_eq!(judged(parameters.serialize_request(&key).expect("a request").der()), Ok(()));
        assert_eq!(judged(&der(include_str!("tests/requests/p256-sha512.pem"))), Ok(()));
    }

    #[test]
    fn keys_of_no_protection_are_refused() {
        let message = "crypto/rsa: 512-bit keys are insecure (see https://go.dev/pkg/crypto/rsa#hdr-Minimum_key_size)";
        assert_eq!(judged(&der(include_str!("tests/requests/rsa-512.pem"))), Err(message.to_owned()));
    }

    #[test]
    fn algorithms_by_their_identifiers() {
        for (oid, want) in [
            ("1.2.840.113549.1.1.11", Ok(Algorithm::Pkcs1(Hash::Sha256))),
            ("1.2.840.10045.4.3.4", Ok(Algorithm::Ecdsa(Hash::Sha512))),
            ("1.2.840.113549.1.1.4", Err("x509: cannot verify signature: insecure algorithm MD5-RSA")),
            ("1.2.3", Err("x509: cannot verify signature: algorithm unimplemented")),
        ] {
            assert_eq!(Algorithm::of(oid).map_err(|e| e.to_string()), want.map_err(str::to_owned), "{oid}");
        }
    }
}
