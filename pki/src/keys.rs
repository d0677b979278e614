//! Private keys, in the forms that kubeadm writes (PKCS#1 for RSA, SEC 1 for ECDSA) and in whichever of the usual ones they
//! are read.

use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256, SignatureAlgorithm};
use rsa::pkcs1::EncodeRsaPrivateKey as _;
use rsa::pkcs8::{EncodePrivateKey as _, LineEnding, PrivateKeyInfo};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const RSA_ENCRYPTION: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];

/// Tags of DER.
mod tag {
    pub(super) const INTEGER: u8 = 0x02;
    pub(super) const BITS: u8 = 0x03;
    pub(super) const BYTES: u8 = 0x04;
    pub(super) const NULL: u8 = 0x05;
    pub(super) const OID: u8 = 0x06;
    pub(super) const SEQUENCE: u8 = 0x30;
    pub(super) const PARAMETERS: u8 = 0xa0;
    pub(super) const PUBLIC_KEY: u8 = 0xa1;
}

/// Kinds of new keys, under the names of `encryptionAlgorithm` in kubeadm's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// RSA with this many bits.
    Rsa(usize),
    /// ECDSA on the curve P-256.
    EcdsaP256,
    /// ECDSA on the curve P-384.
    EcdsaP384,
}

impl Algorithm {
    /// The names that may be asked for; the first is the default.
    pub const NAMES: [&'static str; 5] = ["RSA-2048", "RSA-3072", "RSA-4096", "ECDSA-P256", "ECDSA-P384"];
}

impl FromStr for Algorithm {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "RSA-2048" => Self::Rsa(2048),
            "RSA-3072" => Self::Rsa(3072),
            "RSA-4096" => Self::Rsa(4096),
            "ECDSA-P256" => Self::EcdsaP256,
            "ECDSA-P384" => Self::EcdsaP384,
            _ => bail!("unknown algorithm {name}; use one of {}", Self::NAMES.join(", ")),
        })
    }
}

/// A private key and its PEM.
pub struct PrivateKey {
    /// The key as it signs.
    pub pair: KeyPair,
    /// The key as it is kept.
    pub pem: String,
}

impl PrivateKey {
    /// Makes a key.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn generate(algorithm: Algorithm) -> Result<Self> {
        match algorithm {
            Algorithm::Rsa(bits) => {
                let key = rsa::RsaPrivateKey::new(&mut rsa::rand_core::OsRng, bits)?;
                let pair = pair(key.to_pkcs8_der()?.as_bytes(), &[&PKCS_RSA_SHA256])?;
                Ok(Self { pair, pem: key.to_pkcs1_pem(LineEnding::LF)?.to_string() })
            }
            Algorithm::EcdsaP256 => Self::generate_ecdsa(&PKCS_ECDSA_P256_SHA256, P256),
            Algorithm::EcdsaP384 => Self::generate_ecdsa(&PKCS_ECDSA_P384_SHA384, P384),
        }
    }

    fn generate_ecdsa(algorithm: &'static SignatureAlgorithm, curve: &[u8]) -> Result<Self> {
        let pair = KeyPair::generate_for(algorithm)?;
        let pem = pem("EC PRIVATE KEY", &sec1(&pair, curve)?);
        Ok(Self { pair, pem })
    }

    /// Reads a key: PKCS#1, SEC 1 or PKCS#8; RSA, or ECDSA on P-256 or P-384.
    ///
    /// # Errors
    /// When it is none of these.
    pub fn from_pem(text: &str) -> Result<Self> {
        let key =
            PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|error| anyhow!("not a private key: {error:?}"))?;
        let all = [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_RSA_SHA256];
        let pair = match &key {
            PrivateKeyDer::Pkcs8(key) => pair(key.secret_pkcs8_der(), &all)?,
            PrivateKeyDer::Pkcs1(key) => {
                let algorithm = [element(tag::OID, &[RSA_ENCRYPTION]), element(tag::NULL, &[])].concat();
                pair(&pkcs8(&algorithm, key.secret_pkcs1_der()), &all)?
            }
            PrivateKeyDer::Sec1(key) => [P256, P384]
                .iter()
                .find_map(|curve| pair(&pkcs8(&ec_algorithm(curve), key.secret_sec1_der()), &all).ok())
                .context("the private key is on a curve other than P-256 and P-384")?,
            _ => bail!("the private key has an unknown form"),
        };
        Ok(Self { pair, pem: text.to_owned() })
    }

    /// The kind of key that takes this one's place.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        let algorithm = self.pair.algorithm();
        if algorithm == &PKCS_ECDSA_P256_SHA256 {
            return Algorithm::EcdsaP256;
        }
        if algorithm == &PKCS_ECDSA_P384_SHA384 {
            return Algorithm::EcdsaP384;
        }
        // The raw key is a sequence of modulus and exponent: some 14 bytes more than the modulus.
        match self.pair.public_key_raw().len() * 8 {
            ..3072 => Algorithm::Rsa(2048),
            3072..4096 => Algorithm::Rsa(3072),
            _ => Algorithm::Rsa(4096),
        }
    }
}

fn pair(pkcs8: &[u8], algorithms: &[&'static SignatureAlgorithm]) -> Result<KeyPair> {
    let der = PrivatePkcs8KeyDer::from(pkcs8);
    algorithms
        .iter()
        .find_map(|algorithm| KeyPair::from_pkcs8_der_and_sign_algo(&der, algorithm).ok())
        .context("the private key is neither in RSA nor ECDSA format")
}

fn ec_algorithm(curve: &[u8]) -> Vec<u8> {
    [element(tag::OID, &[EC_PUBLIC_KEY]), element(tag::OID, &[curve])].concat()
}

/// A PKCS#8 document around a key of PKCS#1 or SEC 1.
fn pkcs8(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    let version = element(tag::INTEGER, &[&[0]]);
    element(tag::SEQUENCE, &[&version, &element(tag::SEQUENCE, &[algorithm]), &element(tag::BYTES, &[key])])
}

/// A key of a curve as SEC 1 has it, the curve's name inside.
fn sec1(pair: &KeyPair, curve: &[u8]) -> Result<Vec<u8>> {
    let der = pair.serialize_der();
    let outer =
        PrivateKeyInfo::try_from(der.as_slice()).map_err(|error| anyhow!("a new key cannot be read: {error}"))?;
    let scalar = body(outer.private_key)
        .and_then(|(tag, fields, _)| (tag == tag::SEQUENCE).then_some(fields))
        .and_then(|fields| body(fields).map(|(_, _, rest)| rest))
        .and_then(body)
        .and_then(|(tag, scalar, _)| (tag == tag::BYTES).then_some(scalar))
        .context("a new key has no number")?;
    let public = element(tag::BITS, &[&[0], pair.public_key_raw()]);
    Ok(element(
        tag::SEQUENCE,
        &[
            &element(tag::INTEGER, &[&[1]]),
            &element(tag::BYTES, &[scalar]),
            &element(tag::PARAMETERS, &[&element(tag::OID, &[curve])]),
            &element(tag::PUBLIC_KEY, &[&public]),
        ],
    ))
}

/// Encodes an element of DER.
fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let bytes = body.len().to_be_bytes();
    let length: &[u8] = &bytes[body.len().leading_zeros() as usize / 8..];
    let mut der = vec![tag];
    if body.len() >= 0x80 {
        der.push(0x80 | u8::try_from(length.len()).unwrap_or(u8::MAX));
        der.extend(length);
    } else {
        der.extend(&bytes[bytes.len() - 1..]);
    }
    der.extend(body);
    der
}

/// The first element of some DER: its tag, its body and what follows.
fn body(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        ..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)), rest)
        }
        _ => return None,
    };
    let (body, rest) = rest.split_at_checked(length)?;
    Some((tag, body, rest))
}

/// DER in PEM's armour.
fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let lines: Vec<&str> = text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_keys_are_read_back_as_the_same_key() {
        for algorithm in [Algorithm::Rsa(2048), Algorithm::EcdsaP256, Algorithm::EcdsaP384] {
            let key = PrivateKey::generate(algorithm).unwrap();
            let read = PrivateKey::from_pem(&key.pem).unwrap();
            assert_eq!(read.pair.public_key_raw(), key.pair.public_key_raw(), "{algorithm:?}");
            assert_eq!(read.algorithm(), algorithm);
        }
    }

    #[test]
    fn broken_keys_are_refused() {
        let key = PrivateKey::generate(Algorithm::EcdsaP256).unwrap();
        let cut = pem("EC PRIVATE KEY", &sec1(&key.pair, P256).unwrap()[..40]);
        for text in ["", "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n", &cut] {
            assert!(PrivateKey::from_pem(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lengths_of_elements_are_written_as_der_wants_them() {
        assert_eq!(element(4, &[]), [4, 0]);
        assert_eq!(element(4, &[&[7; 127]])[..2], [4, 127]);
        assert_eq!(element(4, &[&[7; 128]])[..3], [4, 0x81, 128]);
        assert_eq!(element(4, &[&[7; 300]])[..4], [4, 0x82, 1, 44]);
        for length in [0, 127, 128, 300, 70_000] {
            assert_eq!(
                body(&element(4, &[&vec![7; length]])).map(|(tag, body, _)| (tag, body.len())),
                Some((4, length))
            );
        }
    }
}
