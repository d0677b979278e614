//! Tarballs in upstream's layout, and sums of everything in a release.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use sha2::{Sha256, Sha512};

use super::{BINARIES, Sources};
use crate::image::Layer;

/// Programs whose images are in the server's tarball.
const IMAGED: [&str; 4] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"];

/// Writes the tarballs of the server and the node into `folder`, with binaries from `sources` and image archives from
/// `images`.
///
/// # Errors
/// When a file cannot be read or written.
pub fn bundle(sources: &Sources, images: &Path, folder: &Path) -> Result<()> {
    let arch = sources.architecture.image();
    let mut server = Layer::default();
    for name in BINARIES {
        server.program(&format!("kubernetes/server/bin/{name}"), &sources.binaries.join(name));
    }
    for name in IMAGED {
        server.file(&format!("kubernetes/server/bin/{name}.tar"), &images.join(format!("{name}.tar")));
        server.text(&format!("kubernetes/server/bin/{name}.docker_tag"), sources.identity.tag());
    }
    let license = Path::new(env!("CARGO_MANIFEST_DIR")).join("../LICENSE");
    server.file("kubernetes/LICENSES", &license);
    compress(&server, &folder.join(format!("kubernetes-server-linux-{arch}.tar.gz")))?;
    let mut node = Layer::default();
    for name in ["kubelet", "kube-proxy"] {
        node.program(&format!("kubernetes/node/bin/{name}"), &sources.binaries.join(name));
    }
    node.file("kubernetes/LICENSES", &license);
    compress(&node, &folder.join(format!("kubernetes-node-linux-{arch}.tar.gz")))
}

/// Writes the sums of all files in a release.
///
/// # Errors
/// When a file cannot be read or written.
pub fn sum(folder: &Path) -> Result<()> {
    sums::<Sha256>(folder, "SHA256SUMS")?;
    sums::<Sha512>(folder, "SHA512SUMS")
}

fn compress(layer: &Layer, to: &Path) -> Result<()> {
    let file = File::create(to).with_context(|| format!("cannot write {}", to.display()))?;
    // Without a name and a time, which gzip would keep.
    let mut out: GzEncoder<_> = GzBuilder::new().write(BufWriter::new(file), Compression::default());
    layer.write(&mut out)?;
    out.finish()?.flush()?;
    Ok(())
}

/// Every file below `folder` by path, except lists of sums.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if !path.to_string_lossy().ends_with("SUMS") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn sums<H: sha2::Digest + io::Write>(folder: &Path, name: &str) -> Result<()> {
    let mut text = String::new();
    for file in files(folder)? {
        let mut hash = H::new();
        io::copy(&mut File::open(&file)?, &mut hash).with_context(|| format!("cannot read {}", file.display()))?;
        let sum: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        text += &format!("{sum}  {}\n", file.strip_prefix(folder)?.display());
    }
    fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::super::tests::sources;
    use super::*;

    /// Paths of a tarball with their modes and texts.
    fn entries(tarball: &Path) -> BTreeMap<String, (u32, String)> {
        let mut archive = tar::Archive::new(GzDecoder::new(File::open(tarball).expect("a tarball")));
        let mut found = BTreeMap::new();
        for entry in archive.entries().expect("entries") {
            let mut entry = entry.expect("an entry");
            let path = entry.path().expect("a path").display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("text");
            found.insert(path, (entry.header().mode().expect("a mode"), text));
        }
        found.retain(|path, _| !path.ends_with('/'));
        found
    }

    /// The layout of upstream's `kubernetes-server-linux-amd64.tar.gz` and `kubernetes-node-linux-amd64.tar.gz`, which
    /// scripts for machines without a network unpack and import.
    #[test]
    fn tarballs_have_upstreams_layout_and_are_the_same_bytes_again() {
        let work = std::env::temp_dir().join(format!("bundle-{}", std::process::id()));
        let (binaries, images, dist) = (work.join("bin"), work.join("images"), work.join("dist"));
        for folder in [&binaries, &images, &dist] {
            fs::create_dir_all(folder).expect("a folder");
        }
        BINARIES.iter().for_each(|name| fs::write(binaries.join(name), format!("binary {name}")).expect("a file"));
        IMAGED.iter().for_each(|name| fs::write(images.join(format!("{name}.tar")), "image").expect("a file"));
        let own = sources(super::super::REGISTRY);
        let sources = Sources { binaries, architecture: "arm64".parse().expect("known"), ..own };
        bundle(&sources, &images, &dist).expect("bundled");
        let names = ["kubernetes-server-linux-arm64.tar.gz", "kubernetes-node-linux-arm64.tar.gz"];
        let first = names.map(|name| fs::read(dist.join(name)).expect("a tarball"));
        let server = entries(&dist.join(names[0]));
        let mut expected = vec!["kubernetes/LICENSES".to_owned(), "kubernetes/server/bin/kubelet".to_owned()];
        for name in IMAGED {
            expected.extend(["", ".docker_tag", ".tar"].map(|end| format!("kubernetes/server/bin/{name}{end}")));
        }
        expected.sort();
        assert_eq!(server.keys().cloned().collect::<Vec<_>>(), expected);
        assert_eq!(server["kubernetes/server/bin/kubelet"], (0o755, "binary kubelet".to_owned()));
        assert_eq!(server["kubernetes/server/bin/kube-proxy.docker_tag"].1, "v1.35.4_ironclad.1");
        let node: Vec<String> = entries(&dist.join(names[1])).into_keys().collect();
        assert_eq!(node, ["kubernetes/LICENSES", "kubernetes/node/bin/kube-proxy", "kubernetes/node/bin/kubelet"]);
        bundle(&sources, &images, &dist).expect("bundled");
        assert!(first == names.map(|name| fs::read(dist.join(name)).expect("a tarball")), "other bytes");
        fs::remove_dir_all(work).expect("clean");
    }

    #[test]
    fn sums_are_those_that_sha256sum_checks() {
        let folder = std::env::temp_dir().join(format!("sums-{}", std::process::id()));
        fs::create_dir_all(folder.join("images")).expect("a folder");
        fs::write(folder.join("b"), "b").expect("a file");
        fs::write(folder.join("images/a"), "a").expect("a file");
        sums::<Sha256>(&folder, "SHA256SUMS").expect("summed");
        sums::<Sha512>(&folder, "SHA512SUMS").expect("summed");
        let text = fs::read_to_string(folder.join("SHA256SUMS")).expect("readable");
        assert_eq!(
            text,
            "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d  b\n\
             ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb  images/a\n"
        );
        fs::remove_dir_all(folder).expect("clean");
    }
}
