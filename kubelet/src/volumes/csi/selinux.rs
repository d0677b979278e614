//! Volumes that are mounted with the label of their pod's processes, so that no file has to be relabelled. The rules are
//! pure; answers for upstream's `pkg/volume/util/selinux.go` and the labels of its desired state of volumes.

use super::error::LabelError;
use super::layout::Key;
use super::volume::Volume;
use crate::volumes::metrics::Plugin;
use k8s_openapi::api::core::v1::{Pod, SELinuxOptions};
use k8s_openapi::api::storage::v1::CSIDriver;
use parking_lot::Mutex;
use shared::flags::FeatureGates;
use shared::metrics::gauge;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::Path;

/// File with the labels of containers where a distribution packs them for all runtimes.
const CONTEXTS: &str = "usr/share/containers/selinux/contexts";

/// Labels that the distribution gives containers: of their processes, and of the files that those may use. Empty where it
/// names none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Labels {
    process: String,
    file: String,
}

/// Feature gates of mounts with labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Gates {
    /// `SELinuxMountReadWriteOncePod`.
    of_one_pod: bool,
    /// `SELinuxMount`: volumes of any access mode.
    of_any: bool,
    /// `SELinuxChangePolicy`: pods may want their files relabelled.
    change_policy: bool,
}

/// Label that a volume gets, and what is to be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum VolumeLabel {
    /// No label: SELinux is off, the pod has no options, or it or the driver wants files relabelled.
    None,
    Label(String),
    /// Containers that use the volume have different labels.
    Several(BTreeSet<String>),
    /// The label of a container cannot be told: those of the distribution are damaged.
    Unknown(LabelError),
}

/// User, role, type, and level where there is one.
fn parts(label: &str) -> Option<[&str; 4]> {
    let mut parts = label.splitn(4, ':');
    Some([parts.next()?, parts.next()?, parts.next()?, parts.next().unwrap_or_default()])
}

/// Label of the files of a process with these options; empty where it has none. Upstream's `SELinuxOptionsToFileLabel`: role
/// and type are those of files.
///
/// # Errors
/// The distribution's labels are damaged; upstream's text.
fn file_label(labels: &Labels, options: &SELinuxOptions) -> Result<String, LabelError> {
    let given = |option: &'_ Option<String>| option.clone().filter(|text| !text.is_empty());
    let all = [&options.user, &options.role, &options.type_, &options.level];
    if all.iter().all(|option| given(option).is_none()) {
        return Ok(String::new());
    }
    if labels.process.is_empty() || labels.file.is_empty() {
        return Ok(labels.file.clone());
    }
    let (Some(_), Some([user, role, kind, level])) = (parts(&labels.process), parts(&labels.file)) else {
        return Err(LabelError::Invalid);
    };
    let user = given(&options.user).unwrap_or_else(|| user.to_owned());
    let level = given(&options.level).unwrap_or_else(|| level.to_owned());
    Ok(if level.is_empty() { format!("{user}:{role}:{kind}") } else { format!("{user}:{role}:{kind}:{level}") })
}

/// Options as upstream prints them.
fn described(options: &SELinuxOptions) -> String {
    let text = |option: &Option<String>| option.clone().unwrap_or_default();
    let [user, role, kind, level] = [&options.user, &options.role, &options.type_, &options.level].map(text);
    format!("&SELinuxOptions{{User:{user},Role:{role},Type:{kind},Level:{level},}}")
}

/// Options of the containers that use a volume of the pod; those of a container win.
fn options<'a>(pod: &'a Pod, volume: &str) -> Vec<&'a SELinuxOptions> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let of_pod = spec.security_context.as_ref().and_then(|context| context.se_linux_options.as_ref());
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let uses = containers.filter(|container| {
        let mounted = container.volume_mounts.iter().flatten().any(|mount| mount.name == volume);
        mounted || container.volume_devices.iter().flatten().any(|device| device.name == volume)
    });
    let own = |context: &'a k8s_openapi::api::core::v1::SecurityContext| context.se_linux_options.as_ref();
    uses.filter_map(|container| container.security_context.as_ref().and_then(own).or(of_pod)).collect()
}

/// Upstream's `GetMountSELinuxLabel`.
fn find(labels: &Labels, gates: Gates, pod: &Pod, volume: &str, is_supported: bool) -> VolumeLabel {
    let labels = options(pod, volume).into_iter().map(|options| {
        let unknown = |cause| LabelError::Unknown { context: described(options), cause: Box::new(cause) };
        file_label(labels, options).map_err(unknown)
    });
    let labels = match labels.collect::<Result<BTreeSet<String>, LabelError>>() {
        Ok(labels) => labels,
        Err(error) => return VolumeLabel::Unknown(error),
    };
    if labels.len() > 1 {
        return VolumeLabel::Several(labels);
    }
    let policy = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let policy = policy.and_then(|context| context.se_linux_change_policy.as_deref());
    let is_recursive = gates.change_policy && policy == Some("Recursive");
    let label = labels.into_iter().next().filter(|label| !label.is_empty() && is_supported && !is_recursive);
    label.map_or(VolumeLabel::None, VolumeLabel::Label)
}

/// Reports whether a volume is mounted with a label: upstream's `VolumeSupportsSELinuxMount`.
fn may_be_labelled(gates: Gates, volume: &Volume) -> bool {
    gates.of_one_pod && volume.is_persistent() && (gates.of_any || volume.is_of_one_pod())
}

/// The mount option of a label, in quotes: there may be a comma in it.
pub(super) fn mount_option(label: &str) -> String {
    format!("context={label:?}")
}

/// The widest access mode of a volume, as metrics name it.
fn access_mode(volume: &Volume) -> &'static str {
    match volume.access_mode.as_str() {
        _ if !volume.is_persistent() => "inline",
        "ReadWriteMany" => "RWX",
        "ReadWriteOnce" => "RWO",
        "ReadOnlyMany" => "ROX",
        _ => "RWOP",
    }
}

/// Labels that do not fit.
#[derive(Clone, Copy, Debug)]
enum Misfit {
    /// The label of a container cannot be told.
    Container,
    /// Containers of a pod that use one volume have different labels.
    Pod,
    /// The volume is mounted with another label.
    Volume,
}

impl Misfit {
    /// Name of what counts it, as an error or as a warning.
    fn metric(self, is_error: bool) -> &'static str {
        match (self, is_error) {
            (Self::Container, true) => "volume_manager_selinux_container_errors_total",
            (Self::Container, false) => "volume_manager_selinux_container_warnings_total",
            (Self::Pod, true) => "volume_manager_selinux_pod_context_mismatch_errors_total",
            (Self::Pod, false) => "volume_manager_selinux_pod_context_mismatch_warnings_total",
            (Self::Volume, true) => "volume_manager_selinux_volume_context_mismatch_errors_total",
            (Self::Volume, false) => "volume_manager_selinux_volume_context_mismatch_warnings_total",
        }
    }

    /// Counts it as an error, where the pod cannot start for it, or as a warning.
    fn count(self, is_error: bool, labels: &[(&str, &str)]) {
        let help = if is_error {
            "[ALPHA] Number of SELinux labels that do not fit, tries included"
        } else {
            "[ALPHA] Number of SELinux labels that will not fit once volumes of all access modes have labels"
        };
        count(self.metric(is_error), help, labels);
    }
}

fn count(name: &str, help: &str, labels: &[(&str, &str)]) {
    let (names, values): (Vec<&str>, Vec<&str>) = labels.iter().copied().unzip();
    gauge(name, help, &names).with_label_values(&values).inc();
}

/// Labels of a node's volumes.
#[derive(Default)]
pub(crate) struct Selinux {
    /// Labels of containers; none on a node without SELinux.
    labels: Option<Labels>,
    gates: Gates,
    /// Label that the first pod of a volume wants, and the pods that have it, by uid.
    admitted: Mutex<HashMap<Key, (String, HashSet<String>)>>,
}

impl Labels {
    /// Reads `lxc_contexts`: `file = "system_u:object_r:container_file_t:s0"`.
    fn parse(text: &str) -> Self {
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with([';', '#']));
        let values: HashMap<&str, &str> = lines
            .filter_map(|line| line.split_once('='))
            .map(|(name, label)| (name.trim(), label.trim().trim_matches('"')))
            .collect();
        let named = |name: &str| values.get(name).copied().unwrap_or_default().to_owned();
        Self { process: named("process"), file: named("file") }
    }

    /// The labels of the distribution below a root: one file for all runtimes, or one of the policy.
    fn of_node(root: &Path) -> Self {
        let config = fs::read_to_string(root.join("etc/selinux/config")).unwrap_or_default();
        let policy = config.lines().find_map(|line| line.trim().strip_prefix("SELINUXTYPE=")).unwrap_or("targeted");
        let of_policy = root.join("etc/selinux").join(policy.trim()).join("contexts/lxc_contexts");
        let text = fs::read_to_string(root.join(CONTEXTS)).or_else(|_| fs::read_to_string(of_policy));
        text.as_deref().map(Self::parse).unwrap_or_default()
    }
}

impl Selinux {
    /// SELinux as the node has it: not at all, or with the distribution's labels.
    pub(crate) fn of_node(root: &Path, gates: &FeatureGates) -> Self {
        let is_on = root.join("sys/fs/selinux/enforce").exists();
        Self {
            labels: is_on.then(|| Labels::of_node(root)),
            gates: Gates {
                of_one_pod: gates.enabled("SELinuxMountReadWriteOncePod"),
                of_any: gates.enabled("SELinuxMount"),
                change_policy: gates.enabled("SELinuxChangePolicy"),
            },
            admitted: Mutex::default(),
        }
    }

    /// Reports whether volumes may have labels on this node.
    pub(super) fn is_on(&self) -> bool {
        self.labels.is_some() && self.gates.of_one_pod
    }

    /// The label that a pod's volume is mounted with, if any.
    ///
    /// # Errors
    /// The pod cannot have it: its containers, or another pod, want another label.
    pub(super) fn admit(
        &self,
        pod: &Pod,
        uid: &str,
        volume: &Volume,
        driver: Option<&CSIDriver>,
    ) -> Result<Option<String>, LabelError> {
        let Some(labels) = self.labels.as_ref().filter(|_| self.gates.of_one_pod) else { return Ok(None) };
        let is_supported = driver.and_then(|driver| driver.spec.se_linux_mount) == Some(true);
        let is_labelled = may_be_labelled(self.gates, volume);
        let mode = access_mode(volume);
        let label = match find(labels, self.gates, pod, &volume.used_as, is_supported) {
            VolumeLabel::None => String::new(),
            VolumeLabel::Label(label) => label,
            VolumeLabel::Several(labels) => {
                Misfit::Pod.count(is_labelled, &[("access_mode", mode)]);
                let error = LabelError::Several(labels.into_iter().collect());
                return if is_labelled { Err(error) } else { Ok(None) };
            }
            VolumeLabel::Unknown(error) => {
                Misfit::Container.count(is_labelled, &[("access_mode", mode)]);
                return if is_labelled { Err(error) } else { Ok(None) };
            }
        };
        let plugin = Plugin::driver(&volume.driver, false).name;
        let about = [("volume_plugin", plugin.as_str()), ("access_mode", mode)];
        let mut admitted = self.admitted.lock();
        let (known, users) = admitted.entry(volume.key()).or_insert_with(|| {
            if !label.is_empty() {
                let help = "[ALPHA] Number of volumes that are mounted with a label";
                count("volume_manager_selinux_volumes_admitted_total", help, &about);
            }
            (label.clone(), HashSet::new())
        });
        if is_supported && *known != label {
            Misfit::Volume.count(is_labelled, &about);
            if is_labelled {
                let (volume, known) = (volume.name.clone(), known.clone());
                return Err(LabelError::Conflict { volume, known, wanted: label });
            }
        }
        users.insert(uid.to_owned());
        Ok(Some(label).filter(|label| is_labelled && !label.is_empty()))
    }

    /// Forgets the labels that a pod wanted.
    pub(super) fn forget(&self, uid: &str) {
        self.admitted.lock().retain(|_, (_, users)| {
            users.remove(uid);
            !users.is_empty()
        });
    }

    #[cfg(test)]
    pub(super) fn of_test(of_any: bool) -> Self {
        let gates = Gates { of_one_pod: true, of_any, change_policy: true };
        let (process, file) =
            ("system_u:system_r:container_t:s0".to_owned(), "system_u:object_r:container_file_t:s0".to_owned());
        Self { labels: Some(Labels { process, file }), gates, admitted: Mutex::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::volume::tests::{driver, persistent};
    use super::*;
    use serde_json::{Value, json};

    fn pod(of_pod: Value, of_containers: &[Value]) -> Pod {
        let containers: Vec<Value> = of_containers
            .iter()
            .map(|context| {
                json!({"name": "c", "securityContext": context, "volumeMounts": [{"name": "v", "mountPath": "/v"}]})
            })
            .collect();
        let spec = json!({"securityContext": of_pod, "containers": containers});
        serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u"}, "spec": spec})).expect("a pod")
    }

    fn labels() -> Labels {
        Selinux::of_test(true).labels.expect("labels")
    }

    fn level(level: &str) -> Value {
        json!({"seLinuxOptions": {"level": level}})
    }

    #[test]
    fn files_have_the_level_of_the_processes_that_use_them() {
        let labels = labels();
        let gates = Gates { of_one_pod: true, of_any: false, change_policy: true };
        let label = |level: &str| VolumeLabel::Label(format!("system_u:object_r:container_file_t:{level}"));
        let several = ["s0:c1,c2", "s0:c3"].map(|level| format!("system_u:object_r:container_file_t:{level}"));
        let recursive = json!({"seLinuxOptions": {"level": "s0:c1,c2"}, "seLinuxChangePolicy": "Recursive"});
        let typed = json!({"seLinuxOptions": {"type": "spc_t", "user": "user_u", "role": "r"}});
        for (of_pod, of_containers, supported, expected) in [
            (json!({}), vec![json!({})], true, VolumeLabel::None),
            (level("s0:c1,c2"), vec![json!({}), json!({})], true, label("s0:c1,c2")),
            (level("s0:c1,c2"), vec![json!({})], false, VolumeLabel::None),
            (level("s0:c1,c2"), vec![level("s0:c3")], true, label("s0:c3")),
            (level("s0:c1,c2"), vec![level("s0:c3"), json!({})], true, VolumeLabel::Several(several.into())),
            (recursive, vec![json!({})], true, VolumeLabel::None),
            (typed, vec![json!({})], true, VolumeLabel::Label("user_u:object_r:container_file_t:s0".to_owned())),
            (level(""), vec![json!({})], true, VolumeLabel::None),
        ] {
            let pod = pod(of_pod.clone(), &of_containers);
            assert_eq!(find(&labels, gates, &pod, "v", supported), expected, "{of_pod} {of_containers:?}");
            assert_eq!(find(&labels, gates, &pod, "other", supported), VolumeLabel::None, "no container uses it");
        }
    }

    #[test]
    fn volumes_of_one_pod_have_labels_and_others_behind_a_gate() {
        let volume =
            |mode: &str| Volume::persistent(&persistent(json!({"accessModes": [mode]})), false).expect("a volume");
        for (mode, of_one_pod, of_any, expected) in [
            ("ReadWriteOncePod", true, false, true),
            ("ReadWriteOncePod", false, true, false),
            ("ReadWriteMany", true, false, false),
            ("ReadWriteMany", true, true, true),
        ] {
            let gates = Gates { of_one_pod, of_any, change_policy: true };
            assert_eq!(may_be_labelled(gates, &volume(mode)), expected, "{mode} {gates:?}");
        }
        assert_eq!(mount_option("a:b:c:s0:c1,c2"), "context=\"a:b:c:s0:c1,c2\"");
    }

    #[test]
    fn a_volume_has_one_label_at_a_time() {
        let able = driver(json!({"seLinuxMount": true}));
        let volume = |mode: &str| {
            let volume = Volume::persistent(&persistent(json!({"accessModes": [mode]})), false).expect("a volume");
            volume.used_as("v")
        };
        let (one, two) = (pod(level("s0:c1"), &[json!({})]), pod(level("s0:c2"), &[json!({})]));
        let label = |level: &str| Some(format!("system_u:object_r:container_file_t:{level}"));
        let (selinux, shared) = (Selinux::of_test(true), volume("ReadWriteMany"));
        assert_eq!(selinux.admit(&one, "a", &shared, Some(&able)), Ok(label("s0:c1")));
        let text = "conflicting SELinux labels of volume pv: \"system_u:object_r:container_file_t:s0:c1\" and \
                    \"system_u:object_r:container_file_t:s0:c2\"";
        let refused = selinux.admit(&two, "b", &shared, Some(&able)).expect_err("another label");
        assert_eq!(refused.to_string(), text);
        selinux.forget("a");
        assert_eq!(selinux.admit(&two, "b", &shared, Some(&able)), Ok(label("s0:c2")));
        // Without the gate it is counted, and the pod starts.
        let selinux = Selinux::of_test(false);
        assert_eq!(selinux.admit(&one, "a", &shared, Some(&able)), Ok(None));
        assert_eq!(selinux.admit(&two, "b", &shared, Some(&able)), Ok(None));
        let text = shared::metrics::gather();
        for expected in [
            "volume_manager_selinux_volume_context_mismatch_errors_total{access_mode=\"RWX\",volume_plugin=\"kubernetes.io/csi:d\"} 1",
            "volume_manager_selinux_volume_context_mismatch_warnings_total{access_mode=\"RWX\",volume_plugin=\"kubernetes.io/csi:d\"} 1",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        let both = pod(level("s0:c1"), &[json!({}), level("s0:c2")]);
        let alone = volume("ReadWriteOncePod");
        let refused = selinux.admit(&both, "c", &alone, Some(&able));
        assert!(matches!(&refused, Err(LabelError::Several(_))), "{refused:?}");
        assert_eq!(selinux.admit(&both, "c", &shared, Some(&able)), Ok(None), "it is not mounted with a label");
        assert_eq!(Selinux::default().admit(&both, "c", &alone, Some(&able)), Ok(None), "there is no SELinux");
    }

    fn metric(name: &str, labels: &str) -> u64 {
        let text = shared::metrics::gather();
        let sample = format!("volume_manager_selinux_{name}{{{labels}}} ");
        text.lines().find_map(|line| line.strip_prefix(&sample)?.parse().ok()).unwrap_or(0)
    }

    #[test]
    fn labels_that_do_not_fit_are_errors_where_the_volume_would_have_one() {
        let able = driver(json!({"seLinuxMount": true}));
        let volume = |mode: &str| {
            let volume = Volume::persistent(&persistent(json!({"accessModes": [mode]})), false).expect("a volume");
            volume.used_as("v")
        };
        let damaged = |mut selinux: Selinux| {
            selinux.labels = Some(Labels { process: "a:b:c".to_owned(), file: "nonsense".to_owned() });
            selinux
        };
        let one = pod(level("s0:c1"), &[json!({})]);
        let two = pod(json!({}), &[level("s0:c1"), level("s0:c2")]);
        let unknown = "failed to construct SELinux label from context \
                       \"&SELinuxOptions{User:,Role:,Type:,Level:s0:c1,}\": invalid Label";
        for (selinux, pod, family, text) in [
            (damaged(Selinux::of_test(false)), &one, "container", unknown),
            (Selinux::of_test(false), &two, "pod_context_mismatch", "multiple SELinux labels found: "),
        ] {
            for (mode, short, kind) in [("ReadWriteOncePod", "RWOP", "errors"), ("ReadOnlyMany", "ROX", "warnings")] {
                let name = format!("{family}_{kind}_total");
                let label = format!("access_mode=\"{short}\"");
                let before = metric(&name, &label);
                let admitted = selinux.admit(pod, "u", &volume(mode), Some(&able));
                match kind {
                    "errors" => assert!(admitted.expect_err(text).to_string().starts_with(text), "{name}"),
                    _ => assert_eq!(admitted, Ok(None), "{name}"),
                }
                // Other tests count, too.
                assert!(metric(&name, &label) > before, "{name}");
            }
        }
    }

    #[test]
    fn without_labels_of_the_distribution_nothing_is_labelled() {
        let able = driver(json!({"seLinuxMount": true}));
        let volume = Volume::persistent(&persistent(json!({"accessModes": ["ReadWriteOncePod"]})), false);
        let volume = volume.expect("a volume").used_as("v");
        let selinux = Selinux { labels: Some(Labels::default()), ..Selinux::of_test(false) };
        assert_eq!(selinux.admit(&pod(level("s0:c1"), &[json!({})]), "u", &volume, Some(&able)), Ok(None));
    }

    #[test]
    fn labels_are_those_of_the_distribution() {
        let root = tempfile::tempdir().expect("a folder");
        let gates = FeatureGates::default();
        assert_eq!(Selinux::of_node(root.path(), &gates).labels, None);
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        write("sys/fs/selinux/enforce", "1");
        assert_eq!(Selinux::of_node(root.path(), &gates).labels, Some(Labels::default()), "it names none");
        write("etc/selinux/config", "SELINUX=enforcing\nSELINUXTYPE=mls\n");
        let contexts = "process = \"system_u:system_r:container_t:s0\"\n# file = \"old\"\nfile = \"system_u:object_r:svirt_t:s0-s15\"\n";
        write("etc/selinux/mls/contexts/lxc_contexts", contexts);
        let expected = |process: &str, file: &str| Some(Labels { process: process.to_owned(), file: file.to_owned() });
        let of_policy = expected("system_u:system_r:container_t:s0", "system_u:object_r:svirt_t:s0-s15");
        assert_eq!(Selinux::of_node(root.path(), &gates).labels, of_policy);
        // What containers' own package says counts more.
        write(CONTEXTS, "process = \"a:b:c:s0\"\nfile = \"d:e:f:s0\"\n");
        assert_eq!(Selinux::of_node(root.path(), &gates).labels, expected("a:b:c:s0", "d:e:f:s0"));
    }
}
