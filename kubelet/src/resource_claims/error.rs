//! Failures of resource claims, in upstream's words.

use super::plugin::DriverError;
use crate::objects::ObjectError;
use std::io;
use std::path::PathBuf;
use tokio::task::JoinError;

/// Reasons why a pod cannot use a claim, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The claim is not allocated.
    #[error("ResourceClaim {0}: not allocated")]
    NotAllocated(String),
    /// The claim that is made for the pod is not there yet.
    #[error("pod \"{namespace}/{pod}\": ResourceClaim not created yet")]
    NotCreated {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        pod: String,
    },
    /// The claim was made for another pod.
    #[error("ResourceClaim {namespace}/{claim} was not created for pod {namespace}/{pod} (pod is not owner)")]
    NotOwned {
        /// Namespace of both.
        namespace: String,
        /// Name of the claim.
        claim: String,
        /// Name of the pod.
        pod: String,
    },
    /// The claim is reserved for others.
    #[error("pod {pod} ({uid}) is not allowed to use ResourceClaim {claim} ({claim_uid})")]
    NotReserved {
        /// Name of the pod.
        pod: String,
        /// Uid of the pod.
        uid: String,
        /// Name of the claim.
        claim: String,
        /// Uid of the claim.
        claim_uid: String,
    },
    /// An earlier claim of the same name is still prepared.
    #[error(
        "old ResourceClaim with same name {name} and different UID {uid} still exists (previous pod force-deleted?!)"
    )]
    Old {
        /// Name of both.
        name: String,
        /// Uid of the earlier one.
        uid: String,
    },
    /// The claim is not prepared.
    #[error("unable to get claim info for claim {claim} in namespace {namespace}")]
    NotPrepared {
        /// Name of the claim.
        claim: String,
        /// Namespace of the claim.
        namespace: String,
    },
}

/// A pod's claims that are not prepared, or not given back.
#[derive(Debug, thiserror::Error)]
pub enum ResourceClaimError {
    /// Claims that are not prepared.
    #[error("prepare dynamic resources: {0}")]
    Prepare(ClaimFailure),
    /// Claims that are not given back.
    #[error("unprepare dynamic resources: {0}")]
    Unprepare(ClaimFailure),
}

/// Causes of a claim that is not prepared, or not given back.
#[derive(Debug, thiserror::Error)]
pub enum ClaimFailure {
    /// The claim cannot be read.
    #[error("fetch ResourceClaim {name}: {cause}")]
    Fetch {
        /// Name of the claim.
        name: String,
        /// Cause.
        #[source]
        cause: ObjectError,
    },
    /// The claim is not for the pod.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// A driver is away, or failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The checkpoint cannot be written.
    #[error("checkpoint ResourceClaim state: {0}")]
    Checkpoint(#[from] io::Error),
    /// The work panicked.
    #[error(transparent)]
    Panicked(#[from] JoinError),
}

/// A driver whose versions do not suit.
#[derive(Debug, thiserror::Error)]
#[error("invalid supported gRPC versions of DRA driver plugin {name} at endpoint {}: {cause}", .endpoint.display())]
pub(super) struct UnsuitableDriver {
    pub(super) name: String,
    pub(super) endpoint: PathBuf,
    #[source]
    pub(super) cause: super::plugin::VersionsError,
}
