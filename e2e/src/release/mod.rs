//! Releases: images under the names that `kubeadm config images list` asks for, upstream's tarballs, their
//! sums and a list of all that is in them.

mod bundle;
mod identity;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

pub use bundle::{bundle, sum};
pub use identity::ReleaseIdentity;
pub use sbom::sbom;

use crate::image::{self, Architecture, Config, Layer};

/// Upstream's registry.
pub const REGISTRY: &str = "registry.k8s.io";
/// The five.
pub const BINARIES: [&str; 5] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"];
/// The program that the chart runs as Jobs beside a control plane.
const BOOTSTRAP: &str = "control-plane-bootstrap";
/// Every image of a release.
pub const IMAGES: [&str; 10] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    BOOTSTRAP,
    "etcd",
    "coredns",
    "pause",
    "proxy-server",
    "proxy-agent",
];
/// The versions of what comes beside them, as `kubeadm config images list` of this release names them.
const ETCD: &str = "3.6.6-0";
const COREDNS: &str = "v1.13.1";
const PAUSE: &str = "3.10.1";
/// Version of konnectivity's server and agent, which the chart asks for.
const KONNECTIVITY: &str = "v0.34.0";
/// The user that upstream's CoreDNS and konnectivity run as: `nonroot` of their base image.
const NONROOT: &str = "65532:65532";
const PATHS: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const IPTABLES_MODE: &str = include_str!("../../images/iptables/mode.c");

/// The parts that a release is made from.
#[derive(Debug)]
pub struct Sources {
    /// The folder of the binaries.
    pub binaries: PathBuf,
    /// The folder that `e2e/images/go.sh` and `e2e/images/debian.sh` filled.
    pub cache: PathBuf,
    /// The registry that images are named under.
    pub repository: String,
    /// The version, commit and date that the binaries tell.
    pub identity: ReleaseIdentity,
    /// The processors that the binaries are for.
    pub architecture: Architecture,
}

impl Sources {
    fn go(&self, program: &str) -> PathBuf {
        self.cache.join(format!("go{}", self.architecture.suffix())).join(program)
    }

    fn debian(&self) -> PathBuf {
        self.cache.join(format!("debian{}", self.architecture.suffix()))
    }

    /// The image of a part. CoreDNS has a folder of its own in upstream's registry and nowhere else, konnectivity everywhere.
    fn reference(&self, name: &str, tag: &str) -> String {
        let folder = match name {
            "coredns" if self.repository == REGISTRY => "coredns/",
            "proxy-server" | "proxy-agent" => "kas-network-proxy/",
            _ => "",
        };
        format!("{}/{folder}{name}:{tag}", self.repository)
    }

    /// Configuration of an image that is not ours: the same in every release, as its tag is.
    fn foreign(&self, name: &str, tag: &str) -> Config {
        Config {
            reference: self.reference(name, tag),
            environment: vec![PATHS.into()],
            architecture: self.architecture,
            ..Config::default()
        }
    }

    fn config(&self, name: &str, tag: &str) -> Config {
        let labels = [
            ("org.opencontainers.image.source", "https://github.com/ironclad-k8s/ironclad"),
            ("org.opencontainers.image.revision", self.identity.commit.as_str()),
            ("org.opencontainers.image.version", self.identity.version.as_str()),
            ("org.opencontainers.image.created", self.identity.date.as_str()),
        ];
        Config {
            labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            created: Some(self.identity.date.clone()),
            ..self.foreign(name, tag)
        }
    }
}

/// Programs that have a place for an identity.
fn programs() -> impl Iterator<Item = &'static str> {
    BINARIES.into_iter().chain([BOOTSTRAP])
}

/// Copies the binaries into `folder` with the identity of the release.
///
/// # Errors
/// When a binary is missing or has no place for an identity.
pub fn stamp(sources: &Sources, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    programs().try_for_each(|name| sources.identity.stamp(&sources.binaries.join(name), &folder.join(name)))
}

/// Removes debug information from the binaries in `folder`: half of those of a debug build.
///
/// # Errors
/// When `strip` fails.
pub fn strip(folder: &Path, architecture: Architecture) -> Result<()> {
    let files: Vec<String> = programs().map(|name| folder.join(name).display().to_string()).collect();
    let arguments: Vec<&str> = ["--strip-debug"].into_iter().chain(files.iter().map(String::as_str)).collect();
    crate::shell::run(&architecture.tool("strip"), &arguments).map(|_| ())
}

/// Writes images into `folder`, each an archive `NAME.tar`; `sources.binaries` are stamped already.
///
/// # Errors
/// A part that is missing or cannot be written, or an image that is none of [`IMAGES`].
pub fn images(sources: &Sources, folder: &Path, names: &[&str]) -> Result<Vec<PathBuf>> {
    let work = folder.join(".work");
    fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
    let base = base(sources);
    let made = base.and_then(|base| names.iter().map(|name| write(sources, folder, &base, name)).collect());
    fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    made
}

fn write(sources: &Sources, folder: &Path, base: &Layer, name: &str) -> Result<PathBuf> {
    let work = folder.join(".work");
    let layers = layers(sources, &work, name)?;
    // Nothing is in pause's but itself.
    let below = Some(base).filter(|_| name != "pause");
    let layers: Vec<&Layer> = below.into_iter().chain(&layers).collect();
    let (config, archive) = (config(sources, name), folder.join(format!("{name}.tar")));
    image::write(&config, &layers, &archive).with_context(|| format!("image {}", config.reference))?;
    Ok(archive)
}

fn config(sources: &Sources, name: &str) -> Config {
    let entrypoint = vec![format!("/{name}")];
    match name {
        "etcd" => sources.foreign(name, ETCD),
        "coredns" => Config { entrypoint, user: NONROOT.into(), ..sources.foreign(name, COREDNS) },
        "pause" => Config { entrypoint, user: image::PAUSE_USER.into(), ..sources.foreign(name, PAUSE) },
        "proxy-server" | "proxy-agent" => {
            Config { entrypoint, user: NONROOT.into(), ..sources.foreign(name, KONNECTIVITY) }
        }
        _ => sources.config(name, &sources.identity.tag()),
    }
}

/// The layers of an image above [`base`].
fn layers(sources: &Sources, work: &Path, name: &str) -> Result<Vec<Layer>> {
    let mut layer = Layer::default();
    match name {
        "kube-apiserver" | "kube-controller-manager" | "kube-scheduler" | BOOTSTRAP => {
            return Ok(vec![program(sources, name)?]);
        }
        "kube-proxy" => return Ok(vec![rules(sources, work)?, program(sources, name)?]),
        "etcd" => {
            for name in ["etcd", "etcdctl", "etcdutl"] {
                layer.program(&format!("/usr/local/bin/{name}"), &sources.go(name));
            }
        }
        "coredns" => {
            layer.binding_program("/coredns", &sources.go(name));
        }
        "pause" => {
            layer.program("/pause", &image::pause_program(work, sources.architecture)?);
        }
        "proxy-server" | "proxy-agent" => {
            layer.program(&format!("/{name}"), &sources.go(name));
        }
        _ => bail!("there is no image {name}; images are {}", IMAGES.join(", ")),
    }
    Ok(vec![layer])
}

fn program(sources: &Sources, name: &str) -> Result<Layer> {
    let mut layer = Layer::default();
    layer.linked_program(&format!("/usr/local/bin/{name}"), &sources.binaries.join(name))?;
    Ok(layer)
}

/// The layer below every program: authorities, time zones, names of users and of the order to look up hosts in.
fn base(sources: &Sources) -> Result<Layer> {
    let debian = sources.debian();
    let mut layer = Layer::default();
    layer.text("/etc/ssl/certs/ca-certificates.crt", authorities(&debian.join("usr/share/ca-certificates/mozilla"))?);
    let zones = "usr/share/zoneinfo";
    for zone in fs::read_dir(debian.join(zones)).context("no Debian packages; run e2e/images/debian.sh")? {
        let name = zone?.file_name();
        let name = name.to_string_lossy();
        // The same again, with and without leap seconds.
        if !["posix", "right"].contains(&&*name) {
            layer.copy(&debian, &format!("{zones}/{name}"))?;
        }
    }
    let users = "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n\
        nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n";
    let groups = "root:x:0:\nnobody:x:65534:\ntty:x:5:\nstaff:x:50:\nnonroot:x:65532:\n";
    layer.text("/etc/passwd", users.into()).text("/etc/group", groups.into());
    layer.text("/etc/nsswitch.conf", "hosts: files dns\n".into());
    layer.folder("/tmp", 0o1777).folder("/root", 0o700).folder("/var/run", 0o755).folder("/run", 0o755);
    Ok(layer)
}

/// Every authority that Debian trusts, one after the other.
fn authorities(folder: &Path) -> Result<String> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    files
        .iter()
        .map(|file| fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display())))
        .collect()
}

/// The programs that kube-proxy speaks to the kernel with, and their libraries.
fn rules(sources: &Sources, work: &Path) -> Result<Layer> {
    let debian = sources.debian();
    let mut layer = Layer::default();
    let libraries = sources.architecture.libraries();
    for path in ["bin", "sbin", "lib", "etc/protocols", "etc/services", "etc/ethertypes"] {
        layer.copy(&debian, path)?;
    }
    if debian.join("lib64").exists() {
        layer.copy(&debian, "lib64")?;
    }
    let shared = format!("usr/lib/{libraries}");
    for entry in fs::read_dir(debian.join(&shared)).with_context(|| format!("cannot read {shared}"))? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name == "xtables" || name.contains(".so") {
            layer.copy(&debian, &format!("{shared}/{name}"))?;
        }
    }
    for name in ["conntrack", "ipset", "nft", "xtables-legacy-multi", "xtables-nft-multi"] {
        layer.copy(&debian, &format!("usr/sbin/{name}"))?;
    }
    let mode = image::static_program(work, "iptables-mode", IPTABLES_MODE, sources.architecture)?;
    layer.program("/usr/sbin/iptables-mode", &mode);
    for family in ["iptables", "ip6tables"] {
        for what in ["", "-save", "-restore"] {
            layer.link(&format!("/usr/sbin/{family}{what}"), "iptables-mode");
        }
    }
    Ok(layer)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sources(repository: &str) -> Sources {
        Sources {
            binaries: PathBuf::new(),
            cache: PathBuf::new(),
            repository: repository.into(),
            identity: ReleaseIdentity {
                version: "v1.35.4+ironclad.1".into(),
                commit: "0".repeat(40),
                date: "1970-01-01T00:00:00Z".into(),
            },
            architecture: Architecture::default(),
        }
    }

    /// Names of `kubeadm config images list`.
    #[test]
    fn images_have_the_names_that_kubeadm_asks_for() {
        let upstream = sources(REGISTRY);
        assert_eq!(upstream.reference("coredns", COREDNS), "registry.k8s.io/coredns/coredns:v1.13.1");
        assert_eq!(upstream.reference("etcd", ETCD), "registry.k8s.io/etcd:3.6.6-0");
        let own = sources("registry.example/k8s");
        assert_eq!(own.reference("coredns", COREDNS), "registry.example/k8s/coredns:v1.13.1");
        let tag = own.identity.tag();
        assert_eq!(own.reference("kube-proxy", &tag), "registry.example/k8s/kube-proxy:v1.35.4_ironclad.1");
    }

    /// Names that the chart control-plane asks for.
    #[test]
    fn images_have_the_names_that_the_chart_asks_for() {
        let values = include_str!("../../../manifests/charts/control-plane/values.yaml");
        let sources = sources(REGISTRY);
        let of = |name: &str| config(&sources, name).reference;
        assert_eq!(of(BOOTSTRAP), "registry.k8s.io/control-plane-bootstrap:v1.35.4_ironclad.1");
        assert_eq!(of("etcd"), format!("registry.k8s.io/etcd:{ETCD}"));
        assert_eq!(of("proxy-agent"), format!("registry.k8s.io/kas-network-proxy/proxy-agent:{KONNECTIVITY}"));
        for line in [
            format!("repository: {REGISTRY}\n"),
            format!("etcdTag: {ETCD}\n"),
            format!("konnectivityTag: {KONNECTIVITY}\n"),
        ] {
            assert!(values.contains(&line), "{line}");
        }
    }

    /// The module that konnectivity is built from is of the version that its images say.
    #[test]
    fn konnectivity_is_of_the_version_of_its_tag() {
        let module = include_str!("../../images/konnectivity/go.mod");
        assert!(module.contains(&format!("sigs.k8s.io/apiserver-network-proxy {KONNECTIVITY} ")));
    }

    /// The users of upstream's images, which manifests that name none rely on.
    #[test]
    fn images_are_run_by_the_users_of_upstreams() {
        let sources = sources(REGISTRY);
        for name in IMAGES {
            let expected = match name {
                "coredns" | "proxy-server" | "proxy-agent" => "65532:65532",
                "pause" => "65535:65535",
                _ => "",
            };
            assert_eq!(config(&sources, name).user, expected, "{name}");
        }
    }

    #[test]
    fn an_image_of_another_name_is_refused() {
        let folder = std::env::temp_dir();
        let error = layers(&sources(REGISTRY), &folder, "kubelet").expect_err("no image");
        assert!(error.to_string().contains("no image kubelet; images are kube-apiserver, "), "{error}");
    }
}
