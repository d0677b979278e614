//! Makes sure that a container's image is there and that its pod may use it: pull policy, credentials, back-off, one pull
//! at a time (or several), events.
//! Answers for upstream's `pkg/kubelet/images/image_manager.go` (`EnsureImageExists`).

mod keyring;
mod names;
pub mod provider;
pub mod pulled;
mod service_account;

use std::path::PathBuf;
use std::sync::Arc;

use keyring::{Credentials, Keyring, Origin, SecretSource};
use names::normalize;
use provider::Providers;
use pulled::{ImageAccess, PulledImages};

use crate::backoff::Backoff;
use crate::cri::{CriError, Runtime, v1};
use crate::events::{EventSink, EventType};
use crate::objects::ObjectSource;
use crate::pace::Pace;
use crate::pods;
use crate::sources::manifest::default_pull_policy;
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, Secret};
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
                shown = Some(credentials(self, objects, events, pod, &image).await);
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
            None => credentials(self, objects, events, pod, &image).await,
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
        let pull = |auth| runtime.pull_image(spec(image), auth, sandbox.clone());
        let tried = try_all(pull, credentials).await;
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
async fn try_all<'c, 'p>(
    pull: impl Fn(Option<v1::AuthConfig>) -> BoxFuture<'p, Result<String, CriError>>,
    credentials: &'c [Credentials],
) -> Result<(String, Option<&'c Credentials>), PullError> {
    let ways = credentials.iter().map(Some).chain(credentials.is_empty().then_some(None));
    let mut failures = Vec::new();
    for used in ways {
        let auth = used.map(|credentials| credentials.auth.clone());
        match pull(auth).await {
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

/// The docker configuration of a secret, which its type says to be one. Upstream's `MakeDockerKeyring`.
fn configuration(secret: &Secret) -> Option<&[u8]> {
    let key = match secret.type_.as_deref()? {
        "kubernetes.io/dockerconfigjson" => ".dockerconfigjson",
        "kubernetes.io/dockercfg" => ".dockercfg",
        _ => return None,
    };
    secret.data.as_ref()?.get(key).map(|content| content.0.as_slice()).filter(|content| !content.is_empty())
}

/// Credentials of the pod's secrets, and those of the node, for an image. A secret that cannot be read, or says nothing,
/// leaves the others to be tried.
async fn credentials(
    images: &Images,
    objects: &dyn ObjectSource,
    events: &dyn EventSink,
    pod: &Pod,
    image: &str,
) -> Vec<Credentials> {
    let (mut keyring, namespace, mut missing) = (Keyring::default(), pods::namespace(pod), Vec::new());
    let names = pod.spec.as_ref().and_then(|spec| spec.image_pull_secrets.as_deref()).unwrap_or_default();
    // The API server permits references without a name.
    for reference in names.iter().filter(|reference| !reference.name.is_empty()) {
        let secret = match objects.secret(namespace, &reference.name).await {
            Ok(secret) => secret,
            Err(error) => {
                let (pod, secret) = (pods::describe(pod), reference.name.as_str());
                tracing::info!(pod, secret, %error, "Unable to retrieve pull secret, the image pull may not succeed.");
                missing.push(secret.to_owned());
                continue;
            }
        };
        let source = Origin::Secret(SecretSource {
            uid: secret.metadata.uid.clone().unwrap_or_default(),
            namespace: namespace.to_owned(),
            name: reference.name.clone(),
        });
        if let Some(content) = configuration(&secret) {
            keyring.add(content, &source);
        }
    }
    if !missing.is_empty() {
        let names = missing.join(", ");
        let text = format!(
            "Unable to retrieve some image pull secrets ({names}); attempting to pull the image may not succeed."
        );
        events.pod(pod, "", EventType::Warning, "FailedToRetrieveImagePullSecret", &text);
    }
    let repository = names::repository(image);
    let mut found = keyring.lookup(&repository);
    found.extend(images.of_node(&repository));
    found.extend(images.providers.credentials(objects, pod, image).await);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::tests::Recorded;
    use crate::objects::ObjectError;
    use base64::Engine as _;
    use futures::FutureExt as _;
    use serde_json::json;

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

    /// Secrets of one namespace.
    struct Secrets;

    #[async_trait::async_trait]
    impl ObjectSource for Secrets {
        async fn secret(&self, _: &str, name: &str) -> Result<Arc<Secret>, ObjectError> {
            let (kind, key, user) = match name {
                "config" => ("kubernetes.io/dockerconfigjson", ".dockerconfigjson", "config"),
                "old" => ("kubernetes.io/dockercfg", ".dockercfg", "old"),
                "registry" => ("kubernetes.io/dockercfg", ".dockercfg", "registry"),
                "untyped" => ("Opaque", ".dockerconfigjson", "untyped"),
                _ => return Err(ObjectError::NotFound { kind: "secret", name: name.to_owned() }),
            };
            let registry = if name == "registry" { "docker.io/team" } else { "r.io" };
            let text = json!({registry: {"username": user, "password": "p"}}).to_string();
            let data = json!({key: base64::engine::general_purpose::STANDARD.encode(text)});
            let secret = json!({"metadata": {"name": name, "uid": name}, "type": kind, "data": data});
            Ok(Arc::new(serde_json::from_value(secret).expect("a secret")))
        }
    }

    #[tokio::test]
    async fn secrets_of_the_right_types_have_credentials_and_missing_ones_are_told() {
        let images = Images::new(Pulls::default(), std::path::Path::new("/nonexistent"), None, Providers::default());
        let names: Vec<_> =
            ["gone", "untyped", "", "old", "registry", "config", "lost"].map(|name| json!({"name": name})).into();
        let spec = json!({"containers": [], "imagePullSecrets": names});
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let events = Recorded::default();
        let found = credentials(&images, &Secrets, &events, &pod, "r.io/x:1").await;
        let users: Vec<String> = found.into_iter().map(|found| found.auth.username).collect();
        assert_eq!(users, ["old", "config"]);
        let found = credentials(&images, &Secrets, &Recorded::default(), &pod, "team/app:1").await;
        assert_eq!(found[0].auth.username, "registry", "an image without a registry is in the default one");
        assert_eq!(found.len(), 1);
        let text = "Warning FailedToRetrieveImagePullSecret Unable to retrieve some image pull secrets (gone, lost); attempting to pull the image may not succeed.";
        assert_eq!(events.taken(), [text]);
    }

    #[tokio::test]
    async fn all_credentials_are_tried_until_one_serves() {
        let known = |user: &str| Credentials {
            auth: v1::AuthConfig { username: user.into(), ..v1::AuthConfig::default() },
            origin: Origin::Node,
        };
        let all = ["first", "second", "right", "last"].map(known);
        let tried = Mutex::new(Vec::new());
        let pull = |auth: Option<v1::AuthConfig>| {
            let user = auth.map(|auth| auth.username).unwrap_or_default();
            tried.lock().push(user.clone());
            let refused = |user: &str| CriError::Rpc { code: "Unknown", message: format!("not for {user}") };
            let answer = if user == "right" { Ok("sha256:id".to_owned()) } else { Err(refused(&user)) };
            async { answer }.boxed()
        };
        let (id, used) = try_all(pull, &all).await.expect("pulled");
        assert_eq!((id.as_str(), used.map(|used| used.auth.username.as_str())), ("sha256:id", Some("right")));
        assert_eq!(*tried.lock(), ["first", "second", "right"]);
        let failed = try_all(pull, &all[..2]).await.expect_err("none serves");
        assert_eq!(failed.to_string(), "[not for first, not for second]");
        assert_eq!(try_all(pull, &[]).await.expect_err("without any").to_string(), "not for ");
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
