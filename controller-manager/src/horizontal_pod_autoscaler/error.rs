//! Errors of finding a target's scale, of measuring and of proposing replicas. Texts are upstream's: they become conditions.

use proto::selector;
use shared::client::path::NameError;
use thiserror::Error;

use crate::engine::rest::RestError;

/// Errors of finding a resource or a scale.
#[derive(Debug, Clone, Error)]
pub enum TargetError {
    /// No version of a group.
    #[error("unexpected GroupVersion string: {0}")]
    GroupVersion(String),
    /// No resource has this kind.
    #[error("no matches for kind {kind:?} in group {group:?}")]
    NoMatch {
        /// The kind.
        kind: String,
        /// Group of the kind.
        group: String,
    },
    /// Custom metrics are not served.
    #[error("no custom metrics API (custom.metrics.k8s.io) registered")]
    NoCustomMetrics,
    /// No resource of the kind has a scale.
    #[error("unrecognized resource")]
    NoScale,
    /// The name cannot be part of a path.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The server refuses.
    #[error(transparent)]
    Server(#[from] RestError),
}

/// APIs that serve metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsApi {
    /// `metrics.k8s.io`
    Resource,
    /// `custom.metrics.k8s.io`
    Custom,
    /// `external.metrics.k8s.io`
    External,
}

impl std::fmt::Display for MetricsApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Resource => "resource metrics API",
            Self::Custom => "custom metrics API",
            Self::External => "external metrics API",
        })
    }
}

/// Errors of a measurement.
#[derive(Debug, Clone, Error)]
pub enum MeasureError {
    /// The server refuses, in client-go's words.
    #[error("unable to fetch metrics from {api}: {message}")]
    Fetch {
        /// API that was asked.
        api: MetricsApi,
        /// The server's message.
        message: String,
    },
    /// There is no way to the metrics of an object.
    #[error("unable to fetch metrics from custom metrics API: {0}")]
    Target(#[from] TargetError),
    /// An API has no metrics.
    #[error("no metrics returned from {0}")]
    Empty(MetricsApi),
    /// An object has no metric of this name.
    #[error(
        "unable to fetch metrics from custom metrics API: the custom metrics API server returned no results for metric {0}"
    )]
    NoResult(String),
    /// An object has several metrics of this name.
    #[error(
        "unable to fetch metrics from custom metrics API: the custom metrics API server returned more than one result for metric {0}"
    )]
    SeveralResults(String),
    /// A name cannot be part of a path.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A selector that is none.
    #[error(transparent)]
    Selector(#[from] selector::Error),
    /// Nothing of this form was measured.
    #[error("no metrics")]
    None,
}

/// The selector of a target picks no pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no pods returned by selector while calculating replica count")]
pub struct NoPods;

/// Errors of calculating replicas.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CalculationError {
    /// There are no pods.
    #[error(transparent)]
    NoPods(#[from] NoPods),
    /// There are no pods that could be ready.
    #[error("unable to calculate ready pods: {0}")]
    ReadyPods(#[source] NoPods),
    /// No pod that counts was measured.
    #[error("did not receive metrics for targeted pods (pods might be unready)")]
    NoSamples,
    /// The measured pods request nothing.
    #[error("no metrics returned matched known pods")]
    NoRequests,
    /// A pod requests for all its containers together, but nothing of the resource.
    #[error("missing pod-level request for {resource} in Pod {pod}")]
    PodRequest {
        /// The resource.
        resource: String,
        /// The pod.
        pod: String,
    },
    /// A container requests nothing of the resource.
    #[error("missing request for {resource} in container {container} of Pod {pod}")]
    Request {
        /// The resource.
        resource: String,
        /// The container.
        container: String,
        /// The pod.
        pod: String,
    },
    /// A pod has no container of this name.
    #[error("container {container} not found in Pod {pod}")]
    NoContainer {
        /// The container.
        container: String,
        /// The pod.
        pod: String,
    },
}

/// Errors of a proposal.
#[derive(Debug, Clone, Error)]
pub enum ProposalError {
    /// A resource was not measured.
    #[error("unable to get metrics for resource {resource}: {source}")]
    Resource {
        /// The resource.
        resource: String,
        /// Cause.
        source: Box<MeasureError>,
    },
    /// A metric of an object was not measured.
    #[error("unable to get metric {metric}: {object}/{source}")]
    Object {
        /// The metric.
        metric: String,
        /// Kind, namespace and name of the object.
        object: String,
        /// Cause.
        source: Box<MeasureError>,
    },
    /// An external metric was not measured.
    #[error("unable to get external metric {metric}: {source}")]
    External {
        /// Namespace, name and selector of the metric.
        metric: String,
        /// Cause.
        source: Box<MeasureError>,
    },
    /// The measurements are not enough.
    #[error(transparent)]
    Calculation(#[from] CalculationError),
}

/// Errors of a proposal for a resource.
#[derive(Debug, Clone, Error)]
pub enum ResourceError {
    /// The target is a value for each pod.
    #[error("failed to get {resource} usage: {source}")]
    Usage {
        /// The resource.
        resource: String,
        /// Cause.
        source: ProposalError,
    },
    /// The target is a share of the requests.
    #[error("failed to get {resource} utilization: {source}")]
    Utilization {
        /// The resource.
        resource: String,
        /// Cause.
        source: ProposalError,
    },
    /// There is no target.
    #[error(
        "invalid resource metric source: neither an average utilization target nor an average value (usage) target was set"
    )]
    NoTarget,
}
