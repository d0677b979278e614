//! Identity of this API server: upstream's name for it, derived from the host name. Answers for upstream's
//! `genericapiserver.APIServerID`.

use data_encoding::BASE32_NOPAD;
use sha2::{Digest, Sha256};

fn id_of(host: &str) -> String {
    format!("apiserver-{}", BASE32_NOPAD.encode(&Sha256::digest(host.as_bytes())[..16]).to_ascii_lowercase())
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
        // sha256sum of the name, its first 16 bytes in base32.
        assert_eq!(id_of("localhost").len(), "apiserver-".len() + 26);
        assert_ne!(id_of("a"), id_of("b"));
    }
}
