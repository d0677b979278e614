//! Makes sure that a container's image is there and that its pod may use it: pull policy, credentials, back-off, one pull
//! at a time (or several), events.
//! Answers for upstream's `pkg/kubelet/images/image_manager.go` (`EnsureImageExists`).

mod keyring;
mod pace;
pub mod provider;
pub mod pulled;
mod service_account;

use std::path::PathBuf;
use std::sync::Arc;

use keyring::{Credentials, Keyring, Origin, SecretSource};
use pace::Pace;
use provider::Providers;
use pulled::{ImageAccess, PulledImages};

use crate::backoff::Backoff;
use crate::cri::{CriError, Runtime, v1};
use crate::events::{EventSink, EventType};
use crate::objects::ObjectSource;
use crate::pods;
use crate::sources::manifest::default_pull_policy;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::Mutex;
use shared::flags::format_nanos;
use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};
use tokio::sync::{AcquireError, Semaphore};

/// The user an image runs as by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageUser {
    /// Numeric user, if the image names one.
    pub uid: Option<i64>,
    /// User name, if the image names one.
    pub name: String,
}

/// Reason and message of a container that waits for its image: `waiting.reason` and `waiting.message`.
pub type Wait = (String, String);

#[derive(Default)]
struct State {
    backoff: Backoff,
    failed: HashMap<String, (Timestamp, Wait)>,
}

/// Kinds of failures that runtimes tell apart by the beginning of their words: the container's reason and ours for it.
const KINDS: [(&str, &str); 2] = [
    ("RegistryUnavailable", "the registry is unavailable"),
    ("SignatureValidationFailed", "the signature validation failed"),
];

/// Reason and message of a container whose image could not be pulled. Answers for upstream's `evalCRIPullErr`.
fn failure(image: &str, error: &str) -> Wait {
    for (kind, why) in KINDS {
        if let Some(rest) = error.strip_prefix(kind) {
            return (kind.to_owned(), format!("image pull failed for {image} because {why}{rest}"));
        }
    }
    ("ErrImagePull".to_owned(), error.to_owned())
}

/// Words the runtime's error about a pull; a code that says nothing is left out.
fn told(error: &CriError) -> String {
    match error {
        CriError::Rpc { code: "Unknown", message } => message.clone(),
        error => error.to_string(),
    }
}

/// Largest docker configuration of the node that is read.
const LARGEST_CONFIGURATION: u64 = 1 << 20;

/// Limits of pulls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pulls {
    /// Most at the same time; none for as many as there are. One with `serializeImagePulls`.
    pub parallel: Option<usize>,
    /// `registryPullQPS`; zero for no limit.
    pub qps: i32,
    /// `registryBurst`.
    pub burst: i32,
}

/// The images of the node; see the module.
pub struct Images {
    pulls: Semaphore,
    pace: Pace,
    providers: Providers,
    state: Mutex<State>,
    /// None with `KubeletEnsureSecretPulledImages` off.
    records: Option<Arc<PulledImages>>,
    /// Docker configurations of the node; the first that is there counts.
    node_configurations: Vec<PathBuf>,
}

/// Names that no image has, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Another form.
    #[error("couldn't parse image name \"{0}\": invalid reference format")]
    Form(String),
    /// Upper case.
    #[error(
        "couldn't parse image name \"{image}\": invalid reference format: repository name ({path}) must be lowercase"
    )]
    UpperCase {
        /// The name.
        image: String,
        /// The name without digest.
        path: String,
    },
}

/// Reasons why an image is not pulled, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum PullError {
    /// The kubelet ends.
    #[error(transparent)]
    Ended(#[from] AcquireError),
    /// Too many were pulled a moment ago.
    #[error("pull QPS exceeded")]
    TooFast,
    /// The intent cannot be written down.
    #[error("failed to record image pull intent for image {image:?}: {cause}")]
    Record {
        image: String,
        #[source]
        cause: io::Error,
    },
    /// The runtime's words, each once, for all credentials that were tried.
    #[error("{}", joined(.0))]
    Runtime(Vec<String>),
}

fn joined(failures: &[String]) -> String {
    match failures {
        [only] => only.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// The full name of an image: registry, path, tag.
///
/// # Errors
/// It is not a valid reference.
pub fn normalize(image: &str) -> Result<String, NameError> {
    let invalid = || NameError::Form(image.to_owned());
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
        return Err(NameError::UpperCase { image: image.to_owned(), path: path.to_owned() });
    }
    if last.contains(':') || image.contains('@') { Ok(image.to_owned()) } else { Ok(format!("{image}:latest")) }
}

/// In whole milliseconds, as Go prints it.
fn millis(elapsed: Duration) -> String {
    let whole = elapsed.as_nanos() / 1_000_000 * 1_000_000;
    format_nanos(i64::try_from(whole).unwrap_or(i64::MAX))
}

impl Images {
    /// Images below the kubelet's root directory, pulled within limits with what secrets, the node and plugins know.
    pub fn new(pulls: Pulls, root: &std::path::Path, records: Option<Arc<PulledImages>>, providers: Providers) -> Self {
        let mut node_configurations = vec![root.join("config.json"), PathBuf::from("config.json")];
        node_configurations.extend(std::env::home_dir().map(|home| home.join(".docker/config.json")));
        node_configurations.push("/.docker/config.json".into());
        Self {
            pulls: Semaphore::new(pulls.parallel.unwrap_or(Semaphore::MAX_PERMITS)),
            pace: Pace::new(pulls.qps, pulls.burst),
            providers,
            state: Mutex::default(),
            records,
            node_configurations,
        }
    }

    /// Records of who may use the images that were pulled.
    pub fn records(&self) -> Option<&Arc<PulledImages>> {
        self.records.as_ref()
    }

    fn of_node(&self, image: &str) -> Vec<Credentials> {
        let small = |path: &&PathBuf| std::fs::metadata(path).is_ok_and(|about| about.len() <= LARGEST_CONFIGURATION);
        let content = self.node_configurations.iter().filter(small).find_map(|path| std::fs::read(path).ok());
        let mut keyring = Keyring::default();
        keyring.add(&content.unwrap_or_default(), &Origin::Node);
        keyring.lookup(image)
    }

    /// Decides whether the pod may use an image that is there. Where records cannot be read, it has to pull.
    fn is_accessible(&self, image: &str, id: &str, credentials: &[Credentials]) -> bool {
        let Some(records) = &self.records else { return true };
        match records.access(image, id, credentials) {
            Ok(access) => access == ImageAccess::Allowed,
            Err(error) => {
                tracing::error!(image, %error, "Failed to read image pulled records");
                false
            }
        }
    }

    /// Forgets what is kept for a pod that is gone.
    pub fn forget(&self, pod_uid: &str) {
        self.providers.forget(pod_uid);
    }

    /// Returns the time until the image of this pod may be tried again.
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
        let is_there = found.is_some();
        let present = found.filter(|_| policy != "Always");
        // Most images are for everybody: a container that starts again asks for no secret, which the API server may have
        // to be asked for.
        let mut shown = None;
        if let Some(found) = present {
            if !self.is_accessible(&image, &found.id, &[]) {
                shown = Some(credentials(self, objects, pod, &image).await);
            }
            if shown.as_ref().is_none_or(|shown| self.is_accessible(&image, &found.id, shown)) {
                let message =
                    format!("Container image \"{wanted}\" already present on machine and can be accessed by the pod");
                event(EventType::Normal, "Pulled", &message);
                return Ok(describe(found));
            }
        }
        if policy == "Never" {
            let why = match is_there {
                true => {
                    "is present with pull policy of Never but does not have the proper credentials to access the image"
                }
                false => "is not present with pull policy of Never",
            };
            let message = format!("Container image \"{wanted}\" {why}");
            event(EventType::Warning, "ErrImageNeverPull", &message);
            return Err(("ErrImageNeverPull".into(), message));
        }
        let key = format!("{}_{wanted}", pods::uid(pod));
        if let Some((kind, error)) = self.failed_lately(&key) {
            event(EventType::Normal, "BackOff", &format!("Back-off pulling image \"{wanted}\""));
            let message = format!("Back-off pulling image \"{wanted}\": {kind}: {error}");
            return Err(("ImagePullBackOff".into(), message));
        }
        let shown = match shown {
            Some(shown) => shown,
            None => credentials(self, objects, pod, &image).await,
        };
        let pulled = self.pull(runtime, (&wanted, &image), &shown, sandbox, &event).await;
        match pulled {
            Ok(pulled) => {
                self.succeeded(&key);
                Ok(pulled)
            }
            Err(error) => {
                event(EventType::Warning, "Failed", &format!("Failed to pull image \"{wanted}\": {error}"));
                let wait = failure(&wanted, &error.to_string());
                self.failed(key, &wait, Timestamp::now());
                Err(wait)
            }
        }
    }

    /// Pulls an image, which is `wanted` by a shorter name, when it is its turn.
    async fn pull(
        &self,
        runtime: &dyn Runtime,
        (wanted, image): (&str, &str),
        credentials: &[Credentials],
        sandbox: v1::PodSandboxConfig,
        event: &(dyn Fn(EventType, &str, &str) + Sync),
    ) -> Result<(String, ImageUser), PullError> {
        let queued = Instant::now();
        let _turn = self.pulls.acquire().await?;
        event(EventType::Normal, "Pulling", &format!("Pulling image \"{wanted}\""));
        let started = Instant::now();
        if !self.pace.accepts(started) {
            return Err(PullError::TooFast);
        }
        if let Some(records) = &self.records {
            records.begin(image).map_err(|cause| PullError::Record { image: image.to_owned(), cause })?;
        }
        let tried = try_all(runtime, image, credentials, &sandbox).await;
        let (reference, used) = tried.inspect_err(|_| {
            if let Some(records) = &self.records {
                records.failed(image);
            }
        })?;
        let (alone, total) = (millis(started.elapsed()), millis(queued.elapsed()));
        let pulled = runtime.image_status(spec(&reference)).await.ok().flatten();
        if let Some(records) = &self.records {
            records.pulled(image, pulled.as_ref().map_or(&reference, |image| &image.id), used);
        }
        let size = pulled.as_ref().map_or(0, |i| i.size);
        crate::metrics::pull(size, started.elapsed());
        let message = format!(
            "Successfully pulled image \"{wanted}\" in {alone} ({total} including waiting). Image size: {size} bytes."
        );
        event(EventType::Normal, "Pulled", &message);
        Ok(pulled.map_or((reference, ImageUser::default()), describe))
    }

    /// Returns the failure of the last pull, while the next one has to wait.
    fn failed_lately(&self, key: &str) -> Option<Wait> {
        let state = self.state.lock();
        let (at, error) = state.failed.get(key)?;
        state.backoff.remaining(key, *at, Timestamp::now()).map(|_| error.clone())
    }

    fn succeeded(&self, key: &str) {
        let mut state = self.state.lock();
        state.backoff.reset(key);
        state.failed.remove(key);
    }

    fn failed(&self, key: String, wait: &Wait, now: Timestamp) {
        let mut state = self.state.lock();
        let last = state.failed.get(&key).map_or(now, |(at, _)| *at);
        // Upstream's `Backoff.GC`: pods go and come, each with a key of its own.
        let State { backoff, failed } = &mut *state;
        backoff.forget_old(now);
        failed.retain(|key, _| backoff.knows(key));
        backoff.next(&key, last, now);
        failed.insert(key, (now, wait.clone()));
    }
}

/// Pulls with each of the credentials until one serves, or without any where there are none. The answer names the ones
/// that served.
async fn try_all<'c>(
    runtime: &dyn Runtime,
    image: &str,
    credentials: &'c [Credentials],
    sandbox: &v1::PodSandboxConfig,
) -> Result<(String, Option<&'c Credentials>), PullError> {
    let ways = credentials.iter().map(Some).chain(credentials.is_empty().then_some(None));
    let mut failures = Vec::new();
    for used in ways {
        let auth = used.map(|credentials| credentials.auth.clone());
        match runtime.pull_image(spec(image), auth, sandbox.clone()).await {
            Ok(reference) => return Ok((reference, used)),
            Err(error) => {
                let failure = told(&error);
                if !failures.contains(&failure) {
                    failures.push(failure);
                }
            }
        }
    }
    Err(PullError::Runtime(failures))
}

fn spec(image: &str) -> v1::ImageSpec {
    v1::ImageSpec { image: image.to_owned(), ..v1::ImageSpec::default() }
}

fn describe(image: v1::Image) -> (String, ImageUser) {
    let user = ImageUser { uid: image.uid.map(|u| u.value), name: image.username };
    (image.id, user)
}

/// Credentials of the pod's secrets, and those of the node, for an image. A secret that cannot be read, or says nothing,
/// leaves the others to be tried.
async fn credentials(images: &Images, objects: &dyn ObjectSource, pod: &Pod, image: &str) -> Vec<Credentials> {
    let (mut keyring, namespace) = (Keyring::default(), pods::namespace(pod));
    let names = pod.spec.as_ref().and_then(|spec| spec.image_pull_secrets.as_deref()).unwrap_or_default();
    for reference in names {
        let Ok(secret) = objects.secret(namespace, &reference.name).await else { continue };
        let source = Origin::Secret(SecretSource {
            uid: secret.metadata.uid.clone().unwrap_or_default(),
            namespace: namespace.to_owned(),
            name: reference.name.clone(),
        });
        let data = secret.data.iter().flatten();
        let configurations = data.filter(|(key, _)| matches!(key.as_str(), ".dockerconfigjson" | ".dockercfg"));
        for (_, content) in configurations {
            keyring.add(&content.0, &source);
        }
    }
    let mut found = keyring.lookup(image);
    found.extend(images.of_node(image));
    found.extend(images.providers.credentials(objects, pod, image).await);
    found
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
    fn failures_that_runtimes_tell_apart_are_told_apart() {
        let rpc = |code: &'static str, message: &str| {
            failure("r.io/x", &told(&CriError::Rpc { code, message: message.into() }))
        };
        let expected = |reason: &str, message: &str| (reason.to_owned(), message.to_owned());
        assert_eq!(
            rpc("Unknown", "RegistryUnavailable: no route"),
            expected(
                "RegistryUnavailable",
                "image pull failed for r.io/x because the registry is unavailable: no route"
            )
        );
        assert_eq!(
            rpc("Unknown", "SignatureValidationFailed"),
            expected(
                "SignatureValidationFailed",
                "image pull failed for r.io/x because the signature validation failed"
            )
        );
        assert_eq!(rpc("Unknown", "no such image"), expected("ErrImagePull", "no such image"));
        let found = rpc("NotFound", "no such image");
        assert_eq!(found, expected("ErrImagePull", "rpc error: code = NotFound desc = no such image"));
    }

    #[test]
    fn failures_of_pods_long_gone_are_forgotten() {
        let images = Images::new(Pulls::default(), std::path::Path::new("/nonexistent"), None, Providers::default());
        let at = |second: i64| Timestamp::from_second(1_700_000_000 + second).expect("in range");
        let wait = failure("x", "no such image");
        for second in 0..2000 {
            images.failed(format!("uid-{second}_x"), &wait, at(second));
        }
        let state = images.state.lock();
        assert_eq!(state.failed.len(), 601, "those of the last ten minutes");
        assert!(state.failed.keys().all(|key| state.backoff.knows(key)) && state.backoff.knows("uid-1999_x"));
    }

    #[test]
    fn times_are_told_in_whole_milliseconds() {
        for (micros, text) in [(5_999, "5ms"), (999, "0s"), (1_500_000, "1.5s"), (3_661_000_000, "1h1m1s")] {
            assert_eq!(millis(Duration::from_micros(micros)), text);
        }
    }
}
