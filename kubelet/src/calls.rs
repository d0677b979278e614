//! Calls of the API server, which may be away: they end in time.

use std::time::Duration;

/// Failures of calls of the API server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// No answer in time.
    #[error("the API server did not answer in time")]
    Late,
    /// A refusal, or no connection.
    #[error(transparent)]
    Refused(#[from] kube::Error),
}

/// Waits for a call for as long as `deadline`.
pub(crate) async fn timely<T>(deadline: Duration, call: impl Future<Output = kube::Result<T>>) -> Result<T, ApiError> {
    Ok(tokio::time::timeout(deadline, call).await.map_err(|_| ApiError::Late)??)
}
