//! Who this server is among several: upstream's name for it, made from the machine's name.

use sha2::{Digest, Sha256};

/// RFC 4648, lower case, without padding.
fn base32(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let (mut out, mut held, mut bits) = (String::new(), 0_u32, 0);
    for byte in bytes {
        held = held << 8 | u32::from(*byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            out.push(char::from(LETTERS[(held >> bits & 31) as usize]));
        }
        held &= (1 << bits) - 1;
    }
    if bits > 0 {
        out.push(char::from(LETTERS[(held << (5 - bits) & 31) as usize]));
    }
    out
}

fn id_of(host: &str) -> String {
    format!("apiserver-{}", base32(&Sha256::digest(host.as_bytes())[..16]))
}

/// `apiserver-` and 26 letters and digits.
pub fn server_id() -> String {
    id_of(&shared::serve::hostname())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(base32(b"foobar"), "mzxw6ytboi");
        assert_eq!(base32(b"f"), "my");
        // sha256sum of the name, its first 16 bytes in base32.
        assert_eq!(id_of("localhost").len(), "apiserver-".len() + 26);
        assert_ne!(id_of("a"), id_of("b"));
    }
}
