//! Programs of FlexVolume drivers: where they are, how they are called, how they answer. Answers for upstream's `probe.go` and
//! `driver-call.go`.

use parking_lot::Mutex;
use serde_json::Value;
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

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallFailure {
    /// The driver leaves the work to the kubelet.
    NotSupported,
    Failed(String),
}

impl CallFailure {
    /// The text, for calls that the kubelet cannot do itself.
    pub(super) fn text(self) -> String {
        match self {
            Self::NotSupported => NOT_SUPPORTED.to_owned(),
            Self::Failed(text) => text,
        }
    }
}

/// Work that a driver does, by its answer to `init`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Abilities {
    /// Volumes are attached to nodes.
    pub(super) attach: bool,
    pub(super) selinux_relabel: bool,
    /// Numbers of the mounted file system are those of the volume.
    pub(super) supports_metrics: bool,
    /// The kubelet gives files to the pod's group.
    pub(super) fs_group: bool,
}

/// A successful answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DriverAnswer {
    /// Path of a device; empty for none.
    pub(super) device: String,
    pub(super) abilities: Abilities,
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
    };
    Ok(DriverAnswer { device: text("device").to_owned(), abilities })
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

/// A driver.
#[derive(Debug)]
pub(super) struct FlexDriver {
    program: PathBuf,
    pub(super) abilities: Abilities,
    stamp: Stamp,
    /// Commands that it does not support.
    unsupported: Mutex<BTreeSet<&'static str>>,
}

impl FlexDriver {
    /// Calls the driver; one that has not supported a command is not asked for it again.
    pub(super) async fn call(&self, command: &'static str, arguments: &[&str]) -> Result<DriverAnswer, CallFailure> {
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
pub(super) struct Drivers {
    folder: PathBuf,
    known: Mutex<HashMap<String, Arc<FlexDriver>>>,
}

/// Name of a driver as one part of a path: upstream's `EscapeQualifiedName`.
pub(super) fn escape(driver: &str) -> String {
    driver.replace('/', "~")
}

impl Drivers {
    pub(super) fn new(folder: &Path) -> Self {
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
    /// There is none; upstream's text.
    pub(super) async fn get(&self, driver: &str) -> Result<Arc<FlexDriver>, String> {
        let missing = || "no volume plugin matched".to_owned();
        let program = self.program(driver).ok_or_else(missing)?;
        let stamp = stamp(&program).ok_or_else(missing)?;
        let known = self.known.lock().get(driver).cloned();
        if let Some(known) = known.filter(|known| known.stamp == stamp) {
            return Ok(known);
        }
        let answer = run(&program, "init", &[]).await.map_err(|failure| {
            tracing::warn!(program = %program.display(), error = failure.text(), "Error creating Flexvolume plugin, skipping");
            missing()
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
        let all = Abilities { attach: true, selinux_relabel: true, supports_metrics: false, fs_group: true };
        let answer = |device: &str, abilities| Ok(DriverAnswer { device: device.to_owned(), abilities });
        let failed = |text: &str| Err(CallFailure::Failed(text.to_owned()));
        for (output, expected) in [
            (r#"{"status": "Success"}"#, answer("", all)),
            (r#"{"Status": "Success", "Device": "/dev/x"}"#, answer("/dev/x", all)),
            (
                r#"{"status": "Success", "capabilities": {"attach": false, "fsGroup": false, "supportsMetrics": true}}"#,
                answer("", Abilities { attach: false, fs_group: false, supports_metrics: true, ..all }),
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
