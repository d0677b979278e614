//! Programs and devices of the node, as disks need them. Answers for upstream's `pkg/volume/util` `DeviceUtil`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::process::Command;

/// Longest time of a program: a target may be away for ever.
const TIMEOUT: Duration = Duration::from_secs(120);
const ISCSI_HOSTS: &str = "sys/class/iscsi_host";
const BLOCK: &str = "sys/block";

/// The node, or what a test puts in its place.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// Folder of programs; none for those that the path finds.
    pub(in crate::volumes) programs: Option<PathBuf>,
    /// Folder that `/sys` and `/dev` are in.
    pub(in crate::volumes) root: PathBuf,
    /// Pause between two looks for a device.
    pub(in crate::volumes) pause: Duration,
}

impl Default for Host {
    fn default() -> Self {
        Self { programs: None, root: "/".into(), pause: Duration::from_secs(1) }
    }
}

/// Failures to run a program to its end.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// No run at all.
    #[error("{program}: {cause}")]
    Start {
        /// The program.
        program: String,
        /// Cause.
        #[source]
        cause: io::Error,
    },
    /// More time than it is given.
    #[error("{} did not end within {} s", .0, TIMEOUT.as_secs())]
    Late(String),
}

/// End of a program.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; none where a signal ended it.
    pub(super) code: Option<i32>,
    /// Standard output and standard error.
    pub(in crate::volumes) output: String,
}

impl Ended {
    pub(in crate::volumes) fn is_success(&self) -> bool {
        self.code == Some(0)
    }

    /// Go's text of the exit.
    pub(in crate::volumes) fn status(&self) -> String {
        self.code.map_or_else(|| "signal: killed".to_owned(), |code| format!("exit status {code}"))
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = [&output.stdout[..], &output.stderr[..]].concat();
        Self { code: output.status.code(), output: String::from_utf8_lossy(&text).into_owned() }
    }
}

/// Names below a folder, sorted; none where it is not there.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// A session of an iSCSI host with a target.
struct Session {
    host: u32,
    folder: PathBuf,
}

impl Host {
    /// Path or name of a program.
    pub(in crate::volumes) fn program(&self, name: &str) -> String {
        let path = self.programs.as_ref().map(|folder| folder.join(name).display().to_string());
        path.unwrap_or_else(|| name.to_owned())
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// It cannot be run, or takes too long.
    pub(in crate::volumes) async fn run(&self, program: &str, arguments: &[&str]) -> Result<Ended, ProgramError> {
        let mut command = Command::new(self.program(program));
        command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        match tokio::time::timeout(TIMEOUT, command.output()).await {
            Ok(Ok(output)) => Ok(output.into()),
            Ok(Err(cause)) => Err(ProgramError::Start { program: program.to_owned(), cause }),
            Err(_) => Err(ProgramError::Late(program.to_owned())),
        }
    }

    /// A file below `/sys` or `/dev`.
    pub(in crate::volumes) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Writes to a file of the kernel.
    pub(super) fn tell(&self, path: &str, what: &str) -> io::Result<()> {
        fs::OpenOptions::new().write(true).open(self.path(path)).and_then(|mut file| {
            use std::io::Write as _;
            file.write_all(what.as_bytes())
        })
    }

    /// Names below a folder, sorted; none where it is not there.
    pub(in crate::volumes) fn names(&self, folder: &str) -> io::Result<Vec<String>> {
        names(&self.path(folder))
    }

    /// Name of the disk behind a path, such as `sdb`.
    fn disk(&self, path: &str) -> Option<String> {
        let real = fs::canonicalize(self.path(path)).ok()?;
        let root = fs::canonicalize(&self.root).ok()?;
        let below = real.strip_prefix(root.join("dev")).ok()?;
        below.to_str().filter(|name| !name.contains('/')).map(str::to_owned)
    }

    /// The device that a link leads to, such as `/dev/sdb`.
    pub(super) fn resolve(&self, link: &str) -> Option<String> {
        self.disk(link).map(|name| format!("/dev/{name}"))
    }

    /// The multipath device that a disk is a path of, or that it is. Upstream's `FindMultipathDeviceForDevice`.
    pub(super) fn multipath_of(&self, device: &str) -> Option<String> {
        if device.starts_with("/dev/dm-") {
            return Some(device.to_owned());
        }
        let disk = self.disk(device)?;
        let devices = names(&self.path(BLOCK)).ok()?;
        let has_path = |name: &String| self.path(&format!("{BLOCK}/{name}/slaves/{disk}")).symlink_metadata().is_ok();
        devices.into_iter().find(|name| name.starts_with("dm-") && has_path(name)).map(|name| format!("/dev/{name}"))
    }

    /// Paths of a multipath device. Upstream's `FindSlaveDevicesOnMultipath`.
    pub(super) fn paths_of(&self, device: &str) -> Vec<String> {
        let name = device.strip_prefix("/dev/").unwrap_or_default();
        let paths = names(&self.path(&format!("{BLOCK}/{name}/slaves"))).unwrap_or_default();
        paths.into_iter().map(|name| format!("/dev/{name}")).collect()
    }

    /// Sessions with a target.
    fn sessions(&self, target: &str) -> io::Result<Vec<Session>> {
        let mut sessions = Vec::new();
        for host in names(&self.path(ISCSI_HOSTS))? {
            let Some(number) = host.strip_prefix("host").and_then(|number| number.parse().ok()) else { continue };
            let device = self.path(&format!("{ISCSI_HOSTS}/{host}/device"));
            for name in names(&device)?.into_iter().filter(|name| name.starts_with("session")) {
                let folder = device.join(&name);
                let found = text(&folder.join("iscsi_session").join(&name).join("targetname"));
                if found.as_deref() == Some(target) {
                    sessions.push(Session { host: number, folder });
                }
            }
        }
        Ok(sessions)
    }

    /// Numbers of the SCSI hosts that are logged in to a target, by portal. Upstream's `GetISCSIPortalHostMapForTarget`.
    pub(super) fn portals(&self, target: &str) -> io::Result<BTreeMap<String, u32>> {
        let mut portals = BTreeMap::new();
        for session in self.sessions(target)? {
            let connections = names(&session.folder)?.into_iter().filter(|name| name.starts_with("connection"));
            for name in connections {
                let folder = session.folder.join(&name).join("iscsi_connection").join(&name);
                let of = |address: &str, port: &str| Some((text(&folder.join(address))?, text(&folder.join(port))?));
                let (Some(now), Some(lasting)) = (of("address", "port"), of("persistent_address", "persistent_port"))
                else {
                    continue;
                };
                for (address, port) in [now, lasting] {
                    portals.insert(shared::host_port::join(&address, &port), session.host);
                }
            }
        }
        Ok(portals)
    }

    /// Disks of a unit of a target. Upstream's `FindDevicesForISCSILun`.
    pub(super) fn disks(&self, target: &str, unit: &str) -> io::Result<Vec<String>> {
        let mut disks = Vec::new();
        for Session { host, folder } in self.sessions(target)? {
            let unit = folder.join(format!("target{host}:0:0/{host}:0:0:{unit}/block"));
            disks.extend(names(&unit)?.into_iter().next());
        }
        Ok(disks)
    }
}
