//! Starting: sandboxes and containers, with everything that has to be prepared on the host.
//! Answers for `startContainer` and `createPodSandbox` of upstream's kuberuntime.

use super::container::{
    self, Prepared, absolute, block_devices, container_config, image_mount, log_symlink, propagation,
    recursive_read_only,
};
use super::context::WorkerContext;
use super::dns::{self, Resolver};
use super::error::{ContainerConfigError, SandboxError};
use super::kill::{self, HooksRun};
use super::observed::{Container as Found, Sandbox, State};
use super::sandbox::sandbox_config;
use crate::cri::v1;
use crate::env::{self, EnvSources};
use crate::events::{EventType, field_path};
use crate::facts::PodFacts;
use crate::files::PRIVATE_FOLDER;
use crate::hooks::HookTarget;
use crate::images::Wait;
use crate::metrics;
use crate::objects::ObjectError;
use crate::pods;
use crate::userns::{self, NamespaceError};
use crate::volumes::MountedVolume;
use k8s_openapi::api::core::v1::{Container, Pod};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest time for a `postStart` hook: it blocks the container, not the kubelet.
const POST_START_LIMIT: Duration = Duration::from_secs(10 * 60);

/// Reads the node's resolver file; a missing one is an empty one.
pub async fn host_resolver(cx: &WorkerContext) -> Resolver {
    if cx.settings.resolv_conf.is_empty() {
        return Resolver::default();
    }
    Resolver::parse(&tokio::fs::read_to_string(&cx.settings.resolv_conf).await.unwrap_or_default())
}

/// Creates the pod's folders.
pub async fn folders(cx: &WorkerContext, pod: &Pod) -> std::io::Result<()> {
    let dir = cx.settings.pod_dir(pods::uid(pod));
    let mut private = tokio::fs::DirBuilder::new();
    private.recursive(true).mode(PRIVATE_FOLDER);
    for sub in ["volumes", "plugins", "containers"] {
        private.create(dir.join(sub)).await?;
    }
    tokio::fs::create_dir_all(cx.settings.pod_log_dir(pods::namespace(pod), pods::name(pod), pods::uid(pod))).await
}

/// Makes a sandbox.
pub async fn sandbox(cx: &WorkerContext, pod: &Pod, attempt: u32) -> Result<String, SandboxError> {
    let parent = cx.cgroups.pod_parent(pod);
    let handler = runtime_handler(cx, pod).await?;
    let users = users(cx, pod, &handler)?;
    let about = (parent.as_str(), users, cx.volumes.groups(pod));
    let config = sandbox_config(pod, attempt, about, &cx.settings, &host_resolver(cx).await);
    let begun = Instant::now();
    let made = cx.runtime.run_sandbox(config, &handler).await;
    metrics::sandbox(&handler, begun.elapsed(), made.is_err());
    Ok(made?)
}

/// The pod's user namespace, which it keeps from its first sandbox on.
fn users(cx: &WorkerContext, pod: &Pod, handler: &str) -> Result<Option<v1::UserNamespace>, NamespaceError> {
    userns::mappings(cx.userns.as_ref(), pod, handler, &cx.node.load().user_namespaces)
}

/// The handler of the pod's runtime class; a pod without a class has the runtime's default.
async fn runtime_handler(cx: &WorkerContext, pod: &Pod) -> Result<String, ObjectError> {
    let class = pod.spec.as_ref().and_then(|s| s.runtime_class_name.as_deref()).filter(|name| !name.is_empty());
    let Some(class) = class else { return Ok(String::new()) };
    cx.objects.runtime_class(class).await.map(|class| class.handler.clone())
}

/// Facts about its pod that a start needs.
pub struct Start<'a> {
    /// The doors.
    pub cx: &'a WorkerContext,
    /// The pod.
    pub pod: &'a Pod,
    /// Sandbox of the pod.
    pub sandbox: &'a Sandbox,
    /// Mounted volumes of the pod.
    pub volumes: &'a BTreeMap<String, MountedVolume>,
    /// Hooks that were run.
    pub hooks_run: &'a HooksRun,
}

impl Start<'_> {
    fn event(&self, container: &str, kind: EventType, reason: &str, message: &str) {
        self.cx.events.pod(self.pod, &field_path(self.pod, container), kind, reason, message);
    }

    /// Reports a failure and turns it into the container's waiting state.
    fn failed(&self, container: &str, reason: &str, message: String) -> Wait {
        self.event(container, EventType::Warning, "Failed", &format!("Error: {message}"));
        (reason.to_owned(), message)
    }

    /// Reports a container that cannot be configured.
    fn misconfigured(&self, container: &str, error: impl Into<ContainerConfigError>) -> Wait {
        self.failed(container, "CreateContainerConfigError", error.into().to_string())
    }

    /// Pulls, creates and starts a container. `target` is the container that an ephemeral one looks into.
    pub async fn run(&self, container: &Container, attempt: u32, target: Option<&Found>) -> Result<(), Wait> {
        let outcome = self.try_run(container, attempt, target).await;
        let failure = outcome.as_ref().err().map(|(reason, _)| reason.as_str());
        metrics::container_start(self.pod, &container.name, failure);
        outcome
    }

    async fn try_run(&self, container: &Container, attempt: u32, target: Option<&Found>) -> Result<(), Wait> {
        let (cx, pod) = (self.cx, self.pod);
        let name = container.name.as_str();
        let parent = cx.cgroups.pod_parent(pod);
        let users = users(cx, pod, &self.sandbox.handler).map_err(|error| self.misconfigured(name, error))?;
        let resolver = host_resolver(cx).await;
        let groups = cx.volumes.groups(pod);
        let about = (parent.as_str(), users.clone(), groups.clone());
        let sandbox_config = sandbox_config(pod, self.sandbox.attempt, about, &cx.settings, &resolver);
        let (runtime, objects, events) = (cx.runtime.as_ref(), cx.objects.as_ref(), cx.events.as_ref());
        let begun = Instant::now();
        let image = cx.images.ensure(runtime, objects, events, pod, container, sandbox_config.clone()).await;
        metrics::pulled_for(pod, begun);
        let (image_id, image_user) = image.inspect_err(|wait| {
            self.event(name, EventType::Warning, "Failed", &format!("Error: {}", wait.0));
        })?;
        let facts = cx.facts(pod, &self.sandbox.ips);
        let log_dir = cx.settings.pod_log_dir(pods::namespace(pod), pods::name(pod), pods::uid(pod)).join(name);
        let attempt = attempt.max(next_log(&log_dir));
        let plugins = cx.devices.options(pod, name).await.map_err(|error| self.misconfigured(name, error))?;
        // What the container says itself counts more than what plugins say.
        let mut env: Vec<(String, String)> = plugins.iter().flat_map(|answer| answer.envs.clone()).collect();
        let own = self.environment(container, &facts).await;
        env.extend(own.map_err(|error| self.misconfigured(name, error))?);
        let images = self.image_volumes(container, &sandbox_config).await.inspect_err(|wait| {
            self.event(name, EventType::Warning, "Failed", &format!("Error: {}", wait.0));
        })?;
        let image_volumes = images.len();
        let mounts = self.mounts(container, &facts, &env, &images).await;
        let mounts = mounts.map_err(|error| self.misconfigured(name, error))?;
        let granted = cx.claims.of_container(pod, container).map_err(|error| self.misconfigured(name, error))?;
        let claimed = granted.into_iter().flat_map(|granted| granted.device.cdi_device_ids).collect();
        let devices = block_devices(container, self.volumes).map_err(|error| self.misconfigured(name, error))?;
        let prepared =
            Prepared { attempt, env, mounts, devices, plugins, claimed, image_id, image_user, users, groups };
        let config = container_config(pod, container, prepared, &cx.machine, &cx.settings);
        let mut config = config.map_err(|error| self.misconfigured(name, error))?;
        if let (Some(cpus), Some(linux)) = (cx.cpus.of_container(pods::uid(pod), name), config.linux.as_mut()) {
            let without_quota = cx.settings.gates.enabled("DisableCPUQuotaWithExclusiveCPUs");
            let is_exclusive = without_quota && cx.cpus.exclusive(pods::uid(pod), name).is_some();
            container::pin(linux.resources.get_or_insert_default(), &cpus, is_exclusive);
        }
        if let Some(linux) = config.linux.as_mut() {
            linux.resources.get_or_insert_default().cpuset_mems = cx.memory.nodes(pods::uid(pod), name);
        }
        if let Some(target) = target {
            look_into(&mut config, &target.id);
        }
        if let Err(error) = tokio::fs::create_dir_all(&log_dir).await {
            let message = format!("failed to create log directory for container \"{name}\": {error}");
            return Err(self.failed(name, "CreateContainerError", message));
        }
        let created = cx.runtime.create_container(&self.sandbox.id, config, sandbox_config).await;
        metrics::image_volumes(image_volumes, Some(created.is_ok()));
        let id = created.map_err(|e| self.failed(name, "CreateContainerError", description(&e)))?;
        self.event(name, EventType::Normal, "Created", "Container created");
        if let Err(error) = cx.runtime.start_container(&id).await {
            return Err(self.failed(name, "RunContainerError", description(&error)));
        }
        self.event(name, EventType::Normal, "Started", "Container started");
        self.link_log(name, attempt, &id).await;
        self.post_start(container, &id).await
    }

    async fn link_log(&self, name: &str, attempt: u32, id: &str) {
        let (settings, pod) = (&self.cx.settings, self.pod);
        let log = settings
            .pod_log_dir(pods::namespace(pod), pods::name(pod), pods::uid(pod))
            .join(name)
            .join(format!("{attempt}.log"));
        let link = settings.container_logs_dir.join(log_symlink(pod, name, id));
        let linked = async {
            tokio::fs::create_dir_all(&settings.container_logs_dir).await?;
            tokio::fs::symlink(&log, &link).await
        };
        if let Err(error) = linked.await {
            tracing::debug!(link = %link.display(), %error, "Could not link container log");
        }
    }

    async fn post_start(&self, container: &Container, id: &str) -> Result<(), Wait> {
        let Some(hook) = container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else { return Ok(()) };
        let pod_ip = self.sandbox.ips.first().map(String::as_str).unwrap_or_default();
        let target = HookTarget { pod: self.pod, container, container_id: id, pod_ip };
        let Err(error) = self.cx.hooks.run(hook, target, POST_START_LIMIT).await else { return Ok(()) };
        tracing::warn!(pod = %pods::describe(self.pod), container = %container.name, %error, "PostStart hook failed");
        self.event(&container.name, EventType::Warning, "FailedPostStartHook", "PostStartHook failed");
        let found =
            Found { id: id.to_owned(), name: container.name.clone(), state: State::Running, ..Found::default() };
        let grace = pods::grace(self.pod);
        let killed =
            kill::container(self.cx, self.pod, &found, pod_ip, grace, "FailedPostStartHook", self.hooks_run).await;
        if let Err(error) = killed {
            tracing::warn!(%error, "Could not stop container after its PostStart hook failed");
        }
        Err(("PostStartHookError".to_owned(), format!("PostStart hook failed: {error}")))
    }

    async fn environment(
        &self,
        container: &Container,
        facts: &PodFacts,
    ) -> Result<Vec<(String, String)>, ContainerConfigError> {
        let (cx, pod) = (self.cx, self.pod);
        // A static pod may be the API server that tells of the services.
        if !pods::is_static(pod) && !cx.services.synced() {
            return Err(ContainerConfigError::NoServices);
        }
        let references = env::references(container);
        let mut sources = EnvSources::default();
        for name in references.config_maps {
            match cx.objects.config_map(pods::namespace(pod), &name).await {
                Ok(map) => drop(sources.config_maps.insert(name, map)),
                Err(ObjectError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for name in references.secrets {
            match cx.objects.secret(pods::namespace(pod), &name).await {
                Ok(secret) => drop(sources.secrets.insert(name, secret)),
                Err(ObjectError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for (name, path) in references.files {
            let Some(volume) = self.volumes.get(&name) else {
                return Err(ContainerConfigError::NoFileVolume(name));
            };
            if let Some(text) = cx.volumes.read(volume, &path).await? {
                sources.files.insert((name, path), text);
            }
        }
        let services = cx.services.services();
        Ok(env::container_env(pod, container, &services, &sources, facts)?)
    }

    /// Pulls the images that are volumes of a container: what the runtime is to mount, by volume.
    async fn image_volumes(
        &self,
        container: &Container,
        sandbox: &v1::PodSandboxConfig,
    ) -> Result<BTreeMap<String, v1::ImageSpec>, Wait> {
        let (cx, pod) = (self.cx, self.pod);
        let mut found = BTreeMap::new();
        let wanted = container::image_volumes(pod, container);
        metrics::image_volumes(wanted.len(), None);
        for (volume, wanted) in wanted {
            let (runtime, objects, events) = (cx.runtime.as_ref(), cx.objects.as_ref(), cx.events.as_ref());
            let (image, _) = cx.images.ensure(runtime, objects, events, pod, &wanted, sandbox.clone()).await?;
            let user_specified_image = wanted.image.unwrap_or_default();
            found.insert(volume, v1::ImageSpec { image, user_specified_image, ..v1::ImageSpec::default() });
        }
        Ok(found)
    }

    async fn mounts(
        &self,
        container: &Container,
        facts: &PodFacts,
        env: &[(String, String)],
        images: &BTreeMap<String, v1::ImageSpec>,
    ) -> Result<Vec<v1::Mount>, ContainerConfigError> {
        let (cx, pod) = (self.cx, self.pod);
        let mut mounts = Vec::new();
        for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
            let sub_path = match (&mount.sub_path_expr, &mount.sub_path) {
                (Some(expression), _) if !expression.is_empty() => env::expand_sub_path(expression, env)?,
                (_, Some(path)) => path.clone(),
                _ => String::new(),
            };
            if let Some(image) = images.get(&mount.name) {
                mounts.push(image_mount(mount, image.clone(), sub_path));
                continue;
            }
            let Some(volume) = self.volumes.get(&mount.name) else {
                let (volume, container) = (mount.name.clone(), container.name.clone());
                return Err(ContainerConfigError::NoVolume { volume, container });
            };
            let path = cx.volumes.mount_path(pod, &container.name, index, volume, mount, &sub_path).await?;
            let able = cx.node.load().recursive_read_only.contains(&self.sandbox.handler);
            let recursive_read_only = recursive_read_only(mount, able)?;
            mounts.push(v1::Mount {
                container_path: absolute(&mount.mount_path),
                recursive_read_only,
                host_path: path.to_string_lossy().into_owned(),
                readonly: volume.read_only || mount.read_only.unwrap_or(false),
                selinux_relabel: volume.selinux_relabel,
                propagation: propagation(mount.mount_propagation.as_deref()).into(),
                ..v1::Mount::default()
            });
        }
        if !mounts.iter().any(|m| m.container_path == "/etc/hosts") {
            let host_path = self.hosts(facts).await.map_err(ContainerConfigError::Hosts)?;
            mounts.push(plain(&host_path, "/etc/hosts"));
        }
        let inside = container.termination_message_path.as_deref().unwrap_or("/dev/termination-log");
        if !inside.is_empty() {
            let file = self.termination_file(&container.name).await.map_err(ContainerConfigError::TerminationLog)?;
            mounts.push(plain(&file, inside));
        }
        Ok(mounts)
    }

    async fn hosts(&self, facts: &PodFacts) -> std::io::Result<PathBuf> {
        let (settings, pod) = (&self.cx.settings, self.pod);
        let path = settings.pod_dir(pods::uid(pod)).join("etc-hosts");
        let aliases = pod.spec.as_ref().and_then(|s| s.host_aliases.clone()).unwrap_or_default();
        let text = if pods::host_network(pod) {
            dns::node_hosts_file(&tokio::fs::read_to_string("/etc/hosts").await.unwrap_or_default(), &aliases)
        } else {
            let (name, domain) = dns::hostname(pod, settings);
            dns::hosts_file(&facts.pod_ips, &name, &domain, &aliases)
        };
        // Containers of the pod that run have it mounted: on a full disk a write would leave them an empty one.
        if tokio::fs::read_to_string(&path).await.ok().as_ref() != Some(&text) {
            tokio::fs::write(&path, text).await?;
            tokio::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).await?;
        }
        Ok(path)
    }

    async fn termination_file(&self, container: &str) -> std::io::Result<PathBuf> {
        let dir = self.cx.settings.pod_dir(pods::uid(self.pod)).join("containers").join(container);
        tokio::fs::create_dir_all(&dir).await?;
        let unique = uuid::Uuid::new_v4().simple().to_string();
        let path = dir.join(&unique[..8]);
        tokio::fs::write(&path, "").await?;
        tokio::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).await?;
        Ok(path)
    }
}

fn description(error: &crate::cri::CriError) -> String {
    let crate::cri::CriError::Rpc { code, message } = error;
    if *code == "DeadlineExceeded" { "context deadline exceeded".to_owned() } else { message.clone() }
}

fn plain(host: &Path, container: &str) -> v1::Mount {
    v1::Mount {
        container_path: container.to_owned(),
        host_path: host.to_string_lossy().into_owned(),
        ..v1::Mount::default()
    }
}

fn look_into(config: &mut v1::ContainerConfig, target: &str) {
    let namespaces =
        config.linux.as_mut().and_then(|l| l.security_context.as_mut()).and_then(|c| c.namespace_options.as_mut());
    if let Some(namespaces) = namespaces {
        namespaces.pid = v1::NamespaceMode::Target.into();
        namespaces.target_id = target.to_owned();
    }
}

/// The first log number that is not used yet: a container whose records were collected goes on counting.
fn next_log(dir: &Path) -> u32 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .filter_map(|e| e.file_name().to_str().and_then(|n| n.split('.').next()).and_then(|n| n.parse::<u32>().ok()))
        .max()
        .map_or(0, |last| last + 1)
}
