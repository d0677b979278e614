//! Errors of etcd. In: an error of its client. Out: the same as Go's client words it, or as the store tells it apart.
//! Never: a call. Answers for upstream's `interpretWatchError`, `rpctypes.Error`.

use super::Error;

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
