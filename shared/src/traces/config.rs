//! `TracingConfiguration` of component-base: a part of other configurations, and a file of its own for kube-apiserver.

use proto::Value;
use proto::json::DecodeError;
use serde::Deserialize;

use crate::status::field::{Error, Path, aggregate};

/// Default address of the collector.
const COLLECTOR: &str = "localhost:4317";
/// All of them.
const MILLION: i32 = 1_000_000;
const GROUP: &str = "apiserver.config.k8s.io";
const VERSIONS: [&str; 3] = ["v1alpha1", "v1beta1", "v1"];
const KIND: &str = "TracingConfiguration";

/// See the module.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Configuration {
    /// `host:port`, or a path with the scheme `unix`.
    pub endpoint: Option<String>,
    /// Number of requests in a million that are sampled when their caller does not decide.
    pub sampling_rate_per_million: Option<i32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(flatten)]
    configuration: Configuration,
}

/// Address of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CollectorAddress {
    /// `host:port`
    Tcp(String),
    /// A socket's path.
    Unix(String),
    /// A socket's name in the abstract namespace.
    Abstract(String),
}

/// Errors of a configuration's form, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum FormatError {
    #[error(transparent)]
    Yaml(#[from] DecodeError),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("Object 'Kind' is missing")]
    NoKind,
    #[error("no kind {kind:?} is registered for version {version:?}")]
    UnknownKind { kind: String, version: String },
}

impl Configuration {
    /// Reads the file of `--tracing-config-file`.
    ///
    /// # Errors
    /// What is wrong with it, in upstream's words.
    pub fn from_file(path: &str) -> anyhow::Result<Self> {
        let text = crate::os::read(path).map_err(|why| {
            anyhow::anyhow!("failed to read tracing config: unable to read tracing configuration from {path:?}: {why}")
        })?;
        let read = Self::read(&text).map_err(|why| {
            anyhow::anyhow!("failed to read tracing config: unable to decode tracing configuration data: {why}")
        })?;
        let wrong = read.validate(None);
        anyhow::ensure!(wrong.is_empty(), "failed to validate tracing configuration: {}", aggregate(&wrong));
        Ok(read)
    }

    fn read(text: &[u8]) -> Result<Self, FormatError> {
        let json = proto::yaml::to_json(text)?;
        let file: File = serde_json::from_slice(&json)?;
        let version = file.api_version.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix('/'));
        if file.kind.is_empty() {
            return Err(FormatError::NoKind);
        }
        if file.kind != KIND || !version.is_some_and(|version| VERSIONS.contains(&version)) {
            return Err(FormatError::UnknownKind { kind: file.kind, version: file.api_version });
        }
        Ok(file.configuration)
    }

    /// Validates the configuration below a path.
    pub fn validate(&self, below: Option<&Path>) -> Vec<Error> {
        let at = |name: &str| below.map_or_else(|| Path::new(name), |path| path.child(name));
        let mut wrong = Vec::new();
        if let Some(rate) = self.sampling_rate_per_million {
            let mut invalid = |why: &str| {
                wrong.push(Error::invalid(at("samplingRatePerMillion"), Value::from(rate), why));
            };
            if rate < 0 {
                invalid("sampling rate must be positive");
            }
            if rate > MILLION {
                invalid("sampling rate per million must be less than or equal to 1000000");
            }
        }
        if let Some(endpoint) = &self.endpoint {
            let whole = if endpoint.contains("//") { endpoint.clone() } else { format!("dns://{endpoint}") };
            let scheme = whole.split_once(':').map_or("", |(scheme, _)| scheme).to_lowercase();
            if !matches!(scheme.as_str(), "dns" | "unix" | "unix-abstract") {
                let why = format!("unsupported scheme: {scheme}.  Options are none, dns, unix, or unix-abstract");
                wrong.push(Error::invalid(at("endpoint"), Value::from(whole), &why));
            }
        }
        wrong
    }

    /// The part of requests that have a trace when they do not bring one.
    pub(super) fn ratio(&self) -> f64 {
        f64::from(self.sampling_rate_per_million.unwrap_or(0).clamp(0, MILLION)) / f64::from(MILLION)
    }

    pub(super) fn endpoint(&self) -> CollectorAddress {
        let text = self.endpoint.as_deref().filter(|text| !text.is_empty()).unwrap_or(COLLECTOR);
        if let Some(path) = text.strip_prefix("unix-abstract:") {
            return CollectorAddress::Abstract(path.trim_start_matches('/').to_owned());
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return CollectorAddress::Unix(path.strip_prefix("//").unwrap_or(path).to_owned());
        }
        // What stands before the third slash is who is asked for the address, which is nobody in particular.
        let address = text.strip_prefix("dns:").unwrap_or(text);
        CollectorAddress::Tcp(address.rsplit('/').next().unwrap_or(address).to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_checked_in_upstreams_words() {
        let read = |text: &str| {
            let whole = format!("kind: TracingConfiguration\n{text}");
            Configuration::read(whole.as_bytes()).map(|c| {
                let wrong: Vec<String> = c.validate(None).iter().map(ToString::to_string).collect();
                wrong.join(", ")
            })
        };
        let v1 = "apiVersion: apiserver.config.k8s.io/v1";
        for (text, want) in [
            (format!("{v1}beta1\nendpoint: localhost:4317\nsamplingRatePerMillion: 100"), Ok("")),
            (v1.to_owned(), Ok("")),
            (format!("{v1}\nendpoint: dns://8.8.8.8/localhost:4317"), Ok("")),
            (format!("{v1}\nendpoint: unix://path/to/socket"), Ok("")),
            (
                format!("{v1}\nsamplingRatePerMillion: -1"),
                Ok("samplingRatePerMillion: Invalid value: -1: sampling rate must be positive"),
            ),
            (
                format!("{v1}\nsamplingRatePerMillion: 1000001"),
                Ok(
                    "samplingRatePerMillion: Invalid value: 1000001: sampling rate per million must be less than or equal to 1000000",
                ),
            ),
            (
                format!("{v1}\nendpoint: http://localhost:4317"),
                Ok(
                    "endpoint: Invalid value: \"http://localhost:4317\": unsupported scheme: http.  Options are none, dns, unix, or unix-abstract",
                ),
            ),
            (
                "apiVersion: apiserver.config.k8s.io/v2".to_owned(),
                Err("no kind \"TracingConfiguration\" is registered for version \"apiserver.config.k8s.io/v2\""),
            ),
        ] {
            let got = read(&text).map_err(|e| e.to_string());
            assert_eq!(got.as_deref().map_err(String::as_str), want, "{text}");
        }
    }

    #[test]
    fn endpoints_are_understood() {
        let of = |text: &str| Configuration { endpoint: Some(text.to_owned()), ..Configuration::default() }.endpoint();
        for (text, want) in [
            ("", CollectorAddress::Tcp("localhost:4317".to_owned())),
            ("collector:4317", CollectorAddress::Tcp("collector:4317".to_owned())),
            ("dns:///collector:4317", CollectorAddress::Tcp("collector:4317".to_owned())),
            ("dns://8.8.8.8/collector:4317", CollectorAddress::Tcp("collector:4317".to_owned())),
            ("unix:///run/otel.sock", CollectorAddress::Unix("/run/otel.sock".to_owned())),
            ("unix-abstract:///otel", CollectorAddress::Abstract("otel".to_owned())),
        ] {
            assert_eq!(of(text), want, "{text}");
        }
    }
}
