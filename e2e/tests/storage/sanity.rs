//! The sanity suite of csi-test, against the driver.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::shell::wait_for;
use e2e::testing::{run, text};
use serde_json::Value;

/// Specs for abilities that the driver lacks: the rest of the suite must run.
const NOT_SPOKEN: [&str; 5] = [
    "GroupController Service [GroupController ",
    "VolumeHealth",
    "StorageHealth",
    "CreateSnapshot [Controller Server] should succeed when creating a snapshot with accessibility requirements",
    // Marked as pending in the suite itself.
    "pagination should detect volumes added between pages",
];

/// The driver in mounts of its own, below a folder of its own. Both go when it is dropped.
struct Driver {
    process: Child,
    folder: PathBuf,
}

impl Driver {
    fn start(kind: &str) -> Self {
        let binaries = PathBuf::from(std::env::var("BINARIES").expect("BINARIES names the folder of the binaries"));
        let folder = std::env::temp_dir().join(format!("ironclad-sanity-{}-{kind}", std::process::id()));
        std::fs::create_dir_all(folder.join("plugins_registry")).expect("a folder");
        let process = Command::new("unshare")
            .args(["--mount", "--propagation", "private"])
            .arg(binaries.join("examples/csi-driver"))
            .arg(&folder)
            .args(["sane", "here"])
            .stdin(Stdio::null())
            .spawn()
            .expect("the driver starts");
        let driver = Self { process, folder };
        let (socket, limit) = (driver.socket(), Duration::from_secs(10));
        wait_for("the driver does not listen", limit, &driver.folder, || socket.exists()).expect("a driver");
        driver
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("plugins/sane/plugin.sock")
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
        // What a failed test leaves attached.
        let loops = run("losetup", &["--noheadings", "--list", "--output", "NAME,BACK-FILE"], None).out;
        let folder = self.folder.display().to_string();
        for line in loops.lines().filter(|line| line.contains(&folder)) {
            run("losetup", &["--detach", line.split_whitespace().next().unwrap_or_default()], None);
        }
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

fn program() -> PathBuf {
    let home = std::env::var("HOME").unwrap_or("/root".into());
    let cache = std::env::var("CACHE").unwrap_or(format!("{home}/.cache/ironclad"));
    Path::new(&cache).join("go/csi-sanity")
}

/// Name of a spec, with those of the groups around it.
fn name(spec: &Value) -> String {
    let groups = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten().filter_map(Value::as_str);
    groups.chain([text(spec, "/LeafNodeText")]).collect::<Vec<_>>().join(" ")
}

/// Runs the suite on volumes of a kind: nothing may fail, and only what the driver does not speak may be skipped.
pub fn passes(kind: &str) {
    let driver = Driver::start(kind);
    let at = |name: &str| driver.folder.join(name).display().to_string();
    std::fs::write(at("tuning"), "tier: gold\n").expect("a file of parameters");
    let pid = driver.process.id().to_string();
    let said = run(
        "nsenter",
        &[
            "--target",
            &pid,
            "--mount",
            &program().display().to_string(),
            &format!("--csi.endpoint={}", driver.socket().display()),
            &format!("--csi.mountdir={}", at("target")),
            &format!("--csi.stagingdir={}", at("staging")),
            &format!("--csi.testvolumeaccesstype={kind}"),
            &format!("--csi.testvolumemutableparameters={}", at("tuning")),
            "--csi.testnodevolumeattachlimit",
            "--csi.testvolumesize=314572800",
            "--csi.testvolumeexpandsize=629145600",
            &format!("--ginkgo.json-report={}", at("report.json")),
        ],
        None,
    );
    assert!(said.ok, "csi-sanity with volumes of {kind}: {}{}", said.out, said.err);
    let report = std::fs::read(at("report.json")).expect("a report");
    let report: Value = serde_json::from_slice(&report).expect("JSON");
    let specs: Vec<&Value> = report[0]["SpecReports"].as_array().into_iter().flatten().collect();
    let in_state = |state: &str| specs.iter().filter(|spec| text(spec, "/State") == state).count();
    let skipped = specs.iter().filter(|spec| text(spec, "/State") == "skipped").map(|spec| name(spec));
    let unknown: Vec<String> = skipped.filter(|name| !NOT_SPOKEN.iter().any(|known| name.contains(known))).collect();
    assert!(unknown.is_empty(), "skipped with volumes of {kind}: {unknown:#?}");
    assert!(in_state("passed") >= 80, "{} specs passed", in_state("passed"));
    eprintln!("csi-sanity with volumes of {kind}: {} passed, {} skipped", in_state("passed"), in_state("skipped"));
    assert_nothing_left(&driver);
}

/// Nothing is attached, mounted or kept once every spec has cleaned up.
fn assert_nothing_left(driver: &Driver) {
    let folder = driver.folder.display().to_string();
    let loops = run("losetup", &["--noheadings", "--list", "--output", "BACK-FILE"], None).out;
    assert!(!loops.contains(&folder), "no device is left: {loops}");
    let table = std::fs::read_to_string(format!("/proc/{}/mounts", driver.process.id())).expect("mounts");
    assert!(!table.contains(&folder), "no mount is left: {table}");
    for kind in ["volumes", "snapshots"] {
        let left = std::fs::read_dir(driver.folder.join("plugins/sane").join(kind)).expect("a folder").count();
        assert_eq!(left, 0, "{kind} are left");
    }
}
