//! `kubeadm reset`: the worker, a member of the control plane, and the last of it.

use crate::lab::Lab;

/// Takes the nodes down one after the other; nothing of the cluster is left on them.
pub fn all(lab: &Lab) {
    lab.must("cp-1", "kubectl drain w-1 --ignore-daemonsets --delete-emptydir-data --force --timeout=60s");
    for name in ["w-1", "cp-2", "cp-1"] {
        lab.must(name, "kubeadm reset --force");
        is_clean(lab, name);
        if name == "cp-2" {
            one_member_is_left(lab);
        }
        if name != "cp-1" {
            lab.must("cp-1", &format!("kubectl delete node {name}"));
        }
    }
}

fn is_clean(lab: &Lab, name: &str) {
    let ctr = "ctr --address /run/containerd/containerd.sock --namespace k8s.io containers list --quiet";
    let left = lab.must(name, ctr);
    assert!(left.trim().is_empty(), "{name} still has containers: {left}");
    assert!(!lab.on(name, &["systemctl", "is-active", "kubelet"]).ok, "the kubelet of {name} is stopped");
    let mounts = lab.must(name, "cat /proc/mounts");
    let left: Vec<&str> = mounts.lines().filter(|line| line.contains(" /var/lib/kubelet/")).collect();
    assert!(left.is_empty(), "{name} still has mounts: {left:?}");
    let links = lab.must(name, "ip -o link");
    let left: Vec<&str> = links.lines().filter(|line| line.contains(": veth")).collect();
    assert!(left.is_empty(), "{name} still has links of pods: {left:?}");
    for path in ["/etc/kubernetes/manifests", "/etc/kubernetes/pki", "/var/lib/kubelet", "/var/lib/etcd"] {
        let entries = std::fs::read_dir(lab.file(name, path)).map(Iterator::count).unwrap_or_default();
        assert_eq!(entries, 0, "{name} still has files in {path}");
    }
}

/// The member that left the control plane left etcd as well, so that the other is not alone in a cluster of two.
fn one_member_is_left(lab: &Lab) {
    let pki = "/etc/kubernetes/pki/etcd";
    let list = format!(
        "exec -n kube-system etcd-cp-1 -- etcdctl --cacert={pki}/ca.crt --cert={pki}/server.crt --key={pki}/server.key \
         member list"
    );
    lab.until("etcd has one member", 30, || {
        let said = lab.kubectl("cp-1", &list);
        if said.ok && said.out.lines().count() == 1 { Ok(()) } else { Err(format!("{said:?}")) }
    });
}
