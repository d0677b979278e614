//! The state that a swap of one part has to leave as it is: containers, objects, leases and the kubelet's files.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::lab::Lab;

/// Objects that nobody changes in the course of the test.
const KINDS: &str = "configmaps,secrets,services,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,\
    flowschemas,prioritylevelconfigurations,apiservices,priorityclasses,namespaces";
/// Namespaces that come and go.
pub const PASSING: &str = "swap-";

/// Things by name, each as what must not change of it.
pub type Things = BTreeMap<String, String>;

/// Every container by its pod: its ID, and how often it was restarted.
pub fn containers(lab: &Lab) -> Result<Things, String> {
    let list = lab.json("cp-1", "pods -A")?;
    let of_pod = |pod: &Value| {
        let name = name(pod);
        let all = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        let told = |status: &Value| {
            let state = format!("{} restarted {} times", status["containerID"], status["restartCount"]);
            (format!("{name} {}", status["name"].as_str().unwrap_or_default()), state)
        };
        all.iter().map(told).collect::<Vec<_>>()
    };
    Ok(list["items"].as_array().into_iter().flatten().flat_map(of_pod).filter(|(name, _)| stays(name)).collect())
}

/// Objects that nobody changes, as their identity and version in etcd.
pub fn objects(lab: &Lab) -> Result<Things, String> {
    let list = lab.json("cp-1", &format!("{KINDS} -A"))?;
    let told = |object: &Value| {
        let metadata = &object["metadata"];
        let version = format!("{} {}", metadata["uid"], metadata["resourceVersion"]);
        (format!("{} {}", object["kind"].as_str().unwrap_or_default(), name(object)), version)
    };
    let all = list["items"].as_array().into_iter().flatten().map(told);
    Ok(all.filter(|(name, _)| stays(name)).collect())
}

fn name(object: &Value) -> String {
    let part = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
    format!("{}/{}", part("namespace"), part("name"))
}

fn stays(name: &str) -> bool {
    !name.contains(PASSING)
}

/// Files of a kubelet beside those of pods: configuration, credentials, and what its managers wrote down.
pub fn files(lab: &Lab, machine: &str) -> Things {
    let root = lab.file(machine, "/var/lib/kubelet");
    let mut found = Things::new();
    for folder in ["", "pki"] {
        for entry in std::fs::read_dir(root.join(folder)).expect("a folder").flatten() {
            let path = entry.path();
            // A socket and a folder have nothing to tell.
            let Ok(told) = contents(&path) else { continue };
            let relative = path.strip_prefix(&root).unwrap_or(Path::new("")).display().to_string();
            found.insert(relative, told);
        }
    }
    found
}

/// Bytes of a file, or the target of a link: only on the machine it leads anywhere.
fn contents(path: &Path) -> std::io::Result<String> {
    if let Ok(target) = std::fs::read_link(path) {
        return Ok(target.display().to_string());
    }
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}

/// Tells what is not as it was, leaving out those whose name begins with `except`.
pub fn changes(before: &Things, after: &Things, except: Option<&str>) -> Vec<String> {
    let own = |name: &String| except.is_some_and(|prefix| name.starts_with(prefix));
    let names = before.keys().chain(after.keys().filter(|name| !before.contains_key(*name)));
    let changed = names.filter(|name| !own(name) && before.get(*name) != after.get(*name));
    changed.map(|name| format!("{name}: {:?} is {:?} now", before.get(name), after.get(name))).collect()
}

/// A lease of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub holder: String,
    pub transitions: u64,
}

/// The lease that a part leads by.
pub fn lease(lab: &Lab, part: &str) -> Result<Lease, String> {
    let lease = lab.json("cp-1", &format!("lease {part} -n kube-system"))?;
    Ok(Lease {
        holder: lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned(),
        transitions: lease["spec"]["leaseTransitions"].as_u64().unwrap_or_default(),
    })
}
