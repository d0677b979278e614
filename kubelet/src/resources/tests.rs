use super::*;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::json;
use std::collections::BTreeMap;

fn pod(containers: serde_json::Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u1"}, "spec": {"containers": containers}}))
        .expect("a pod")
}

fn container(requests: serde_json::Value, limits: serde_json::Value) -> serde_json::Value {
    json!({"name": "c", "resources": {"requests": requests, "limits": limits}})
}

pub(super) fn config() -> ResourceConfig {
    ResourceConfig {
        kube_reserved: BTreeMap::from([("cpu".into(), "100m".into()), ("memory".into(), "1Mi".into())]),
        system_reserved: BTreeMap::new(),
        eviction_hard: BTreeMap::from([
            ("memory.available".into(), "100Mi".into()),
            ("nodefs.available".into(), "10%".into()),
        ]),
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
    }
}

fn machine() -> MachineInfo {
    MachineInfo {
        cpu_millis: 2000,
        memory: 1 << 30,
        max_pids: 4000,
        ephemeral_storage: 1000 * 1024,
        ..MachineInfo::default()
    }
}

#[test]
fn quality_of_service() {
    let full = json!({"cpu": "1", "memory": "1Mi"});
    for (containers, expected) in [
        (json!([{"name": "c"}]), QosClass::BestEffort),
        (json!([container(json!({}), json!({}))]), QosClass::BestEffort),
        (json!([container(json!({"cpu": "0"}), json!({}))]), QosClass::BestEffort),
        (json!([container(full.clone(), full.clone())]), QosClass::Guaranteed),
        (json!([container(json!({}), full.clone())]), QosClass::Guaranteed),
        (json!([container(json!({"cpu": "500m"}), full.clone())]), QosClass::Burstable),
        (json!([container(full.clone(), full.clone()), {"name": "d"}]), QosClass::Burstable),
        (json!([container(json!({"memory": "1Mi"}), json!({}))]), QosClass::Burstable),
        (json!([container(json!({"nvidia.com/gpu": "1"}), json!({"nvidia.com/gpu": "1"}))]), QosClass::BestEffort),
    ] {
        assert_eq!(qos_class(&pod(containers.clone())), expected, "{containers}");
    }
}

#[test]
fn container_limits_become_shares_quota_and_score() {
    let resources = |container: serde_json::Value| {
        let pod = pod(json!([container]));
        let container = pod.spec.as_ref().expect("spec").containers[0].clone();
        container_resources(&pod, &container, &machine(), &config())
    };
    let none = resources(json!({"name": "c"}));
    assert_eq!((none.cpu_shares, none.cpu_quota, none.oom_score_adj), (2, 0, 1000));
    let half = resources(container(json!({"cpu": "500m", "memory": "512Mi"}), json!({"cpu": "1500m"})));
    assert_eq!((half.cpu_shares, half.cpu_quota, half.cpu_period, half.oom_score_adj), (512, 150_000, 100_000, 500));
    let tiny = resources(container(json!({"memory": "1"}), json!({"cpu": "1m"})));
    assert_eq!((tiny.cpu_shares, tiny.cpu_quota, tiny.oom_score_adj), (2, 1000, 999));
    let full = resources(container(json!({}), json!({"cpu": "1", "memory": "1Gi"})));
    assert_eq!((full.memory_limit_in_bytes, full.oom_score_adj), (1 << 30, -997));
}

#[test]
fn allocatable_is_capacity_without_reservations_and_thresholds() {
    let text = |map: BTreeMap<String, Quantity>, name: &str| map[name].0.clone();
    assert_eq!(text(capacity(&machine(), &config()), "memory"), "1048576Ki");
    assert_eq!(text(allocatable(&machine(), &config()), "cpu"), "1900m");
    assert_eq!(text(allocatable(&machine(), &config()), "memory"), format!("{}Ki", 1_048_576 - 101 * 1024));
    assert_eq!(text(allocatable(&machine(), &config()), "ephemeral-storage"), "921600");
    assert_eq!(text(allocatable(&machine(), &config()), "pods"), "110");
}

#[test]
fn enforced_memory_leaves_the_eviction_threshold_to_eviction() {
    let text = |map: BTreeMap<String, Quantity>, name: &str| map[name].0.clone();
    assert_eq!(text(enforced(&machine(), &config()), "cpu"), "1900m");
    assert_eq!(text(enforced(&machine(), &config()), "pid"), "4000");
    let (enforced, told) = (enforced(&machine(), &config()), allocatable(&machine(), &config()));
    assert_eq!(text(enforced, "memory"), format!("{}Ki", 1_048_576 - 1024));
    assert_ne!(text(told, "memory"), format!("{}Ki", 1_048_576 - 1024));
}

#[test]
fn pods_get_cgroups_in_their_tier_and_lose_them() {
    let base = std::env::temp_dir().join(format!("ironclad-cgroups-{}", std::process::id()));
    for controller in ["cpu", "memory"] {
        std::fs::create_dir_all(base.join(controller).join("node")).expect("folder");
    }
    let tree = FsCgroups::at(&base, "/node", CgroupVersion::V1, config()).expect("tree");
    tree.ensure_tree(&BTreeMap::new()).expect("tree");
    let burstable = pod(json!([container(json!({"cpu": "500m"}), json!({}))]));
    tree.ensure_pod(&burstable).expect("pod");
    assert_eq!(tree.pod_parent(&burstable), "/node/kubepods/burstable/podu1");
    assert!(base.join("memory/node/kubepods/burstable/podu1").is_dir());
    assert_eq!(tree.pods(), ["u1"]);
    tree.remove_pod("u1").expect("removed");
    assert!(tree.pods().is_empty());
    crate::trees::remove(&base).expect("clean");
}

/// Runtimes make a pod's cgroup in the hierarchy without controllers, too, and leave it there.
#[test]
fn pods_leave_nothing_in_the_hierarchy_without_controllers() {
    let base = tempfile::tempdir().expect("folder");
    for folder in ["memory/node", "unified/node/kubepods/burstable/podu1/container", "unified/node/kubepods/podu2"] {
        std::fs::create_dir_all(base.path().join(folder)).expect("folder");
    }
    let tree = FsCgroups::at(base.path(), "/node", CgroupVersion::V1, config()).expect("tree");
    assert_eq!(tree.pods(), ["u1", "u2"]);
    for uid in tree.pods() {
        tree.remove_pod(&uid).expect("removed");
    }
    assert!(tree.pods().is_empty());
    assert!(base.path().join("unified/node/kubepods/burstable").is_dir());
}

#[test]
fn a_missing_root_is_refused() {
    let error =
        FsCgroups::at(std::path::Path::new("/nowhere"), "/x", CgroupVersion::V2, config()).err().expect("error");
    assert_eq!(error.to_string(), "invalid configuration: cgroup-root [\"/x\"] doesn't exist");
}

/// A systemd that makes the folders of its slices.
#[derive(Default)]
struct Slices {
    base: std::path::PathBuf,
    asked: parking_lot::Mutex<Vec<String>>,
}

impl Slices {
    fn folder(&self, unit: &str) -> std::path::PathBuf {
        self.base.join(name::Name::of_slice(unit).systemd().trim_start_matches('/'))
    }
}

impl systemd::Units for Slices {
    fn start_slice(&self, unit: &str, parent: &str, _: CgroupVersion) -> Result<(), CgroupError> {
        self.asked.lock().push(format!("start {unit} in {parent}"));
        let folder = self.folder(unit);
        std::fs::create_dir_all(&folder).expect("folder");
        for file in ["memory.max", "hugetlb.2MB.max"] {
            std::fs::write(folder.join(file), "").expect("file");
        }
        Ok(())
    }

    fn set_properties(
        &self,
        unit: &str,
        properties: Vec<(&'static str, systemd::Property)>,
    ) -> Result<(), CgroupError> {
        let names: Vec<&str> = properties.iter().map(|(name, _)| *name).collect();
        self.asked.lock().push(format!("set {unit} {}", names.join(",")));
        Ok(())
    }

    fn stop(&self, unit: &str) -> Result<(), CgroupError> {
        self.asked.lock().push(format!("stop {unit}"));
        crate::trees::remove(&self.folder(unit)).map_err(|error| CgroupError(error.to_string()))
    }
}

#[test]
fn systemd_makes_the_slices_of_pods() {
    let folder = tempfile::tempdir().expect("folder");
    let slices = std::sync::Arc::new(Slices { base: folder.path().to_owned(), ..Slices::default() });
    let tree = FsCgroups::at(folder.path(), "/", CgroupVersion::V2, config()).expect("tree");
    let tree = tree.driven_by(Driver::Systemd(std::sync::Arc::clone(&slices) as _), &[2 << 20]);
    tree.ensure_tree(&enforced(&machine(), &config())).expect("tree");
    let mut pod = pod(json!([container(json!({"cpu": "500m", "hugepages-2Mi": "4Mi"}), json!({"memory": "1Mi"}))]));
    pod.metadata.uid = Some("1-2".to_owned());
    tree.ensure_pod(&pod).expect("pod");
    tree.ensure_pod(&pod).expect("pod again");
    let parent = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice";
    assert_eq!(tree.pod_parent(&pod), parent);
    let read = |path: &str| std::fs::read_to_string(folder.path().join(path)).expect("file");
    assert_eq!(read(&format!("{}/memory.max", &parent[1..])), "1048576");
    assert_eq!(read(&format!("{}/hugetlb.2MB.max", &parent[1..])), "4194304");
    assert_eq!(read("kubepods.slice/kubepods-burstable.slice/hugetlb.2MB.max"), (1_u64 << 62).to_string());
    assert_eq!(tree.pods(), ["1-2"]);
    tree.remove_pod("1-2").expect("removed");
    tree.remove_pod("1-2").expect("removed already");
    assert!(tree.pods().is_empty());
    let asked = slices.asked.lock().clone();
    let started: Vec<&str> = asked.iter().filter_map(|line| line.strip_prefix("start ")).collect();
    assert_eq!(
        started,
        [
            "kubepods.slice in -.slice",
            "kubepods-burstable.slice in kubepods.slice",
            "kubepods-besteffort.slice in kubepods.slice",
            "kubepods-burstable-pod1_2.slice in kubepods-burstable.slice",
        ]
    );
    assert!(asked.iter().any(|line| line.starts_with("set kubepods.slice MemoryMax,CPUWeight")), "{asked:?}");
    assert_eq!(asked.iter().filter(|line| line.starts_with("stop ")).count(), 1);
}

#[test]
fn containers_without_limits_have_their_pods() {
    let whole = json!({"limits": {"cpu": "2", "memory": "1Gi"}});
    let own = container(json!({}), json!({"memory": "1Mi"}));
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u"},
        "spec": {"resources": whole, "containers": [own, {"name": "d"}]}}))
    .expect("a pod");
    let of = |index: usize| {
        let container = pod.spec.as_ref().expect("spec").containers[index].clone();
        let found = container_resources(&pod, &container, &machine(), &config());
        (found.memory_limit_in_bytes, found.cpu_quota)
    };
    assert_eq!(of(0), (1 << 20, 200_000));
    assert_eq!(of(1), (1 << 30, 200_000));
}

#[test]
fn storage_that_is_not_isolated_is_not_told() {
    let config = ResourceConfig { local_storage: false, ..config() };
    assert!(!capacity(&machine(), &config).contains_key("ephemeral-storage"));
    assert!(!allocatable(&machine(), &config).contains_key("ephemeral-storage"));
}

#[test]
fn reserved_amounts_limit_the_cgroups_that_they_are_for() {
    let folder = tempfile::tempdir().expect("folder");
    let slice = folder.path().join("system.slice");
    std::fs::create_dir_all(&slice).expect("folder");
    for file in ["cpu.weight", "memory.max", "pids.max"] {
        std::fs::write(slice.join(file), "").expect("file");
    }
    let slices = std::sync::Arc::new(Slices { base: folder.path().to_owned(), ..Slices::default() });
    let tree = FsCgroups::at(folder.path(), "/", CgroupVersion::V2, config()).expect("tree");
    let tree = tree.driven_by(Driver::Systemd(std::sync::Arc::clone(&slices) as _), &[]);
    let amounts = [("cpu", "1"), ("memory", "1Mi"), ("pid", "100"), ("ephemeral-storage", "1Gi")];
    let amounts: BTreeMap<String, String> = amounts.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
    tree.enforce("/system.slice", &reservation(&amounts, true)).expect("held");
    let read = |file: &str| std::fs::read_to_string(slice.join(file)).expect("file");
    assert_eq!((read("cpu.weight"), read("memory.max")), ("39".to_owned(), String::new()));
    tree.enforce("/system.slice", &reservation(&amounts, false)).expect("held");
    assert_eq!((read("memory.max"), read("pids.max")), ("1048576".to_owned(), "100".to_owned()));
    let missing = tree.enforce("/other.slice", &BTreeMap::new()).expect_err("not there");
    assert_eq!(missing.to_string(), "\"/other.slice\" cgroup does not exist");
}
