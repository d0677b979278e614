//! Permission to write that ends by itself: a process that was frozen while it led finds what it had begun, and must not
//! finish it under another leader.

use std::fmt;
use std::sync::Arc;

use http::{Method, Request};

use super::peer::Broken;

/// Lets writes pass for as long as its condition holds. It is asked right before a request is handed to the connection,
/// after every wait for a turn, a token or a connection. Cheap to clone.
#[derive(Clone)]
pub struct Fence(Arc<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fence").field(&self.is_open()).finish()
    }
}

/// The error of a write that was held back.
#[derive(Debug, thiserror::Error)]
#[error("the request was not sent: the lease has expired")]
struct Closed;

impl Fence {
    /// By its condition, which is evaluated for every write.
    pub fn new(is_open: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_open))
    }

    /// Reports whether writes pass now.
    pub fn is_open(&self) -> bool {
        (self.0)()
    }

    /// Puts the fence in front of a request, where that is a write.
    pub(super) fn guard<B>(&self, request: &mut Request<B>) {
        if !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
            request.extensions_mut().insert(self.clone());
        }
    }

    /// Refuses a request whose fence is closed.
    pub(super) fn check<B>(request: &Request<B>) -> Result<(), Broken> {
        match request.extensions().get::<Self>() {
            Some(fence) if !fence.is_open() => Err(Broken::because(Closed)),
            _ => Ok(()),
        }
    }
}
