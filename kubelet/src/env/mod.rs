//! A container's environment: `env`, `envFrom`, service links, `$(VAR)` expansion. Pure: every object it may need
//! is handed in. Answers for upstream's `makeEnvironmentVariables` and `third_party/forked/golang/expansion`.

pub mod fields;
pub mod files;
mod services;
#[cfg(test)]
mod tests;

use crate::facts::PodFacts;
use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret, Service};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Objects of the pod's namespace that containers of the pod refer to, by name; a missing key means that the
/// API server says it does not exist.
#[derive(Clone, Debug, Default)]
pub struct EnvSources {
    /// Config maps by name.
    pub config_maps: BTreeMap<String, Arc<ConfigMap>>,
    /// Secrets by name.
    pub secrets: BTreeMap<String, Arc<Secret>>,
    /// Contents of files by volume and path.
    pub files: BTreeMap<(String, String), String>,
}

/// Names of the objects that [`container_env`] will look up for a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvReferences {
    /// Config map names.
    pub config_maps: Vec<String>,
    /// Secret names.
    pub secrets: Vec<String>,
    /// Files by volume and path.
    pub files: Vec<(String, String)>,
}

/// Most bytes of an environment, or of a command with its arguments: the kernel starts no program with more.
const MAX_SIZE: usize = 2 << 20;

/// Reasons why a container's environment cannot be built; the container waits with `CreateContainerConfigError` and
/// this text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// `configmap "x" not found`, `couldn't find key k in ConfigMap ns/x`, …
    #[error("{0}")]
    Missing(String),
    /// A field or resource reference that does not exist.
    #[error("{0}")]
    Field(String),
    /// More than any program can be started with: references to variables multiply.
    #[error("the environment is larger than {MAX_SIZE} bytes")]
    TooLarge,
}

/// Reasons why a `subPathExpr` cannot be expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubPathError {
    /// Variables have no value.
    #[error("missing value for {}", .0.join(", "))]
    Missing(Vec<String>),
    /// The path is larger than any environment.
    #[error(transparent)]
    TooLarge(#[from] EnvError),
}

/// Objects that the container's environment refers to, each once.
pub fn references(container: &Container) -> EnvReferences {
    let mut found = EnvReferences::default();
    for source in container.env_from.iter().flatten() {
        found.config_maps.extend(source.config_map_ref.iter().map(|reference| reference.name.clone()));
        found.secrets.extend(source.secret_ref.iter().map(|reference| reference.name.clone()));
    }
    for source in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
        found.config_maps.extend(source.config_map_key_ref.iter().map(|reference| reference.name.clone()));
        found.secrets.extend(source.secret_key_ref.iter().map(|reference| reference.name.clone()));
        found.files.extend(source.file_key_ref.iter().map(|file| (file.volume_name.clone(), file.path.clone())));
    }
    found.files.sort_unstable();
    found.files.dedup();
    for names in [&mut found.config_maps, &mut found.secrets] {
        names.sort_unstable();
        names.dedup();
    }
    found
}

/// The container's environment: `envFrom` and `env` first, then those service variables that they do not hide.
/// `services` are all services of the cluster (the function picks the pod's namespace and the API server's
/// service, and honours `enableServiceLinks`).
///
/// # Errors
/// An object, key, field or resource that a variable refers to does not exist and is not optional.
pub fn container_env(
    pod: &Pod,
    container: &Container,
    services: &[Arc<Service>],
    sources: &EnvSources,
    facts: &PodFacts,
) -> Result<Vec<(String, String)>, EnvError> {
    let service_variables = services::variables(pod, services);
    let scope = EnvScope { pod, container, sources, facts };
    let mut own = Ordered::default();
    scope.add_env_from(&mut own)?;
    for variable in container.env.iter().flatten() {
        let literal = variable.value.as_deref().unwrap_or_default();
        let value = if !literal.is_empty() {
            let lookup = |name: &str| own.get(name).or_else(|| service_variables.get(name).map(String::as_str));
            expand_with(literal, lookup)?
        } else if let Some(source) = &variable.value_from {
            match scope.value_from(source)? {
                Some(value) => value,
                None => continue,
            }
        } else {
            String::new()
        };
        own.set(&variable.name, value)?;
    }
    let hidden: Vec<_> = service_variables.into_iter().filter(|(name, _)| own.get(name).is_none()).collect();
    Ok(own.all.into_iter().chain(hidden).collect())
}

/// Variables in the order of their first appearance; a later value replaces an earlier one.
#[derive(Default)]
struct Ordered {
    all: Vec<(String, String)>,
    places: HashMap<String, usize>,
    /// Bytes of all that was ever set.
    size: usize,
}

impl Ordered {
    fn get(&self, name: &str) -> Option<&str> {
        self.places.get(name).map(|place| self.all[*place].1.as_str())
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), EnvError> {
        self.size += name.len() + value.len();
        if self.size > MAX_SIZE {
            return Err(EnvError::TooLarge);
        }
        if let Some(place) = self.places.get(name) {
            self.all[*place].1 = value;
            return Ok(());
        }
        self.places.insert(name.to_owned(), self.all.len());
        self.all.push((name.to_owned(), value));
        Ok(())
    }
}

struct EnvScope<'a> {
    pod: &'a Pod,
    container: &'a Container,
    sources: &'a EnvSources,
    facts: &'a PodFacts,
}

impl EnvScope<'_> {
    fn add_env_from(&self, variables: &mut Ordered) -> Result<(), EnvError> {
        for source in self.container.env_from.iter().flatten() {
            let prefix = source.prefix.as_deref().unwrap_or_default();
            if let Some(reference) = &source.config_map_ref {
                let map = self.config_map(&reference.name, reference.optional)?;
                for (key, value) in map.iter().flat_map(|map| map.data.iter().flatten()) {
                    variables.set(&format!("{prefix}{key}"), value.clone())?;
                }
            }
            if let Some(reference) = &source.secret_ref {
                let secret = self.secret(&reference.name, reference.optional)?;
                for (key, value) in secret.iter().flat_map(|secret| secret.data.iter().flatten()) {
                    variables.set(&format!("{prefix}{key}"), String::from_utf8_lossy(&value.0).into_owned())?;
                }
            }
        }
        Ok(())
    }

    /// None: the reference is optional and what it names is not there.
    fn value_from(&self, source: &EnvVarSource) -> Result<Option<String>, EnvError> {
        if let Some(selector) = &source.field_ref {
            return fields::field(self.pod, self.facts, &selector.field_path).map(Some);
        }
        if let Some(selector) = &source.resource_field_ref {
            let name = selector.container_name.as_deref().filter(|name| !name.is_empty());
            let container = name.map_or(Some(self.container), |name| fields::container(self.pod, name));
            let container = container
                .ok_or_else(|| EnvError::Field(format!("container {} not found", name.unwrap_or_default())))?;
            return fields::resource(selector, container, self.facts).map(Some);
        }
        if let Some(selector) = &source.config_map_key_ref {
            let Some(map) = self.config_map(&selector.name, selector.optional)? else { return Ok(None) };
            let value = map.data.as_ref().and_then(|data| data.get(&selector.key)).cloned();
            return self.found("ConfigMap", &selector.name, &selector.key, selector.optional, value);
        }
        if let Some(selector) = &source.secret_key_ref {
            let Some(secret) = self.secret(&selector.name, selector.optional)? else { return Ok(None) };
            let value = secret.data.as_ref().and_then(|data| data.get(&selector.key));
            let value = value.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned());
            return self.found("Secret", &selector.name, &selector.key, selector.optional, value);
        }
        if let Some(selector) = &source.file_key_ref {
            let optional = selector.optional == Some(true);
            let file = self.sources.files.get(&(selector.volume_name.clone(), selector.path.clone()));
            let unparsable = || EnvError::Missing("couldn't parse env file".to_owned());
            let value = match file {
                None if optional => return Ok(None),
                None => return Err(unparsable()),
                Some(text) => files::value(text, &selector.key).map_err(|_| unparsable())?,
            };
            let missing =
                || EnvError::Missing(format!("environment variable key {:?} not found in file", selector.key));
            return if value.is_some() || optional { Ok(value) } else { Err(missing()) };
        }
        Ok(Some(String::new()))
    }

    fn found(
        &self,
        kind: &str,
        name: &str,
        key: &str,
        optional: Option<bool>,
        value: Option<String>,
    ) -> Result<Option<String>, EnvError> {
        if value.is_some() || optional == Some(true) {
            return Ok(value);
        }
        let namespace = self.pod.metadata.namespace.as_deref().unwrap_or_default();
        Err(EnvError::Missing(format!("couldn't find key {key} in {kind} {namespace}/{name}")))
    }

    fn config_map(&self, name: &str, optional: Option<bool>) -> Result<Option<&ConfigMap>, EnvError> {
        present(self.sources.config_maps.get(name), "configmap", name, optional)
    }

    fn secret(&self, name: &str, optional: Option<bool>) -> Result<Option<&Secret>, EnvError> {
        present(self.sources.secrets.get(name), "secret", name, optional)
    }
}

fn present<'a, K>(
    found: Option<&'a Arc<K>>,
    kind: &str,
    name: &str,
    optional: Option<bool>,
) -> Result<Option<&'a K>, EnvError> {
    if found.is_none() && optional != Some(true) {
        return Err(EnvError::Missing(format!("{kind} {name:?} not found")));
    }
    Ok(found.map(Arc::as_ref))
}

/// Expands a `subPathExpr`: it must never lead elsewhere than it says, so that every variable has to have a value.
///
/// # Errors
/// Names the variables that have none.
pub fn expand_sub_path(expression: &str, env: &[(String, String)]) -> Result<String, SubPathError> {
    let missing = RefCell::new(BTreeSet::new());
    let value = |name: &str| env.iter().rfind(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let expanded = expand_with(expression, |name| {
        let value = value(name).filter(|value| !value.is_empty());
        if value.is_none() {
            missing.borrow_mut().insert(name.to_owned());
        }
        value
    });
    let missing: Vec<String> = missing.into_inner().into_iter().collect();
    if missing.is_empty() { Ok(expanded?) } else { Err(SubPathError::Missing(missing)) }
}

/// Expands `$(VAR)` (and `$$` as an escape) in a container's command or arguments; unknown references stay as they are.
///
/// # Errors
/// [`EnvError::TooLarge`].
pub fn expand_all(list: &[String], env: &[(String, String)]) -> Result<Vec<String>, EnvError> {
    let values: HashMap<&str, &str> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut size = 0;
    let one = |input: &String| {
        let expanded = expand_with(input, |name| values.get(name).copied())?;
        size += expanded.len();
        if size > MAX_SIZE { Err(EnvError::TooLarge) } else { Ok(expanded) }
    };
    list.iter().map(one).collect()
}

fn expand_with<'a>(input: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> Result<String, EnvError> {
    let mut expanded = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(position) = rest.find('$') {
        if expanded.len() > MAX_SIZE {
            return Err(EnvError::TooLarge);
        }
        expanded.push_str(&rest[..position]);
        let after = &rest[position + 1..];
        rest = match after.as_bytes().first() {
            Some(b'$') => {
                expanded.push('$');
                &after[1..]
            }
            Some(b'(') => match after.find(')') {
                Some(end) => {
                    let name = &after[1..end];
                    match lookup(name) {
                        Some(value) => expanded.push_str(value),
                        None => expanded.push_str(&format!("$({name})")),
                    }
                    &after[end + 1..]
                }
                None => {
                    expanded.push_str("$(");
                    &after[1..]
                }
            },
            _ => {
                expanded.push('$');
                after
            }
        };
    }
    expanded.push_str(rest);
    Ok(expanded)
}
