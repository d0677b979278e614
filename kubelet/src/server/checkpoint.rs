//! `/checkpoint`: the state of a container in an archive below the root directory. Answers for the `checkpoint` handler of
//! upstream's server and for `kubelet.CheckpointContainer`.

use super::Server;
use super::answer::{Answer, bytes, error};
use super::query;
use crate::cri::CriError;
use crate::pods;
use crate::settings::CHECKPOINTS;
use http::{Request, StatusCode};
use jiff::{Timestamp, tz::TimeZone};
use k8s_openapi::api::core::v1::Pod;
use std::time::Duration;

/// Reads how long the runtime may take, in seconds: the last of several values counts.
fn timeout(values: &[String]) -> Result<i64, &'static str> {
    let Some(last) = values.last() else { return Ok(0) };
    last.parse().map_err(|_| "cannot parse value of timeout parameter")
}

/// Name of an archive: `checkpoint-<pod>_<namespace>-<container>-<time>.tar`.
fn archive(pod: &Pod, container: &str, now: Timestamp) -> String {
    let time = now.to_zoned(TimeZone::system()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string();
    let time = time.strip_suffix("+00:00").map_or(time.clone(), |time| format!("{time}Z"));
    format!("checkpoint-{}_{}-{container}-{time}.tar", pods::name(pod), pods::namespace(pod))
}

/// Reasons why a container is not checkpointed, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum ContainerCheckpointError {
    /// The time is negative.
    #[error("container checkpoint timeout must be >= 0")]
    Timeout,
    /// The container of this name does not run.
    #[error("container {0} not found")]
    NotFound(String),
    /// The runtime failed.
    #[error(transparent)]
    Runtime(#[from] CriError),
}

impl Server {
    pub(super) async fn checkpoint<B>(
        &self,
        request: &Request<B>,
        namespace: &str,
        name: &str,
        container: &str,
    ) -> Answer {
        let Some(pod) = self.manager.find(namespace, name, None) else {
            return error(StatusCode::NOT_FOUND, "pod does not exist");
        };
        if crate::events::field_path(&pod, container).is_empty() {
            return error(StatusCode::NOT_FOUND, &format!("container {container} does not exist"));
        }
        let seconds = match timeout(&query::all(request, "timeout")) {
            Ok(seconds) => seconds,
            Err(why) => return error(StatusCode::NOT_FOUND, why),
        };
        match self.write_checkpoint(&pod, container, seconds).await {
            Ok(location) => {
                let items = serde_json::json!({"items": [location]}).to_string();
                bytes("application/json", items.into_bytes())
            }
            Err(why) => {
                let text = format!("checkpointing of {namespace}/{name}/{container} failed ({why})");
                error(StatusCode::INTERNAL_SERVER_ERROR, &text)
            }
        }
    }

    async fn write_checkpoint(
        &self,
        pod: &Pod,
        container: &str,
        seconds: i64,
    ) -> Result<String, ContainerCheckpointError> {
        let cx = self.manager.context();
        let seconds = u64::try_from(seconds).map_err(|_| ContainerCheckpointError::Timeout)?;
        let id = match self.running_container(pod, container).await {
            Ok(id) => id,
            Err(_) => return Err(ContainerCheckpointError::NotFound(container.to_owned())),
        };
        let location = cx.settings.root_dir.join(CHECKPOINTS).join(archive(pod, container, Timestamp::now()));
        let location = location.to_string_lossy().into_owned();
        let done = cx.runtime.checkpoint_container(&id, &location, Duration::from_secs(seconds)).await;
        Ok(done.map(|()| location)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_last_timeout_counts() {
        let values = |values: &[&str]| timeout(&values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>());
        assert_eq!((values(&[]), values(&["5"]), values(&["x", "7"])), (Ok(0), Ok(5), Ok(7)));
        assert_eq!(values(&["7", "soon"]), Err("cannot parse value of timeout parameter"));
    }

    #[test]
    fn archives_are_named_after_containers_and_times() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n"}})).expect("pod");
        let name = archive(&pod, "c", Timestamp::UNIX_EPOCH);
        assert!(name.starts_with("checkpoint-p_n-c-19") && name.ends_with(".tar"), "{name}");
    }
}
