//! Sequences of calls that a driver sees, with commands that it does not support and failures.

use super::*;
use crate::volumes::growth::Sizes;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;

/// A node with the driver `vendor/disk`, which writes down how it is called.
struct Node {
    folder: tempfile::TempDir,
    flex: Flex,
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
}

impl Node {
    /// A driver that answers commands with these lines, and others with success.
    fn new(is_managed: bool, answers: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let cases: String =
            answers.iter().map(|(command, answer)| format!("  {command}) echo '{answer}'; exit;;\n")).collect();
        let script = format!(
            "#!/bin/sh\necho \"$*\" >>{}/calls\ncase $1 in\n{cases}esac\necho '{{\"status\": \"Success\"}}'\n",
            root.display()
        );
        write(&root.join("exec/vendor~disk/disk"), &script);
        for program in ["mount", "blkid", "mkfs.ext4", "resize2fs", "xfs_growfs"] {
            let end = match program {
                // Without the file there is no file system on any device.
                "blkid" => format!("[ -e {0}/kind ] || exit 2; echo TYPE=$(cat {0}/kind)", root.display()),
                _ => String::new(),
            };
            let script = format!("#!/bin/sh\necho \"{program} $*\" >>{}/calls\n{end}\n", root.display());
            write(&root.join("bin").join(program), &script);
        }
        write(&root.join("calls"), "");
        let mut node = Self { flex: Flex::new((root, "n"), &root.join("exec"), is_managed), folder };
        node.flex.host.programs = Some(node.folder.path().join("bin"));
        node
    }

    /// Another kubelet in the place of this one.
    fn restart(&mut self) {
        let (root, host) = (self.folder.path(), self.flex.host.clone());
        self.flex = Flex::new((root, "n"), &root.join("exec"), self.flex.is_managed);
        self.flex.host = host;
    }

    /// Calls since the last look: paths without the node's own folder, options without their content.
    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.folder.path().join("calls")).expect("calls");
        write(&self.folder.path().join("calls"), "");
        let calls = calls.replace(&self.folder.path().display().to_string(), "");
        let short = |line: &str| match (line.find('{'), line.rfind('}')) {
            (Some(begin), Some(end)) => format!("{}{{}}{}", &line[..begin], &line[end + 1..]),
            _ => line.to_owned(),
        };
        calls.lines().map(short).collect()
    }

    async fn mount(&self, uid: &str) -> Result<(), StepFailure> {
        self.flex.mount(uid, &volume(json!({})), "", BTreeMap::new(), None).await
    }

    async fn unmount(&self, uid: &str) -> Vec<String> {
        self.flex.unmount(uid).await.expect("unmounted");
        crate::trees::remove(&self.flex.pods.join(uid)).expect("the pod's folder");
        self.flex.release(uid).await
    }
}

fn volume(change: Value) -> FlexVolume {
    let mut source = json!({"driver": "vendor/disk"});
    for (name, value) in change.as_object().expect("an object") {
        source[name] = value.clone();
    }
    FlexVolume::inline("v", &serde_json::from_value(source).expect("a source"))
}

const NOT_SUPPORTED: &str = r#"{"status": "Not supported"}"#;
const AT: &str = "/pods/u/volumes/vendor~disk/v";
const DEVICE: &str = "/plugins/kubernetes.io/flexvolume/vendor/disk/mounts/v";

#[tokio::test]
async fn a_driver_attaches_mounts_and_gives_back() {
    let node = Node::new(false, &[("attach", r#"{"status": "Success", "device": "/dev/x"}"#)]);
    node.mount("u").await.expect("mounted");
    let expected = [
        "init",
        "getvolumename {}",
        "attach {} n",
        "waitforattach /dev/x {}",
        &format!("mountdevice {DEVICE}  {{}}"),
        &format!("mount {AT} {{}}"),
    ];
    assert_eq!(node.calls(), expected);
    assert_eq!(node.flex.in_use(), ["vendor/disk/v"]);
    assert_eq!(node.unmount("u").await, ["vendor/disk/v"]);
    assert_eq!(node.calls(), [format!("unmount {AT}"), "detach v n".to_owned()]);
    assert_eq!(node.flex.in_use(), Vec::<String>::new());
}

#[tokio::test]
async fn a_driver_that_attaches_nothing_is_asked_to_mount_alone() {
    let node = Node::new(false, &[("init", r#"{"status": "Success", "capabilities": {"attach": false}}"#)]);
    assert_eq!(node.flex.is_attached_first(&volume(json!({}))).await, Ok(false));
    node.mount("u").await.expect("mounted");
    assert_eq!(node.calls(), ["init", &format!("mount {AT} {{}}")]);
    assert_eq!(node.unmount("u").await, Vec::<String>::new());
    assert_eq!(node.calls(), [format!("unmount {AT}")]);
}

#[tokio::test]
async fn the_kubelet_does_what_the_driver_does_not_support() {
    let rest = ["getvolumename", "waitforattach", "mountdevice", "mount", "unmount", "unmountdevice", "detach"];
    let mut answers = rest.map(|command| (command, NOT_SUPPORTED)).to_vec();
    answers.push(("attach", r#"{"status": "Success", "device": "/dev/x"}"#));
    let node = Node::new(false, &answers);
    node.mount("u").await.expect("mounted");
    let calls = node.calls();
    let expected = [
        format!("mountdevice {DEVICE} /dev/x {{}}"),
        "blkid -p -s TYPE -s PTTYPE -o export /dev/x".to_owned(),
        "mkfs.ext4 -F -m0 /dev/x".to_owned(),
        format!("mount -t ext4 -o rw,defaults /dev/x {DEVICE}"),
        format!("mount {AT} {{}}"),
        format!("mount -o bind {DEVICE} {AT}"),
    ];
    assert_eq!(calls[4..], expected, "{calls:?}");
    node.unmount("u").await;
    assert_eq!(node.calls(), [format!("unmount {AT}"), "detach v n".to_owned()]);
    // It is not asked again for what it does not support.
    node.mount("u").await.expect("mounted");
    let calls = node.calls();
    assert!(
        !calls.iter().any(|call| call.starts_with("mountdevice") || call.starts_with("waitforattach")),
        "{calls:?}"
    );
}

#[tokio::test]
async fn the_controller_manager_attaches_where_it_is_to() {
    let node = Node::new(true, &[]);
    let mounted = node.flex.mount("u", &volume(json!({})), "/dev/y", BTreeMap::new(), None).await;
    mounted.expect("mounted");
    let calls = node.calls();
    assert!(calls.contains(&"waitforattach /dev/y {}".to_owned()), "{calls:?}");
    node.unmount("u").await;
    let calls = [calls, node.calls()].concat();
    assert!(!calls.iter().any(|call| call.starts_with("attach") || call.starts_with("detach")), "{calls:?}");
}

#[tokio::test]
async fn volumes_grow_by_their_driver_or_by_the_programs_of_their_file_system() {
    let sizes = Sizes { old: 1 << 30, new: 2 << 30 };
    let answers = [("attach", r#"{"status": "Success", "device": "/dev/x"}"#), ("waitforattach", NOT_SUPPORTED)];
    let node = Node::new(false, &answers);
    node.mount("u").await.expect("mounted");
    node.calls();
    assert!(node.flex.grows(&volume(json!({}))).await);
    node.flex.expand("u", &volume(json!({})), sizes).await.expect("grown");
    assert_eq!(node.calls(), [format!("expandfs {{}} /dev/x {AT} 2147483648 1073741824")]);
    // The driver leaves it to the kubelet.
    let node = Node::new(false, &[&answers[..], &[("expandfs", NOT_SUPPORTED)]].concat());
    node.mount("u").await.expect("mounted");
    node.calls();
    for (kind, expected) in [("ext4", "resize2fs /dev/x".to_owned()), ("xfs", format!("xfs_growfs -d {AT}"))] {
        write(&node.folder.path().join("kind"), kind);
        node.flex.expand("u", &volume(json!({})), sizes).await.expect("grown");
        assert_eq!(node.calls().last(), Some(&expected), "{kind}");
    }
    write(&node.folder.path().join("kind"), "vfat");
    let failure = node.flex.expand("u", &volume(json!({})), sizes).await.expect_err("no such program");
    let text = "ResizeFS.Resize - resize of format vfat is not supported for device /dev/x mounted at ";
    assert!(failure.is_final && failure.message.starts_with(text), "{failure:?}");
    // It has failed, or has nothing to do on nodes.
    let failed = r#"{"status": "Failure", "message": "no room"}"#;
    let init = r#"{"status": "Success", "capabilities": {"requiresFSResize": false}}"#;
    let node = Node::new(false, &[("expandfs", failed), ("init", init)]);
    let failure = node.flex.expand("u", &volume(json!({})), sizes).await.expect_err("failed");
    assert_eq!(failure.message, "expandfs command failed, status: Failure, reason: no room");
    assert!(!node.flex.grows(&volume(json!({}))).await);
}

#[tokio::test]
async fn claims_tell_how_far_a_volume_has_grown_and_recover() {
    use crate::events::tests::Recorded;
    use crate::volumes::growth::{Grower, GrowthRequest, tests::Stored};
    // The driver has no room for two gibibytes, and does as it is told where it may find some.
    let node = Node::new(false, &[]);
    let program = node.folder.path().join("exec/vendor~disk/disk");
    let room = node.folder.path().join("room");
    let script = format!(
        "#!/bin/sh\nif [ $1 = expandfs ] && [ ! -e {} ]; then echo '{{\"status\": \"Failure\", \"message\": \"no room\"}}'; \
         else echo '{{\"status\": \"Success\"}}'; fi\n",
        room.display()
    );
    write(&program, &script);
    node.mount("u").await.expect("mounted");
    let growing = json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"}});
    let stored = Arc::new(Stored(Mutex::new(json!({"metadata": {"name": "c"}, "status": growing,
        "spec": {"resources": {"requests": {"storage": "2Gi"}}}}))));
    let objects: Arc<dyn crate::objects::ObjectSource> = stored.clone();
    let grower = Grower::new(objects, Arc::new(Recorded::default()));
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u"}})).expect("a pod");
    let state = || stored.0.lock()["status"]["allocatedResourceStatuses"]["storage"].clone();
    let grow = async |size: &'static str| {
        let claim = serde_json::from_value(stored.0.lock().clone()).expect("a claim");
        let request =
            GrowthRequest { pod: &pod, claim: &claim, volume: "v", unique: "vendor/disk/v", size, is_read_only: false };
        let grown = grower.grow(request, async |sizes| node.flex.expand("u", &volume(json!({})), sizes).await).await;
        grown.map_err(|error| error.to_string())
    };
    let text = "expandfs command failed, status: Failure, reason: no room";
    assert_eq!(grow("2Gi").await, Err(text.to_owned()));
    assert_eq!(state(), "NodeResizeInProgress", "it is tried again");
    assert_eq!(stored.0.lock()["status"]["conditions"][0]["type"], "NodeResizeError");
    // The user asks for less, which the node tells the resizer to decide.
    stored.0.lock()["spec"]["resources"]["requests"]["storage"] = json!("1536Mi");
    assert_eq!(grow("2Gi").await, Err(text.to_owned()));
    assert_eq!(state(), "NodeResizeInfeasible");
    assert_eq!(grow("2Gi").await, Ok(()), "nothing is to be done here");
    // The resizer lets it grow by less, and there is room for that.
    {
        let mut stored = stored.0.lock();
        stored["status"]["allocatedResources"]["storage"] = json!("1536Mi");
        stored["status"]["allocatedResourceStatuses"]["storage"] = json!("NodeResizePending");
    }
    write(&room, "");
    assert_eq!(grow("1536Mi").await, Ok(()));
    assert_eq!(stored.0.lock()["status"]["capacity"]["storage"], "1536Mi");
    assert_eq!((state(), stored.0.lock()["status"]["conditions"].clone()), (Value::Null, Value::Null));
}

#[tokio::test]
async fn failures_are_told_and_leave_nothing_behind() {
    let failure = r#"{"status": "Failure", "message": "no disk"}"#;
    for (command, step) in
        [("attach", "AttachVolume.Attach"), ("mountdevice", "MountVolume.MountDevice"), ("mount", "MountVolume.SetUp")]
    {
        let node = Node::new(false, &[(command, failure)]);
        let text = format!("{command} command failed, status: Failure, reason: no disk");
        let failed = node.mount("u").await.map_err(|(step, error)| (step, error.to_string()));
        assert_eq!(failed, Err((step, text)));
        fs::create_dir_all(node.flex.pods.join("u")).expect("the pod's folder");
        assert_eq!(node.unmount("u").await, ["vendor/disk/v"], "{command}");
        assert_eq!(node.calls().last().map(String::as_str), Some("detach v n"), "{command}");
    }
    // A volume that never came to be on the node is let go as well.
    let node = Node::new(false, &[("getvolumename", failure)]);
    assert!(node.mount("u").await.is_err());
    fs::create_dir_all(node.flex.pods.join("u")).expect("the pod's folder");
    assert_eq!(node.unmount("u").await, ["vendor/disk/v"]);
    let node = Node::new(false, &[]);
    let mut other = volume(json!({}));
    other.driver = "vendor/other".to_owned();
    let text = "failed to get Plugin from volumeSpec for volume \"v\" err=no volume plugin matched";
    assert_eq!(node.flex.is_attached_first(&other).await.expect_err("no driver").to_string(), text);
}

#[tokio::test]
async fn the_next_kubelet_takes_down_what_this_one_mounted() {
    let mut node = Node::new(false, &[]);
    node.mount("a").await.expect("mounted");
    node.mount("b").await.expect("mounted");
    node.restart();
    assert_eq!(node.flex.in_use(), ["vendor/disk/v"]);
    assert_eq!(node.flex.sweep().await, Vec::<String>::new(), "pods have it");
    node.unmount("a").await;
    assert_eq!(node.flex.sweep().await, Vec::<String>::new(), "a pod has it");
    node.unmount("b").await;
    node.calls();
    assert_eq!(node.flex.sweep().await, ["vendor/disk/v"]);
    assert_eq!(node.calls(), ["detach v n"]);
    // A program that changes is asked anew what it can do.
    let program = node.folder.path().join("exec/vendor~disk/disk");
    let text = fs::read_to_string(&program).expect("a script");
    write(&program, &format!("{text}# changed\n"));
    node.mount("a").await.expect("mounted");
    assert_eq!(node.calls().first().map(String::as_str), Some("init"));
}

#[test]
fn drivers_are_told_of_volume_pod_and_secret() {
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": [], "serviceAccountName": "a"}}))
    .expect("a pod");
    let secret: Secret =
        serde_json::from_value(json!({"type": "vendor/disk", "data": {"key": "dmFsdWU="}})).expect("a secret");
    let group = VolumeGroup { id: 7, on_root_mismatch: false };
    let source = json!({"fsType": "xfs", "readOnly": true, "options": {"size": "1", "kubernetes.io/readwrite": "rw"}});
    let told: Value =
        serde_json::from_str(&volume(source).json(about(&pod, Some(&secret), Some(group)))).expect("an object");
    let expected = json!({"kubernetes.io/fsType": "xfs", "kubernetes.io/readwrite": "rw", "size": "1",
        "kubernetes.io/pvOrVolumeName": "v", "kubernetes.io/pod.name": "p", "kubernetes.io/pod.namespace": "ns",
        "kubernetes.io/pod.uid": "u", "kubernetes.io/serviceAccount.name": "a",
        "kubernetes.io/mounterArgs.FsGroup": "7", "kubernetes.io/secret/key": "dmFsdWU="});
    assert_eq!(told, expected);
}
