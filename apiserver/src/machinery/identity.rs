//! Identity of this API server: upstream's name for it, derived from the host name, and the user that it writes as.
//! Answers for upstream's `genericapiserver.APIServerID`.

use data_encoding::BASE32_NOPAD;
use sha2::{Digest, Sha256};
use shared::authn::{SYSTEM_MASTERS, UserInfo};

/// The server's own user name.
pub const SERVER: &str = "system:apiserver";

fn id_of(host: &str) -> String {
    format!("apiserver-{}", BASE32_NOPAD.encode(&Sha256::digest(host.as_bytes())[..16]).to_ascii_lowercase())
}

/// `apiserver-` and 26 letters and digits.
pub fn server_id() -> String {
    id_of(&shared::serve::hostname())
}

/// User that the server writes as.
pub fn server_user() -> UserInfo {
    UserInfo { name: SERVER.to_owned(), groups: vec![SYSTEM_MASTERS.to_owned()], ..UserInfo::default() }
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
