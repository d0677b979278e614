//! The control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler on the host's network, as
//! `manifests/static-pods` describes them. They run as processes of one machine, or as static pods of a kubelet of
//! its own; the flags are the same.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::layout::{CONTROL_PLANE, Layout};
use crate::machine::{Machine, Process};
use crate::{image, node};

/// The image etcd runs from, made of the etcd that is installed.
const ETCD_IMAGE: &str = "ironclad/etcd:installed";
/// Repository and tag of the images that are made of the binaries under test.
const IMAGES: (&str, &str) = ("ironclad", "built");

/// One member of the control plane.
struct ControlPlaneMember {
    name: &'static str,
    manifest: &'static str,
}

const PARTS: [ControlPlaneMember; 4] = [
    ControlPlaneMember { name: "etcd", manifest: include_str!("../../manifests/static-pods/etcd.yaml") },
    ControlPlaneMember {
        name: "kube-apiserver",
        manifest: include_str!("../../manifests/static-pods/kube-apiserver.yaml"),
    },
    ControlPlaneMember {
        name: "kube-controller-manager",
        manifest: include_str!("../../manifests/static-pods/kube-controller-manager.yaml"),
    },
    ControlPlaneMember {
        name: "kube-scheduler",
        manifest: include_str!("../../manifests/static-pods/kube-scheduler.yaml"),
    },
];

impl ControlPlaneMember {
    /// The manifest with this cluster's values in it.
    fn filled(&self, layout: &Layout) -> String {
        let network = &layout.network;
        let services = layout.of_families(&layout.service_cidr(), &network.services_6);
        let pods = layout.of_families(&network.pods, &network.pods_6);
        let values = [
            ("${NODE_NAME}", CONTROL_PLANE),
            ("${ADVERTISE_ADDRESS}", &network.host),
            ("127.0.0.1", &network.loopback),
            ("${SERVICE_CIDR}", &services),
            ("${POD_CIDR}", &pods),
            ("${ETCD_IMAGE}", ETCD_IMAGE),
            ("${IMAGE_REPOSITORY}", IMAGES.0),
            ("${IMAGE_TAG}", IMAGES.1),
        ];
        values.iter().fold(self.manifest.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    fn container(&self, layout: &Layout) -> Result<Value> {
        let pod = proto::yaml::decode_any(self.filled(layout).as_bytes())?;
        pod.pointer("/spec/containers/0").cloned().with_context(|| format!("{} has no container", self.name))
    }

    /// The container's command as a process of this machine, with its paths below the run directory.
    fn process(&self, layout: &Layout) -> Result<Process> {
        let moved = [
            ("/etc/kubernetes/pki", layout.pki()),
            ("/etc/kubernetes/controller-manager.conf", layout.kubeconfig("kube-controller-manager")),
            ("/etc/kubernetes/scheduler.conf", layout.kubeconfig("kube-scheduler")),
            ("/var/lib/etcd", layout.root.join("etcd")),
        ];
        let container = self.container(layout)?;
        let command = container["command"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let here = |argument: &str| {
            moved.iter().fold(argument.to_owned(), |text, (path, ours)| text.replace(path, &ours.display().to_string()))
        };
        let program = if self.name == "etcd" { "etcd".into() } else { layout.binary(self.name) };
        Ok(Process::new(self.name, program, command.skip(1).map(here).collect()))
    }

    /// The archive of the image that the manifest names.
    fn image(&self, layout: &Layout) -> Result<PathBuf> {
        let container = self.container(layout)?;
        let reference = container["image"].as_str().unwrap_or_default();
        let program = match self.name {
            "etcd" => crate::shell::find("etcd").context("etcd is missing; run: apt-get install etcd-server")?,
            name => PathBuf::from(layout.binary(name)),
        };
        image::program(&layout.root.join("images"), self.name, &program, reference)
    }
}

/// The control plane as processes.
///
/// # Errors
/// When a manifest is not what it should be.
pub fn machine(layout: &Layout) -> Result<Machine> {
    Ok(Machine {
        name: CONTROL_PLANE.into(),
        folder: layout.machine(CONTROL_PLANE),
        netns: None,
        hostname: None,
        binds: Vec::new(),
        processes: PARTS.iter().map(|part| part.process(layout)).collect::<Result<_>>()?,
    })
}

/// The control plane as static pods of a node of its own.
///
/// # Errors
/// When an image cannot be made or a file not written.
pub fn static_pods(layout: &Layout, pause: &Path) -> Result<Machine> {
    let node = layout.network.control_plane();
    let kubernetes = layout.disk(&node.name).join("etc-kubernetes");
    let manifests = kubernetes.join("manifests");
    fs::create_dir_all(&manifests).with_context(|| format!("cannot make {}", manifests.display()))?;
    crate::shell::run(
        "cp",
        &["-rT", &layout.pki().display().to_string(), &kubernetes.join("pki").display().to_string()],
    )?;
    for name in ["controller-manager", "scheduler"] {
        let (from, to) = (layout.kubeconfig(&format!("kube-{name}")), kubernetes.join(format!("{name}.conf")));
        fs::copy(&from, &to).with_context(|| format!("cannot write {}", to.display()))?;
    }
    let mut images = vec![pause.to_path_buf()];
    for part in &PARTS {
        images.push(part.image(layout)?);
        let file = manifests.join(format!("{}.yaml", part.name));
        fs::write(&file, part.filled(layout)).with_context(|| format!("cannot write {}", file.display()))?;
    }
    node::host(layout, &node, &images, false)
}
