//! Outcomes of transformers.

/// Errors of transformers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No provider of the resource knows the prefix.
    #[error("no matching prefix found")]
    NoPrefix,
    /// The prefix is known, none of its keys is the right one.
    #[error("no matching key was found for the provided {0} transformer")]
    NoKey(&'static str),
    /// Sealed bytes where plain ones were expected.
    #[error("identity transformer tried to read encrypted data")]
    Identity,
    /// The bytes are damaged, or not for this key.
    #[error("{0}")]
    Cipher(&'static str),
    /// The key management service.
    #[error("{0}")]
    Kms(String),
}

/// Opened bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Transformed {
    /// Decrypted bytes.
    pub bytes: Vec<u8>,
    /// The value would be encrypted differently now.
    pub stale: bool,
}
