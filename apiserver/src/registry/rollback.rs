//! Annotation of deployments that was a number.

/// Revision that a deployment is to be rolled back to.
pub(super) const ROLLBACK: &str = "deprecated.deployment.rollback.revision";
