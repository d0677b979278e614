//! Backup of a cluster's etcd and certificates, and the way back, each as one step.
//!
//! A restored etcd counts revisions from the backup on: clients whose watches are at later ones would wait for what never
//! comes. So its revision is raised above all that it had, and what is before is compacted: every watch that goes on from
//! there is told that it is too old, and its informer lists anew.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use etcd_client::{Certificate, Client, CompactionOptions, ConnectOptions, Identity, TlsOptions};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::layout::{CONTROL_PLANE, ETCD_PEER_PORT, ETCD_PORT, Layout};
use crate::machine::{self, Machine};
use crate::{ha, shell};

/// Revisions beyond those that etcd is known to have had.
const MARGIN: i64 = 1_000;
/// Writers that raise the revision side by side.
const WRITERS: i64 = 32;
/// Key that is written to raise the revision, and removed; not one of Kubernetes'.
const KEY: &str = "ironclad/restored";
/// Time that etcd gets to serve again.
const LIMIT: Duration = Duration::from_secs(60);

/// A member of etcd on this machine.
struct Member {
    process: String,
    data: PathBuf,
    url: String,
    /// Flags of a restored member beside those of its data.
    membership: Vec<String>,
}

/// Saves etcd and the certificates into a new folder.
///
/// # Errors
/// When the folder is there, or no member of etcd answers.
pub fn backup(layout: &Layout, folder: &Path) -> Result<()> {
    let members = members(layout)?;
    fs::DirBuilder::new().mode(0o700).create(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let snapshot = folder.join("etcd.db");
    let mut failed = String::new();
    let saved = members.iter().any(|member| {
        let file = snapshot.display().to_string();
        let saved = etcdctl(layout, &["--endpoints", &member.url, "snapshot", "save", &file]);
        saved.inspect_err(|error| failed = format!("{error:#}")).is_ok()
    });
    ensure!(saved, "no member of etcd can be saved: {failed}");
    let status = status(layout, &snapshot)?;
    let archive = folder.join("pki.tar").display().to_string();
    let root = layout.root.display().to_string();
    shell::run("tar", &["--create", "--file", &archive, "--directory", &root, "pki", "kubeconfig", "admin.conf"])?;
    fs::set_permissions(&archive, fs::Permissions::from_mode(0o600))?;
    println!("{}: revision {}, {} keys", folder.display(), status["revision"], status["totalKey"]);
    Ok(())
}

/// Stops the control plane, brings etcd back to what the backup has, and starts it again. The data that etcd had stay
/// beside the new ones.
///
/// # Errors
/// When the backup cannot be read, which changes nothing; when a step after that fails.
pub fn restore(layout: &Layout, folder: &Path, revisions: Option<u32>) -> Result<()> {
    let snapshot =
        fs::canonicalize(folder.join("etcd.db")).with_context(|| format!("no backup in {}", folder.display()))?;
    let saved = status(layout, &snapshot)?["revision"].as_i64().context("the backup has no revision")?;
    let members = members(layout)?;
    let control_plane = layout.machine(CONTROL_PLANE);
    let machine = Machine::read(&Machine::file(&control_plane))?;
    let is_member = |name: &str| members.iter().any(|member| member.process == name);
    // Clients are told by haproxy that nobody is there.
    let names = machine.processes.iter().map(|process| process.name.as_str()).filter(|name| *name != "haproxy");
    let others: Vec<&str> = names.filter(|name| !is_member(name)).collect();
    let mark = |name: &str| control_plane.join(format!("{name}.stopped"));

    eprintln!("==> stopping the control plane");
    for name in others.iter().copied().chain(members.iter().map(|member| member.process.as_str())) {
        machine::stop(&mark(name))?;
    }
    let had = members.iter().filter_map(|member| revision_of(layout, &member.data)).max();
    let lost = || revisions.map(|revisions| saved + i64::from(revisions));
    let Some(had) = had.or_else(lost) else {
        bail!("the old data is lost, and so is how many revisions it had; say how many may have passed: --revisions");
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    eprintln!("==> restoring revision {saved}");
    for member in &members {
        replace(layout, member, &snapshot, now)?;
        fs::remove_file(mark(&member.process))?;
    }
    let target = had.max(saved) + MARGIN;
    eprintln!("==> raising the revision to {target}");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let urls: Vec<String> = members.iter().map(|member| member.url.clone()).collect();
    runtime.block_on(raise(layout, &urls, target))?;
    eprintln!("==> starting the control plane");
    for name in others {
        fs::remove_file(mark(name))?;
    }
    shell::wait_for("kube-apiserver is not ready", shell::READY_LIMIT, &control_plane, || {
        shell::kubectl(layout, &["get", "--raw", "/readyz"]).is_ok()
    })
}

/// Puts the backup in the place of a member's data, which is moved aside.
fn replace(layout: &Layout, member: &Member, snapshot: &Path, now: u64) -> Result<()> {
    if member.data.exists() {
        let aside = format!("{}.before-{now}", member.data.display());
        fs::rename(&member.data, &aside).with_context(|| format!("cannot move {} aside", member.data.display()))?;
    }
    let (snapshot, data) = (snapshot.display().to_string(), format!("--data-dir={}", member.data.display()));
    // A token of its own: a member that comes back with old data does not belong to these.
    let token = format!("--initial-cluster-token=restored-{now}");
    let mut arguments = vec!["snapshot", "restore", &snapshot, &data, &token];
    arguments.extend(member.membership.iter().map(String::as_str));
    etcdctl(layout, &arguments).map(drop)
}

/// The members of etcd that the control plane's machine runs.
fn members(layout: &Layout) -> Result<Vec<Member>> {
    let file = Machine::file(&layout.machine(CONTROL_PLANE));
    let machine = Machine::read(&file).context("no cluster is here, or its etcd is a static pod")?;
    let runs = |name: &str| machine.processes.iter().any(|process| process.name == name);
    if runs("etcd") {
        let loopback = &layout.network.loopback;
        let peer = format!("https://{loopback}:{ETCD_PEER_PORT}");
        let membership = vec![
            format!("--name={CONTROL_PLANE}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster={CONTROL_PLANE}={peer}"),
        ];
        let (data, url) = (layout.root.join("etcd"), format!("https://{loopback}:{ETCD_PORT}"));
        return Ok(vec![Member { process: "etcd".into(), data, url, membership }]);
    }
    let members = (0..ha::SERVERS).filter(|at| runs(&ha::numbered("etcd", *at))).map(|at| Member {
        process: ha::numbered("etcd", at),
        data: ha::data(layout, at),
        url: ha::client_url(&layout.network, at),
        membership: ha::membership(&layout.network, at).to_vec(),
    });
    let members: Vec<Member> = members.collect();
    ensure!(!members.is_empty(), "this cluster's etcd is not a process of its control plane: it cannot be saved here");
    Ok(members)
}

/// The last revision in a member's data on disk, where it can be read.
fn revision_of(layout: &Layout, data: &Path) -> Option<i64> {
    status(layout, &data.join("member/snap/db")).ok()?["revision"].as_i64()
}

fn status(layout: &Layout, database: &Path) -> Result<Value> {
    let said = etcdctl(layout, &["--write-out=json", "snapshot", "status", &database.display().to_string()])?;
    serde_json::from_str(&said).with_context(|| format!("etcdctl says {said}"))
}

fn pki(layout: &Layout, file: &str) -> PathBuf {
    layout.pki().join(file)
}

fn etcdctl(layout: &Layout, arguments: &[&str]) -> Result<String> {
    let program = shell::find("etcdctl").context("etcdctl is missing; run: apt-get install etcd-client")?;
    let output = Command::new(program)
        .env("ETCDCTL_API", "3")
        .env("ETCDCTL_CACERT", pki(layout, "etcd/ca.crt"))
        .env("ETCDCTL_CERT", pki(layout, "apiserver-etcd-client.crt"))
        .env("ETCDCTL_KEY", pki(layout, "apiserver-etcd-client.key"))
        .args(arguments)
        .output()
        .context("cannot start etcdctl")?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    bail!("etcdctl {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
}

/// Writes until the revision is `target`, then compacts what is before.
async fn raise(layout: &Layout, urls: &[String], target: i64) -> Result<()> {
    let read = |file: &str| fs::read(pki(layout, file)).with_context(|| format!("cannot read {file}"));
    let identity = Identity::from_pem(read("apiserver-etcd-client.crt")?, read("apiserver-etcd-client.key")?);
    let tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read("etcd/ca.crt")?)).identity(identity);
    let options = ConnectOptions::new().with_tls(tls).with_timeout(LIMIT).with_connect_timeout(LIMIT);
    let mut client = Client::connect(urls, Some(options)).await?;
    let began = tokio::time::Instant::now();
    let mut revision = loop {
        match client.put(KEY, "", None).await {
            Ok(answer) => break revision_in(answer.header()),
            Err(error) if began.elapsed() > LIMIT => return Err(error).context("etcd does not serve"),
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    };
    while revision < target {
        let each = ((target - revision) / WRITERS).max(1);
        let mut writers = JoinSet::new();
        for _ in 0..WRITERS {
            let mut client = client.clone();
            writers.spawn(async move {
                for _ in 0..each {
                    client.put(KEY, "", None).await?;
                }
                Ok::<(), etcd_client::Error>(())
            });
        }
        while let Some(written) = writers.join_next().await {
            written??;
        }
        revision = revision_in(client.put(KEY, "", None).await?.header());
    }
    revision = revision_in(client.delete(KEY, None).await?.header());
    client.compact(revision, Some(CompactionOptions::new())).await?;
    Ok(())
}

fn revision_in(header: Option<&etcd_client::ResponseHeader>) -> i64 {
    header.map_or(0, etcd_client::ResponseHeader::revision)
}
