//! Disks of iSCSI targets, logged in to by `iscsiadm`, called as upstream's `iscsi_util.go` calls it.

use super::host::{Ended, Host, ProgramError};
use crate::volumes::mounts;
use k8s_openapi::api::core::v1::{ISCSIPersistentVolumeSource, ISCSIVolumeSource, SecretReference};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Paths that are enough where several were asked for, after [`FEW_ATTEMPTS`].
const ENOUGH_PATHS: usize = 2;
const FEW_ATTEMPTS: usize = 2;
/// Attempts at [`ENOUGH_PATHS`]; then one is enough.
const MOST_ATTEMPTS: usize = 5;
/// Looks for a device, and for the multipath device of several, each after a pause.
const DEVICE_LOOKS: usize = 30;
const MULTIPATH_LOOKS: usize = 10;
/// Exit codes of `iscsiadm`: no session, a session that is there, no record.
const NO_SESSION: i32 = 2;
const SESSION_EXISTS: i32 = 15;
const NO_RECORD: i32 = 21;
const RECORD: &str = "iscsi.json";
const DISCOVERY_KEYS: [&str; 4] = ["auth.username", "auth.password", "auth.username_in", "auth.password_in"];

/// Failures of iSCSI disks, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum IscsiError {
    /// A name that leads elsewhere.
    #[error("iscsi: invalid name {0:?}")]
    Name(String),
    /// `iscsiadm` cannot be run.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The kernel's files are out of reach.
    #[error(transparent)]
    Files(#[from] io::Error),
    /// The interface cannot be shown.
    #[error("{}", .0.status())]
    Show(Ended),
    /// The interface that is to be made is the one that it would be made of.
    #[error("iscsi: cannot clone iface with same name: {0}")]
    SameIface(String),
    /// The interface cannot be made.
    #[error("iscsi: {step}: {} ({})", .ended.output, .ended.status())]
    Iface {
        /// Step that failed.
        step: &'static str,
        /// End of `iscsiadm`.
        ended: Ended,
    },
    /// The interface has a setting of another form.
    #[error("error: invalid iface setting: [{0}]")]
    Setting(String),
    /// A portal cannot be told how initiator and target know each other.
    #[error("iscsi: failed to {step} to portal {portal} error: {cause}")]
    Authenticate {
        /// Step that failed.
        step: &'static str,
        /// The portal.
        portal: String,
        /// Cause.
        #[source]
        cause: Box<ChapError>,
    },
    /// A portal does not tell its targets.
    #[error("iscsi: failed to sendtargets to portal {portal} output: {}, err {}", .ended.output, .ended.status())]
    Discover {
        /// The portal.
        portal: String,
        /// End of `iscsiadm`.
        ended: Ended,
    },
    /// The target does not let the node log in.
    #[error("iscsi: failed to attach disk: Error: {} ({})", .0.output, .0.status())]
    LogIn(Ended),
    /// The kernel has no session with a portal.
    #[error("no SCSI host of portal {0} after logging in")]
    NoHost(String),
    /// An interface does not tell its transport.
    #[error("could not parse iface file for {0}")]
    NoTransport(String),
    /// The device does not appear at this path.
    #[error("Timed out waiting for device at path /dev/disk/by-path/{} after {}s", .0, DEVICE_LOOKS)]
    NoDevice(String),
    /// No portal can be reached; the failure of the last.
    #[error("failed to get any path for iscsi disk, last err seen:\n{}", .0.as_ref().map(ToString::to_string).unwrap_or_default())]
    NoPath(Option<Box<IscsiError>>),
    /// The node cannot log out.
    #[error("failed to finish detachISCSIDisk, err: {}", .0.status())]
    Detach(Ended),
}

/// Failures of writing down how initiator and target know each other.
#[derive(Debug, thiserror::Error)]
pub enum ChapError {
    /// `iscsiadm` cannot be run.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The method cannot be written down.
    #[error("iscsi: failed to update {record} with CHAP, output: {output}")]
    Method {
        /// The record.
        record: &'static str,
        /// Output of the program.
        output: String,
    },
    /// A name or a password cannot be written down.
    #[error("iscsi: failed to update {record} key {key:?} error: {output}")]
    Value {
        /// The record.
        record: &'static str,
        /// Name of the value.
        key: String,
        /// Output of the program.
        output: String,
    },
}

/// Names and passwords by which initiator and target know each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::volumes) struct Chap {
    pub(in crate::volumes) discovery: bool,
    pub(in crate::volumes) session: bool,
    /// The secret that they are in.
    pub(in crate::volumes) secret: Option<SecretReference>,
    /// The secret's content.
    pub(in crate::volumes) values: BTreeMap<String, String>,
}

/// Record of a disk that is attached: upstream's `iscsi.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(in crate::volumes) struct IscsiTarget {
    /// Name of the volume.
    pub(super) vol_name: String,
    pub(super) portals: Vec<String>,
    pub(super) iqn: String,
    pub(super) lun: String,
    /// Interface that is there.
    pub(super) init_iface: String,
    /// Interface that is logged in by: one of the volume's own where it has an initiator of its own.
    pub(super) iface: String,
    pub(super) initiator_name: String,
    /// The first portal as the volume names it: the volume's name in the node's status has no port where none is given.
    /// Upstream's record is without.
    #[serde(rename = "TargetPortal", skip_serializing_if = "String::is_empty")]
    given_portal: String,
}

fn with_port(portal: &str) -> String {
    if portal.contains(':') { portal.to_owned() } else { format!("{portal}:3260") }
}

impl IscsiTarget {
    /// The disk of a volume.
    pub(in crate::volumes) fn new(name: &str, source: &ISCSIVolumeSource) -> Self {
        let portals = std::iter::once(&source.target_portal).chain(source.portals.iter().flatten());
        let portals: Vec<String> = portals.map(|portal| with_port(portal)).collect();
        let init_iface = source.iscsi_interface.clone().unwrap_or_else(|| "default".to_owned());
        let initiator_name = source.initiator_name.clone().unwrap_or_default();
        let own = || format!("{}:{name}", portals[0]);
        let iface = if initiator_name.is_empty() { init_iface.clone() } else { own() };
        let (iqn, lun) = (source.iqn.clone(), source.lun.to_string());
        let given_portal = source.target_portal.clone();
        Self { vol_name: name.to_owned(), iqn, lun, init_iface, iface, initiator_name, portals, given_portal }
    }

    /// Refuses names that lead elsewhere: they are parts of paths and of command lines, and a pod's author may choose them.
    pub(super) fn check(&self) -> Result<(), IscsiError> {
        let parts = self.portals.iter().chain([&self.iqn, &self.lun, &self.init_iface, &self.iface]);
        let is_odd = |part: &&String| {
            part.is_empty() || part.starts_with('-') || part.contains('/') || part.chars().any(char::is_whitespace)
        };
        let mut parts = parts.filter(is_odd);
        parts.next().map_or(Ok(()), |part| Err(IscsiError::Name(part.clone())))
    }

    fn portal(&self) -> &str {
        self.portals.first().map(String::as_str).unwrap_or_default()
    }

    pub(super) fn unique_name(&self) -> String {
        let portal = if self.given_portal.is_empty() { self.portal() } else { &self.given_portal };
        format!("{portal}:{}:{}", self.iqn, self.lun)
    }

    /// The folder of the disk, below that of the plugin.
    pub(super) fn folder(&self) -> PathBuf {
        let Self { iqn, lun, iface, .. } = self;
        Path::new(&format!("iface-{iface}")).join(format!("{}-{iqn}-lun-{lun}", self.portal()))
    }

    /// The disk that a folder is of: by its record, or else by its name. Upstream's `ConstructVolumeSpec`.
    pub(super) fn of_folder(folder: &Path) -> Option<Self> {
        if let Ok(bytes) = fs::read(folder.join(RECORD)) {
            return serde_json::from_slice(&bytes).ok();
        }
        let iface = folder.parent()?.file_name()?.to_str()?.strip_prefix("iface-")?.to_owned();
        let (disk, lun) = folder.file_name()?.to_str()?.rsplit_once("-lun-")?;
        let at = disk.find("-iqn.").or_else(|| disk.find("-eui."))?;
        let (portal, iqn) = (disk[..at].to_owned(), disk[at + 1..].to_owned());
        Some(Self { portals: vec![portal], iqn, lun: lun.to_owned(), iface, ..Self::default() })
    }
}

impl From<&ISCSIVolumeSource> for Chap {
    fn from(source: &ISCSIVolumeSource) -> Self {
        let secret = source.secret_ref.as_ref();
        Self {
            discovery: source.chap_auth_discovery.unwrap_or(false),
            session: source.chap_auth_session.unwrap_or(false),
            secret: secret.map(|found| SecretReference { name: Some(found.name.clone()), namespace: None }),
            values: BTreeMap::new(),
        }
    }
}

/// The source of a persistent volume in the form that pods have it in, with what it says of authentication.
pub(in crate::volumes) fn of_persistent(source: &ISCSIPersistentVolumeSource) -> (ISCSIVolumeSource, Chap) {
    let plain = ISCSIVolumeSource {
        chap_auth_discovery: source.chap_auth_discovery,
        chap_auth_session: source.chap_auth_session,
        fs_type: source.fs_type.clone(),
        initiator_name: source.initiator_name.clone(),
        iqn: source.iqn.clone(),
        iscsi_interface: source.iscsi_interface.clone(),
        lun: source.lun,
        portals: source.portals.clone(),
        read_only: source.read_only,
        secret_ref: None,
        target_portal: source.target_portal.clone(),
    };
    let chap = Chap { secret: source.secret_ref.clone(), ..Chap::from(&plain) };
    (plain, chap)
}

/// Calls of `iscsiadm` about one disk.
struct Admin<'a> {
    host: &'a Host,
    target: &'a IscsiTarget,
    chap: &'a Chap,
}

impl Admin<'_> {
    async fn call(&self, arguments: &[&str]) -> Result<Ended, ProgramError> {
        self.host.run("iscsiadm", arguments).await
    }

    async fn discovery(&self, portal: &str, more: &[&str]) -> Result<Ended, ProgramError> {
        let first = ["-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", &self.target.iface];
        self.call(&[&first, more].concat()).await
    }

    async fn node(&self, portal: &str, more: &[&str]) -> Result<Ended, ProgramError> {
        let first = ["-m", "node", "-p", portal, "-T", &self.target.iqn, "-I", &self.target.iface];
        self.call(&[&first, more].concat()).await
    }

    async fn iface(&self, name: &str, more: &[&str]) -> Result<Ended, ProgramError> {
        self.call(&[&["-m", "iface", "-I", name], more].concat()).await
    }

    /// The interface's description; its transport decides where devices appear.
    async fn show(&self) -> Result<String, IscsiError> {
        let shown = self.iface(&self.target.init_iface, &["-o", "show"]).await?;
        if shown.is_success() { Ok(shown.output) } else { Err(IscsiError::Show(shown)) }
    }

    /// Makes an interface with the volume's own initiator. Upstream's `cloneIface`.
    async fn clone_iface(&self) -> Result<(), IscsiError> {
        let IscsiTarget { iface, init_iface, initiator_name, .. } = self.target;
        if iface == init_iface {
            return Err(IscsiError::SameIface(init_iface.clone()));
        }
        let mut settings = settings(&self.show().await?)?;
        settings.insert("iface.initiatorname".to_owned(), initiator_name.clone());
        let ended = self.iface(iface, &["-o", "new"]).await?;
        if !ended.is_success() && ended.code != Some(SESSION_EXISTS) {
            return Err(IscsiError::Iface { step: "failed to create new iface", ended });
        }
        for (name, value) in settings {
            let ended = self.iface(iface, &["-o", "update", "-n", &name, "-v", &value]).await?;
            if !ended.is_success() {
                drop(self.iface(iface, &["-o", "delete"]).await);
                return Err(IscsiError::Iface { step: "failed to update iface records", ended });
            }
        }
        Ok(())
    }

    /// Logs in to a portal.
    async fn log_in(&self, portal: &str) -> Result<(), IscsiError> {
        drop(self.discovery(portal, &["-o", "new"]).await);
        let at = || portal.to_owned();
        let to = |step, cause| IscsiError::Authenticate { step, portal: at(), cause: Box::new(cause) };
        self.authenticate_discovery(portal).await.map_err(|cause| to("update discoverydb", cause))?;
        let ended = self.discovery(portal, &["--discover"]).await?;
        if !ended.is_success() {
            drop(self.discovery(portal, &["-o", "delete"]).await);
            return Err(IscsiError::Discover { portal: at(), ended });
        }
        self.authenticate_session(portal).await.map_err(|cause| to("update iscsi node", cause))?;
        let logged_in = self.node(portal, &["--login"]).await?;
        if !logged_in.is_success() {
            let IscsiTarget { iface, iqn, .. } = self.target;
            drop(self.call(&["-m", "node", "-p", portal, "-I", iface, "-T", iqn, "-o", "delete"]).await);
            return Err(IscsiError::LogIn(logged_in));
        }
        // A node that starts without its network must not hang for a target.
        let manual = ["-o", "update", "-n", "node.startup", "-v", "manual"];
        let first = ["-m", "node", "-p", portal, "-T", &self.target.iqn];
        drop(self.call(&[&first[..], &manual].concat()).await);
        Ok(())
    }

    async fn authenticate_discovery(&self, portal: &str) -> Result<(), ChapError> {
        if !self.chap.discovery {
            return Ok(());
        }
        let update = |key: String, value: String| async move {
            self.discovery(portal, &["-o", "update", "-n", &key, "-v", &value]).await
        };
        let method = update("discovery.sendtargets.auth.authmethod".to_owned(), "CHAP".to_owned()).await?;
        if !method.is_success() {
            return Err(ChapError::Method { record: "discoverydb", output: method.output });
        }
        for (key, value) in self.values("discovery.sendtargets.") {
            let updated = update(key.clone(), value).await?;
            if !updated.is_success() {
                return Err(ChapError::Value { record: "discoverydb", key, output: updated.output });
            }
        }
        Ok(())
    }

    async fn authenticate_session(&self, portal: &str) -> Result<(), ChapError> {
        let update = |key: String, value: String| async move {
            self.node(portal, &["-o", "update", "-n", &key, "-v", &value]).await
        };
        // The kernel shall not look for units that nobody asked for; old versions of the program cannot be told.
        drop(update("node.session.scan".to_owned(), "manual".to_owned()).await);
        if !self.chap.session {
            return Ok(());
        }
        let method = update("node.session.auth.authmethod".to_owned(), "CHAP".to_owned()).await?;
        if !method.is_success() {
            return Err(ChapError::Method { record: "node", output: method.output });
        }
        for (key, value) in self.values("node.session.") {
            let updated = update(key.clone(), value).await?;
            if !updated.is_success() {
                return Err(ChapError::Value { record: "node session", key, output: updated.output });
            }
        }
        Ok(())
    }

    fn values(&self, prefix: &str) -> Vec<(String, String)> {
        let keys = DISCOVERY_KEYS.iter().map(|key| format!("{prefix}{key}"));
        let value =
            |key: String| self.chap.values.get(&key).filter(|value| !value.is_empty()).cloned().map(|v| (key, v));
        keys.filter_map(value).collect()
    }

    /// Waits for the device behind a portal. A pattern's `*` stands for the number of a card.
    async fn device(&self, portal: &str, transport: &str) -> Result<String, IscsiError> {
        let IscsiTarget { iqn, lun, .. } = self.target;
        let address = portal.replace(['[', ']'], "");
        let suffix = format!("ip-{address}-iscsi-{iqn}-lun-{lun}");
        let is_it = |name: &String| {
            if transport == "tcp" { *name == suffix } else { name.starts_with("pci-") && name.ends_with(&suffix) }
        };
        for look in 0..DEVICE_LOOKS {
            if look > 0 {
                tokio::time::sleep(self.host.pause).await;
            }
            let names = self.host.names("dev/disk/by-path")?;
            if let Some(name) = names.into_iter().find(is_it) {
                return Ok(format!("/dev/disk/by-path/{name}"));
            }
        }
        Err(IscsiError::NoDevice(if transport == "tcp" { suffix } else { format!("pci-*-{suffix}") }))
    }

    /// Makes the disk appear behind a portal: its device.
    async fn reach(&self, portal: &str, transport: &str) -> Result<String, IscsiError> {
        let hosts = || self.host.portals(&self.target.iqn);
        if !hosts()?.contains_key(portal) {
            self.log_in(portal).await?;
        }
        let known = hosts()?;
        let number = known.get(portal).ok_or_else(|| IscsiError::NoHost(portal.to_owned()))?;
        // The whole bus is not scanned: the node would see units that are not its own.
        let scan = format!("sys/class/scsi_host/host{number}/scan");
        self.host.tell(&scan, &format!("0 0 {}", self.target.lun))?;
        if transport.is_empty() {
            return Err(IscsiError::NoTransport(self.target.iface.clone()));
        }
        self.device(portal, transport).await
    }
}

/// Settings of an interface that `iscsiadm` shows, without its name. Upstream's `parseIscsiadmShow`.
fn settings(shown: &str) -> Result<BTreeMap<String, String>, IscsiError> {
    let mut settings = BTreeMap::new();
    for line in shown.lines().filter(|line| line.starts_with("iface.") && !line.contains("<empty>")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, "=", value] = words[..] else {
            return Err(IscsiError::Setting(words.join(" ")));
        };
        if name != "iface.iscsi_ifacename" {
            settings.insert(name.to_owned(), value.to_owned());
        }
    }
    Ok(settings)
}

/// Transport of an interface; `tcp` where it is left open, empty where it is not told.
fn transport(shown: &str) -> &str {
    let told = shown.lines().find_map(|line| line.strip_prefix("iface.transport_name = "));
    told.map_or("", |name| if name == "<empty>" { "tcp" } else { name })
}

/// Attaches a disk by as many of its portals as can be reached: its device. Upstream's `AttachDisk`.
///
/// # Errors
/// None can be reached.
pub(super) async fn attach(host: &Host, target: &IscsiTarget, chap: &Chap) -> Result<String, IscsiError> {
    target.check()?;
    let admin = Admin { host, target, chap };
    let shown = admin.show().await?;
    if !target.initiator_name.is_empty() {
        admin.clone_iface().await?;
    }
    let (mut devices, mut last) = (BTreeMap::new(), None);
    for attempt in 1..=MOST_ATTEMPTS {
        for portal in &target.portals {
            if devices.contains_key(portal) {
                continue;
            }
            match admin.reach(portal, transport(&shown)).await {
                Ok(device) => drop(devices.insert(portal, device)),
                Err(error) => last = Some(Box::new(error)),
            }
        }
        if devices.is_empty() {
            drop(admin.iface(&target.iface, &["-o", "delete"]).await);
            return Err(IscsiError::NoPath(last));
        }
        let is_enough = devices.len() >= ENOUGH_PATHS && attempt >= FEW_ATTEMPTS;
        if devices.len() == target.portals.len() || is_enough {
            break;
        }
    }
    let looks = if target.portals.len() > 1 { MULTIPATH_LOOKS } else { 1 };
    for look in 0..looks {
        if look > 0 {
            tokio::time::sleep(host.pause).await;
        }
        if let Some(device) = devices.values().find_map(|device| host.multipath_of(device)) {
            return Ok(device);
        }
    }
    devices.into_values().next().ok_or(IscsiError::NoPath(last))
}

/// Writes down a disk in its folder, before the folder is hidden by what is mounted there.
pub(super) fn remember(folder: &Path, target: &IscsiTarget) -> io::Result<()> {
    if mounts::is_mount_point(folder)? {
        return Ok(());
    }
    crate::files::write_json(&folder.join(RECORD), target)
}

/// Takes the devices of a disk from the kernel. Upstream's `deleteDevices`.
async fn delete_devices(host: &Host, target: &IscsiTarget) {
    let disks = host.disks(&target.iqn, &target.lun).unwrap_or_default();
    let multipath = disks.iter().filter_map(|disk| host.multipath_of(&format!("/dev/{disk}")));
    for device in multipath.collect::<std::collections::BTreeSet<String>>() {
        drop(host.run("multipath", &["-f", &device]).await);
    }
    for disk in disks {
        if let Err(error) = host.tell(&format!("sys/block/{disk}/device/delete"), "1") {
            tracing::warn!(disk, %error, "Failed to delete block device");
        }
    }
}

/// Takes a disk from the node that nothing is mounted of any more, and logs out where the target's others are not in use.
/// Upstream's `DetachDisk`.
///
/// # Errors
/// `iscsiadm` failed.
pub(super) async fn detach(host: &Host, target: &IscsiTarget, is_last: bool) -> Result<(), IscsiError> {
    delete_devices(host, target).await;
    if !is_last {
        return Ok(());
    }
    let chap = Chap::default();
    let admin = Admin { host, target, chap: &chap };
    let done = |ended: Result<Ended, ProgramError>| {
        let ended = ended?;
        let is_done = matches!(ended.code, Some(0 | NO_SESSION | NO_RECORD));
        if is_done { Ok(()) } else { Err(IscsiError::Detach(ended)) }
    };
    let mut portals = target.portals.clone();
    portals.dedup();
    for portal in &portals {
        let first = ["-m", "node", "-p", portal, "-T", &target.iqn];
        let iface = ["-I", target.iface.as_str()];
        done(admin.call(&[&first[..], &["--logout"], &iface].concat()).await)?;
        done(admin.call(&[&first[..], &["-o", "delete"], &iface].concat()).await)?;
    }
    let own = format!("{}:{}", target.portal(), target.vol_name);
    if !target.initiator_name.is_empty() && target.iface == own {
        done(admin.iface(&own, &["-o", "delete"]).await)?;
    }
    Ok(())
}

/// Reports whether folders of other disks of a target are there. Upstream's `isSessionBusy`.
pub(super) fn is_last(plugin: &Path, target: &IscsiTarget) -> bool {
    let prefix = format!("{}-{}", target.portal(), target.iqn);
    let below = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = below(plugin).chain(below(&plugin.join(super::DEVICES)));
    let disks = folders.flat_map(|iface| fs::read_dir(iface.path()).into_iter().flatten().flatten());
    disks.filter(|disk| disk.file_name().to_string_lossy().starts_with(&prefix)).count() <= 1
}
