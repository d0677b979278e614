//! Connections that do not come about in time are given up: a server may take them and never say a word.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use tower::{BoxError, Service};

/// Timeout of connecting.
pub(super) const CONNECT: Duration = Duration::from_secs(30);
/// Timeout of the TLS handshake, as in client-go.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A connector whose connections are secure at the end; it gives up on its own those that do not come to stand.
#[derive(Clone)]
pub(super) struct ConnectTimeout<C>(pub(super) C);

impl<C> Service<Uri> for ConnectTimeout<C>
where
    C: Service<Uri, Future: Send + 'static, Error: Into<BoxError>>,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let opened = self.0.call(uri);
        Box::pin(async move {
            match tokio::time::timeout(CONNECT + HANDSHAKE, opened).await {
                Ok(opened) => opened.map_err(Into::into),
                Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "net/http: TLS handshake timeout").into()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use tower::{ServiceExt as _, service_fn};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_says_a_word_is_given_up() {
        let began = Instant::now();
        let silent = service_fn(|_: Uri| std::future::pending::<io::Result<()>>());
        let error = ConnectTimeout(silent).oneshot(Uri::from_static("https://a")).await.expect_err("nobody");
        assert_eq!(
            (error.to_string().as_str(), began.elapsed()),
            ("net/http: TLS handshake timeout", CONNECT + HANDSHAKE)
        );
        let prompt = service_fn(|_: Uri| std::future::ready(io::Result::Ok(7)));
        assert_eq!(ConnectTimeout(prompt).oneshot(Uri::from_static("https://a")).await.expect("open"), 7);
    }
}
