//! Errors of calling webhooks, in Go's words.

use std::io;

use shared::cert::{self, CertError};

use super::caller::dial_error;
use super::redirect::RedirectError;
use super::target::{ServiceAddressError, TargetError};

/// A call that brought no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WebhookCallError {
    /// The configuration names nobody who could be called.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The authorities are not encoded as they must be.
    #[error("unable to load root certificates: {0}")]
    Bundle(#[from] base64::DecodeError),
    /// The authorities are no certificates.
    #[error("unable to load root certificates: {0}")]
    Authorities(#[source] CertError),
    /// The client certificate cannot be used.
    #[error(transparent)]
    Certificate(CertError),
    /// A request fails.
    #[error("Post {url:?}: {source}")]
    Post {
        /// URL of the request.
        url: String,
        /// Cause.
        source: ExchangeError,
    },
    /// The answer is no success.
    #[error("{message}")]
    Unsuccessful {
        /// HTTP code of the answer.
        code: u16,
        /// Text of client-go for it.
        message: String,
    },
}

impl WebhookCallError {
    /// Returns the HTTP code of an answer that is no success.
    pub(in super::super) fn code(&self) -> Option<u16> {
        match self {
            Self::Unsuccessful { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// A request without an answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// No answer in time.
    #[error("context deadline exceeded")]
    Deadline,
    /// The service has no address.
    #[error(transparent)]
    Address(#[from] ServiceAddressError),
    /// Nobody answers at an address.
    #[error("{}", dial_error(.address, .error))]
    Dial {
        /// Host and port.
        address: String,
        /// Cause.
        error: io::Error,
    },
    /// No certificate could have the name of the server.
    #[error(transparent)]
    ServerName(#[from] rustls_pki_types::InvalidDnsNameError),
    /// A server is not trusted, or does not speak TLS.
    #[error("{}", cert::refused(.server, .error))]
    Tls {
        /// Name of the server.
        server: String,
        /// Cause.
        error: io::Error,
    },
    /// The request cannot be written.
    #[error(transparent)]
    Request(#[from] http::Error),
    /// The connection is closed before the answer.
    #[error("EOF")]
    Closed,
    /// The server does not speak HTTP.
    #[error(transparent)]
    Http(hyper::Error),
    /// The answer breaks off, or is too large.
    #[error(transparent)]
    Body(#[from] Box<dyn std::error::Error + Send + Sync>),
    /// The answer leads nowhere.
    #[error(transparent)]
    Redirect(#[from] RedirectError),
}

impl From<hyper::Error> for ExchangeError {
    fn from(error: hyper::Error) -> Self {
        if error.is_incomplete_message() || error.is_closed() { Self::Closed } else { Self::Http(error) }
    }
}
