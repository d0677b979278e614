//! The file that an image is kept and moved in: an OCI layout that is a `docker save` archive as well, as Docker itself
//! writes since version 25. containerd, Docker, kind and skopeo each find what they know.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType};

use super::Config;
use super::layer::{Layer, header};

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// The most bytes of an index that is read.
const LARGEST_INDEX: u64 = 1 << 20;

/// A layer that is written: an open file, at its beginning.
struct Blob {
    file: File,
    size: u64,
    digest: String,
}

/// Writes an image of these layers, the lowest first.
///
/// # Errors
/// When a file cannot be read or written.
pub fn write(config: &Config, layers: &[&Layer], archive: &Path) -> Result<()> {
    let folder = archive.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let blobs = layers.iter().map(|layer| blob(folder, |to| layer.write(to))).collect::<Result<Vec<_>>>()?;
    save(config, blobs, archive)
}

/// Writes an image of one layer that is a tar archive already.
///
/// # Errors
/// When a file cannot be read or written.
pub(super) fn wrap(config: &Config, layer: &Path, archive: &Path) -> Result<()> {
    let mut file = File::open(layer).with_context(|| format!("cannot read {}", layer.display()))?;
    let mut hash = Sha256::new();
    let size = io::copy(&mut file, &mut hash)?;
    file.rewind()?;
    save(config, vec![Blob { file, size, digest: format!("{:x}", hash.finalize()) }], archive)
}

/// Writes a layer into a file that has no name and ends with its handle.
fn blob(folder: &Path, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<Blob> {
    let path = folder.join(format!(".layer-{}", std::process::id()));
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
    let file = file.with_context(|| format!("cannot write {}", path.display()))?;
    fs::remove_file(&path)?;
    let mut hashed = Hashed { to: BufWriter::with_capacity(1 << 20, file), hash: Sha256::new(), size: 0 };
    write(&mut hashed)?;
    let Hashed { to, hash, size } = hashed;
    let mut file = to.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(Blob { file, size, digest: format!("{:x}", hash.finalize()) })
}

struct Hashed {
    to: BufWriter<File>,
    hash: Sha256,
    size: u64,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hash.update(bytes);
        self.size += bytes.len() as u64;
        self.to.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Name of an image with its registry, as clients complete it: without one it is Docker Hub's, whose images without a
/// folder are in `library`. containerd does that for the tags of docker archives, and takes an OCI layout's name as it is.
fn full_name(reference: &str) -> String {
    match reference.split_once('/') {
        None => format!("docker.io/library/{reference}"),
        Some((first, _)) if first == "localhost" || first.contains(['.', ':']) => reference.to_owned(),
        Some(_) => format!("docker.io/{reference}"),
    }
}

fn save(config: &Config, layers: Vec<Blob>, archive: &Path) -> Result<()> {
    let document = serde_json::to_vec(&document(config, &layers))?;
    let described: Vec<Value> = layers.iter().map(|layer| descriptor(LAYER, &layer.digest, layer.size)).collect();
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor(CONFIG, &digest(&document), document.len() as u64),
        "layers": described,
    }))?;
    let mut listed = descriptor(MANIFEST, &digest(&manifest), manifest.len() as u64);
    let tag = config.reference.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    listed["annotations"] =
        json!({"io.containerd.image.name": full_name(&config.reference), "org.opencontainers.image.ref.name": tag});
    listed["platform"] = json!({"architecture": config.architecture.image(), "os": "linux"});
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [listed]});
    let paths: Vec<String> = layers.iter().map(|layer| blob_path(&layer.digest)).collect();
    let docker = json!([{"Config": blob_path(&digest(&document)), "RepoTags": [config.reference], "Layers": paths}]);

    let partial = archive.with_extension("partial");
    let mut out = layout(&partial, &index)?;
    append(&mut out, "manifest.json", &serde_json::to_vec(&docker)?)?;
    append(&mut out, &blob_path(&digest(&document)), &document)?;
    append(&mut out, &blob_path(&digest(&manifest)), &manifest)?;
    let mut written = Vec::new();
    for layer in layers {
        // Two layers may be the same; a path comes once.
        if !written.contains(&layer.digest) {
            append_from(&mut out, &blob_path(&layer.digest), layer.size, layer.file)?;
            written.push(layer.digest);
        }
    }
    out.into_inner()?.flush()?;
    fs::rename(&partial, archive).with_context(|| format!("cannot write {}", archive.display()))
}

/// Begins an OCI layout.
fn layout(path: &Path, index: &Value) -> Result<Builder<BufWriter<File>>> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut out = Builder::new(BufWriter::with_capacity(1 << 20, file));
    for folder in ["blobs/", "blobs/sha256/"] {
        let mut header = header();
        header.set_entry_type(EntryType::Directory);
        header.set_mode(0o755);
        out.append_data(&mut header, folder, io::empty())?;
    }
    append(&mut out, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    append(&mut out, "index.json", &serde_json::to_vec(index)?)?;
    Ok(out)
}

/// Makes one image of several that are the same for different processors: an OCI layout whose index leads to an index of
/// them. `docker save` has no form for that.
///
/// # Errors
/// When a file cannot be read or written, or one is no archive of a single image.
pub fn join(archives: &[&Path], to: &Path) -> Result<()> {
    let mut images = Vec::new();
    for archive in archives {
        images.push(single(archive).with_context(|| format!("{} has no image", archive.display()))?);
    }
    let annotations = images.first().map(|image| image["annotations"].clone()).context("no images to join")?;
    for image in &mut images {
        let of_all = image.as_object_mut().and_then(|image| image.remove("annotations"));
        anyhow::ensure!(of_all.as_ref() == Some(&annotations), "the images have different names");
    }
    let inner = serde_json::to_vec(&json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": images}))?;
    let mut listed = descriptor(INDEX, &digest(&inner), inner.len() as u64);
    listed["annotations"] = annotations;
    let partial = to.with_extension("partial");
    let mut out = layout(&partial, &json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [listed]}))?;
    append(&mut out, &blob_path(&digest(&inner)), &inner)?;
    let mut written = BTreeSet::new();
    for archive in archives {
        for entry in open(archive)?.entries()? {
            let mut entry = entry?;
            let path = entry.path()?.display().to_string();
            // Images share layers.
            if path.starts_with("blobs/sha256/") && !path.ends_with('/') && written.insert(path.clone()) {
                let size = entry.size();
                append_from(&mut out, &path, size, &mut entry)?;
            }
        }
    }
    out.into_inner()?.flush()?;
    fs::rename(&partial, to).with_context(|| format!("cannot write {}", to.display()))
}

fn open(archive: &Path) -> Result<tar::Archive<BufReader<File>>> {
    let file = File::open(archive).with_context(|| format!("cannot read {}", archive.display()))?;
    Ok(tar::Archive::new(BufReader::with_capacity(1 << 20, file)))
}

/// The descriptor of an archive's only image.
fn single(archive: &Path) -> Result<Value> {
    for entry in open(archive)?.entries()? {
        let mut entry = entry?;
        if entry.path()?.as_os_str() == "index.json" {
            let mut text = Vec::new();
            entry.by_ref().take(LARGEST_INDEX).read_to_end(&mut text)?;
            let mut index: Value = serde_json::from_slice(&text)?;
            let listed = index["manifests"].as_array_mut().filter(|listed| listed.len() == 1).and_then(Vec::pop);
            return listed.filter(|image| image["mediaType"] == MANIFEST).context("its index lists other than one");
        }
    }
    anyhow::bail!("it has no index")
}

/// The OCI image configuration.
fn document(config: &Config, layers: &[Blob]) -> Value {
    let ids: Vec<String> = layers.iter().map(|layer| format!("sha256:{}", layer.digest)).collect();
    let created = config.created.as_deref().unwrap_or("1970-01-01T00:00:00Z");
    let history: Vec<Value> = layers.iter().map(|_| json!({"created": created, "created_by": "ironclad"})).collect();
    let mut process = json!({"Env": config.environment, "WorkingDir": "/"});
    for (name, list) in [("Entrypoint", &config.entrypoint), ("Cmd", &config.command)] {
        if !list.is_empty() {
            process[name] = json!(list);
        }
    }
    if !config.user.is_empty() {
        process["User"] = json!(config.user);
    }
    if !config.labels.is_empty() {
        process["Labels"] = json!(config.labels);
    }
    json!({
        "architecture": config.architecture.image(),
        "os": "linux",
        "created": created,
        "config": process,
        "rootfs": {"type": "layers", "diff_ids": ids},
        "history": history,
    })
}

fn descriptor(kind: &str, digest: &str, size: u64) -> Value {
    json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": size})
}

fn blob_path(digest: &str) -> String {
    format!("blobs/sha256/{digest}")
}

fn digest(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

fn append<W: Write>(out: &mut Builder<W>, path: &str, bytes: &[u8]) -> Result<()> {
    append_from(out, path, bytes.len() as u64, bytes)
}

fn append_from<W: Write>(out: &mut Builder<W>, path: &str, size: u64, from: impl Read) -> Result<()> {
    let mut header = header();
    header.set_size(size);
    out.append_data(&mut header, path, from).with_context(|| format!("cannot add {path}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn files(archive: &Path) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for entry in open(archive).expect("readable").entries().expect("entries") {
            let mut entry = entry.expect("an entry");
            let path = entry.path().expect("a path").display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect("readable");
            assert!(files.insert(path, bytes).is_none(), "a path comes once");
        }
        files
    }

    #[test]
    fn images_for_several_processors_are_one_image() {
        let folder = std::env::temp_dir().join(format!("archives-{}", std::process::id()));
        let mut same = Layer::default();
        same.text("/etc/a", "a".into());
        let made = ["amd64", "arm64"].map(|name| {
            let mut own = Layer::default();
            own.text("/program", name.into());
            let architecture = name.parse().expect("known");
            let config = Config { reference: "r.example/x:v1".into(), architecture, ..Config::default() };
            let file = folder.join(format!("{name}.tar"));
            write(&config, &[&same, &own], &file).expect("written");
            file
        });
        let joined = folder.join("joined.tar");
        join(&made.each_ref().map(std::path::PathBuf::as_path), &joined).expect("joined");
        let files = files(&joined);
        let read = |descriptor: &Value| -> Value {
            let digest = descriptor["digest"].as_str().and_then(|text| text.strip_prefix("sha256:")).expect("a digest");
            assert_eq!(descriptor["size"], files[&blob_path(digest)].len());
            serde_json::from_slice(&files[&blob_path(digest)]).expect("JSON")
        };
        let index: Value = serde_json::from_slice(&files["index.json"]).expect("JSON");
        let listed = index["manifests"].as_array().expect("a list");
        assert_eq!((listed.len(), &listed[0]["mediaType"]), (1, &json!(INDEX)));
        assert_eq!(listed[0]["annotations"]["io.containerd.image.name"], "r.example/x:v1");
        let inner = read(&listed[0]);
        let kinds: Vec<&Value> = inner["manifests"].as_array().expect("a list").iter().collect();
        assert_eq!(kinds.len(), 2);
        for (image, name) in kinds.iter().zip(["amd64", "arm64"]) {
            assert_eq!(image["platform"]["architecture"], name);
            assert_eq!(read(&read(image)["config"])["architecture"], name);
        }
        assert!(!files.contains_key("manifest.json"), "docker save knows one image by a name");
        assert!(join(&[&joined, &made[0]], &folder.join("again.tar")).is_err(), "names and forms differ");
        fs::remove_dir_all(folder).expect("clean");
    }

    /// Digests and sizes in the documents are those of the entries that they refer to.
    #[test]
    fn an_archive_is_an_oci_layout_and_a_docker_archive() {
        let folder = std::env::temp_dir().join(format!("archive-{}", std::process::id()));
        let (mut base, mut top) = (Layer::default(), Layer::default());
        base.text("/etc/a", "a".into());
        top.text("/b", "b".into());
        let config = Config { reference: "r.example/x/y:v1_2".into(), user: "65532".into(), ..Config::default() };
        let file = folder.join("image.tar");
        write(&config, &[&base, &top, &base], &file).expect("written");
        let first = fs::read(&file).expect("readable");
        write(&config, &[&base, &top, &base], &file).expect("written");
        assert!(first == fs::read(&file).expect("readable"), "the same again");

        let files = files(&file);
        let read = |path: &str| serde_json::from_slice::<Value>(&files[path]).expect("JSON");
        let follow = |descriptor: &Value| {
            let path = blob_path(
                descriptor["digest"].as_str().and_then(|text| text.strip_prefix("sha256:")).expect("a digest"),
            );
            assert_eq!(descriptor["size"], files[&path].len(), "{path}");
            assert_eq!(path, blob_path(&digest(&files[&path])));
            path
        };
        let listed = &read("index.json")["manifests"][0];
        assert_eq!(listed["annotations"]["io.containerd.image.name"], "r.example/x/y:v1_2");
        let manifest = read(&follow(listed));
        let document = follow(&manifest["config"]);
        let layers: Vec<String> = manifest["layers"].as_array().expect("layers").iter().map(follow).collect();
        let docker = &read("manifest.json")[0];
        assert_eq!(docker["Config"], document);
        assert_eq!(docker["Layers"], json!(layers));
        assert_eq!(docker["RepoTags"][0], "r.example/x/y:v1_2");
        assert_eq!(read(&document)["config"]["User"], "65532");
        assert_eq!(read(&document)["rootfs"]["diff_ids"].as_array().map(Vec::len), Some(3));
        fs::remove_dir_all(folder).expect("clean");
    }

    #[test]
    fn names_without_a_registry_are_docker_hubs() {
        for (reference, full) in [
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("ironclad/etcd:installed", "docker.io/ironclad/etcd:installed"),
            ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
            ("localhost/x:1", "localhost/x:1"),
            ("10.0.0.1:5000/x/y:1", "10.0.0.1:5000/x/y:1"),
        ] {
            assert_eq!(full_name(reference), full, "{reference}");
        }
    }
}
