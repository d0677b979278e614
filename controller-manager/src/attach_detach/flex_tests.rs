//! Calls that a driver sees, and states that follow.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::*;

/// A driver `vendor/disk` that writes down how it is called.
struct Machine {
    folder: tempfile::TempDir,
    flex: Arc<FlexAttacher>,
}

const DISK: &str = "vendor/disk/v";

fn volume() -> FlexAttachable {
    let volume = json!({"name": "v", "flexVolume": {"driver": "vendor/disk"}});
    FlexAttachable::of_disk(&serde_json::from_value(volume).expect("volume")).expect("a flex volume")
}

impl Machine {
    /// A driver that answers commands with these lines, and others with success.
    fn new(answers: &[(&str, &str)], verify_after: Option<Duration>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("vendor~disk/disk");
        let cases: String =
            answers.iter().map(|(command, answer)| format!("  {command}) echo '{answer}'; exit;;\n")).collect();
        let script = format!(
            "#!/bin/sh\necho \"$*\" >>{}/calls\ncase $1 in\n{cases}esac\necho '{{\"status\": \"Success\"}}'\n",
            folder.path().display()
        );
        fs::create_dir_all(program.parent().expect("a folder")).expect("made");
        fs::write(&program, script).expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a mode");
        let flex = Arc::new(FlexAttacher::new(folder.path(), Queue::new("test_flex"), verify_after));
        Self { folder, flex }
    }

    /// Calls since the last look, options without their content.
    fn calls(&self) -> Vec<String> {
        let path = self.folder.path().join("calls");
        let calls = fs::read_to_string(&path).unwrap_or_default();
        fs::write(path, "").expect("written");
        let short = |line: &str| match (line.find('{'), line.rfind('}')) {
            (Some(begin), Some(end)) => format!("{}{{}}{}", &line[..begin], &line[end + 1..]),
            _ => line.to_owned(),
        };
        calls.lines().map(short).collect()
    }

    /// Calls that failed in a row.
    fn failures(&self) -> u32 {
        self.flex.entries.lock().values().map(|entry| entry.failures).sum()
    }

    async fn look(&self, listed: &[AttachedVolume], wanted: &[FlexAttachable]) -> FlexState {
        self.flex.look("n", listed, wanted.iter()).await.remove(DISK).unwrap_or_default()
    }

    /// The state of the wanted volume once no call is under way.
    async fn settled(&self, wanted: &[FlexAttachable]) -> FlexState {
        loop {
            let state = self.look(&[], wanted).await;
            if !state.is_busy {
                return state;
            }
            // The end of each call is told, perhaps that of an earlier one.
            let node = self.flex.queue.get().await.expect("an open queue");
            self.flex.queue.done(&node);
        }
    }
}

#[tokio::test]
async fn a_volume_is_attached_asked_for_and_detached() {
    let attached = r#"{"status": "Success", "device": "/dev/x"}"#;
    let is_attached = r#"{"status": "Success", "attached": true}"#;
    let machine = Machine::new(&[("attach", attached), ("isattached", is_attached)], Some(Duration::ZERO));
    let wanted = [volume()];
    assert!(machine.flex.attaches(&wanted[0].volume).await);
    assert_eq!(machine.look(&[], &wanted).await, FlexState::default());
    machine.flex.attach("n", DISK);
    machine.flex.attach("n", DISK);
    assert_eq!(machine.flex.elsewhere("m", DISK), ["n"]);
    assert_eq!(machine.settled(&wanted).await.attached.as_deref(), Some("/dev/x"));
    assert_eq!(machine.calls(), ["init", "attach {} n"], "once");
    assert!(machine.flex.verify("n").is_some());
    assert_eq!(machine.settled(&wanted).await.attached.as_deref(), Some("/dev/x"));
    assert_eq!(machine.calls(), ["isattached {} n"]);
    machine.flex.detach("n", DISK);
    assert_eq!(machine.settled(&wanted).await.attached, None);
    assert_eq!(machine.calls(), ["detach v n"]);
    assert_eq!(machine.look(&[], &[]).await, FlexState::default());
    assert!(machine.flex.entries.lock().is_empty(), "nobody needs it");
}

#[tokio::test]
async fn failures_are_told_and_tried_again_later() {
    let failure = r#"{"status": "Failure", "message": "no room"}"#;
    let machine = Machine::new(&[("attach", failure), ("detach", failure)], None);
    let wanted = [volume()];
    machine.look(&[], &wanted).await;
    machine.flex.attach("n", DISK);
    let state = machine.settled(&wanted).await;
    assert_eq!((state.attached, machine.failures()), (None, 1));
    let text = "attach command failed, status: Failure, reason: no room";
    assert_eq!(machine.flex.errors("n"), [(DISK.to_owned(), text.to_owned())]);
    assert!(machine.flex.errors("n").is_empty(), "told once");
    // Another controller manager reads the node's status, and cannot detach what is there.
    let listed = [AttachedVolume { name: DISK.to_owned(), device_path: "/dev/y".to_owned() }];
    let other = [AttachedVolume { name: "vendor/other/v".to_owned(), device_path: String::new() }];
    let next = Machine::new(&[("detach", failure)], Some(Duration::ZERO));
    assert!(next.flex.look("n", &other, [].iter()).await.is_empty(), "there is no such driver here");
    assert_eq!(next.look(&listed, &[]).await.attached.as_deref(), Some("/dev/y"));
    assert_eq!(next.flex.verify("n"), None, "what it is nobody knows");
    next.flex.detach("n", DISK);
    let state = next.settled(&[]).await;
    assert_eq!((state.attached.is_some(), next.failures()), (true, 1));
    assert_eq!([1, 2, 3, 8, 9, 40].map(|n| pause(n).as_millis()), [500, 1000, 2000, 64_000, 122_000, 122_000]);
}

#[tokio::test]
async fn drivers_may_attach_nothing_or_lose_what_they_attached() {
    let without = r#"{"status": "Success", "capabilities": {"attach": false}}"#;
    let machine = Machine::new(&[("init", without)], None);
    assert!(!machine.flex.attaches(&volume().volume).await);
    let not_supported = r#"{"status": "Not supported"}"#;
    let machine = Machine::new(&[("attach", not_supported)], Some(Duration::ZERO));
    let wanted = [volume()];
    machine.look(&[], &wanted).await;
    machine.flex.attach("n", DISK);
    assert_eq!(machine.settled(&wanted).await.attached.as_deref(), Some(""), "there is nothing to do");
    machine.flex.verify("n");
    assert_eq!(machine.settled(&wanted).await.attached, None, "the driver says so");
    let machine = Machine::new(&[("isattached", not_supported)], Some(Duration::ZERO));
    machine.look(&[], &wanted).await;
    machine.flex.attach("n", DISK);
    machine.settled(&wanted).await;
    machine.flex.verify("n");
    assert!(machine.settled(&wanted).await.attached.is_some(), "it cannot tell");
}
