//! The ciphers with keys of the configuration: AES-CBC with PKCS#7, AES-GCM and NaCl's secretbox. Answers for
//! upstream's `pkg/storage/value/encrypt/{aes`,secretbox}.

use aes::cipher::block_padding::Pkcs7;
use aes::cipher::{BlockDecryptMut as _, BlockEncryptMut as _, KeyIvInit as _};
use aes_gcm::aead::{Aead as _, Payload};
use aes_gcm::aes::{Aes128, Aes192, Aes256};
use aes_gcm::{AesGcm, KeyInit as _, Nonce};
use crypto_secretbox::XSalsa20Poly1305;
use rand::Rng as _;

use super::Error;

type Gcm<A> = AesGcm<A, aes_gcm::aead::consts::U12>;

const IV: usize = 16;
const GCM_NONCE: usize = 12;
const BOX_NONCE: usize = 24;

/// A cipher with its key.
pub(super) enum Cipher {
    /// Not authenticated: whoever can write to etcd can change what is read.
    Cbc(Aes),
    /// The key of the object in etcd is authenticated along.
    Gcm(Aes),
    /// XSalsa20 and Poly1305.
    Secretbox(Box<XSalsa20Poly1305>),
}

/// An AES key of any length.
pub(super) enum Aes {
    K128(Box<[u8; 16]>),
    K192(Box<[u8; 24]>),
    K256(Box<[u8; 32]>),
}

impl Aes {
    /// 16, 24 or 32 bytes.
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        Some(match key.len() {
            16 => Self::K128(Box::new(key.try_into().ok()?)),
            24 => Self::K192(Box::new(key.try_into().ok()?)),
            32 => Self::K256(Box::new(key.try_into().ok()?)),
            _ => return None,
        })
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::rng().fill(&mut bytes[..]);
    bytes
}

fn cbc_seal(key: &Aes, iv: &[u8; IV], plain: &[u8]) -> Vec<u8> {
    let iv = iv.into();
    match key {
        Aes::K128(k) => cbc::Encryptor::<Aes128>::new((&**k).into(), iv).encrypt_padded_vec_mut::<Pkcs7>(plain),
        Aes::K192(k) => cbc::Encryptor::<Aes192>::new((&**k).into(), iv).encrypt_padded_vec_mut::<Pkcs7>(plain),
        Aes::K256(k) => cbc::Encryptor::<Aes256>::new((&**k).into(), iv).encrypt_padded_vec_mut::<Pkcs7>(plain),
    }
}

fn cbc_open(key: &Aes, sealed: &[u8]) -> Result<Vec<u8>, Error> {
    let Some((iv, body)) = sealed.split_first_chunk::<IV>() else {
        return Err(Error::Cipher("the stored data was shorter than the required size"));
    };
    if body.len() % IV != 0 {
        return Err(Error::Cipher("the stored data is not a multiple of the block size"));
    }
    let iv = iv.into();
    let opened = match key {
        Aes::K128(k) => cbc::Decryptor::<Aes128>::new((&**k).into(), iv).decrypt_padded_vec_mut::<Pkcs7>(body),
        Aes::K192(k) => cbc::Decryptor::<Aes192>::new((&**k).into(), iv).decrypt_padded_vec_mut::<Pkcs7>(body),
        Aes::K256(k) => cbc::Decryptor::<Aes256>::new((&**k).into(), iv).decrypt_padded_vec_mut::<Pkcs7>(body),
    };
    opened.map_err(|_| Error::Cipher("invalid PKCS7 data (incorrect padding)"))
}

/// AES-GCM with a random nonce in front.
pub(super) fn gcm_seal(key: &Aes, path: &str, plain: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
    let nonce = random::<GCM_NONCE>();
    let payload = Payload { msg: plain, aad: path.as_bytes() };
    let nonce_ref: &Nonce<_> = (&nonce).into();
    let sealed = match key {
        Aes::K128(k) => Gcm::<Aes128>::new((&**k).into()).encrypt(nonce_ref, payload),
        Aes::K192(k) => Gcm::<Aes192>::new((&**k).into()).encrypt(nonce_ref, payload),
        Aes::K256(k) => Gcm::<Aes256>::new((&**k).into()).encrypt(nonce_ref, payload),
    };
    out.extend_from_slice(&nonce);
    out.extend_from_slice(&sealed.map_err(|_| Error::Cipher("cipher: message too large for GCM"))?);
    Ok(())
}

/// The reverse.
pub(super) fn gcm_open(key: &Aes, path: &str, sealed: &[u8]) -> Result<Vec<u8>, Error> {
    let Some((nonce, body)) = sealed.split_first_chunk::<GCM_NONCE>() else {
        return Err(Error::Cipher("the stored data was shorter than the required size"));
    };
    let payload = Payload { msg: body, aad: path.as_bytes() };
    let nonce: &Nonce<_> = nonce.into();
    let opened = match key {
        Aes::K128(k) => Gcm::<Aes128>::new((&**k).into()).decrypt(nonce, payload),
        Aes::K192(k) => Gcm::<Aes192>::new((&**k).into()).decrypt(nonce, payload),
        Aes::K256(k) => Gcm::<Aes256>::new((&**k).into()).decrypt(nonce, payload),
    };
    opened.map_err(|_| Error::Cipher("cipher: message authentication failed"))
}

impl Cipher {
    /// A secretbox; 32 bytes.
    pub(super) fn secretbox(key: &[u8]) -> Option<Self> {
        XSalsa20Poly1305::new_from_slice(key).ok().map(|c| Self::Secretbox(Box::new(c)))
    }

    /// Name in error texts.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Cbc(_) => "AES-CBC",
            Self::Gcm(_) => "AES-GCM",
            Self::Secretbox(_) => "Secretbox",
        }
    }

    /// Appends the sealed bytes.
    pub(super) fn seal(&self, path: &str, plain: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        match self {
            Self::Cbc(key) => {
                let iv = random::<IV>();
                out.extend_from_slice(&iv);
                out.extend_from_slice(&cbc_seal(key, &iv, plain));
            }
            Self::Gcm(key) => gcm_seal(key, path, plain, out)?,
            Self::Secretbox(cipher) => {
                let nonce = random::<BOX_NONCE>();
                let sealed = cipher.encrypt((&nonce).into(), plain);
                out.extend_from_slice(&nonce);
                out.extend_from_slice(&sealed.map_err(|_| Error::Cipher("message too large for secretbox"))?);
            }
        }
        Ok(())
    }

    /// The reverse.
    pub(super) fn open(&self, path: &str, sealed: &[u8]) -> Result<Vec<u8>, Error> {
        match self {
            Self::Cbc(key) => cbc_open(key, sealed),
            Self::Gcm(key) => gcm_open(key, path, sealed),
            Self::Secretbox(cipher) => {
                let Some((nonce, body)) = sealed.split_first_chunk::<BOX_NONCE>() else {
                    return Err(Error::Cipher("the stored data was shorter than the required size"));
                };
                cipher.decrypt(nonce.into(), body).map_err(|_| Error::Cipher("invalid ciphertext"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex")).collect()
    }

    #[test]
    fn secretbox_is_nacls() {
        // The beginning of NaCl's own test message, whose tag is not that of the whole: sealed here, then compared by
        // parts.
        let key = unhex("1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389");
        let nonce: [u8; 24] = unhex("69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37").try_into().expect("24");
        let plain = unhex("be075fc53c81f2d5cf141316ebeb0c7b5228c52a4c62cbd44b66849b64244ffc");
        let cipher = XSalsa20Poly1305::new_from_slice(&key).expect("key");
        let sealed = cipher.encrypt((&nonce).into(), &plain[..]).expect("sealed");
        // Sixteen bytes of tag come first.
        assert_eq!(sealed[16..], unhex("8e993b9f48681273c29650ba32fc76ce48332ea7164d96a4476fb8c531a1186a"));
    }

    #[test]
    fn ciphers_round_trip_and_reject_foreign_data() {
        let key = [7; 32];
        for cipher in [
            Cipher::Cbc(Aes::new(&key).expect("key")),
            Cipher::Cbc(Aes::new(&key[..16]).expect("key")),
            Cipher::Gcm(Aes::new(&key[..24]).expect("key")),
            Cipher::Gcm(Aes::new(&key).expect("key")),
            Cipher::secretbox(&key).expect("key"),
        ] {
            for plain in [&b""[..], b"a", &[0x5a; 4096]] {
                let mut sealed = Vec::new();
                cipher.seal("/registry/secrets/a/b", plain, &mut sealed).expect("sealed");
                assert_eq!(cipher.open("/registry/secrets/a/b", &sealed).as_deref(), Ok(plain));
                let elsewhere = cipher.open("/registry/secrets/a/c", &sealed);
                assert_eq!(elsewhere.is_err(), matches!(cipher, Cipher::Gcm(_)), "{}", cipher.name());
                let last = sealed.len() - 1;
                sealed[last] ^= 0x80;
                if !matches!(cipher, Cipher::Cbc(_)) {
                    assert!(cipher.open("/registry/secrets/a/b", &sealed).is_err());
                }
                for end in [0, 1, 11, 15, 17, 23] {
                    assert!(cipher.open("", &sealed[..end.min(sealed.len())]).is_err());
                }
            }
        }
        assert!(Aes::new(&key[..31]).is_none() && Cipher::secretbox(&key[..16]).is_none());
    }
}
