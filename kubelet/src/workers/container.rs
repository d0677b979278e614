//! Container configuration in the runtime's words. Pure: mounts, environment and image were prepared by the driver.
//! Answers for `generateContainerConfig` and `makeMounts` of upstream's kuberuntime.

use super::error::{BlockDeviceError, ContainerConfigError, ReadOnlyError};
use super::plan::container_hash;
use super::sandbox::{pod_labels, seccomp_root};
use super::security;
use crate::cpus::CpuSet;
use crate::cri::{labels, v1};
use crate::devices::v1beta1::{self as plugin, ContainerAllocateResponse};
use crate::env::expand_all;
use crate::images::ImageUser;
use crate::pods;
use crate::resources::{MachineInfo, container_resources};
use crate::settings::Settings;
use crate::volumes::MountedVolume;
use k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};
use std::collections::BTreeMap;
use std::path::Path;

/// Parts that the driver prepared for a container.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    /// Restart count of the new container.
    pub attempt: u32,
    /// Environment in order.
    pub env: Vec<(String, String)>,
    /// Mounts, the kubelet's own ones included.
    pub mounts: Vec<v1::Mount>,
    /// Devices.
    pub devices: Vec<v1::Device>,
    /// Answers of plugins: needs of the container for their devices.
    pub plugins: Vec<ContainerAllocateResponse>,
    /// CDI names of the devices of its claims.
    pub claimed: Vec<String>,
    /// The image's id, so that the very image that was checked is run.
    pub image_id: String,
    /// User of the image.
    pub image_user: ImageUser,
    /// User namespace of the pod.
    pub users: Option<v1::UserNamespace>,
    /// Groups that the pod's volumes ask for.
    pub groups: Vec<i64>,
}

fn plugin_mount(mount: plugin::Mount) -> v1::Mount {
    let plugin::Mount { container_path, host_path, read_only } = mount;
    v1::Mount { container_path, host_path, readonly: read_only, ..v1::Mount::default() }
}

fn plugin_device(device: plugin::DeviceSpec) -> v1::Device {
    let plugin::DeviceSpec { container_path, host_path, permissions } = device;
    v1::Device { container_path, host_path, permissions }
}

/// Keeps a container on processors. One that has them to itself needs no quota: upstream's
/// `DisableCPUQuotaWithExclusiveCPUs`.
pub fn pin(resources: &mut v1::LinuxContainerResources, cpus: &CpuSet, is_exclusive: bool) {
    resources.cpuset_cpus = cpus.to_string();
    if is_exclusive {
        resources.cpu_quota = -1;
    }
}

/// The path of a mount in a container.
pub fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

/// Images that are volumes of a container, by volume, in the form in which containers name images.
pub fn image_volumes(pod: &Pod, container: &Container) -> Vec<(String, Container)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let is_mounted = |name: &String| container.volume_mounts.iter().flatten().any(|mount| mount.name == *name);
    let images = volumes.filter(|volume| is_mounted(&volume.name)).filter_map(|volume| {
        let source = volume.image.as_ref()?;
        let image = Container {
            name: container.name.clone(),
            image: source.reference.clone(),
            image_pull_policy: source.pull_policy.clone(),
            ..Container::default()
        };
        Some((volume.name.clone(), image))
    });
    images.collect()
}

/// The mount of an image, which the runtime makes: always read-only.
pub fn image_mount(mount: &VolumeMount, image: v1::ImageSpec, sub_path: String) -> v1::Mount {
    v1::Mount {
        container_path: absolute(&mount.mount_path),
        readonly: true,
        selinux_relabel: true,
        propagation: propagation(mount.mount_propagation.as_deref()).into(),
        image: Some(image),
        image_sub_path: sub_path,
        ..v1::Mount::default()
    }
}

/// Devices of a container for its `volumeDevices`. Upstream's `makeBlockVolumes`.
pub fn block_devices(
    container: &Container,
    volumes: &BTreeMap<String, MountedVolume>,
) -> Result<Vec<v1::Device>, BlockDeviceError> {
    let devices = container.volume_devices.iter().flatten().map(|device| {
        if !device.device_path.starts_with('/') {
            let (path, container) = (device.device_path.clone(), container.name.clone());
            return Err(BlockDeviceError::Path { path, container });
        }
        let Some(volume) = volumes.get(&device.name).filter(|volume| volume.is_block) else {
            let (volume, container) = (device.name.clone(), container.name.clone());
            return Err(BlockDeviceError::NoVolume { volume, container });
        };
        let permissions = if volume.read_only { "r" } else { "mrw" };
        Ok(v1::Device {
            container_path: device.device_path.clone(),
            host_path: volume.host_path.to_string_lossy().into_owned(),
            permissions: permissions.to_owned(),
        })
    });
    devices.collect()
}

/// Mount propagation of a volume mount.
pub fn propagation(mode: Option<&str>) -> v1::MountPropagation {
    match mode {
        Some("Bidirectional") => v1::MountPropagation::PropagationBidirectional,
        Some("HostToContainer") => v1::MountPropagation::PropagationHostToContainer,
        _ => v1::MountPropagation::PropagationPrivate,
    }
}

fn annotations(pod: &Pod, container: &Container, attempt: u32) -> BTreeMap<String, String> {
    let mut all = BTreeMap::from([
        (labels::HASH.to_owned(), container_hash(container)),
        (labels::RESTART_COUNT.to_owned(), attempt.to_string()),
        (
            labels::TERMINATION_PATH.to_owned(),
            container.termination_message_path.clone().unwrap_or_else(|| "/dev/termination-log".to_owned()),
        ),
        (
            labels::TERMINATION_POLICY.to_owned(),
            container.termination_message_policy.clone().unwrap_or_else(|| "File".to_owned()),
        ),
    ]);
    if let Some(seconds) = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds) {
        all.insert(labels::POD_GRACE.to_owned(), seconds.to_string());
    }
    if let Some(ports) = container.ports.as_ref().filter(|p| !p.is_empty())
        && let Ok(text) = serde_json::to_string(ports)
    {
        all.insert(labels::PORTS.to_owned(), text);
    }
    all
}

/// Shows files of all mounts as owned by the ids that own them on the node: the runtime makes idmapped mounts, and no owner
/// on the disk is changed. Answers for upstream's `applyPlatformSpecificContainerConfig`.
fn map_owners(mounts: &mut [v1::Mount], users: Option<&v1::UserNamespace>) {
    let Some(users) = users else { return };
    for mount in mounts {
        mount.uid_mappings.clone_from(&users.uids);
        mount.gid_mappings.clone_from(&users.gids);
    }
}

/// The configuration.
pub fn container_config(
    pod: &Pod,
    container: &Container,
    mut prepared: Prepared,
    machine: &MachineInfo,
    settings: &Settings,
) -> Result<v1::ContainerConfig, ContainerConfigError> {
    let mut annotations = BTreeMap::new();
    let cdi = |name: String| v1::CdiDevice { name };
    let mut cdi_devices: Vec<v1::CdiDevice> = std::mem::take(&mut prepared.claimed).into_iter().map(cdi).collect();
    for answer in std::mem::take(&mut prepared.plugins) {
        prepared.mounts.extend(answer.mounts.into_iter().map(plugin_mount));
        prepared.devices.extend(answer.devices.into_iter().map(plugin_device));
        annotations.extend(answer.annotations);
        cdi_devices.extend(answer.cdi_devices.into_iter().map(|device| cdi(device.name)));
    }
    // The kubelet's own count where a plugin gives one of the same name: restarts are decided by them.
    annotations.extend(self::annotations(pod, container, prepared.attempt));
    let expanded = |list: &Option<Vec<String>>| expand_all(list.as_deref().unwrap_or_default(), &prepared.env);
    let root = seccomp_root(settings);
    let users = prepared.users.take();
    map_owners(&mut prepared.mounts, users.as_ref());
    let about = (&prepared.image_user, users, std::mem::take(&mut prepared.groups));
    let context = security::container(pod, container, about, &root, settings.seccomp_default)?;
    let mut all_labels = pod_labels(pod);
    all_labels.insert(labels::CONTAINER_NAME.to_owned(), container.name.clone());
    let stdin = container.stdin.unwrap_or(false);
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: container.name.clone(), attempt: prepared.attempt }),
        image: Some(v1::ImageSpec {
            image: prepared.image_id,
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..v1::ImageSpec::default()
        }),
        command: expanded(&container.command)?,
        args: expanded(&container.args)?,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: prepared.env.iter().map(|(key, value)| v1::KeyValue { key: key.clone(), value: value.clone() }).collect(),
        mounts: prepared.mounts,
        devices: prepared.devices,
        labels: all_labels,
        annotations,
        log_path: format!("{}/{}.log", container.name, prepared.attempt),
        stdin,
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(container_resources(pod, container, machine, &settings.resources)),
            security_context: Some(context),
        }),
        cdi_devices,
    })
}

/// Path at which log collectors expect a container's log: `<pod>_<namespace>_<container>-<id>.log`, short enough for a
/// file name.
pub fn log_symlink(pod: &Pod, container: &str, id: &str) -> String {
    let mut name = format!("{}_{}_{container}-{id}", pods::name(pod), pods::namespace(pod));
    name.truncate(251);
    format!("{name}.log")
}

/// Removes symlinks of [`log_symlink`] whose log is gone.
pub fn unlink_dangling(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for path in entries.flatten().map(|e| e.path()) {
        let link = std::fs::symlink_metadata(&path).is_ok_and(|m| m.file_type().is_symlink());
        if link && !path.exists() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Resolves `recursiveReadOnly` of a mount: true where all mounts below it are read-only, too; upstream's error where that
/// cannot be had. `able` says that the runtime handler can do it. Answers for `resolveRecursiveReadOnly`.
pub fn recursive_read_only(mount: &VolumeMount, able: bool) -> Result<bool, ReadOnlyError> {
    let mode = mount.recursive_read_only.as_deref().filter(|mode| !mode.is_empty() && *mode != "Disabled");
    let Some(mode) = mode else { return Ok(false) };
    let volume = || mount.name.clone();
    if mount.read_only != Some(true) {
        return Err(ReadOnlyError::Writable(volume()));
    }
    if let Some(propagation) = mount.mount_propagation.clone().filter(|propagation| propagation != "None") {
        return Err(ReadOnlyError::Propagation { volume: volume(), propagation });
    }
    match mode {
        "IfPossible" => Ok(able),
        "Enabled" if able => Ok(true),
        "Enabled" => Err(ReadOnlyError::Unable(volume())),
        other => Err(ReadOnlyError::Unknown(other.to_owned())),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::resources::ResourceConfig;
    use serde_json::json;
    use std::time::Duration;

    /// Settings for tests.
    pub(crate) fn settings() -> Settings {
        Settings {
            declared_features: None,
            root_dir: "/nonexistent/kubelet".into(),
            pod_logs_dir: "/nonexistent/pods".into(),
            container_logs_dir: "/nonexistent/containers".into(),
            gates: shared::flags::FeatureGates::default(),
            volume_plugin_dir: "/nonexistent/exec".into(),
            volume_stats_period: Duration::from_secs(60),
            node_name: "node".into(),
            hostname: "node".into(),
            cluster_dns: vec!["10.96.0.10".into()],
            cluster_domain: "cluster.local".into(),
            resolv_conf: String::new(),
            seccomp_default: false,
            pulls: crate::images::Pulls::default(),
            log_workers: 1,
            log_max_size: 10 << 20,
            log_max_files: 5,
            log_monitor_interval: Duration::from_secs(10),
            crash_backoff: crate::backoff::Backoff::default(),
            sync_frequency: Duration::from_secs(60),
            allowed_unsafe_sysctls: Vec::new(),
            enable_controller_attach_detach: true,
            resources: ResourceConfig {
                kube_reserved: Default::default(),
                system_reserved: Default::default(),
                eviction_hard: Default::default(),
                max_pods: 110,
                pods_per_core: 0,
                cpu_cfs_quota: true,
                cpu_cfs_quota_period_us: 100_000,
                single_process_oom_kill: false,
                pod_pids_limit: -1,
                local_storage: true,
                limited_swap: false,
                memory_qos: None,
                qos_reserved: None,
            },
            exclusive: Default::default(),
            prevents_references: true,
        }
    }

    #[test]
    fn non_root_is_checked_against_user_and_image() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"},
            "spec": {"containers": [], "securityContext": {"runAsNonRoot": true}}}))
        .expect("pod");
        let container = |user: Option<i64>| Container {
            name: "c".into(),
            security_context: Some(k8s_openapi::api::core::v1::SecurityContext {
                run_as_user: user,
                ..Default::default()
            }),
            ..Container::default()
        };
        let place = "(pod: \"p_d(u)\", container: c)";
        for (user, image, expected) in [
            (Some(5), ImageUser::default(), None),
            (Some(0), ImageUser::default(), Some(format!("container's runAsUser breaks non-root policy {place}"))),
            (
                None,
                ImageUser { uid: Some(0), name: String::new() },
                Some(format!("container has runAsNonRoot and image will run as root {place}")),
            ),
            (
                None,
                ImageUser { uid: None, name: "www".into() },
                Some(format!(
                    "container has runAsNonRoot and image has non-numeric user (www), cannot verify user is non-root {place}"
                )),
            ),
        ] {
            let prepared = Prepared { image_user: image, ..Prepared::default() };
            let result = container_config(&pod, &container(user), prepared, &MachineInfo::default(), &settings());
            assert_eq!(result.err().map(|error| error.to_string()), expected);
        }
    }

    #[test]
    fn mounts_and_namespaces_of_a_pod_have_its_mappings() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": [],
            "hostUsers": false}}))
        .expect("pod");
        let range = vec![v1::IdMapping { host_id: 65536, container_id: 0, length: 65536 }];
        let users = v1::UserNamespace { mode: 0, uids: range.clone(), gids: range.clone() };
        let plain = |path: &str| v1::Mount { container_path: path.to_owned(), ..v1::Mount::default() };
        let plugin = ContainerAllocateResponse { mounts: vec![plugin::Mount::default()], ..Default::default() };
        let prepared = Prepared {
            mounts: vec![plain("/v"), plain("/etc/hosts")],
            plugins: vec![plugin],
            users: Some(users.clone()),
            ..Prepared::default()
        };
        let container: Container = serde_json::from_value(json!({"name": "c",
            "securityContext": {"procMount": "Unmasked"}}))
        .expect("container");
        let config = container_config(&pod, &container, prepared, &MachineInfo::default(), &settings()).expect("made");
        assert_eq!(config.mounts.len(), 3);
        assert!(config.mounts.iter().all(|mount| mount.uid_mappings == range && mount.gid_mappings == range));
        let context = config.linux.and_then(|linux| linux.security_context).expect("context");
        assert_eq!(context.namespace_options.and_then(|options| options.userns_options), Some(users));
        assert!(context.masked_paths.is_empty() && context.readonly_paths.is_empty(), "procMount");
    }

    #[test]
    fn groups_of_volumes_stand_beside_those_of_the_pod() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": [],
            "securityContext": {"fsGroup": 1, "supplementalGroups": [2]}}}))
        .expect("pod");
        let container: Container = serde_json::from_value(json!({"name": "c"})).expect("container");
        let prepared = Prepared { groups: vec![3], ..Prepared::default() };
        let config = container_config(&pod, &container, prepared, &MachineInfo::default(), &settings()).expect("made");
        let context = config.linux.and_then(|linux| linux.security_context).expect("context");
        assert_eq!(context.supplemental_groups, [1, 2, 3]);
        // The order of a sandbox is another.
        assert_eq!(security::sandbox(&pod, None, &[3]).supplemental_groups, [1, 3, 2]);
    }

    #[test]
    fn processors_of_its_own_need_no_quota() {
        for (is_exclusive, expected) in [(true, -1), (false, 50_000)] {
            let mut resources = v1::LinuxContainerResources { cpu_quota: 50_000, ..Default::default() };
            pin(&mut resources, &"2-3".parse().expect("a set"), is_exclusive);
            assert_eq!((resources.cpuset_cpus.as_str(), resources.cpu_quota), ("2-3", expected));
        }
    }

    #[test]
    fn images_are_volumes_that_the_runtime_mounts() {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [], "volumes": [
            {"name": "model", "image": {"reference": "registry.test/model:1", "pullPolicy": "Always"}},
            {"name": "unused", "image": {"reference": "registry.test/other:1"}},
            {"name": "scratch", "emptyDir": {}}]}}))
        .expect("pod");
        let container: Container = serde_json::from_value(json!({"name": "c", "volumeMounts": [
            {"name": "model", "mountPath": "models"}, {"name": "scratch", "mountPath": "/s"}]}))
        .expect("container");
        let images = image_volumes(&pod, &container);
        let [(volume, image)] = images.as_slice() else { panic!("{images:?}") };
        assert_eq!((volume.as_str(), image.image.as_deref()), ("model", Some("registry.test/model:1")));
        assert_eq!(image.image_pull_policy.as_deref(), Some("Always"));
        let spec = v1::ImageSpec { image: "sha256:1".to_owned(), ..v1::ImageSpec::default() };
        let mount = image_mount(&container.volume_mounts.expect("mounts")[0], spec, "v1".to_owned());
        let told = (mount.container_path.as_str(), mount.image_sub_path.as_str(), mount.host_path.as_str());
        assert_eq!(told, ("/models", "v1", ""));
        assert!(mount.readonly && mount.image.is_some_and(|image| image.image == "sha256:1"));
    }

    #[test]
    fn block_volumes_are_devices_of_their_containers() {
        let container: Container = serde_json::from_value(json!({"name": "c", "volumeDevices": [
            {"name": "a", "devicePath": "/dev/a"}, {"name": "b", "devicePath": "/dev/b"}]}))
        .expect("container");
        let volume = |read_only, is_block| MountedVolume {
            host_path: "/link".into(),
            read_only,
            selinux_relabel: true,
            is_file: false,
            is_block,
        };
        let both = |second| BTreeMap::from([("a".to_owned(), volume(false, true)), ("b".to_owned(), second)]);
        let devices = block_devices(&container, &both(volume(true, true))).expect("devices");
        let told: Vec<(&str, &str)> =
            devices.iter().map(|d| (d.container_path.as_str(), d.permissions.as_str())).collect();
        assert_eq!(told, [("/dev/a", "mrw"), ("/dev/b", "r")]);
        let missing = Err("cannot find volume \"b\" to pass into container \"c\"".to_owned());
        let found = block_devices(&container, &both(volume(false, false)));
        assert_eq!(found.map_err(|error| error.to_string()), missing);
    }

    #[test]
    fn recursive_read_only_mounts_are_had_or_refused() {
        let refused = |why: &str| Err(format!("volume \"v\" requested recursive read-only mode, but it is {why}"));
        for (mount, able, expected) in [
            (json!({"readOnly": true}), true, Ok(false)),
            (json!({"readOnly": true, "recursiveReadOnly": "Disabled"}), true, Ok(false)),
            (json!({"readOnly": true, "recursiveReadOnly": "Enabled"}), true, Ok(true)),
            (json!({"readOnly": true, "recursiveReadOnly": "Enabled"}), false, refused("not supported by the runtime")),
            (json!({"readOnly": true, "recursiveReadOnly": "IfPossible"}), true, Ok(true)),
            (json!({"readOnly": true, "recursiveReadOnly": "IfPossible"}), false, Ok(false)),
            (json!({"recursiveReadOnly": "Enabled"}), true, refused("not read-only")),
            (
                json!({"readOnly": true, "recursiveReadOnly": "Enabled", "mountPropagation": "HostToContainer"}),
                true,
                refused("not compatible with propagation \"HostToContainer\""),
            ),
        ] {
            let mut value = json!({"name": "v", "mountPath": "/v"});
            value.as_object_mut().expect("object").extend(mount.as_object().expect("object").clone());
            let mount: VolumeMount = serde_json::from_value(value).expect("mount");
            let found = recursive_read_only(&mount, able).map_err(|error| error.to_string());
            assert_eq!(found, expected, "{mount:?}");
        }
    }
}
