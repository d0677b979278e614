//! Whether a certificate request is signed with the key it asks a certificate for.

use rustls::crypto::ring::default_provider;
use x509_parser::prelude::X509CertificationRequest;
use x509_parser::public_key::PublicKey;

/// Keys of RSA below this are not checked: the library at hand knows none so short.
const SHORTEST_RSA: usize = 2048;

/// A family of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Rsa,
    Ecdsa,
    Ed25519,
}

impl Family {
    /// The key's, by the object identifier of its algorithm.
    fn of_key(oid: &str) -> Option<Self> {
        match oid {
            "1.2.840.113549.1.1.1" => Some(Self::Rsa),
            "1.2.840.10045.2.1" => Some(Self::Ecdsa),
            "1.3.101.112" => Some(Self::Ed25519),
            _ => None,
        }
    }

    /// How upstream names the family in "specifies … public key", and the type of its keys.
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

/// What a signature is made with, by object identifier.
fn algorithm(oid: &str) -> Result<Family, String> {
    let insecure = |name: &str| Err(format!("x509: cannot verify signature: insecure algorithm {name}"));
    match oid {
        "1.2.840.113549.1.1.10" | "1.2.840.113549.1.1.11" | "1.2.840.113549.1.1.12" | "1.2.840.113549.1.1.13" => {
            Ok(Family::Rsa)
        }
        "1.2.840.10045.4.3.2" | "1.2.840.10045.4.3.3" | "1.2.840.10045.4.3.4" => Ok(Family::Ecdsa),
        "1.3.101.112" => Ok(Family::Ed25519),
        "1.2.840.113549.1.1.4" => insecure("MD5-RSA"),
        "1.2.840.113549.1.1.5" | "1.3.14.3.2.29" => insecure("SHA1-RSA"),
        "1.2.840.10045.4.1" => insecure("ECDSA-SHA1"),
        _ => Err("x509: cannot verify signature: algorithm unimplemented".to_owned()),
    }
}

/// An object identifier as it stands in an algorithm identifier.
fn tagged(oid: &[u8]) -> Vec<u8> {
    // Object identifiers of algorithms and curves are shorter than 128 bytes.
    [&[6, u8::try_from(oid.len()).unwrap_or(u8::MAX)], oid].concat()
}

/// The failure in upstream's words.
pub(super) fn check(request: &X509CertificationRequest<'_>) -> Result<(), String> {
    let info = &request.certification_request_info;
    let key = &info.subject_pki;
    let family = algorithm(&request.signature_algorithm.algorithm.to_id_string())?;
    let Some(own) = Family::of_key(&key.algorithm.algorithm.to_id_string()) else {
        return Err("x509: cannot verify signature: algorithm unimplemented".to_owned());
    };
    if own != family {
        let (wanted, found) = (family.words().0, own.words().1);
        return Err(format!(
            "x509: signature algorithm specifies {wanted} public key, but have public key of type {found}"
        ));
    }
    if matches!(key.parsed(), Ok(PublicKey::RSA(rsa)) if rsa.key_size() < SHORTEST_RSA) {
        return Ok(());
    }
    let (signed, keyed) =
        (tagged(request.signature_algorithm.algorithm.as_bytes()), tagged(key.algorithm.algorithm.as_bytes()));
    let curve = key.algorithm.parameters.as_ref().and_then(|p| p.as_oid().ok()).map(|oid| tagged(oid.as_bytes()));
    let fits = |id: &[u8]| {
        id.starts_with(&keyed) && curve.as_ref().is_none_or(|curve| id.windows(curve.len()).any(|w| w == &curve[..]))
    };
    let all = default_provider().signature_verification_algorithms.all;
    let mut able = all
        .iter()
        .filter(|a| a.signature_alg_id().as_ref().starts_with(&signed) && fits(a.public_key_alg_id().as_ref()))
        .peekable();
    // Curves that the library at hand does not know are taken as they are: signers look at the request again.
    if able.peek().is_none() {
        return Ok(());
    }
    let (public, signature) = (&key.subject_public_key.data, &request.signature_value.data);
    if able.any(|a| a.verify_signature(public, info.raw, signature).is_ok()) {
        return Ok(());
    }
    Err(family.failure().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::prelude::FromDer as _;

    fn request(algorithm: &'static rcgen::SignatureAlgorithm) -> Vec<u8> {
        let key = rcgen::KeyPair::generate_for(algorithm).expect("a key");
        let parameters = rcgen::CertificateParams::new(vec!["a.example.com".to_owned()]).expect("parameters");
        parameters.serialize_request(&key).expect("a request").der().to_vec()
    }

    fn judged(der: &[u8]) -> Result<(), String> {
        check(&X509CertificationRequest::from_der(der).expect("a request").1)
    }

    #[test]
    fn requests_are_signed_with_their_own_key() {
        for (algorithm, failure) in [
            (&rcgen::PKCS_ECDSA_P256_SHA256, "x509: ECDSA verification failure"),
            (&rcgen::PKCS_ECDSA_P384_SHA384, "x509: ECDSA verification failure"),
            (&rcgen::PKCS_ED25519, "x509: Ed25519 verification failure"),
        ] {
            let mut der = request(algorithm);
            assert_eq!(judged(&der), Ok(()));
            // The name is part of what is signed.
            let at = der.windows(9).position(|w| w == b"a.example").expect("the name");
            der[at] = b'b';
            assert_eq!(judged(&der), Err(failure.to_owned()));
        }
    }

    #[test]
    fn algorithms_by_their_identifiers() {
        for (oid, want) in [
            ("1.2.840.113549.1.1.11", Ok(Family::Rsa)),
            ("1.2.840.10045.4.3.4", Ok(Family::Ecdsa)),
            ("1.2.840.113549.1.1.5", Err("x509: cannot verify signature: insecure algorithm SHA1-RSA")),
            ("1.2.3", Err("x509: cannot verify signature: algorithm unimplemented")),
        ] {
            assert_eq!(algorithm(oid), want.map_err(str::to_owned), "{oid}");
        }
    }
}
