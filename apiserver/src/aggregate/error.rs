//! Errors of reaching other servers, in Go's words.

use std::error::Error as _;
use std::io;

use hyper_util::client::legacy;
use shared::cert::{self, CertError};
use shared::status::Status;

use crate::admission::{ServiceAddressError, dial_error};

/// A server to which there can be no connections.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// Authorities of the server, or a pair of the front proxy, that cannot be used.
    #[error("unable to load root certificates: {0}")]
    Authorities(#[source] CertError),
    /// The authorities of peers, or the front proxy's pair, cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertError),
    /// No certificate could have its name.
    #[error(transparent)]
    Name(#[from] rustls_pki_types::InvalidDnsNameError),
}

/// A request that another server does not answer.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// A service without an address.
    #[error(transparent)]
    Address(#[from] ServiceAddressError),
    /// A part of the user fits into no header; this is the name of the header.
    #[error("net/http: invalid header field value for {0:?}")]
    Header(String),
    /// The request cannot be written.
    #[error(transparent)]
    Request(#[from] http::Error),
    /// The server cannot be reached, or breaks off.
    #[error("{}", explain(.server, .address, .error))]
    Exchange {
        /// Name in its certificate.
        server: String,
        /// Host and port.
        address: String,
        /// Cause.
        error: Box<legacy::Error>,
    },
    /// A connection that is to switch protocols cannot be opened.
    #[error("{0}")]
    Upgrade(io::Error),
    /// The answer cannot be passed on.
    #[error("{}", .0.message)]
    Answer(Box<Status>),
    /// The answer is larger than what is read of it.
    #[error("the answer is too large")]
    TooLarge,
    /// The answer breaks off.
    #[error(transparent)]
    Body(#[from] Box<dyn std::error::Error + Send + Sync>),
}

/// Returns the error of the system or of TLS among the causes of an error.
pub(super) fn io_error(error: &legacy::Error) -> Option<&io::Error> {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(io) = inner.downcast_ref::<io::Error>() {
            return Some(innermost(io));
        }
        source = inner.source();
    }
    None
}

/// Reports whether an error is of TLS.
pub(super) fn is_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|e| e.is::<rustls::Error>())
}

/// The error that errors of the same kind were put around.
fn innermost(error: &io::Error) -> &io::Error {
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<io::Error>());
    inner.map_or(error, innermost)
}

fn explain(server: &str, address: &str, error: &legacy::Error) -> String {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(io) = inner.downcast_ref::<io::Error>().map(innermost) {
            return if is_tls(io) { cert::refused(server, io) } else { dial_error(address, io) };
        }
        if let Some(hyper) = inner.downcast_ref::<hyper::Error>()
            && (hyper.is_incomplete_message() || hyper.is_closed() || hyper.is_canceled())
        {
            return "EOF".to_owned();
        }
        source = inner.source();
    }
    error.to_string()
}
