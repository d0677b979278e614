//! FlexVolumes and the programs that are their drivers: where these are, how they are called, how they answer. Kubelets mount by
//! them, the controller manager attaches and grows. Answers for upstream's `probe.go` and `driver-call.go` of
//! `pkg/volume/flexvolume`.

use k8s_openapi::api::core::v1::{FlexPersistentVolumeSource, FlexVolumeSource};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;

/// Longest time of a call. Upstream waits for ever.
const TIMEOUT: Duration = Duration::from_secs(300);
const NOT_SUPPORTED: &str = "Not supported";

/// A volume of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlexVolume {
    /// Name of the driver.
    pub driver: String,
    /// Name of the persistent volume, or that of the volume in its pod.
    pub name: String,
    /// Kind of the file system.
    pub kind: String,
    /// The volume is mounted read-only.
    pub read_only: bool,
    options: BTreeMap<String, String>,
    /// Namespace, empty for the pod's, and name of a secret that the driver is given.
    pub secret: Option<(String, String)>,
}

impl FlexVolume {
    /// The volume of a pod.
    #[must_use]
    pub fn inline(name: &str, source: &FlexVolumeSource) -> Self {
        let secret = source.secret_ref.as_ref().map(|secret| (String::new(), secret.name.clone()));
        Self {
            driver: source.driver.clone(),
            name: name.to_owned(),
            kind: source.fs_type.clone().unwrap_or_default(),
            read_only: source.read_only.unwrap_or(false),
            options: source.options.clone().unwrap_or_default(),
            secret: secret.filter(|(_, name)| !name.is_empty()),
        }
    }

    /// The volume of a persistent volume, which a pod may use read-only.
    #[must_use]
    pub fn persistent(name: &str, source: &FlexPersistentVolumeSource, read_only: bool) -> Self {
        let secret = source.secret_ref.as_ref();
        let secret =
            secret.and_then(|secret| Some((secret.namespace.clone().unwrap_or_default(), secret.name.clone()?)));
        Self {
            driver: source.driver.clone(),
            name: name.to_owned(),
            kind: source.fs_type.clone().unwrap_or_default(),
            read_only,
            options: source.options.clone().unwrap_or_default(),
            secret: secret.filter(|(_, name)| !name.is_empty()),
        }
    }

    /// Name of the volume in the node's status.
    #[must_use]
    pub fn unique_name(&self) -> String {
        format!("{}/{}", self.driver, self.name)
    }

    /// The volume as a driver is told of it: upstream's `NewOptionsForDriver`. The volume's own options win.
    #[must_use]
    pub fn json(&self, more: BTreeMap<String, String>) -> String {
        let own = [
            ("kubernetes.io/fsType", self.kind.as_str()),
            ("kubernetes.io/readwrite", if self.read_only { "ro" } else { "rw" }),
            ("kubernetes.io/pvOrVolumeName", &self.name),
        ];
        let mut all: BTreeMap<String, String> = own.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        all.extend(more);
        all.extend(self.options.clone());
        json!(all).to_string()
    }
}

/// Driver and name of the volume that a node's status lists under a name: upstream's `SplitUniqueName`. The caller tells
/// FlexVolumes from those of other plugins.
#[must_use]
pub fn split(unique: &str) -> Option<(&str, &str)> {
    let (driver, name) = unique.rsplit_once('/')?;
    (!driver.is_empty() && !name.is_empty() && driver.split('/').count() <= 2).then_some((driver, name))
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// The driver leaves the work to its caller.
    NotSupported,
    /// Any other failure; upstream's text.
    Failed(String),
}

impl CallFailure {
    /// The text, for calls that nobody else can do.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::NotSupported => NOT_SUPPORTED.to_owned(),
            Self::Failed(text) => text,
        }
    }
}

/// Work that a driver does, by its answer to `init`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Volumes are attached to nodes.
    pub attach: bool,
    /// The runtime may relabel files.
    pub selinux_relabel: bool,
    /// Numbers of the mounted file system are those of the volume.
    pub supports_metrics: bool,
    /// The kubelet gives files to the pod's group.
    pub fs_group: bool,
    /// The node has work of its own when a volume grows.
    pub requires_fs_resize: bool,
}

/// A successful answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverAnswer {
    /// Path of a device; empty for none.
    pub device: String,
    /// The volume is attached to the node that was asked for.
    pub attached: bool,
    /// Work that the driver does, of those that answer `init`.
    pub abilities: Abilities,
}

/// Fields by their names in small letters: drivers write them in either case.
fn fields(value: &Value) -> BTreeMap<String, &Value> {
    value.as_object().into_iter().flatten().map(|(name, value)| (name.to_lowercase(), value)).collect()
}

/// Reads what a driver has printed. Upstream's `handleCmdResponse`.
fn read(command: &str, output: &[u8]) -> Result<DriverAnswer, CallFailure> {
    let value: Value = serde_json::from_slice(output).map_err(|error| match output.is_empty() {
        true => CallFailure::Failed("unexpected end of JSON input".to_owned()),
        false => CallFailure::Failed(error.to_string()),
    })?;
    let answer = fields(&value);
    let text = |name: &str| answer.get(name).and_then(|value| value.as_str()).unwrap_or_default();
    match text("status") {
        "Success" => {}
        NOT_SUPPORTED => return Err(CallFailure::NotSupported),
        status => {
            let reason = text("message");
            return Err(CallFailure::Failed(format!("{command} command failed, status: {status}, reason: {reason}")));
        }
    }
    let able = answer.get("capabilities").map(|value| fields(value)).unwrap_or_default();
    let can = |name: &str, default| able.get(name).and_then(|value| value.as_bool()).unwrap_or(default);
    let abilities = Abilities {
        attach: can("attach", true),
        selinux_relabel: can("selinuxrelabel", true),
        supports_metrics: can("supportsmetrics", false),
        fs_group: can("fsgroup", true),
        requires_fs_resize: can("requiresfsresize", true),
    };
    let attached = answer.get("attached").and_then(|value| value.as_bool()).unwrap_or(false);
    Ok(DriverAnswer { device: text("device").to_owned(), attached, abilities })
}

/// Runs a program and reads its answer.
async fn run(program: &Path, command: &str, arguments: &[&str]) -> Result<DriverAnswer, CallFailure> {
    let mut child = Command::new(program);
    child.arg(command).args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = match tokio::time::timeout(TIMEOUT, child.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(CallFailure::Failed(format!("{}: {error}", program.display()))),
        Err(_) => return Err(CallFailure::Failed("timeout".to_owned())),
    };
    let answer = read(command, &[&output.stdout[..], &output.stderr[..]].concat());
    if answer.is_ok() && !output.status.success() {
        let status = output.status.code().map_or("signal: killed".to_owned(), |code| format!("exit status {code}"));
        return Err(CallFailure::Failed(status));
    }
    answer
}

/// Marks of a program's file: another one is asked anew what it can do.
type Stamp = (u64, u64, i64, i64);

fn stamp(program: &Path) -> Option<Stamp> {
    let found = fs::metadata(program).ok().filter(fs::Metadata::is_file)?;
    Some((found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
}

/// Name of a driver that is not there or does not answer `init`; upstream's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no volume plugin matched")]
pub struct NoDriver;

/// A driver.
#[derive(Debug)]
pub struct FlexDriver {
    program: PathBuf,
    /// Work that it does.
    pub abilities: Abilities,
    stamp: Stamp,
    /// Commands that it does not support.
    unsupported: Mutex<BTreeSet<&'static str>>,
}

impl FlexDriver {
    /// Calls the driver; one that has not supported a command is not asked for it again.
    ///
    /// # Errors
    /// The driver does not support the command, has failed, or has not ended in time.
    pub async fn call(&self, command: &'static str, arguments: &[&str]) -> Result<DriverAnswer, CallFailure> {
        if self.unsupported.lock().contains(command) {
            return Err(CallFailure::NotSupported);
        }
        let answer = run(&self.program, command, arguments).await;
        match &answer {
            Err(CallFailure::NotSupported) => drop(self.unsupported.lock().insert(command)),
            Err(CallFailure::Failed(error)) => {
                tracing::warn!(program = %self.program.display(), command, error, "FlexVolume driver call failed");
            }
            Ok(_) => {}
        }
        answer
    }
}

/// Drivers below `volumePluginDir`: `<vendor>~<driver>/<driver>`, or `<driver>/<driver>`.
#[derive(Debug)]
pub struct Drivers {
    folder: PathBuf,
    known: Mutex<HashMap<String, Arc<FlexDriver>>>,
}

/// Name of a driver as one part of a path: upstream's `EscapeQualifiedName`.
#[must_use]
pub fn escape(driver: &str) -> String {
    driver.replace('/', "~")
}

impl Drivers {
    /// Drivers below a folder.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf(), known: Mutex::default() }
    }

    fn program(&self, driver: &str) -> Option<PathBuf> {
        let parts: Vec<&str> = driver.split('/').collect();
        let is_odd = |part: &&str| part.is_empty() || part.starts_with('.');
        if parts.len() > 2 || parts.iter().any(is_odd) {
            return None;
        }
        Some(self.folder.join(escape(driver)).join(parts.last()?))
    }

    /// A driver that is there and has answered `init`. Programs may come, change and go at any time.
    ///
    /// # Errors
    /// [`NoDriver`].
    pub async fn get(&self, driver: &str) -> Result<Arc<FlexDriver>, NoDriver> {
        let program = self.program(driver).ok_or(NoDriver)?;
        let stamp = stamp(&program).ok_or(NoDriver)?;
        let known = self.known.lock().get(driver).cloned();
        if let Some(known) = known.filter(|known| known.stamp == stamp) {
            return Ok(known);
        }
        let answer = run(&program, "init", &[]).await.map_err(|failure| {
            tracing::warn!(program = %program.display(), error = failure.text(), "Error creating Flexvolume plugin, skipping");
            NoDriver
        })?;
        let found = Arc::new(FlexDriver { program, abilities: answer.abilities, stamp, unsupported: Mutex::default() });
        self.known.lock().insert(driver.to_owned(), Arc::clone(&found));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_upstream_reads_them() {
        let all = Abilities {
            attach: true,
            selinux_relabel: true,
            supports_metrics: false,
            fs_group: true,
            requires_fs_resize: true,
        };
        let answer =
            |device: &str, abilities| Ok(DriverAnswer { device: device.to_owned(), attached: false, abilities });
        let failed = |text: &str| Err(CallFailure::Failed(text.to_owned()));
        for (output, expected) in [
            (r#"{"status": "Success"}"#, answer("", all)),
            (r#"{"Status": "Success", "Device": "/dev/x"}"#, answer("/dev/x", all)),
            (
                r#"{"status": "Success", "capabilities": {"attach": false, "fsGroup": false, "supportsMetrics": true}}"#,
                answer("", Abilities { attach: false, fs_group: false, supports_metrics: true, ..all }),
            ),
            (
                r#"{"status": "Success", "attached": true, "Capabilities": {"requiresFSResize": false}}"#,
                Ok(DriverAnswer {
                    device: String::new(),
                    attached: true,
                    abilities: Abilities { requires_fs_resize: false, ..all },
                }),
            ),
            (r#"{"status": "Not supported"}"#, Err(CallFailure::NotSupported)),
            (
                r#"{"status": "Failure", "message": "no disk"}"#,
                failed("mount command failed, status: Failure, reason: no disk"),
            ),
            ("", failed("unexpected end of JSON input")),
        ] {
            assert_eq!(read("mount", output.as_bytes()), expected, "{output}");
        }
        assert!(matches!(read("mount", b"Success"), Err(CallFailure::Failed(_))));
    }

    #[test]
    fn names_in_a_nodes_status_are_of_driver_and_volume() {
        for (unique, expected) in [
            ("vendor/disk/v", Some(("vendor/disk", "v"))),
            ("disk/v", Some(("disk", "v"))),
            ("v", None),
            ("a/b/c/d", None),
            ("/v", None),
            ("vendor/disk/", None),
        ] {
            assert_eq!(split(unique), expected, "{unique}");
        }
    }

    #[test]
    fn programs_are_below_the_folder_of_plugins() {
        let drivers = Drivers::new(Path::new("/exec"));
        for (driver, expected) in [
            ("vendor/cifs", Some("/exec/vendor~cifs/cifs")),
            ("cifs", Some("/exec/cifs/cifs")),
            ("..", None),
            ("vendor/..", None),
            ("a/b/c", None),
            ("", None),
            (".hidden/x", None),
        ] {
            assert_eq!(drivers.program(driver), expected.map(PathBuf::from), "{driver}");
        }
    }
}
