//! Sandboxes and containers like those of pods, asked from a node's runtime directly, as `crictl` does it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use e2e::machine;
use k8s_openapi::api::core::v1::{Container, Pod};
use kubelet::cri::{Client, Runtime as _, v1};
use kubelet::images::ImageUser;
use kubelet::workers::security;
use shared::traces::Tracer;

/// Time that a call may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// The runtime of a node, reached through the file system of its process.
pub(crate) struct Runtime {
    client: Client,
    cgroup: String,
    /// The root folder of the runtime, as it is seen from here.
    root: PathBuf,
    tasks: tokio::runtime::Runtime,
}

impl Runtime {
    /// The runtime whose process number is in a file; its sandboxes are below a cgroup of the node.
    pub(crate) fn of(pid: &Path, cgroup: &str) -> Result<Self> {
        let pid = machine::alive(pid).context("the runtime is not running")?;
        let tasks = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let endpoint = format!("unix://{}/run/containerd/containerd.sock", root.display());
        let client = tasks.block_on(async { Client::new(&endpoint, "", PATIENCE, &Tracer::default()) })?;
        Ok(Self { client, cgroup: format!("{cgroup}/direct"), root, tasks })
    }

    /// Starts so many sandboxes, each with a container, all at once, and returns the time that it took.
    pub(crate) fn start(&self, count: usize) -> Result<Duration> {
        let began = Instant::now();
        self.tasks.block_on(async {
            let all = (0..count).map(|number| self.one(number));
            futures::future::try_join_all(all).await
        })?;
        Ok(began.elapsed())
    }

    async fn one(&self, number: usize) -> Result<()> {
        let name = format!("direct-{number}");
        let mounts = self.files(&name)?;
        let (pod, container) = (Pod::default(), Container::default());
        let config = self.sandbox(&name, &pod);
        let sandbox = self.client.run_sandbox(config.clone(), "").await.context("no sandbox")?;
        // Paths that are hidden are mounts, too: most of what a container costs beyond its process.
        let context = security::container(&pod, &container, (&ImageUser::default(), None, Vec::new()), "", false);
        let container = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: "main".to_owned(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: "docker.io/library/busybox:1.36".to_owned(), ..Default::default() }),
            command: ["sleep", "100000"].map(str::to_owned).to_vec(),
            log_path: "main.log".to_owned(),
            mounts,
            linux: Some(v1::LinuxContainerConfig {
                security_context: Some(context.map_err(anyhow::Error::msg)?),
                ..Default::default()
            }),
            ..Default::default()
        };
        let id = self.client.create_container(&sandbox, container, config).await.context("no container")?;
        self.client.start_container(&id).await.context("the container does not start")
    }

    /// Makes the files that every container of a pod has mounted, beside its logs.
    fn files(&self, name: &str) -> Result<Vec<v1::Mount>> {
        let folder = logs(name);
        std::fs::create_dir_all(self.seen_from_here(&folder)).context("no folder of logs")?;
        let mount = |(file, container_path): (&str, &str)| {
            let host_path = format!("{folder}/{file}");
            std::fs::write(self.seen_from_here(&host_path), "").context("no file to mount")?;
            Ok(v1::Mount { host_path, container_path: container_path.to_owned(), ..Default::default() })
        };
        [("hosts", "/etc/hosts"), ("termination", "/dev/termination-log")].into_iter().map(mount).collect()
    }

    fn seen_from_here(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn sandbox(&self, name: &str, pod: &Pod) -> v1::PodSandboxConfig {
        v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: name.to_owned(),
                uid: name.to_owned(),
                namespace: "direct".to_owned(),
                attempt: 0,
            }),
            hostname: name.to_owned(),
            log_directory: logs(name),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: format!("{}/{name}", self.cgroup),
                security_context: Some(security::sandbox(pod, None, &[])),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    /// Removes everything that was started.
    pub(crate) fn remove(&self) -> Result<()> {
        self.tasks.block_on(async {
            let all = self.client.list_sandboxes(None).await?;
            let own = |sandbox: &v1::PodSandbox| {
                sandbox.metadata.as_ref().is_some_and(|metadata| metadata.namespace == "direct")
            };
            let own = all.into_iter().filter(own).map(|sandbox| async move {
                let name = sandbox.metadata.map(|metadata| metadata.name).unwrap_or_default();
                std::fs::remove_dir_all(self.seen_from_here(&logs(&name))).ok();
                self.client.stop_sandbox(&sandbox.id).await?;
                self.client.remove_sandbox(&sandbox.id).await
            });
            futures::future::try_join_all(own).await
        })?;
        Ok(())
    }
}

/// Folder of the logs of a sandbox, as the runtime sees it.
fn logs(name: &str) -> String {
    format!("/var/log/pods/direct_{name}_{name}")
}
