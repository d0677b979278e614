//! Errors of etcd. In: an error of its client. Out: the same as Go's client words it, or as the store tells it apart.
//! Never: a call. Answers for upstream's `interpretWatchError`, `rpctypes.Error`.

use super::transform;

/// Errors of storage.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// etcd could not be asked, or answered with an error.
    #[error("{}", error_text(.0))]
    Etcd(#[from] etcd_client::Error),
    /// The revision asked for is gone.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    /// The revision asked for has not happened yet.
    #[error("etcdserver: mvcc: required revision is a future revision")]
    Future,
    /// etcd did not answer in time.
    #[error("context deadline exceeded")]
    Timeout,
    /// The bytes cannot be sealed or opened.
    #[error("unable to transform key {key:?}: {why}")]
    Transform {
        /// The key.
        key: String,
        /// Cause.
        why: transform::Error,
    },
    /// Certificate files of the connection are unreadable.
    #[error(transparent)]
    Certificates(#[from] shared::cert::CertError),
}

/// An error as Go's client has it: etcd's own words, or the code of the call. That client does not even send what a
/// server does not take.
pub(super) fn error_text(e: &etcd_client::Error) -> String {
    match e {
        etcd_client::Error::GRpcStatus(s) if s.message().starts_with("etcdserver: ") => s.message().to_owned(),
        etcd_client::Error::GRpcStatus(s) => {
            let said = s.message().replacen("grpc: received message larger", "trying to send message larger", 1);
            format!("rpc error: code = {} desc = {said}", shared::grpc::name(s.code()))
        }
        other => other.to_string(),
    }
}

/// Tells errors about revisions apart from others.
pub(super) fn classify(e: etcd_client::Error) -> Error {
    if let etcd_client::Error::GRpcStatus(s) = &e {
        let m = s.message();
        if m.contains("has been compacted") {
            return Error::Compacted;
        }
        if m.contains("future revision") {
            return Error::Future;
        }
    }
    Error::Etcd(e)
}
