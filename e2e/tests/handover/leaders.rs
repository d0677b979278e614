//! Two processes of a program that elects a leader, of which one leads.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::pki::Identity;
use testkit::process::Process;
use testkit::world::World;

/// Duration of a lease, and the other times of the election.
pub const LEASE: Duration = Duration::from_secs(3);
const TIMES: [&str; 3] =
    ["--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=400ms"];
const GIVE_UP: Duration = Duration::from_mins(2);
const POLL: Duration = Duration::from_millis(20);

/// A program that elects a leader.
pub struct Program {
    /// Name of the program, and of its lease.
    pub name: &'static str,
    /// Names another binary for one of the two.
    pub other: &'static str,
    /// Flags of its own.
    pub flags: &'static [&'static str],
}

pub const MANAGER: Program = Program {
    name: "kube-controller-manager",
    other: "OTHER_MANAGER",
    flags: &["--use-service-account-credentials=false"],
};

pub const SCHEDULER: Program = Program { name: "kube-scheduler", other: "OTHER_SCHEDULER", flags: &[] };

struct Slot {
    binary: String,
    kubeconfig: PathBuf,
    name: &'static str,
    process: Option<Process>,
    log: PathBuf,
}

/// See the module. All end with it.
pub struct Leaders {
    program: &'static Program,
    slots: [Slot; 2],
    dir: PathBuf,
    started: usize,
    /// Terms that ended with their process.
    over: usize,
}

impl Leaders {
    /// Starts both.
    pub fn start(world: &World, program: &'static Program, binaries: &str, dir: &Path) -> Self {
        let binary = format!("{binaries}/{}", program.name);
        let other = std::env::var(program.other).unwrap_or_else(|_| binary.clone());
        let slot = |name, identity, binary| Slot {
            binary,
            kubeconfig: world.kubeconfig_of(name, &identity).expect("a kubeconfig"),
            name,
            process: None,
            log: PathBuf::new(),
        };
        let slots = [slot("leader-admin", Identity::Admin, binary), slot("leader-alice", Identity::Alice, other)];
        let mut leaders = Self { program, slots, dir: dir.to_owned(), started: 0, over: 0 };
        leaders.start_missing();
        leaders
    }

    /// Starts those that have ended.
    pub fn start_missing(&mut self) {
        for slot in &mut self.slots {
            if slot.process.as_mut().is_some_and(|process| !process.has_ended()) {
                continue;
            }
            self.over += usize::from(leads(&slot.log));
            self.started += 1;
            slot.log = self.dir.join(format!("{}-{}.log", slot.name, self.started));
            let mut command = Command::new(&slot.binary);
            command
                .arg(format!("--kubeconfig={}", slot.kubeconfig.display()))
                .args(["--leader-elect=true", "--secure-port=0"])
                .args(self.program.flags)
                .args(["--kube-api-qps=100000", "--kube-api-burst=100000"])
                .args(TIMES);
            slot.process = Some(Process::start(&mut command, &slot.log).expect("a process"));
        }
    }

    /// The one that leads.
    pub async fn leader(&mut self) -> usize {
        self.wait("a leader", |slots| {
            let mut leaders = (0..2).filter(|at| {
                let slot = &mut slots[*at];
                leads(&slot.log) && slot.process.as_mut().is_some_and(|process| !process.has_ended())
            });
            let leader = leaders.next();
            // While one that has lost the lease ends, there are two of them.
            if leaders.next().is_some() { None } else { leader }
        })
        .await
    }

    /// Sends a signal to one of them.
    pub fn signal(&self, at: usize, name: &str) {
        self.slots[at].process.as_ref().expect("it was started").signal(name).expect("it runs");
    }

    /// Waits until one has ended.
    pub async fn await_end(&mut self, at: usize) {
        let ended = |slots: &mut [Slot; 2]| slots[at].process.as_mut().is_none_or(Process::has_ended);
        self.wait("the end of a process", |slots| ended(slots).then_some(())).await;
    }

    /// Waits until another than this one leads.
    pub async fn await_other(&mut self, at: usize) {
        self.wait("another leader", |slots| leads(&slots[1 - at].log).then_some(())).await;
    }

    /// Counts the terms that there were.
    pub fn terms(&self) -> usize {
        self.over + self.slots.iter().filter(|slot| leads(&slot.log)).count()
    }

    async fn wait<T>(&mut self, what: &str, mut is: impl FnMut(&mut [Slot; 2]) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = is(&mut self.slots) {
                return found;
            }
            assert!(began.elapsed() < GIVE_UP, "{what} did not come about; see {}", self.dir.display());
            self.revive();
            tokio::time::sleep(POLL).await;
        }
    }

    /// Starts both again where both lost the lease because the machine is slow, as whoever watches over them would.
    fn revive(&mut self) {
        let slow = self.slots.iter_mut().all(|slot| slot.process.as_mut().is_none_or(Process::has_ended));
        if slow {
            self.start_missing();
        }
    }
}

/// Reports whether the process that writes this log has come to lead.
fn leads(log: &Path) -> bool {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.contains("uccessfully acquired lease")
}
