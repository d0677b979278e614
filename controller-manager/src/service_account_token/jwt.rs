//! Signed tokens: header, claims and signature in base64, with the key named by its digest.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256, PublicKeyData as _, SigningKey as _,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::csr::authority::{AuthorityError, key_pair};

/// Signs tokens with one key.
#[derive(Debug)]
pub struct TokenSigner {
    key: KeyPair,
    algorithm: &'static str,
    id: String,
}

impl TokenSigner {
    /// From a PEM key.
    pub fn new(pem: &[u8]) -> Result<Self, AuthorityError> {
        let key = key_pair(pem)?;
        let kind = key.algorithm();
        let algorithm = if kind == &PKCS_RSA_SHA256 {
            "RS256"
        } else if kind == &PKCS_ECDSA_P256_SHA256 {
            "ES256"
        } else if kind == &PKCS_ECDSA_P384_SHA384 {
            "ES384"
        } else {
            return Err(AuthorityError::Key("unknown private key type, must be RSA or ECDSA".into()));
        };
        let id = URL_SAFE_NO_PAD.encode(Sha256::digest(key.subject_public_key_info()));
        Ok(Self { key, algorithm, id })
    }

    /// A token with these claims.
    pub fn sign(&self, claims: &Value) -> Result<String, AuthorityError> {
        let header = json!({"alg": self.algorithm, "kid": self.id});
        let text =
            format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = self.key.sign(text.as_bytes()).map_err(|e| AuthorityError::Key(e.to_string()))?;
        let signature = match self.algorithm {
            "ES256" => fixed(&signature, 32),
            "ES384" => fixed(&signature, 48),
            _ => signature,
        };
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// An ECDSA signature as tokens write it: both numbers at full width, where certificates have a DER sequence.
fn fixed(der: &[u8], width: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 * width);
    let mut rest = der.get(2..).unwrap_or_default();
    while let [2, len, tail @ ..] = rest {
        let (number, after) = tail.split_at(usize::from(*len).min(tail.len()));
        let number = &number[number.iter().take_while(|b| **b == 0).count()..];
        out.extend(std::iter::repeat_n(0, width.saturating_sub(number.len())));
        out.extend_from_slice(number);
        rest = after;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_have_full_width() {
        assert_eq!(fixed(&[0x30, 7, 2, 2, 0, 0x81, 2, 1, 5], 3), [0, 0, 0x81, 0, 0, 5]);
        let signer = TokenSigner::new(KeyPair::generate().expect("key").serialize_pem().as_bytes()).expect("signer");
        let token = signer.sign(&json!({"sub": "x"})).expect("token");
        let parts: Vec<Vec<u8>> = token.split('.').map(|p| URL_SAFE_NO_PAD.decode(p).expect("base64")).collect();
        assert_eq!(parts[2].len(), 64);
        assert_eq!(parts[1], br#"{"sub":"x"}"#);
        let header: Value = serde_json::from_slice(&parts[0]).expect("header");
        assert_eq!(header["alg"], "ES256");
    }
}
