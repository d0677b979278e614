//! Errors of setting audit up, in upstream's words.

use shared::client::RemoteError;
use shared::config::ConfigError;
use shared::os::FileError;
use shared::status::field;

/// A policy that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyFileError {
    /// No file is named.
    #[error("file path not specified")]
    NoPath,
    /// The file cannot be read.
    #[error("failed to read file path {path:?}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Cause.
        source: FileError,
    },
    /// The file holds no usable policy.
    #[error("{source}: from file {path}")]
    Invalid {
        /// The file.
        path: String,
        /// Cause.
        source: PolicyError,
    },
}

/// Fault of a policy.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PolicyError {
    /// No kind or version.
    #[error("unknown group version field audit.k8s.io/__internal, Kind=Policy in policy")]
    NoVersion,
    /// Another form than that of a policy.
    #[error("failed decoding: {0}")]
    Decode(ConfigError),
    /// Rules are not valid.
    #[error("{}", field::aggregate(.0))]
    Invalid(Vec<field::Error>),
    /// No rules.
    #[error("loaded illegal policy with 0 rules")]
    NoRules,
}

/// Flags of audit that cannot be obeyed.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The policy.
    #[error("loading audit policy file: {0}")]
    Policy(#[from] PolicyFileError),
    /// Logs have no such format.
    #[error("invalid audit log format {0}, allowed formats are \"legacy,json\"")]
    LogFormat(String),
    /// A flag is negative.
    #[error("--{flag} {value} can't be a negative number")]
    Negative {
        /// Name of the flag.
        flag: String,
        /// Value of the flag.
        value: i64,
    },
    /// The log cannot be opened.
    #[error("ensureLogFile: {0}")]
    Log(#[source] std::io::Error),
    /// The kubeconfig of the webhook cannot be used.
    #[error("initializing audit webhook: {0}")]
    Webhook(#[source] RemoteError),
    /// A back end writes no events of this version.
    #[error("invalid audit {backend} API version {version}, allowed versions are \"audit.k8s.io/v1\"")]
    Version {
        /// The back end.
        backend: &'static str,
        /// The version.
        version: String,
    },
    /// An event may be larger than a batch.
    #[error("maximum event size must not be greater than maximum batch size: {event} > {batch}")]
    EventSize {
        /// Size of an event.
        event: usize,
        /// Size of a batch.
        batch: usize,
    },
    /// A back end has no such mode.
    #[error("invalid audit {backend} mode {mode}, allowed modes are \"batch,blocking,blocking-strict\"")]
    Mode {
        /// The back end.
        backend: &'static str,
        /// The mode.
        mode: String,
    },
    /// A batch has no events.
    #[error("invalid audit batch {backend} max batch size {size}, must be a positive number")]
    BatchSize {
        /// The back end.
        backend: &'static str,
        /// Size of a batch.
        size: usize,
    },
    /// No batch may be sent.
    #[error("invalid audit batch {backend} throttle QPS {qps}, must be a positive number")]
    Throttle {
        /// The back end.
        backend: &'static str,
        /// Batches a second.
        qps: f64,
    },
}

/// Events that a back end did not take.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeliveryError {
    /// The log cannot be written.
    #[error(transparent)]
    Log(#[from] std::io::Error),
    /// The webhook refuses them; this is the text of client-go.
    #[error("{0}")]
    Refused(String),
    /// The webhook does not answer.
    #[error(transparent)]
    Webhook(#[from] RemoteError),
}
