//! Errors of peer API servers.

use shared::status::field::aggregate;

use super::GATE;
use crate::aggregate::{BackendError, ForwardError};

/// Flags about peers that cannot be obeyed.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    /// Flags that need the feature gate.
    #[error("{}", aggregate(&.0.iter().map(|flag| format!("--{flag} requires {GATE} feature to be turned on")).collect::<Vec<_>>()))]
    NeedGate(Vec<&'static str>),
    /// The feature gate needs another one.
    #[error("{GATE} feature requires APIServerIdentity feature flag to be enabled")]
    NoIdentity,
    /// This file of the front proxy's pair is not given.
    #[error("error building peer proxy handler, {0} not specified")]
    NoFile(&'static str),
    /// The port is no number.
    #[error("strconv.Atoi: parsing {0:?}: invalid syntax")]
    Port(String),
    /// The certificates cannot be used.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// A discovery document that a peer does not give.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerDiscoveryError {
    /// No lease that says where the peer is found.
    #[error("its address is unknown")]
    NoAddress,
    /// No answer in time.
    #[error("it takes too long")]
    Deadline,
    /// No answer.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// A refusal with this code.
    #[error("discovery request failed with status: {0}")]
    Status(u16),
    /// A document that is no JSON.
    #[error("error decoding discovery response: {0}")]
    Document(#[from] serde_json::Error),
}
