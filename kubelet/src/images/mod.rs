//! Makes sure that a container's image is there: pull policy, back-off, one pull at a time (or several), events.

use super::backoff::Backoff;
use super::security::ImageUser;
use crate::cri::{Runtime, v1};
use crate::events::{EventSink, EventType};
use crate::objects::ObjectSource;
use crate::pods;
use crate::sources::manifest::default_pull_policy;
use base64::Engine;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::Mutex;
use shared::flags::format_nanos;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Pulls that may run at the same time when they are not serialised.
const PARALLEL_PULLS: usize = 8;

/// Why a container waits for its image: `waiting.reason` and `waiting.message`.
pub type Wait = (String, String);

#[derive(Default)]
struct State {
    backoff: Backoff,
    failed: HashMap<String, (Timestamp, String)>,
}

/// The image room's door.
pub struct Images {
    pulls: Semaphore,
    state: Mutex<State>,
}

/// The full name of an image: registry, path, tag. An error when it is not a valid reference.
pub fn normalize(image: &str) -> Result<String, String> {
    let invalid = || format!("couldn't parse image name \"{image}\": invalid reference format");
    if image.is_empty() || image.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(invalid());
    }
    let (path, _) = image.split_once('@').unwrap_or((image, ""));
    let last = path.rsplit('/').next().unwrap_or(path);
    let (name, _) = last.split_once(':').unwrap_or((last, ""));
    if name.is_empty() {
        return Err(invalid());
    }
    let repository = path.strip_suffix(last).unwrap_or_default();
    let has_host = repository.split('/').next().is_some_and(|h| h.contains(['.', ':']) || h == "localhost");
    let rest = if has_host { repository.split_once('/').map_or("", |(_, r)| r) } else { repository };
    if format!("{rest}{name}").chars().any(|c| c.is_ascii_uppercase()) {
        return Err(format!(
            "couldn't parse image name \"{image}\": invalid reference format: repository name ({}) must be lowercase",
            path
        ));
    }
    if last.contains(':') || image.contains('@') { Ok(image.to_owned()) } else { Ok(format!("{image}:latest")) }
}

fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => "docker.io",
    }
}

fn same_registry(entry: &str, host: &str) -> bool {
    let entry = entry.trim_start_matches("https://").trim_start_matches("http://");
    let entry = entry.split('/').next().unwrap_or(entry);
    let docker = |h: &str| matches!(h, "docker.io" | "index.docker.io" | "registry-1.docker.io");
    entry == host || (docker(entry) && docker(host))
}

/// Credentials for an image out of a docker configuration (`{"auths": {…}}` or the bare map).
pub fn credentials(config: &[u8], image: &str) -> Option<v1::AuthConfig> {
    let value: serde_json::Value = serde_json::from_slice(config).ok()?;
    let auths = value.get("auths").unwrap_or(&value).as_object()?;
    let (server, entry) = auths.iter().find(|(server, _)| same_registry(server, registry(image)))?;
    let text = |key: &str| entry.get(key).and_then(|v| v.as_str()).unwrap_or_default().to_owned();
    let (mut username, mut password) = (text("username"), text("password"));
    if username.is_empty()
        && let Ok(plain) = base64::engine::general_purpose::STANDARD.decode(text("auth"))
        && let Some((user, secret)) = String::from_utf8_lossy(&plain).split_once(':')
    {
        (username, password) = (user.to_owned(), secret.to_owned());
    }
    Some(v1::AuthConfig {
        username,
        password,
        server_address: server.clone(),
        identity_token: text("identitytoken"),
        registry_token: text("registrytoken"),
        ..v1::AuthConfig::default()
    })
}

/// In whole milliseconds, as Go prints it.
fn millis(elapsed: Duration) -> String {
    let whole = elapsed.as_nanos() / 1_000_000 * 1_000_000;
    format_nanos(i64::try_from(whole).unwrap_or(i64::MAX))
}

impl Images {
    /// Serialised pulls wait for each other.
    pub fn new(serialize: bool) -> Self {
        Self { pulls: Semaphore::new(if serialize { 1 } else { PARALLEL_PULLS }), state: Mutex::default() }
    }

    /// How long until the image of this pod may be tried again.
    pub fn retry_in(&self, pod: &Pod, image: &str, now: Timestamp) -> Option<jiff::SignedDuration> {
        let key = format!("{}_{image}", pods::uid(pod));
        let state = self.state.lock();
        let (at, _) = state.failed.get(&key)?;
        state.backoff.remaining(&key, *at, now)
    }

    /// Makes the image present; returns its id and user.
    pub async fn ensure(
        &self,
        runtime: &dyn Runtime,
        objects: &dyn ObjectSource,
        events: &dyn EventSink,
        pod: &Pod,
        container: &Container,
        sandbox: v1::PodSandboxConfig,
    ) -> Result<(String, ImageUser), Wait> {
        let path = crate::events::field_path(pod, &container.name);
        let event = |kind, reason: &str, message: &str| events.pod(pod, &path, kind, reason, message);
        let wanted = container.image.clone().unwrap_or_default();
        let image = normalize(&wanted).map_err(|cause| {
            let message = format!("Failed to apply default image tag \"{wanted}\": {cause}");
            event(EventType::Warning, "InspectFailed", &message);
            ("InvalidImageName".to_owned(), message)
        })?;
        let found = runtime.image_status(spec(&image)).await.map_err(|error| {
            let message = format!("Failed to inspect image \"{image}\": {error}");
            event(EventType::Warning, "InspectFailed", &message);
            ("ImageInspectError".to_owned(), message)
        })?;
        let policy = container.image_pull_policy.as_deref().unwrap_or_else(|| default_pull_policy(&wanted));
        if let Some(found) = found
            && policy != "Always"
        {
            let message =
                format!("Container image \"{wanted}\" already present on machine and can be accessed by the pod");
            event(EventType::Normal, "Pulled", &message);
            return Ok(describe(found));
        } else if policy == "Never" {
            let message = format!("Container image \"{wanted}\" is not present with pull policy of Never");
            event(EventType::Warning, "ErrImageNeverPull", &message);
            return Err(("ErrImageNeverPull".into(), message));
        }
        let key = format!("{}_{wanted}", pods::uid(pod));
        if let Some(error) = self.failed_lately(&key) {
            event(EventType::Normal, "BackOff", &format!("Back-off pulling image \"{wanted}\""));
            let message = format!("Back-off pulling image \"{wanted}\": ErrImagePull: {error}");
            return Err(("ImagePullBackOff".into(), message));
        }
        let auth = secrets(objects, pod, &image);
        let pulled = self.pull(runtime, (&wanted, &image), auth, sandbox, &event).await;
        match pulled {
            Ok(pulled) => {
                self.succeeded(&key);
                Ok(pulled)
            }
            Err(error) => {
                event(EventType::Warning, "Failed", &format!("Failed to pull image \"{wanted}\": {error}"));
                self.failed(key, &error);
                Err(("ErrImagePull".into(), error))
            }
        }
    }

    /// Pulls an image, which is `wanted` by a shorter name, when it is its turn.
    async fn pull(
        &self,
        runtime: &dyn Runtime,
        (wanted, image): (&str, &str),
        auth: impl Future<Output = Option<v1::AuthConfig>>,
        sandbox: v1::PodSandboxConfig,
        event: &(dyn Fn(EventType, &str, &str) + Sync),
    ) -> Result<(String, ImageUser), String> {
        let queued = Instant::now();
        let _turn = self.pulls.acquire().await.map_err(|e| e.to_string())?;
        event(EventType::Normal, "Pulling", &format!("Pulling image \"{wanted}\""));
        let started = Instant::now();
        let reference = runtime.pull_image(spec(image), auth.await, sandbox).await.map_err(|error| {
            // The runtime may have said so already.
            let prefix = format!("failed to pull and unpack image \"{image}\": ");
            format!("{prefix}{error}").replace(&format!("{prefix}rpc error"), "rpc error")
        })?;
        let (alone, total) = (millis(started.elapsed()), millis(queued.elapsed()));
        let pulled = runtime.image_status(spec(&reference)).await.ok().flatten();
        let size = pulled.as_ref().map_or(0, |i| i.size);
        let message = format!(
            "Successfully pulled image \"{wanted}\" in {alone} ({total} including waiting). Image size: {size} bytes."
        );
        event(EventType::Normal, "Pulled", &message);
        Ok(pulled.map_or((reference, ImageUser::default()), describe))
    }

    /// How the last pull failed, while the next one has to wait.
    fn failed_lately(&self, key: &str) -> Option<String> {
        let state = self.state.lock();
        let (at, error) = state.failed.get(key)?;
        state.backoff.remaining(key, *at, Timestamp::now()).map(|_| error.clone())
    }

    fn succeeded(&self, key: &str) {
        let mut state = self.state.lock();
        state.backoff.reset(key);
        state.failed.remove(key);
    }

    fn failed(&self, key: String, error: &str) {
        let now = Timestamp::now();
        let mut state = self.state.lock();
        let last = state.failed.get(&key).map_or(now, |(at, _)| *at);
        state.backoff.next(&key, last, now);
        state.failed.insert(key, (now, error.to_owned()));
    }
}

fn spec(image: &str) -> v1::ImageSpec {
    v1::ImageSpec { image: image.to_owned(), ..v1::ImageSpec::default() }
}

fn describe(image: v1::Image) -> (String, ImageUser) {
    let user = ImageUser { uid: image.uid.map(|u| u.value), name: image.username };
    (image.id, user)
}

async fn secrets(objects: &dyn ObjectSource, pod: &Pod, image: &str) -> Option<v1::AuthConfig> {
    let names = pod.spec.as_ref()?.image_pull_secrets.as_ref()?;
    for reference in names {
        let Ok(secret) = objects.secret(pods::namespace(pod), &reference.name).await else { continue };
        let data = secret.data.as_ref()?;
        let found = [".dockerconfigjson", ".dockercfg"]
            .iter()
            .filter_map(|key| data.get(*key))
            .find_map(|content| credentials(&content.0, image));
        if found.is_some() {
            return found;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (image, expected) in [
            ("busybox", Some("busybox:latest")),
            ("a.b:5000/x/y:1", Some("a.b:5000/x/y:1")),
            ("x@sha256:00", Some("x@sha256:00")),
            ("", None),
            ("a b", None),
            ("Upper", None),
            ("x/", None),
        ] {
            assert_eq!(normalize(image).ok().as_deref(), expected, "{image}");
        }
    }

    #[test]
    fn credentials_of_a_docker_configuration() {
        let config =
            br#"{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"},"r.io":{"username":"a","password":"b"}}}"#;
        let auth = credentials(config, "busybox:latest").expect("docker hub");
        assert_eq!((auth.username.as_str(), auth.password.as_str()), ("u", "p"));
        assert_eq!(credentials(config, "r.io/x:1").map(|a| a.username).as_deref(), Some("a"));
        assert!(credentials(config, "other.io/x:1").is_none());
    }

    #[test]
    fn times_are_told_in_whole_milliseconds() {
        for (micros, text) in [(5_999, "5ms"), (999, "0s"), (1_500_000, "1.5s"), (3_661_000_000, "1h1m1s")] {
            assert_eq!(millis(Duration::from_micros(micros)), text);
        }
    }
}
