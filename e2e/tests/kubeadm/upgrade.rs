//! `kubeadm upgrade` to another release of ours, in the order that its guide gives.

use std::time::Duration;

use crate::lab::Lab;
use crate::{IGNORED, SECOND, every_part_is, ready, timed};

const LIMIT: Duration = Duration::from_secs(120);

/// Control plane first, one node after the other; kubelets last.
pub fn all(lab: &Lab) {
    let second = lab.release(SECOND);
    for name in ["cp-1", "cp-2", "w-1"] {
        lab.load(name, &second);
        lab.put(name, &lab.cached("go/kubeadm-v1.35.5"), "kubeadm");
    }
    let plan = lab.must("cp-1", &format!("kubeadm upgrade plan {SECOND}"));
    for line in ["kube-apiserver", "kube-scheduler", "kubelet"] {
        let told = plan.lines().any(|row| row.starts_with(line) && row.contains("v1.35.4") && row.contains(SECOND));
        assert!(told, "{line}: {plan}");
    }
    let patches = lab.patches("cp-1");
    let apply = format!("kubeadm upgrade apply {SECOND} --yes --patches {patches} {IGNORED}");
    let said = timed("kubeadm upgrade apply", LIMIT, || lab.must("cp-1", &apply));
    assert!(said.contains("SUCCESS!"), "{said}");
    for name in ["cp-2", "w-1"] {
        let line = format!("kubeadm upgrade node --patches {} {IGNORED}", lab.patches(name));
        timed(&format!("kubeadm upgrade node on {name}"), LIMIT, || lab.must(name, &line));
    }
    for name in ["cp-1", "cp-2", "w-1"] {
        lab.put(name, &second.join("bin/kubelet"), "kubelet");
        lab.must(name, "systemctl restart kubelet");
        lab.until(&format!("{name} runs the new kubelet"), 30, || {
            let node = lab.json("cp-1", &format!("node {name}"))?;
            let version = node["status"]["nodeInfo"]["kubeletVersion"].as_str().unwrap_or_default().to_owned();
            if version == SECOND { Ok(()) } else { Err(version) }
        });
        lab.until(&format!("{name} is Ready"), 30, || ready(lab, name));
    }
    everything_is_new(lab);
}

fn everything_is_new(lab: &Lab) {
    for name in ["cp-1", "cp-2"] {
        let address = format!("https://{}:6443", lab.node(name).address);
        let said = lab.must(name, &format!("kubectl --server={address} version -o json"));
        let version: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(version["serverVersion"]["gitVersion"], SECOND);
    }
    every_part_is(lab, SECOND);
}
