//! Errors of configured issuers.

use shared::config::ConfigError;
use shared::os::FileError;
use shared::status::field;

/// Error of the `--oidc-*` flags or of the file of `--authentication-config`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum IssuersError {
    /// Both are given.
    #[error("authentication-config file and oidc-* flags are mutually exclusive")]
    FileAndFlags,
    /// The file and a flag are about anonymous requests.
    #[error(
        "--anonymous-auth flag cannot be set when anonymous field is configured in authentication configuration file"
    )]
    AnonymousTwice,
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] FileError),
    /// The file cannot be decoded.
    #[error(transparent)]
    Decode(#[from] ConfigError),
    /// The issuers are not valid.
    #[error("{}", field::aggregate(.0))]
    Invalid(Vec<field::Error>),
    /// Flags lack the issuer or the client.
    #[error("oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set")]
    Incomplete,
    /// A flag names this algorithm.
    #[error("oidc: unsupported signing alg: {0:?}")]
    Algorithm(String),
}
