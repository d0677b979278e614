//! The iptables chains that a kubelet makes (upstream's `initNetworkUtil`): the hint by which others see whether the node
//! uses legacy tables or nftables, and the rule against packets from elsewhere to loopback addresses. They are made again
//! when somebody flushes the tables, which a canary in each table shows.
//!
//! Goes out: calls of `iptables` and `ip6tables`. Must not: touch any other rule.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio_util::sync::CancellationToken;

/// Interval at which the canaries are looked at.
const PERIOD: Duration = Duration::from_mins(1);
/// Longest run of the program; it waits for the lock of the tables for [`LOCK_SECONDS`].
const TIMEOUT: Duration = Duration::from_secs(30);
const LOCK_SECONDS: &str = "5";

const HINT: &str = "KUBE-IPTABLES-HINT";
const FIREWALL: &str = "KUBE-FIREWALL";
const CANARY: &str = "KUBE-KUBELET-CANARY";
const CANARY_TABLES: [&str; 3] = ["mangle", "nat", "filter"];
/// The rule of [`FIREWALL`]: kube-proxy in the mode iptables makes the same.
const LOCALNET: [&str; 14] = [
    "-m",
    "comment",
    "--comment",
    "block incoming localnet connections",
    "--dst",
    "127.0.0.0/8",
    "!",
    "--src",
    "127.0.0.0/8",
    "-m",
    "conntrack",
    "!",
    "--ctstate",
    "RELATED,ESTABLISHED,DNAT",
];
const DROP: [&str; 2] = ["-j", "DROP"];

/// Programs of the two families.
const PROGRAMS: [(&str, &str); 2] = [("iptables", "IPv4"), ("ip6tables", "IPv6")];

/// Failures of the tables' programs.
#[derive(Debug, thiserror::Error)]
enum TableError {
    /// The program's message.
    #[error("{0}")]
    Refused(String),
    /// No run at all.
    #[error(transparent)]
    Start(#[from] io::Error),
    /// More time than it is given.
    #[error("{} did not end within {} s", .0, TIMEOUT.as_secs())]
    Late(String),
    /// A chain takes no rule.
    #[error("{program} cannot add a rule to {chain}: {rule}")]
    Rule { program: String, chain: String, rule: String },
}

/// Runs a program of the tables.
trait Tables {
    /// Runs it with these arguments: false when there is no such chain or rule, or there is one already (status 1). Any
    /// other failure is an error with what it said.
    async fn run(&self, program: &str, arguments: &[&str]) -> Result<bool, TableError>;
}

/// The programs of this machine.
struct System;

impl Tables for System {
    async fn run(&self, program: &str, arguments: &[&str]) -> Result<bool, TableError> {
        let mut command = Command::new(program);
        command.args(["-w", LOCK_SECONDS]).args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        match tokio::time::timeout(TIMEOUT, command.output()).await {
            Ok(Ok(output)) if output.status.success() => Ok(true),
            Ok(Ok(output)) if output.status.code() == Some(1) => Ok(false),
            Ok(Ok(output)) => Err(TableError::Refused(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(TableError::Late(program.to_owned())),
        }
    }
}

/// Makes the chains of both families, where they are `wanted`, and keeps them until shutdown. A family that the machine has
/// not is left out.
pub async fn run(wanted: bool, shutdown: CancellationToken) {
    if !wanted {
        return;
    }
    let mut families = Vec::new();
    for (program, protocol) in PROGRAMS {
        match sync(&System, program).await {
            Ok(()) => {
                tracing::info!(protocol, "Initialized iptables rules.");
                families.push(program);
                warn(program, plant_canaries(&System, program).await);
            }
            Err(error) => tracing::info!(
                protocol,
                %error,
                "Failed to initialize iptables rules; some functionality may be missing."
            ),
        }
    }
    while !families.is_empty() {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(PERIOD) => {}
        }
        for program in &families {
            warn(program, watch(&System, program).await);
        }
    }
}

fn warn(program: &str, made: Result<(), TableError>) {
    if let Err(error) = made {
        tracing::warn!(program, %error, "Failed to make iptables rules again");
    }
}

/// Makes what is missing of the chains and rules.
async fn sync(tables: &impl Tables, program: &str) -> Result<(), TableError> {
    ensure_chain(tables, program, "mangle", HINT).await?;
    // ip6tables has one loopback address, which no packet from elsewhere reaches.
    if program != "iptables" {
        return Ok(());
    }
    ensure_chain(tables, program, "filter", FIREWALL).await?;
    for chain in ["OUTPUT", "INPUT"] {
        ensure_rule(tables, program, "-I", chain, &["-j", FIREWALL]).await?;
    }
    ensure_rule(tables, program, "-A", FIREWALL, &[&LOCALNET[..], &DROP[..]].concat()).await
}

/// Makes everything again when a canary is gone.
async fn watch(tables: &impl Tables, program: &str) -> Result<(), TableError> {
    for table in CANARY_TABLES {
        if !tables.run(program, &["-t", table, "-S", CANARY]).await? {
            // Canaries last: while one is missing, there is something to do.
            sync(tables, program).await?;
            return plant_canaries(tables, program).await;
        }
    }
    Ok(())
}

async fn plant_canaries(tables: &impl Tables, program: &str) -> Result<(), TableError> {
    for table in CANARY_TABLES {
        ensure_chain(tables, program, table, CANARY).await?;
    }
    Ok(())
}

async fn ensure_chain(tables: &impl Tables, program: &str, table: &str, chain: &str) -> Result<(), TableError> {
    // Status 1: it is there.
    tables.run(program, &["-t", table, "-N", chain]).await.map(|_| ())
}

/// Adds a rule of the table `filter` to a chain by `-I`, before all others, or `-A`, behind them.
async fn ensure_rule(
    tables: &impl Tables,
    program: &str,
    how: &str,
    chain: &str,
    rule: &[&str],
) -> Result<(), TableError> {
    let line = |verb| [&["-t", "filter", verb, chain], rule].concat();
    if tables.run(program, &line("-C")).await? {
        return Ok(());
    }
    let added = tables.run(program, &line(how)).await?;
    if added {
        return Ok(());
    }
    Err(TableError::Rule { program: program.to_owned(), chain: chain.to_owned(), rule: rule.join(" ") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    /// Tables that know chains and rules by the words they were made with, and record what was made.
    #[derive(Default)]
    struct Recorded {
        there: RefCell<BTreeSet<String>>,
        made: RefCell<Vec<String>>,
    }

    impl Tables for Recorded {
        async fn run(&self, _: &str, arguments: &[&str]) -> Result<bool, TableError> {
            let [_, table, verb, rest @ ..] = arguments else { return Err(TableError::Refused("no command".into())) };
            let key = format!("{table} {}", rest.join(" "));
            if matches!(*verb, "-S" | "-C") {
                return Ok(self.there.borrow().contains(&key));
            }
            let is_new = self.there.borrow_mut().insert(key.clone());
            self.made.borrow_mut().extend(is_new.then(|| format!("{verb} {key}")));
            Ok(is_new)
        }
    }

    #[tokio::test]
    async fn chains_and_rules_are_made_once_and_again_after_a_flush() {
        let tables = Recorded::default();
        watch(&tables, "iptables").await.expect("made");
        let all = [
            "-N mangle KUBE-IPTABLES-HINT",
            "-N filter KUBE-FIREWALL",
            "-I filter OUTPUT -j KUBE-FIREWALL",
            "-I filter INPUT -j KUBE-FIREWALL",
            "-A filter KUBE-FIREWALL -m comment --comment block incoming localnet connections --dst 127.0.0.0/8 \
             ! --src 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
            "-N mangle KUBE-KUBELET-CANARY",
            "-N nat KUBE-KUBELET-CANARY",
            "-N filter KUBE-KUBELET-CANARY",
        ];
        assert_eq!(tables.made.take(), all);
        watch(&tables, "iptables").await.expect("nothing to do");
        assert_eq!(tables.made.take(), Vec::<String>::new());
        tables.there.borrow_mut().retain(|key| !key.starts_with("mangle"));
        watch(&tables, "iptables").await.expect("made again");
        assert_eq!(tables.made.take(), [all[0], all[5]]);
    }

    #[tokio::test]
    async fn ipv6_has_the_hint_alone() {
        let tables = Recorded::default();
        sync(&tables, "ip6tables").await.expect("made");
        assert_eq!(tables.made.take(), ["-N mangle KUBE-IPTABLES-HINT"]);
    }
}
