//! Disks on a node whose programs write down how they are called, and whose kernel is a folder.

use super::*;
use crate::volumes::claims::inline_disk;
use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};
use std::os::unix::fs::{PermissionsExt as _, symlink};

const IQN: &str = "iqn.2001-04.com.example:storage";
const PORTAL: &str = "192.0.2.1:3260";
const PROGRAMS: [&str; 8] = ["iscsiadm", "multipath", "blkid", "mkfs.ext4", "mkfs.xfs", "fsck", "mount", "blockdev"];

/// A node with one iSCSI host, 3, that has no session before a login.
struct Node {
    folder: tempfile::TempDir,
    disks: Disks,
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(path, text).expect("written");
}

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        for program in PROGRAMS {
            // A file of patterns makes calls fail; a login makes what is prepared appear.
            let script = format!(
                "#!/bin/sh\ncd '{0}'\necho \"{program} $*\" >> calls\nwhile read -r code pattern; do\n  case \"{program} $*\" in \
                 $pattern) echo failed; exit \"$code\";; esac\ndone < faults\ncase \"{program} $*\" in\n  *'-o show') cat \
                 shown;;\n  *--login*) cp -a later/. .;;\n  blkid*) [ -e formatted ] || exit 2; echo DEVNAME=/dev/x; echo \
                 TYPE=ext4;;\nesac\n",
                root.display()
            );
            write(&root.join("bin").join(program), &script);
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(root.join("bin").join(program), mode).expect("a mode");
        }
        write(&root.join("faults"), "");
        write(&root.join("calls"), "");
        write(&root.join("sys/class/scsi_host/host3/scan"), "");
        let shown = "# BEGIN RECORD\niface.iscsi_ifacename = default\niface.net_ifacename = <empty>\n\
                     iface.transport_name = tcp\niface.mtu = 0\n# END RECORD\n";
        write(&root.join("shown"), shown);
        let mut disks = Disks::new(&root.join("kubelet"));
        disks.host = crate::volumes::block::tests::faked(root).host;
        let node = Self { folder, disks };
        for lun in [0, 1] {
            node.prepare(3, PORTAL, lun, if lun == 0 { "sdb" } else { "sdc" });
        }
        node
    }

    fn root(&self) -> &Path {
        self.folder.path()
    }

    /// Prepares a session's unit, which appears with the login.
    fn prepare(&self, host: u32, portal: &str, lun: u32, disk: &str) {
        let later = self.root().join("later");
        let (address, port) = portal.rsplit_once(':').expect("a port");
        let session = later.join(format!("sys/class/iscsi_host/host{host}/device/session1"));
        write(&session.join("iscsi_session/session1/targetname"), &format!("{IQN}\n"));
        let connection = session.join("connection1:0/iscsi_connection/connection1:0");
        for (name, text) in
            [("address", address), ("persistent_address", address), ("port", port), ("persistent_port", port)]
        {
            write(&connection.join(name), &format!("{text}\n"));
        }
        fs::create_dir_all(session.join(format!("target{host}:0:0/{host}:0:0:{lun}/block/{disk}"))).expect("made");
        write(&later.join(format!("sys/block/{disk}/device/delete")), "");
        write(&later.join(format!("sys/class/scsi_host/host{host}/scan")), "");
        write(&later.join(format!("dev/{disk}")), "");
        fs::create_dir_all(later.join("dev/disk/by-path")).expect("made");
        let link = later.join(format!("dev/disk/by-path/ip-{portal}-iscsi-{IQN}-lun-{lun}"));
        symlink(format!("../../{disk}"), link).expect("a link");
    }

    fn fail(&self, code: i32, pattern: &str) {
        write(&self.root().join("faults"), &format!("{code} {pattern}\n"));
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.root().join(path)).expect("read")
    }

    /// Calls since the last look, with the node's own folder left out of paths.
    fn calls(&self) -> Vec<String> {
        let calls = self.text("calls").replace(&self.root().display().to_string(), "");
        write(&self.root().join("calls"), "");
        calls.lines().map(str::to_owned).collect()
    }

    fn at(&self, uid: &str) -> PathBuf {
        self.root().join("kubelet/pods").join(uid).join("volumes/kubernetes.io~iscsi/v")
    }

    async fn mount(&self, uid: &str, disk: &Disk) -> Result<bool, (&'static str, String)> {
        let mounted = self.disks.mount(uid, disk, &self.at(uid)).await;
        mounted.map_err(|(step, error)| (step, error.to_string()))
    }
}

fn disk(change: Value) -> Disk {
    let mut source = json!({"targetPortal": "192.0.2.1", "iqn": IQN, "lun": 0, "iscsiInterface": "default"});
    for (name, value) in change.as_object().expect("an object") {
        source[name] = value.clone();
    }
    let volume = serde_json::from_value(json!({"name": "v", "iscsi": source})).expect("a volume");
    inline_disk(&volume).expect("usable").expect("a disk")
}

fn device(portal: &str, lun: u32) -> String {
    format!("/dev/disk/by-path/ip-{portal}-iscsi-{IQN}-lun-{lun}")
}

fn node_call(portal: &str, rest: &str) -> String {
    format!("iscsiadm -m node -p {portal} -T {IQN} {rest}")
}

/// Calls of a login by an interface.
fn login(portal: &str, iface: &str) -> Vec<String> {
    let discovery = |rest: &str| format!("iscsiadm -m discoverydb -t sendtargets -p {portal} -I {iface} {rest}");
    vec![
        discovery("-o new"),
        discovery("--discover"),
        node_call(portal, &format!("-I {iface} -o update -n node.session.scan -v manual")),
        node_call(portal, &format!("-I {iface} --login")),
        node_call(portal, "-o update -n node.startup -v manual"),
    ]
}

const SHOW: &str = "iscsiadm -m iface -I default -o show";

#[tokio::test]
async fn a_disk_is_logged_in_to_formatted_mounted_and_given_back() {
    let node = Node::new();
    let global = format!("/kubelet/plugins/kubernetes.io/iscsi/iface-default/{PORTAL}-{IQN}-lun-0");
    let (device, at) = (device(PORTAL, 0), "/kubelet/pods/u/volumes/kubernetes.io~iscsi/v");
    assert_eq!(node.mount("u", &disk(json!({}))).await, Ok(true));
    let mut expected = vec![SHOW.to_owned()];
    expected.extend(login(PORTAL, "default"));
    expected.extend([
        format!("blkid -p -s TYPE -s PTTYPE -o export {device}"),
        format!("mkfs.ext4 -F -m0 {device}"),
        format!("mount -t ext4 -o defaults {device} {global}"),
        format!("mount -o bind {global} {at}"),
    ]);
    assert_eq!(node.calls(), expected);
    assert_eq!(node.text("sys/class/scsi_host/host3/scan"), "0 0 0", "one unit is looked for");
    let record: Value = serde_json::from_str(&node.text(&format!("{}/iscsi.json", &global[1..]))).expect("a record");
    let expected = json!({"VolName": "v", "Portals": [PORTAL], "Iqn": IQN, "Lun": "0", "InitIface": "default",
        "Iface": "default", "InitiatorName": "", "TargetPortal": "192.0.2.1"});
    assert_eq!(record, expected);
    let unique = format!("kubernetes.io/iscsi/192.0.2.1:{IQN}:0");
    assert_eq!(node.disks.release("other").await, Vec::<String>::new());
    assert_eq!(node.disks.release("u").await, [unique]);
    let expected = [node_call(PORTAL, "--logout -I default"), node_call(PORTAL, "-o delete -I default")];
    assert_eq!(node.calls(), expected);
    assert_eq!(node.text("sys/block/sdb/device/delete"), "1");
    assert!(!node.root().join(&global[1..]).exists());
}

#[tokio::test]
async fn a_disk_with_a_file_system_is_checked_and_a_target_in_use_keeps_its_session() {
    let node = Node::new();
    write(&node.root().join("formatted"), "");
    let second = disk(json!({"lun": 1, "fsType": "xfs", "readOnly": true}));
    node.mount("a", &disk(json!({}))).await.expect("mounted");
    let calls = node.calls();
    assert!(calls.contains(&format!("fsck -a {}", device(PORTAL, 0))), "{calls:?}");
    assert!(!calls.iter().any(|call| call.starts_with("mkfs")), "{calls:?}");
    node.mount("b", &second).await.expect("mounted");
    let calls = node.calls();
    assert!(!calls.iter().any(|call| call.contains("--login") || call.starts_with("fsck")), "{calls:?}");
    let global = format!("/kubelet/plugins/kubernetes.io/iscsi/iface-default/{PORTAL}-{IQN}-lun-1");
    assert!(calls.contains(&format!("mount -t xfs -o ro,defaults {} {global}", device(PORTAL, 1))), "{calls:?}");
    assert_eq!(node.disks.release("b").await.len(), 1);
    assert_eq!(node.calls(), Vec::<String>::new(), "the other unit is in use");
    assert_eq!(node.disks.release("a").await.len(), 1);
    assert_eq!(node.calls().len(), 2, "logged out");
}

#[tokio::test]
async fn steps_that_fail_are_named_and_undone() {
    let (portal, global) = (PORTAL, format!("iface-default/{PORTAL}-{IQN}-lun-0"));
    let path = device(portal, 0);
    let last = |error: &str| format!("failed to get any path for iscsi disk, last err seen:\n{error}");
    for (code, pattern, step, expected, undone) in [
        (3, "*-o*show", "MountVolume.WaitForAttach", "exit status 3".to_owned(), None),
        (
            4,
            "*--discover",
            "MountVolume.WaitForAttach",
            last(&format!("iscsi: failed to sendtargets to portal {portal} output: failed\n, err exit status 4")),
            Some(format!("iscsiadm -m discoverydb -t sendtargets -p {portal} -I default -o delete")),
        ),
        (
            8,
            "*--login",
            "MountVolume.WaitForAttach",
            last("iscsi: failed to attach disk: Error: failed\n (exit status 8)"),
            Some(format!("iscsiadm -m node -p {portal} -I default -T {IQN} -o delete")),
        ),
        (
            1,
            "blkid*",
            "MountVolume.MountDevice",
            format!("failed to get disk format of disk {path}: exit status 1"),
            None,
        ),
        (
            32,
            "mount*-t*",
            "MountVolume.MountDevice",
            format!(
                "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t ext4 -o defaults {path} \
                 ROOT/kubelet/plugins/kubernetes.io/iscsi/{global}\nOutput: failed\n\n"
            ),
            None,
        ),
    ] {
        let node = Node::new();
        node.fail(code, pattern);
        let (found, error) = node.mount("u", &disk(json!({}))).await.expect_err(pattern);
        let error = error.replace(&node.root().display().to_string(), "ROOT");
        assert_eq!((found, error), (step, expected), "{pattern}");
        let calls = node.calls();
        assert!(undone.is_none_or(|call| calls.contains(&call)), "{pattern}: {calls:?}");
        node.fail(0, "nothing");
        assert_eq!(node.mount("u", &disk(json!({}))).await, Ok(true), "{pattern}: tried again");
    }
    let node = Node::new();
    node.fail(3, "*show");
    node.mount("u", &disk(json!({}))).await.expect_err("it fails");
    assert_eq!(node.disks.release("u").await.len(), 1, "it never came to be on the node");
    let node = Node::new();
    node.mount("u", &disk(json!({}))).await.expect("mounted");
    node.fail(9, "*--logout*");
    assert_eq!(node.disks.release("u").await, Vec::<String>::new());
    node.fail(21, "*--logout*");
    assert_eq!(node.disks.sweep().await.len(), 1, "no session is as good as logged out");
}

#[tokio::test]
async fn initiators_of_their_own_and_secrets_are_told_to_iscsiadm() {
    let node = Node::new();
    let mut disk = disk(json!({"initiatorName": "iqn.own", "chapAuthDiscovery": true, "chapAuthSession": true}));
    let DiskTarget::Iscsi(target) = &mut disk.target else { panic!("an iSCSI disk") };
    let value = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    target.1.values = [
        value("discovery.sendtargets.auth.username", "finder"),
        value("node.session.auth.username", "user"),
        value("node.session.auth.password", "word"),
        value("node.session.auth.password_in", ""),
        value("other", "never told"),
    ]
    .into();
    node.mount("u", &disk).await.expect("mounted");
    let iface = format!("{PORTAL}:v");
    let clone = |rest: &str| format!("iscsiadm -m iface -I {iface} {rest}");
    let discovery = |rest: &str| format!("iscsiadm -m discoverydb -t sendtargets -p {PORTAL} -I {iface} {rest}");
    let session = |rest: &str| node_call(PORTAL, &format!("-I {iface} {rest}"));
    let expected = [
        SHOW.to_owned(),
        SHOW.to_owned(),
        clone("-o new"),
        clone("-o update -n iface.initiatorname -v iqn.own"),
        clone("-o update -n iface.mtu -v 0"),
        clone("-o update -n iface.transport_name -v tcp"),
        discovery("-o new"),
        discovery("-o update -n discovery.sendtargets.auth.authmethod -v CHAP"),
        discovery("-o update -n discovery.sendtargets.auth.username -v finder"),
        discovery("--discover"),
        session("-o update -n node.session.scan -v manual"),
        session("-o update -n node.session.auth.authmethod -v CHAP"),
        session("-o update -n node.session.auth.username -v user"),
        session("-o update -n node.session.auth.password -v word"),
        session("--login"),
        node_call(PORTAL, "-o update -n node.startup -v manual"),
    ];
    assert_eq!(node.calls()[..expected.len()], expected);
    assert_eq!(node.disks.release("u").await.len(), 1);
    assert_eq!(node.calls().last(), Some(&clone("-o delete")));
}

#[tokio::test]
async fn several_paths_are_one_multipath_device() {
    let node = Node::new();
    let other = "192.0.2.2:3260";
    node.prepare(4, other, 0, "sdd");
    for disk in ["sdb", "sdd"] {
        fs::create_dir_all(node.root().join(format!("later/sys/block/dm-0/slaves/{disk}"))).expect("made");
    }
    write(&node.root().join("later/dev/dm-0"), "");
    node.mount("u", &disk(json!({"portals": ["192.0.2.2", "192.0.2.9"]}))).await.expect("two paths of three");
    let calls = node.calls();
    assert!(calls.contains(&"mkfs.ext4 -F -m0 /dev/dm-0".to_owned()), "{calls:?}");
    node.disks.release("u").await;
    let calls = node.calls();
    assert_eq!(calls[0], "multipath -f /dev/dm-0");
    assert_eq!(
        (node.text("sys/block/sdb/device/delete"), node.text("sys/block/sdd/device/delete")),
        ("1".into(), "1".into())
    );
    assert_eq!(calls.iter().filter(|call| call.contains("--logout")).count(), 3, "{calls:?}");
}

#[tokio::test]
async fn names_that_lead_elsewhere_are_refused() {
    let node = Node::new();
    for change in [
        json!({"targetPortal": "../../../x:1"}),
        json!({"targetPortal": "-x"}),
        json!({"iscsiInterface": "a/../../b"}),
        json!({"iqn": "iqn.a b"}),
    ] {
        let refused = node.mount("u", &disk(change.clone())).await;
        assert!(refused.is_err(), "{change}: {refused:?}");
    }
    assert_eq!(node.calls(), Vec::<String>::new());
}

fn fibre(source: Value) -> Disk {
    let volume = serde_json::from_value(json!({"name": "v", "fc": source})).expect("a volume");
    inline_disk(&volume).expect("usable").expect("a disk")
}

#[tokio::test]
async fn fibre_channel_disks_are_found_by_port_or_identifier_and_removed() {
    for (source, link, unique, global) in [
        (
            json!({"targetWWNs": ["50060e801049cfd1", "50060e801049cfd2"], "lun": 2}),
            "by-path/pci-0000:41:00.0-fc-0x50060e801049cfd2-lun-2",
            "[50060e801049cfd1 50060e801049cfd2]:2",
            "50060e801049cfd1-50060e801049cfd2-lun-2",
        ),
        (json!({"wwids": ["3600 508"]}), "by-id/scsi-3600_508", "[3600 508]", "3600_508"),
    ] {
        let node = Node::new();
        let missing = node.mount("u", &fibre(source.clone())).await;
        assert_eq!(missing, Err(("MountVolume.WaitForAttach", "no fc disk found".to_owned())));
        assert_eq!(node.text("sys/class/scsi_host/host3/scan"), "- - -", "looked for");
        let root = node.root();
        write(&root.join("dev/sdb"), "");
        write(&root.join("sys/block/sdb/device/delete"), "");
        let link = root.join("dev/disk").join(link);
        fs::create_dir_all(link.parent().expect("a folder")).expect("made");
        symlink("../../sdb", &link).expect("a link");
        // A disk of another unit whose name begins alike.
        symlink("../../sdz", link.with_file_name("pci-0000:41:00.0-fc-0x50060e801049cfd2-lun-21")).ok();
        node.mount("u", &fibre(source.clone())).await.expect("mounted");
        let calls = node.calls();
        let global = format!("/kubelet/plugins/kubernetes.io/fc/{global}");
        assert!(calls.contains(&format!("mount -t ext4 -o defaults /dev/sdb {global}")), "{calls:?}");
        assert_eq!(node.disks.release("u").await, [format!("kubernetes.io/fc/{unique}")]);
        assert_eq!(node.calls(), ["blockdev --flushbufs /dev/sdb"]);
        assert_eq!(node.text("sys/block/sdb/device/delete"), "1");
    }
    let nothing = serde_json::from_value(json!({"name": "v", "fc": {"targetWWNs": ["a"]}})).expect("a volume");
    let text = "fc: no fc disk information found. failed to make a new mounter";
    assert_eq!(inline_disk(&nothing).expect_err("no disk").to_string(), text);
}

#[tokio::test]
async fn a_multipath_device_that_is_busy_is_flushed_by_the_next_sweep() {
    let node = Node::new();
    let root = node.root();
    for name in ["dev/sdb", "dev/dm-7", "sys/block/sdb/device/delete"] {
        write(&root.join(name), "");
    }
    fs::create_dir_all(root.join("sys/block/dm-7/slaves/sdb")).expect("made");
    fs::create_dir_all(root.join("dev/disk/by-id")).expect("made");
    symlink("../../sdb", root.join("dev/disk/by-id/scsi-36")).expect("a link");
    let disk = fibre(json!({"wwids": ["36"]}));
    node.mount("u", &disk).await.expect("mounted");
    assert!(node.calls().contains(&"mkfs.ext4 -F -m0 /dev/dm-7".to_owned()));
    node.fail(1, "multipath*");
    assert_eq!(node.disks.release("u").await, Vec::<String>::new());
    assert_eq!(node.calls(), ["multipath -f /dev/dm-7"]);
    assert_eq!(node.text("sys/block/sdb/device/delete"), "", "the path stays as long as it is in use");
    node.fail(1, "nothing");
    assert_eq!(node.disks.sweep().await.len(), 1);
    assert_eq!(node.calls(), ["multipath -f /dev/dm-7", "blockdev --flushbufs /dev/sdb"]);
}

#[tokio::test]
async fn a_disk_that_a_pod_of_an_earlier_kubelet_has_stays() {
    let node = Node::new();
    node.mount("u", &disk(json!({}))).await.expect("mounted");
    node.calls();
    let global = node.root().join(format!("kubelet/plugins/kubernetes.io/iscsi/iface-default/{PORTAL}-{IQN}-lun-0"));
    let none: Option<&str> = None;
    mount(Some("tmpfs"), &global, Some("tmpfs"), MsFlags::empty(), none).expect("mounted");
    mount(Some(&global), &node.at("u"), none, MsFlags::MS_BIND, none).expect("bound");
    write(&node.at("u").join("file"), "what the pod wrote");
    // The next kubelet knows of no pod yet.
    let next = Disks { host: node.disks.host.clone(), ..Disks::new(&node.root().join("kubelet")) };
    assert_eq!(next.sweep().await, Vec::<String>::new());
    assert!(global.join("file").exists() && node.calls().is_empty());
    umount2(&node.at("u"), MntFlags::empty()).expect("unmounted");
    next.sweep().await;
    let expected = [node_call(PORTAL, "--logout -I default"), node_call(PORTAL, "-o delete -I default")];
    assert_eq!(node.calls(), expected);
    assert!(!global.exists());
}

#[tokio::test]
async fn disks_of_an_earlier_kubelet_are_in_use_until_they_are_taken_down() {
    let node = Node::new();
    let root = node.root();
    for name in ["dev/sdf", "sys/block/sdf/device/delete"] {
        write(&root.join(name), "");
    }
    fs::create_dir_all(root.join("dev/disk/by-path")).expect("made");
    symlink("../../sdf", root.join("dev/disk/by-path/fc-0x50a-lun-3")).expect("a link");
    let fibre = fibre(json!({"targetWWNs": ["50a"], "lun": 3}));
    let device = Disk { is_block: true, ..fibre.clone() };
    node.mount("u", &disk(json!({}))).await.expect("mounted");
    node.mount("u", &disk(json!({"lun": 1, "targetPortal": PORTAL}))).await.expect("mounted");
    node.mount("u", &fibre).await.expect("mounted");
    node.disks.map("u", &device, &root.join("kubelet/pods/u/volumeDevices/kubernetes.io~fc/v")).await.expect("mapped");
    let names = [
        "kubernetes.io/fc/[50a]:3".to_owned(),
        // The port is what the volume says, or nothing.
        format!("kubernetes.io/iscsi/192.0.2.1:3260:{IQN}:1"),
        format!("kubernetes.io/iscsi/192.0.2.1:{IQN}:0"),
    ];
    assert_eq!(node.disks.in_use(), names);
    let next = || Disks { host: node.disks.host.clone(), ..Disks::new(&root.join("kubelet")) };
    assert_eq!(next().in_use(), names);
    // A record of upstream's kubelet has no portal but with its port.
    let folder = root.join(format!("kubelet/plugins/kubernetes.io/iscsi/iface-default/{PORTAL}-{IQN}-lun-0"));
    let text = fs::read_to_string(folder.join("iscsi.json")).expect("a record");
    let mut record: Value = serde_json::from_str(&text).expect("an object");
    record.as_object_mut().expect("an object").remove("TargetPortal").expect("a portal");
    write(&folder.join("iscsi.json"), &record.to_string());
    assert!(next().in_use().contains(&format!("kubernetes.io/iscsi/{PORTAL}:{IQN}:0")));
    let next = next();
    crate::trees::remove(&root.join("kubelet/pods/u")).expect("the pod is gone");
    let gone: BTreeSet<String> = next.sweep().await.into_iter().collect();
    assert_eq!((gone.len(), next.in_use()), (3, Vec::new()));
    assert_eq!(node.text("sys/block/sdf/device/delete"), "1");
}

#[tokio::test]
async fn a_device_is_given_to_pods_by_links_and_outlives_a_kubelet() {
    let node = Node::new();
    let device = Disk { is_block: true, ..disk(json!({})) };
    let folder = format!("kubelet/plugins/kubernetes.io/iscsi/volumeDevices/iface-default/{PORTAL}-{IQN}-lun-0");
    let link = |uid: &str| node.root().join("kubelet/pods").join(uid).join("volumeDevices/kubernetes.io~iscsi/v");
    for uid in ["a", "b", "a"] {
        node.disks.map(uid, &device, &link(uid)).await.expect("mapped");
        assert!(fs::read_link(link(uid)).expect("a link").ends_with(format!("ip-{PORTAL}-iscsi-{IQN}-lun-0")));
        assert!(mounts::is_mount_point(&node.root().join(&folder).join(uid)).expect("a table"));
    }
    let calls = node.calls();
    assert!(!calls.iter().any(|call| call.starts_with("mount") || call.starts_with("mkfs")), "{calls:?}");
    // A file system of another unit of the target keeps the session.
    node.mount("c", &disk(json!({"lun": 1}))).await.expect("mounted");
    crate::trees::remove(&node.root().join("kubelet/pods/a")).expect("removed");
    assert_eq!(node.disks.release("a").await, Vec::<String>::new(), "the other pod has it");
    assert!(!node.root().join(&folder).join("a").exists());
    node.calls();

    let mut later = Disks::new(&node.root().join("kubelet"));
    later.host = node.disks.host.clone();
    later.users.lock().insert(
        node.root().join("kubelet/plugins/kubernetes.io/iscsi/iface-default").join(format!("{PORTAL}-{IQN}-lun-1")),
        ["c".to_owned()].into(),
    );
    later.sweep().await;
    assert!(node.root().join(&folder).join("b").exists(), "its pod is on the disk");
    crate::trees::remove(&node.root().join("kubelet/pods/b")).expect("removed");
    later.sweep().await;
    assert!(!node.root().join(&folder).exists(), "nothing is left");
    assert_eq!(node.text("sys/block/sdb/device/delete"), "1");
    assert_eq!(node.calls(), Vec::<String>::new(), "the other unit is in use");
    assert_eq!(later.release("c").await.len(), 1, "it was in use");
    assert_eq!(node.calls().len(), 2, "logged out");
}
