//! Folders in a volume for what containers mount below it: a read-only volume has no room for the runtime to make them.
//! Answers for upstream's `MakeNestedMountpoints`.

use k8s_openapi::api::core::v1::{Pod, VolumeMount};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Mode of the folders.
const MODE: u32 = 0o755;

/// A path without `.`, `..` and empty parts, as Go's `filepath.Clean` has it.
fn clean(path: &str) -> String {
    let is_absolute = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            ".." if is_absolute => {}
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    match (is_absolute, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".to_owned(),
        (false, false) => joined,
    }
}

/// Mounts of every container of a pod.
fn containers(pod: &Pod) -> impl Iterator<Item = &[VolumeMount]> {
    pod.spec.iter().flat_map(|spec| {
        let init = spec.init_containers.iter().flatten().map(|container| container.volume_mounts.as_deref());
        let own = spec.containers.iter().map(|container| container.volume_mounts.as_deref());
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| container.volume_mounts.as_deref());
        init.chain(own).chain(ephemeral).map(Option::unwrap_or_default)
    })
}

/// Paths in a volume at which containers mount others, but for those that are below another one of them.
///
/// # Errors
/// A container mounts the volume outside of its root: upstream's text.
pub(super) fn mount_points(pod: &Pod, volume: &str) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for mounts in containers(pod) {
        let mut all: Vec<String> = mounts.iter().map(|mount| clean(&mount.mount_path)).collect();
        all.sort();
        for own in mounts.iter().filter(|mount| mount.name == volume) {
            let own = clean(&own.mount_path);
            if own.starts_with("../") {
                return Err(io::Error::other(format!("invalid container mount point {own}")));
            }
            let below = format!("{own}/");
            let mut last: Option<String> = None;
            for path in &all {
                let Some(inner) = path.strip_prefix(&below) else { continue };
                if last.as_ref().is_some_and(|last| path.starts_with(last.as_str())) {
                    continue;
                }
                last = Some(format!("{path}/"));
                found.push(inner.to_owned());
            }
        }
    }
    Ok(found)
}

/// Makes the folders, unless they are there.
pub(super) fn make(folder: &Path, mount_points: &[String]) -> io::Result<()> {
    for path in mount_points {
        let made = fs::DirBuilder::new().recursive(true).mode(MODE).create(folder.join(path));
        made.map_err(|error| io::Error::other(format!("unable to create nested volume mountpoints: {error}")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Mounts of one container: the volume, and where it is mounted.
    type Mounts = [(&'static str, &'static str)];

    fn pod(containers: &[&Mounts]) -> Pod {
        let mounts = |mounts: &Mounts| -> Vec<Value> {
            mounts.iter().map(|(name, path)| json!({"name": name, "mountPath": path})).collect()
        };
        let containers: Vec<Value> =
            containers.iter().map(|all| json!({"name": "c", "volumeMounts": mounts(all)})).collect();
        serde_json::from_value(json!({"spec": {"containers": containers}})).expect("a pod")
    }

    #[test]
    fn volumes_have_folders_for_what_is_mounted_below_them() {
        let two: &[&Mounts] = &[&[("v", "/dir"), ("w", "/dir/a/b")], &[("v", "/other/"), ("w", "/other//c")]];
        let cases: [(&[&Mounts], &[&str]); 7] = [
            (&[&[("v", "/dir"), ("w", "/elsewhere")]], &[]),
            (&[&[("v", "/dir"), ("w", "/dir/nested"), ("x", "/dir/nested/other")]], &["nested"]),
            (&[&[("v", "/dir"), ("w", "/dir/nested-2"), ("x", "/dir/nested")]], &["nested", "nested-2"]),
            (&[&[("v", "/dir"), ("w", "/directory/x")]], &[]),
            (&[&[("w", "/dir"), ("v", "/dir/nested")]], &[]),
            (&[&[("v", "/x/../dir/."), ("w", "/dir/a/../b")]], &["b"]),
            (two, &["a/b", "c"]),
        ];
        for (containers, expected) in cases {
            assert_eq!(mount_points(&pod(containers), "v").expect("points"), expected, "{containers:?}");
        }
        let outside = mount_points(&pod(&[&[("v", "a/../../dir"), ("w", "/x")]]), "v").expect_err("outside");
        assert_eq!(outside.to_string(), "invalid container mount point ../dir");
        let mut ephemeral = pod(&[]);
        ephemeral.spec.as_mut().expect("a spec").ephemeral_containers = serde_json::from_value(json!([{"name": "e",
            "volumeMounts": [{"name": "v", "mountPath": "/dir"}, {"name": "w", "mountPath": "/dir/e"}]}]))
        .expect("containers");
        assert_eq!(mount_points(&ephemeral, "v").expect("points"), ["e"]);
    }
}
