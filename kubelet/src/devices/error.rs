//! Reasons why a container has no devices, in upstream's words.

use super::v1beta1::VERSION;
use crate::plugins::call_error;
use tonic::Status;

/// Reasons why a container does not get its devices, or cannot use those that it has.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The container wants another number than it has had from an earlier kubelet.
    #[error("pod {uid:?} container {container:?} changed request for resource {resource:?} from {had} to {number}")]
    Changed {
        /// Uid of the pod.
        uid: String,
        /// Name of the container.
        container: String,
        /// The resource.
        resource: String,
        /// Devices that it has had.
        had: usize,
        /// Devices that it wants.
        number: usize,
    },
    /// No plugin has told of devices of the resource.
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    /// All devices of the resource are ill.
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoneHealthy(String),
    /// A device of the resource that the container has is ill by now.
    #[error("previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}")]
    NotHealthyAnyMore(String),
    /// Other containers have too many devices of the resource.
    #[error("requested number of devices unavailable for {resource}. Requested: {needed}, Available: {free}")]
    TooFew {
        /// The resource.
        resource: String,
        /// Devices that the container lacks.
        needed: usize,
        /// Devices that nobody has.
        free: usize,
    },
    /// The plugin of the resource has not registered.
    #[error("unknown Device Plugin {0}")]
    NoPlugin(String),
    /// The plugin of a resource that the container has is away.
    #[error("endpoint not found in cache for a registered resource: {0}")]
    PluginAway(String),
    /// The plugin did not give the devices.
    #[error("{}", call_error(.0))]
    Allocate(Status),
    /// The plugin's answer is about no container.
    #[error("no containers return in allocation response")]
    NoAnswer,
    /// The plugin did not prepare the devices.
    #[error("device plugin PreStartContainer rpc failed with err: {}", call_error(.0))]
    Prepare(Status),
}

/// Reasons why a plugin is not taken in.
#[derive(Debug, thiserror::Error)]
pub(super) enum PluginError {
    /// Other versions than the kubelet's: these.
    #[error("manager version, {}, is not among plugin supported versions {:?}", VERSION, .0)]
    Versions(Vec<String>),
    /// A resource of a name that no extended resource has.
    #[error("invalid name of device plugin socket: the ResourceName {0:?} is invalid")]
    Name(String),
}
