//! `--admission-control-config-file`: an AdmissionConfiguration with a section per plugin, each in place or in a file
//! of its own. Answers for upstream's `ReadAdmissionConfiguration`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Error;
use crate::machinery::tree;

/// Before there was an AdmissionConfiguration, the file was the configuration of these.
const LEGACY: [&str; 2] = ["ImagePolicyWebhook", "PodNodeSelector"];

/// The sections by plugin.
#[derive(Debug, Default)]
pub(super) struct Configurations {
    sections: BTreeMap<String, Value>,
    none: Value,
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::Configuration(format!(
        "unable to read admission control configuration from {:?} [{why}]",
        path.display().to_string()
    ))
}

fn read(path: &Path) -> Result<Value, Error> {
    let text = shared::os::read(&path.to_string_lossy()).map_err(|why| unreadable(path, &why))?;
    proto::yaml::decode_any(&text).map_err(|e| unreadable(path, &e))
}

impl Configurations {
    /// Reads the file; an empty name is no file.
    pub(super) fn read(path: &str) -> Result<Self, Error> {
        if path.is_empty() {
            return Ok(Self::default());
        }
        let path = PathBuf::from(path);
        let file = read(&path)?;
        let mut sections = BTreeMap::new();
        let (version, kind) = (tree::text(&file, "/apiVersion"), tree::text(&file, "/kind"));
        let known = matches!(version, "apiserver.config.k8s.io/v1" | "apiserver.k8s.io/v1alpha1");
        if kind.is_empty() && version.is_empty() {
            sections.extend(LEGACY.map(|plugin| (plugin.to_owned(), file.clone())));
        } else if !known || kind != "AdmissionConfiguration" {
            let why = format!("no kind \"{kind}\" is registered for version \"{version}\"");
            return Err(Error::Configuration(format!(
                "unable to decode admission control configuration from {:?} [{why}]",
                path.display().to_string()
            )));
        }
        for section in tree::list(&file, "/plugins") {
            let name = tree::name_field(section).to_owned();
            let content = match (section.get("configuration").filter(|c| !c.is_null()), tree::text(section, "/path")) {
                (Some(content), _) => content.clone(),
                (None, "") => Value::Null,
                // Next to the file that names it.
                (None, other) => read(&path.parent().unwrap_or(Path::new("")).join(other))?,
            };
            sections.insert(name, content);
        }
        Ok(Self { sections, none: Value::Null })
    }

    /// The section of a plugin, null without one.
    pub(super) fn get(&self, plugin: &str) -> &Value {
        self.sections.get(plugin).unwrap_or(&self.none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sections_in_place_and_in_files() {
        let dir = std::env::temp_dir().join(format!("admission-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).expect("a file");
        write(
            "all.yaml",
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: A\n  configuration: {x: 1}\n- name: B\n  path: b.yaml\n- name: C\n",
        );
        write("b.yaml", "z: 2\n");
        write("old.yaml", "podNodeSelectorPluginConfig: {}\n");
        write("bad.yaml", "apiVersion: v1\nkind: Pod\n");
        let read = |name: &str| Configurations::read(&dir.join(name).display().to_string());
        let all = read("all.yaml").expect("read");
        assert_eq!((all.get("A"), all.get("B"), all.get("C")), (&json!({"x": 1}), &json!({"z": 2}), &Value::Null));
        assert!(read("old.yaml").expect("read").get("PodNodeSelector").is_object());
        assert!(read("bad.yaml").is_err());
        let missing = read("nope.yaml").expect_err("missing").to_string();
        assert!(missing.ends_with("nope.yaml: no such file or directory]"), "{missing}");
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
