//! A machine without kubeadm: certificates of `ironclad pki`, the shipped configuration and unit of the kubelet, and the
//! shipped manifests as static pods, by the commands of `docs/INSTALL.md`. The static pods come back when they are killed,
//! follow their files, and outlive their kubelet.

use std::fs;
use std::time::Instant;

use serde_json::Value;

use crate::FIRST;
use crate::lab::{Lab, Said};

const MACHINE: &str = "cp-1";
const GUIDE: &str = include_str!("../../../docs/INSTALL.md");
const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests");
const CONFIGURATION: &str = include_str!("../../../manifests/systemd/kubelet-config.yaml");
const PARTS: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
/// Seconds until four static pods are Ready, and until one follows its file.
const UP_LIMIT: u64 = 30;
const EDIT_LIMIT: u64 = 20;
const PKI: &str = "ironclad pki init --apiserver-advertise-address=$ADVERTISE_ADDRESS";
const SERVING: [&str; 2] = [
    "ironclad pki certificate --common-name=system:node:$NODE_NAME --group=system:nodes \\",
    "--san=$NODE_NAME --san=$ADVERTISE_ADDRESS --out=/var/lib/kubelet/pki/kubelet",
];
const FILL: [&str; 4] = [
    "mkdir -p /etc/kubernetes/manifests",
    "for part in etcd kube-apiserver kube-controller-manager kube-scheduler; do",
    "envsubst </usr/share/ironclad/static-pods/$part.yaml >/etc/kubernetes/manifests/$part.yaml",
    "done",
];

/// Installs, starts, and takes every liberty with the static pods.
pub fn all(lab: &Lab) {
    lab.put(MACHINE, &lab.binary("ironclad"), "ironclad");
    fs::write(lab.file(MACHINE, "/var/lib/kubelet/config.yaml"), configuration(lab)).expect("a file");
    prepare(lab);
    let began = Instant::now();
    lab.must(MACHINE, "systemctl start kubelet");
    for part in PARTS {
        lab.until(&format!("{part} is Ready"), UP_LIMIT, || mirror(lab, part).and_then(|pod| is_ready(&pod)));
    }
    eprintln!("==> four static pods: {:.1} s", began.elapsed().as_secs_f64());
    lab.must(MACHINE, &format!("kubectl --kubeconfig=/etc/kubernetes/super-admin.conf apply -f {MANIFESTS}/rbac"));
    lab.until("cp-1 is Ready", 30, || crate::ready(lab, MACHINE));
    // The API server has the kubelet's certificate from the cluster's authority.
    let said = lab.kubectl(MACHINE, "logs -n kube-system kube-scheduler-cp-1 --tail=1");
    assert!(said.ok && !said.out.is_empty(), "{said:?}");
    PARTS.into_iter().for_each(|part| killed_comes_back(lab, part));
    follows_its_file(lab);
    outlives_its_kubelet(lab);
}

/// The shipped configuration, with what this machine needs beside: it has cgroup v1, and shares a disk.
fn configuration(lab: &Lab) -> String {
    let root = fs::read_to_string(lab.file_of_patches(MACHINE)).expect("a patch");
    let shipped = CONFIGURATION.replace("cgroupDriver: systemd", "cgroupDriver: cgroupfs");
    let shipped =
        shipped.lines().filter(|line| !line.starts_with("shutdownGracePeriod")).collect::<Vec<_>>().join("\n");
    format!(
        "{shipped}\nfailCgroupV1: false\nfailSwapOn: false\nimageGCHighThresholdPercent: 100\n\
         evictionHard: {{imagefs.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%}}\n{root}"
    )
}

/// Gives the commands of the guide.
fn prepare(lab: &Lab) {
    let told = |line: &str| {
        assert!(
            GUIDE.lines().any(|told| told.trim_start_matches([' ', '#']) == line),
            "docs/INSTALL.md says nothing of: {line}"
        );
    };
    [PKI].iter().chain(&SERVING).chain(&FILL).for_each(|line| told(line));
    let variables = format!(
        "set -eu\nexport NODE_NAME={MACHINE} ADVERTISE_ADDRESS={} SERVICE_CIDR=10.96.0.0/12 POD_CIDR=10.244.0.0/16 \
         IMAGE_REPOSITORY=registry.k8s.io IMAGE_TAG={FIRST} ETCD_IMAGE={}",
        lab.node(MACHINE).address,
        etcd_image(lab),
    );
    let fill = FILL.join("\n").replace("/usr/share/ironclad", MANIFESTS);
    // Keys of RSA take a debug build minutes.
    let script = [variables, format!("{PKI} --encryption-algorithm=ECDSA-P256"), SERVING.join("\n"), fill].join("\n");
    let said = lab.on(MACHINE, &["sh", "-c", &script]);
    assert!(said.ok, "{script}\n{said:?}");
}

fn etcd_image(lab: &Lab) -> String {
    let ctr = "ctr --address /run/containerd/containerd.sock --namespace k8s.io images list --quiet";
    let images = lab.must(MACHINE, ctr);
    let found = images.lines().find(|image| image.starts_with("registry.k8s.io/etcd:"));
    found.expect("an image of etcd was loaded").to_owned()
}

fn mirror(lab: &Lab, part: &str) -> Result<Value, String> {
    let command = ["kubectl", "--kubeconfig=/etc/kubernetes/super-admin.conf", "get", "pod", "-n", "kube-system"];
    let name = format!("{part}-{MACHINE}");
    let said: Said = lab.on(MACHINE, &[&command[..], &[&name, "-o", "json"]].concat());
    if said.ok { serde_json::from_str(&said.out).map_err(|error| error.to_string()) } else { Err(said.err) }
}

fn container(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

fn is_ready(pod: &Value) -> Result<(), String> {
    if container(pod)["ready"] == true { Ok(()) } else { Err(pod["status"].to_string()) }
}

/// Killed hard, a container has a successor; those of the others are the same as before.
fn killed_comes_back(lab: &Lab, part: &str) {
    let all = || PARTS.map(|part| mirror(lab, part).map(|pod| container(&pod)["containerID"].clone()));
    let before = all();
    let id = before[PARTS.iter().position(|known| *known == part).expect("a part")].clone().expect("a container");
    let id = id.as_str().and_then(|id| id.strip_prefix("containerd://")).expect("an ID").to_owned();
    let ctr = "ctr --address /run/containerd/containerd.sock --namespace k8s.io";
    lab.must(MACHINE, &format!("{ctr} tasks kill --signal SIGKILL {id}"));
    lab.until(&format!("{part} is back"), 60, || {
        let pod = mirror(lab, part)?;
        let new = container(&pod)["containerID"].as_str().is_some_and(|now| !now.ends_with(&id));
        if new { is_ready(&pod) } else { Err("it is the same".to_owned()) }
    });
    for ((other, before), after) in PARTS.iter().zip(&before).zip(all()) {
        let alone = part == "kube-scheduler" || part == "kube-controller-manager";
        // Without the API leaders end; that is not what is looked at.
        assert!(*other == part || !alone || *before == after, "{part} was killed, and {other} was restarted");
    }
}

/// A manifest that is edited has a new pod in the place of the old one, one that is taken away has none.
fn follows_its_file(lab: &Lab) {
    let part = "kube-scheduler";
    let file = lab.file(MACHINE, "/etc/kubernetes/manifests/kube-scheduler.yaml");
    let hash = |pod: &Value| pod["metadata"]["annotations"]["kubernetes.io/config.hash"].clone();
    let (before, text) = (mirror(lab, part).expect("a pod"), fs::read_to_string(&file).expect("a file"));
    let began = Instant::now();
    fs::write(&file, text.replace("--leader-elect=true", "--leader-elect=true\n        - --v=1")).expect("a file");
    lab.until("an edited manifest has a new pod", EDIT_LIMIT, || {
        let pod = mirror(lab, part)?;
        if hash(&pod) == hash(&before) { Err("the hash is the same".to_owned()) } else { is_ready(&pod) }
    });
    eprintln!("==> an edited manifest: {:.1} s", began.elapsed().as_secs_f64());
    let ps = "ctr --address /run/containerd/containerd.sock --namespace k8s.io tasks list";
    let old = container(&before)["containerID"].as_str().unwrap_or_default().replace("containerd://", "");
    assert!(!lab.must(MACHINE, ps).contains(&old), "the old container is gone");
    fs::remove_file(&file).expect("it goes");
    lab.until("a manifest that is gone has no pod", EDIT_LIMIT, || match mirror(lab, part) {
        Ok(_) => Err("it is still there".to_owned()),
        Err(said) if said.contains("NotFound") => Ok(()),
        Err(said) => Err(said),
    });
    fs::write(&file, text).expect("a file");
    lab.until("a manifest that is back has its pod", EDIT_LIMIT, || {
        let pod = mirror(lab, part)?;
        if hash(&pod) == hash(&before) { is_ready(&pod) } else { Err("another hash".to_owned()) }
    });
}

/// A kubelet that is restarted takes over what runs.
fn outlives_its_kubelet(lab: &Lab) {
    let all = || PARTS.map(|part| mirror(lab, part).map(|pod| container(&pod)["containerID"].clone()));
    let before = all();
    lab.must(MACHINE, "systemctl restart kubelet");
    lab.until("the kubelet is back", 30, || {
        let said = lab.on(MACHINE, &["curl", "-sf", "--noproxy", "*", "http://127.0.0.1:10248/healthz"]);
        if said.out == "ok" { Ok(()) } else { Err(format!("{said:?}")) }
    });
    lab.until("cp-1 is Ready", 30, || crate::ready(lab, MACHINE));
    assert_eq!(before, all(), "containers run on");
}
