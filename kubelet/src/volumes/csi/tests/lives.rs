//! Lives of volumes with a mishap at each of their calls, and with mishaps from seeds: whatever happens, the driver sees no
//! call that CSI forbids, and nothing is left.

use super::fake::Mishap;
use super::*;

/// Mishaps of a call: the driver refuses, may have done its work, or the kubelet is killed before or after that.
const MISHAPS: [Mishap; 6] = [
    Mishap::Answers { code: Code::Internal, works: false },
    Mishap::Answers { code: Code::Unavailable, works: false },
    Mishap::Answers { code: Code::DeadlineExceeded, works: true },
    Mishap::Answers { code: Code::Aborted, works: true },
    Mishap::KubeletDies { works: false },
    Mishap::KubeletDies { works: true },
];
/// Most attempts at one step; the worker has no such limit.
const ATTEMPTS: usize = 10;

impl Setup {
    /// Does work until the kubelet is killed, which another one follows; none then.
    async fn alive<T>(&mut self, work: impl AsyncFnOnce(&Self) -> T) -> Option<T> {
        let death = Arc::clone(&self.fake.death);
        let outcome = tokio::select! {
            biased;
            () = death.notified() => None,
            outcome = work(&*self) => Some(outcome),
        };
        if outcome.is_none() {
            self.restart().await;
        }
        outcome
    }

    /// Takes one step, as often as it takes.
    async fn persist(&mut self, step: Step, volume: &Volume) {
        for _ in 0..ATTEMPTS {
            let outcome = self
                .alive(async |setup| match step {
                    Mount(uid) => setup.mount(uid, volume).await.is_ok(),
                    Unmount(uid) => setup.csi.unpublish(uid).await.is_ok(),
                    // The worker mounts anew what another kubelet has mounted before it lets it grow.
                    Grow(uid) => {
                        let is_mounted = setup.mount(uid, volume).await.is_ok();
                        is_mounted && setup.csi.expand(&pod(uid), volume, SIZES).await.is_ok()
                    }
                    other => panic!("{other:?} is not tried again"),
                })
                .await;
            self.alive(async |setup| setup.csi.sweep().await).await;
            if outcome == Some(true) {
                return;
            }
        }
        panic!("{step:?} does not succeed");
    }

    /// Tells what is left on the node after the last pod has gone: volumes that the driver has, and files.
    fn left(&self) -> Vec<String> {
        let state = self.fake.state.lock();
        let published = state.published.iter().filter(|(_, targets)| !targets.is_empty());
        let mut left: Vec<String> =
            published.map(|(handle, targets)| format!("published {handle}: {targets:?}")).collect();
        left.extend(state.staged.iter().map(|handle| format!("staged {handle}")));
        left.extend(self.csi.in_use().into_iter().map(|unique| format!("in use {unique}")));
        let records = walk(self.root.path()).into_iter().filter(|path| path.ends_with("vol_data.json"));
        left.extend(records.map(|path| path.display().to_string()));
        left
    }
}

/// Files below a folder.
fn walk(folder: &std::path::Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let below = |path: PathBuf| if path.is_dir() { walk(&path) } else { vec![path] };
    entries.flat_map(|entry| below(entry.path())).collect()
}

/// A life that goes well: its name, the driver's object, what it can do, the volume, and its steps.
type Life<'a> = (&'a str, Option<Value>, &'a [Capability], Volume, &'a [Step]);

fn lives() -> Vec<Life<'static>> {
    let alone = json!({"accessModes": ["ReadWriteOncePod"]});
    let block = json!({"volumeMode": "Block"});
    let once: &[Step] = &[Mount("a"), Grow("a"), Unmount("a")];
    let shared: &[Step] = &[Mount("a"), Mount("b"), Grow("b"), Unmount("a"), Unmount("b")];
    let anew: &[Step] = &[Mount("a"), Unmount("a"), Mount("b"), Unmount("b")];
    let ephemeral = json!({"volumeLifecycleModes": ["Ephemeral"]});
    vec![
        ("a file system", None, &ALL, volume(json!({})), once),
        ("a file system of two pods", None, &ALL, volume(json!({})), shared),
        ("a file system that goes from pod to pod", None, &ALL, volume(json!({})), anew),
        ("one pod's alone", None, &ALL, volume(alone), anew),
        ("a driver that does not stage", None, &[Capability::ExpandVolume], volume(json!({})), once),
        ("a device", None, &ALL, volume(block.clone()), once),
        ("a device of two pods", None, &ALL, volume(block), shared),
        ("an inline volume", Some(ephemeral), &ALL, inline(&pod("a")), &[Mount("a"), Unmount("a")]),
    ]
}

/// Lives through everything with a mishap of the call of a number: the calls that the driver saw.
async fn live((name, object, capabilities, volume, steps): &Life<'_>, mishap: Option<(usize, Mishap)>) -> Vec<String> {
    let mut setup = Setup::new(capabilities, object.clone()).await;
    if volume.is_of_one_pod() {
        setup.fake.state.lock().exclusive.insert(volume.handle.clone());
    }
    setup.fake.state.lock().mishap = mishap;
    for step in *steps {
        setup.persist(*step, volume).await;
    }
    setup.csi.sweep().await;
    assert_eq!(setup.fake.state.lock().violations, Vec::<String>::new(), "{name} {mishap:?}");
    assert!(setup.fake.state.lock().mishap.is_none(), "{name}: no call for {mishap:?}");
    assert_eq!(setup.left(), Vec::<String>::new(), "{name} {mishap:?}");
    setup.calls()
}

#[tokio::test]
async fn no_mishap_of_any_call_leads_to_a_forbidden_one_or_leaves_anything() {
    let (lives, mut tried) = (lives(), 0);
    for life in &lives {
        let calls = live(life, None).await;
        for number in 0..calls.len() {
            for mishap in MISHAPS {
                live(life, Some((number, mishap))).await;
                tried += 1;
            }
        }
    }
    assert!(tried >= 30 * MISHAPS.len(), "{tried} lives");
}

/// A little generator: the sequence of a seed is always the same.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("a number") % bound
    }
}

#[tokio::test]
async fn no_seed_leads_to_a_forbidden_call_or_leaves_anything() {
    const CODES: [Code; 5] = [Code::Internal, Code::Unavailable, Code::DeadlineExceeded, Code::Aborted, Code::NotFound];
    /// Codes after which the work may have been done.
    const UNKNOWN: [Code; 3] = [Code::Unavailable, Code::DeadlineExceeded, Code::Aborted];
    const CALLS: [&str; 4] = ["stage", "publish", "unpublish", "unstage"];
    const SEEDS: u64 = 100;
    for seed in 0..SEEDS {
        let mut random = Random(seed);
        let mut setup = Setup::new(&ALL, None).await;
        let change = |index: usize| {
            let csi = json!({"driver": "d", "volumeHandle": format!("h{index}")});
            let mode = if index == 1 { "ReadWriteOncePod" } else { "ReadWriteMany" };
            json!({"csi": csi, "accessModes": [mode], "volumeMode": if index == 2 { "Block" } else { "Filesystem" }})
        };
        let volumes: Vec<Volume> =
            (0..3).map(|index| Volume { name: format!("pv{index}"), ..volume(change(index)) }).collect();
        setup.fake.state.lock().exclusive.insert("h1".to_owned());
        let uids = ["a", "b", "c"];
        for _ in 0..60 {
            let (uid, other) = (uids[random.below(3)], uids[random.below(3)]);
            let (one, two) = (&volumes[random.below(3)], &volumes[random.below(3)]);
            match random.below(15) {
                0 => setup.restart().await,
                1 => drop(setup.alive(async |setup| setup.csi.sweep().await).await),
                2 => setup.fail(CALLS[random.below(4)], CODES[random.below(5)], false),
                3 => setup.fail(CALLS[random.below(4)], UNKNOWN[random.below(3)], true),
                4 | 5 => drop(setup.alive(async |setup| setup.csi.unpublish(uid).await).await),
                7 => drop(setup.drivers.deregister(&setup.plugin()).await),
                8 => setup.register().await,
                9 => drop(setup.objects.is_away.fetch_xor(true, Ordering::Relaxed)),
                6 => {
                    // A kubelet that is killed would not go on with the other's files.
                    setup.fake.state.lock().mishap = None;
                    drop(tokio::join!(setup.mount(uid, one), setup.mount(other, two), setup.csi.sweep()));
                }
                10 => {
                    let works = random.below(2) == 0;
                    setup.fake.state.lock().end_next(random.below(3), Mishap::KubeletDies { works });
                }
                _ => drop(setup.alive(async |setup| setup.mount(uid, one).await).await),
            }
        }
        setup.fake.state.lock().faults.clear();
        setup.fake.state.lock().mishap = None;
        setup.objects.is_away.store(false, Ordering::Relaxed);
        setup.register().await;
        for uid in uids {
            setup.unmount(uid).await;
        }
        setup.csi.sweep().await;
        assert_eq!(setup.fake.state.lock().violations, Vec::<String>::new(), "seed {seed}");
        assert_eq!(setup.left(), Vec::<String>::new(), "seed {seed}");
    }
}
