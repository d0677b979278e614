//! Volumes that are mounted with the label of their pod's processes, so that no file has to be relabelled. The rules are
//! pure; answers for upstream's `pkg/volume/util/selinux.go` and the labels of its desired state of volumes.

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

/// User, role, type and level.
type Parts = [String; 4];

/// Label of files that containers may use where the distribution names none.
const FILES: [&str; 4] = ["system_u", "object_r", "container_file_t", "s0"];

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
}

/// Label of the files of a process with these options; empty where it has none. Upstream's `SELinuxOptionsToFileLabel`: role
/// and type are those of files.
fn file_label([user, role, kind, level]: &Parts, options: &SELinuxOptions) -> String {
    let given = |option: &Option<String>| option.clone().filter(|text| !text.is_empty());
    let all = [&options.user, &options.role, &options.type_, &options.level];
    if all.iter().all(|option| given(option).is_none()) {
        return String::new();
    }
    let user = given(&options.user).unwrap_or_else(|| user.clone());
    let level = given(&options.level).unwrap_or_else(|| level.clone());
    format!("{user}:{role}:{kind}:{level}")
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
fn find(files: &Parts, gates: Gates, pod: &Pod, volume: &str, is_supported: bool) -> VolumeLabel {
    let labels: BTreeSet<String> = options(pod, volume).into_iter().map(|options| file_label(files, options)).collect();
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

fn count(name: &str, help: &str, labels: &[(&str, &str)]) {
    let (names, values): (Vec<&str>, Vec<&str>) = labels.iter().copied().unzip();
    let name = format!("volume_manager_selinux_{name}");
    gauge(&name, &format!("[ALPHA] {help}"), &names).with_label_values(&values).inc();
}

/// Counts a mismatch as an error, where the pod cannot start for it, or as a warning.
fn mismatch(is_error: bool, what: &str, labels: &[(&str, &str)]) {
    let (kind, help) = if is_error {
        ("errors", "Number of SELinux labels that do not fit together, tries included")
    } else {
        ("warnings", "Number of SELinux labels that will not fit together once volumes of all access modes have labels")
    };
    count(&format!("{what}_mismatch_{kind}_total"), help, labels);
}

/// Labels of a node's volumes.
#[derive(Default)]
pub(crate) struct Selinux {
    /// Label of files; none on a node without SELinux.
    files: Option<Parts>,
    gates: Gates,
    /// Label that the first pod of a volume wants, and the pods that have it, by uid.
    admitted: Mutex<HashMap<Key, (String, HashSet<String>)>>,
}

fn parts(label: &str) -> Option<Parts> {
    let parts: Vec<String> = label.splitn(4, ':').map(str::to_owned).collect();
    parts.try_into().ok()
}

/// The label of files in `lxc_contexts`: `file = "system_u:object_r:container_file_t:s0"`.
fn configured(text: &str) -> Option<Parts> {
    let values = text.lines().filter_map(|line| line.split_once('='));
    let mut label = values.filter(|(name, _)| name.trim() == "file").map(|(_, label)| label.trim().trim_matches('"'));
    label.next_back().and_then(parts)
}

impl Selinux {
    /// SELinux as the node has it: not at all, or with the distribution's labels.
    pub(crate) fn of_node(root: &Path, gates: &FeatureGates) -> Self {
        let is_on = root.join("sys/fs/selinux/enforce").exists();
        let config = fs::read_to_string(root.join("etc/selinux/config")).unwrap_or_default();
        let policy = config.lines().find_map(|line| line.trim().strip_prefix("SELINUXTYPE=")).unwrap_or("targeted");
        let contexts = root.join("etc/selinux").join(policy.trim()).join("contexts/lxc_contexts");
        let files = || fs::read_to_string(contexts).ok().as_deref().and_then(configured);
        Self {
            files: is_on.then(|| files().unwrap_or_else(|| FILES.map(str::to_owned))),
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
        self.files.is_some() && self.gates.of_one_pod
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
    ) -> Result<Option<String>, String> {
        let Some(files) = self.files.as_ref().filter(|_| self.gates.of_one_pod) else { return Ok(None) };
        let is_supported = driver.and_then(|driver| driver.spec.se_linux_mount) == Some(true);
        let is_labelled = may_be_labelled(self.gates, volume);
        let mode = access_mode(volume);
        let label = match find(files, self.gates, pod, &volume.used_as, is_supported) {
            VolumeLabel::None => String::new(),
            VolumeLabel::Label(label) => label,
            VolumeLabel::Several(labels) => {
                mismatch(is_labelled, "pod_context", &[("access_mode", mode)]);
                let labels: Vec<String> = labels.into_iter().collect();
                let text = format!("multiple SELinux labels found: {}", labels.join(","));
                return if is_labelled { Err(text) } else { Ok(None) };
            }
        };
        let plugin = Plugin::driver(&volume.driver, false).name;
        let about = [("volume_plugin", plugin.as_str()), ("access_mode", mode)];
        let mut admitted = self.admitted.lock();
        let (known, users) = admitted.entry(volume.key()).or_insert_with(|| {
            if !label.is_empty() {
                count("volumes_admitted_total", "Number of volumes that are mounted with a label", &about);
            }
            (label.clone(), HashSet::new())
        });
        if is_supported && *known != label {
            mismatch(is_labelled, "volume_context", &about);
            if is_labelled {
                return Err(format!("conflicting SELinux labels of volume {}: {known:?} and {label:?}", volume.name));
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
        Self { files: Some(FILES.map(str::to_owned)), gates, admitted: Mutex::default() }
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

    fn level(level: &str) -> Value {
        json!({"seLinuxOptions": {"level": level}})
    }

    #[test]
    fn files_have_the_level_of_the_processes_that_use_them() {
        let files = FILES.map(str::to_owned);
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
            assert_eq!(find(&files, gates, &pod, "v", supported), expected, "{of_pod} {of_containers:?}");
            assert_eq!(find(&files, gates, &pod, "other", supported), VolumeLabel::None, "no container uses it");
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
        assert_eq!(selinux.admit(&two, "b", &shared, Some(&able)), Err(text.to_owned()));
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
        assert!(selinux.admit(&both, "c", &alone, Some(&able)).is_err_and(|text| text.starts_with("multiple SELinux")));
        assert_eq!(selinux.admit(&both, "c", &shared, Some(&able)), Ok(None), "it is not mounted with a label");
        assert_eq!(Selinux::default().admit(&both, "c", &alone, Some(&able)), Ok(None), "there is no SELinux");
    }

    #[test]
    fn labels_are_those_of_the_distribution() {
        let root = tempfile::tempdir().expect("a folder");
        let gates = FeatureGates::default();
        assert_eq!(Selinux::of_node(root.path(), &gates).files, None);
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        write("sys/fs/selinux/enforce", "1");
        assert_eq!(Selinux::of_node(root.path(), &gates).files, Some(FILES.map(str::to_owned)));
        write("etc/selinux/config", "SELINUX=enforcing\nSELINUXTYPE=mls\n");
        let contexts = "process = \"system_u:system_r:container_t:s0\"\nfile = \"system_u:object_r:svirt_t:s0-s15\"\n";
        write("etc/selinux/mls/contexts/lxc_contexts", contexts);
        let expected = ["system_u", "object_r", "svirt_t", "s0-s15"].map(str::to_owned);
        assert_eq!(Selinux::of_node(root.path(), &gates).files, Some(expected));
    }
}
