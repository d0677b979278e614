//! The control-plane machine: etcd, kube-apiserver, kube-controller-manager and
//! kube-scheduler on the host's network, with kubeadm's flags.

use crate::layout::{APISERVER_PORT, CLUSTER_CIDR, ETCD_PEER_PORT, ETCD_PORT, HOST_ADDRESS, Layout, SERVICE_CIDR};
use crate::machine::{Machine, Process};

/// Name of the control-plane machine.
pub const NAME: &str = "control-plane";

/// The control plane's specification.
#[must_use]
pub fn machine(layout: &Layout) -> Machine {
    Machine {
        name: NAME.into(),
        folder: layout.machine(NAME),
        netns: None,
        binds: Vec::new(),
        processes: vec![etcd(layout), apiserver(layout), controller_manager(layout), scheduler(layout)],
    }
}

fn pki(layout: &Layout, file: &str) -> String {
    layout.pki().join(file).display().to_string()
}

fn flags(pairs: &[(&str, String)]) -> Vec<String> {
    pairs.iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

fn etcd(layout: &Layout) -> Process {
    let client = format!("https://127.0.0.1:{ETCD_PORT}");
    let peer = format!("http://127.0.0.1:{ETCD_PEER_PORT}");
    let arguments = flags(&[
        ("name", "ironclad".into()),
        ("data-dir", layout.root.join("etcd").display().to_string()),
        ("listen-client-urls", client.clone()),
        ("advertise-client-urls", client),
        ("listen-peer-urls", peer.clone()),
        ("initial-advertise-peer-urls", peer.clone()),
        ("initial-cluster", format!("ironclad={peer}")),
        ("cert-file", pki(layout, "etcd/server.crt")),
        ("key-file", pki(layout, "etcd/server.key")),
        ("trusted-ca-file", pki(layout, "etcd/ca.crt")),
        ("client-cert-auth", "true".into()),
    ]);
    Process::new("etcd", "etcd".into(), arguments)
}

fn apiserver(layout: &Layout) -> Process {
    let arguments = flags(&[
        ("advertise-address", HOST_ADDRESS.into()),
        ("bind-address", HOST_ADDRESS.into()),
        ("secure-port", APISERVER_PORT.to_string()),
        ("allow-privileged", "true".into()),
        ("authorization-mode", "Node,RBAC".into()),
        ("enable-admission-plugins", "NodeRestriction".into()),
        ("client-ca-file", pki(layout, "ca.crt")),
        ("tls-cert-file", pki(layout, "apiserver.crt")),
        ("tls-private-key-file", pki(layout, "apiserver.key")),
        ("etcd-servers", format!("https://127.0.0.1:{ETCD_PORT}")),
        ("etcd-cafile", pki(layout, "etcd/ca.crt")),
        ("etcd-certfile", pki(layout, "apiserver-etcd-client.crt")),
        ("etcd-keyfile", pki(layout, "apiserver-etcd-client.key")),
        ("kubelet-certificate-authority", pki(layout, "ca.crt")),
        ("kubelet-client-certificate", pki(layout, "apiserver-kubelet-client.crt")),
        ("kubelet-client-key", pki(layout, "apiserver-kubelet-client.key")),
        ("kubelet-preferred-address-types", "InternalIP,ExternalIP,Hostname".into()),
        ("requestheader-client-ca-file", pki(layout, "front-proxy-ca.crt")),
        ("requestheader-allowed-names", "front-proxy-client".into()),
        ("requestheader-extra-headers-prefix", "X-Remote-Extra-".into()),
        ("requestheader-group-headers", "X-Remote-Group".into()),
        ("requestheader-username-headers", "X-Remote-User".into()),
        ("service-account-issuer", "https://kubernetes.default.svc.cluster.local".into()),
        ("service-account-key-file", pki(layout, "sa.pub")),
        ("service-account-signing-key-file", pki(layout, "sa.key")),
        ("service-cluster-ip-range", SERVICE_CIDR.into()),
    ]);
    Process::new("kube-apiserver", layout.binary("kube-apiserver"), arguments)
}

fn controller_manager(layout: &Layout) -> Process {
    let config = layout.kubeconfig("kube-controller-manager").display().to_string();
    let arguments = flags(&[
        ("bind-address", "127.0.0.1".into()),
        ("kubeconfig", config.clone()),
        ("authentication-kubeconfig", config.clone()),
        ("authorization-kubeconfig", config),
        ("client-ca-file", pki(layout, "ca.crt")),
        ("root-ca-file", pki(layout, "ca.crt")),
        ("cluster-signing-cert-file", pki(layout, "ca.crt")),
        ("cluster-signing-key-file", pki(layout, "ca.key")),
        ("service-account-private-key-file", pki(layout, "sa.key")),
        ("allocate-node-cidrs", "true".into()),
        ("cluster-cidr", CLUSTER_CIDR.into()),
        ("service-cluster-ip-range", SERVICE_CIDR.into()),
        ("use-service-account-credentials", "true".into()),
        ("controllers", "*,bootstrapsigner,tokencleaner".into()),
        ("leader-elect", "true".into()),
    ]);
    Process::new("kube-controller-manager", layout.binary("kube-controller-manager"), arguments)
}

fn scheduler(layout: &Layout) -> Process {
    let config = layout.kubeconfig("kube-scheduler").display().to_string();
    let arguments = flags(&[
        ("bind-address", "127.0.0.1".into()),
        ("kubeconfig", config.clone()),
        ("authentication-kubeconfig", config.clone()),
        ("authorization-kubeconfig", config),
        ("leader-elect", "true".into()),
    ]);
    Process::new("kube-scheduler", layout.binary("kube-scheduler"), arguments)
}
