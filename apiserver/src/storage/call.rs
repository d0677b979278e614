//! Calls to etcd with a deadline, and counted.

use tonic::Code;

use super::errors::{Error, classify};
use super::grpc::{self, EtcdCall};

/// Deadline of one call.
const CALL_DEADLINE: std::time::Duration = std::time::Duration::from_secs(10);

/// A call, in time and counted.
pub(super) async fn timed<T>(
    what: EtcdCall,
    call: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, Error> {
    what.begin();
    let outcome = tokio::time::timeout(CALL_DEADLINE, call).await;
    what.end(match &outcome {
        Ok(Ok(_)) => Code::Ok,
        Ok(Err(e)) => grpc::code(e),
        Err(_) => Code::DeadlineExceeded,
    });
    match outcome {
        Ok(Ok(v)) => Ok(v),
        Ok(Err(e)) => Err(classify(e)),
        Err(_) => Err(Error::Timeout),
    }
}
