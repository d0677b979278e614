//! kubeadm as upstream builds it, with our binaries in the images that it asks for: a cluster of two control-plane nodes
//! with stacked etcd and a worker is made, grown, upgraded and taken apart. A Service and the cluster's DNS are asked
//! without a pause from the moment there is a worker. In a second one each of the five is swapped, there and back. On the
//! same machines static pods do without kubeadm.

#![allow(clippy::panic, reason = "a test panics to say what is wrong")]

mod by_hand;
mod certificates;
mod lab;
mod remains;
mod reset;
mod state;
mod swap;
mod upgrade;
mod workload;

use std::time::{Duration, Instant};

use lab::Lab;
use workload::Workload;

/// The release that the cluster begins with.
const FIRST: &str = "v1.35.4";
/// The one that it is upgraded to, of a later patch release and with a build of its own.
const SECOND: &str = "v1.35.5+ironclad.1";
/// The check that this machine cannot pass: kubeadm refuses cgroup v1 unless told.
const IGNORED: &str = "--ignore-preflight-errors=SystemVerification";
const INIT_LIMIT: Duration = Duration::from_secs(60);
const JOIN_LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_cluster_of_kubeadm_lives_its_life() {
    let lab = Lab::start(&["cp-1", "cp-2", "w-1"]);
    install(&lab);
    let joins = init(&lab, "");
    wrong_tokens_are_refused(&lab, &joins);
    join(&lab, "w-1", &joins.worker);
    let workload = Workload::start(&lab);
    join(&lab, "cp-2", &joins.control_plane);
    etcd_has_two_members(&lab);
    every_part_is(&lab, FIRST);
    certificates::are_rotated(&lab);
    certificates::renew(&lab);
    tokens(&lab);
    upgrade::all(&lab);
    certificates::are_rotated(&lab);
    workload.end();
    reset::all(&lab);
    lab.stop();
}

#[test]
fn each_part_is_swapped_there_and_back() {
    let lab = Lab::start(&["cp-1", "w-1"]);
    install(&lab);
    let joins = init(&lab, swap::CONFIGURATION);
    join(&lab, "w-1", &joins.worker);
    let workload = Workload::start(&lab);
    every_part_is(&lab, FIRST);
    swap::all(&lab);
    workload.end();
    lab.stop();
}

#[test]
fn static_pods_do_without_kubeadm() {
    let lab = Lab::start(&["cp-1"]);
    install(&lab);
    by_hand::all(&lab);
    lab.stop();
}

/// Gives every machine the first release.
fn install(lab: &Lab) {
    let first = lab.release(FIRST);
    for name in lab.names() {
        lab.install(name, &first, FIRST);
        lab.load(name, &first);
    }
}

/// The commands that `kubeadm init` prints.
pub struct Joins {
    worker: String,
    control_plane: String,
}

fn timed<T>(what: &str, limit: Duration, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = work();
    let took = began.elapsed();
    eprintln!("==> {what}: {:.1} s", took.as_secs_f64());
    assert!(took <= limit, "{what} took {took:?}, and may take {limit:?}");
    done
}

/// Runs `kubeadm init` with `more` in its ClusterConfiguration.
fn init(lab: &Lab, more: &str) -> Joins {
    let config = format!(
        include_str!("cluster.yaml"),
        address = lab.node("cp-1").address,
        patches = lab.patches("cp-1"),
        version = FIRST,
        more = more,
    );
    let file = lab.file("cp-1", "/etc/kubernetes/cluster.yaml");
    std::fs::write(&file, config).expect("a file");
    let line = format!("kubeadm init --config /etc/kubernetes/cluster.yaml --upload-certs {IGNORED}");
    let said = timed("kubeadm init", INIT_LIMIT, || lab.must("cp-1", &line));
    nothing_was_pulled(lab);
    lab.until("cp-1 is Ready", 30, || ready(lab, "cp-1"));
    lab.route("cp-1");
    let commands: Vec<String> = said.replace("\\\n", " ").lines().map(str::trim).map(str::to_owned).collect();
    let joins: Vec<String> = commands.into_iter().filter(|line| line.starts_with("kubeadm join")).collect();
    let [control_plane, worker] = &joins[..] else { panic!("two commands to join with: {said}") };
    Joins { worker: worker.clone(), control_plane: control_plane.clone() }
}

/// Every image that kubeadm asks for was there, and none was fetched.
fn nothing_was_pulled(lab: &Lab) {
    let ctr = "ctr --address /run/containerd/containerd.sock --namespace k8s.io images list --quiet";
    let there = lab.must("cp-1", ctr);
    let wanted = lab.must("cp-1", &format!("kubeadm config images list --kubernetes-version {FIRST}"));
    let missing: Vec<&str> = wanted.lines().filter(|image| !there.lines().any(|known| known == *image)).collect();
    assert!(missing.is_empty(), "{missing:?} are not among {there}");
}

fn join(lab: &Lab, name: &str, command: &str) {
    let line = format!("{command} --patches {} {IGNORED}", lab.patches(name));
    timed(&format!("kubeadm join on {name}"), JOIN_LIMIT, || lab.must(name, &line));
    lab.until(&format!("{name} is Ready"), 30, || ready(lab, name));
    lab.route(name);
}

/// Tells whether a node is Ready; why not else.
pub fn ready(lab: &Lab, name: &str) -> Result<(), String> {
    let node = lab.json("cp-1", &format!("node {name}"))?;
    let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let is_ready = all.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    if is_ready { Ok(()) } else { Err(format!("{all:?}")) }
}

/// In kubeadm's own words: the signature of cluster-info is what it checks first.
fn wrong_tokens_are_refused(lab: &Lab, joins: &Joins) {
    let token = joins.worker.split_whitespace().skip_while(|word| *word != "--token").nth(1).expect("a token");
    let (id, secret) = token.split_once('.').expect("a token has two parts");
    let other: String = secret.chars().rev().collect();
    let hash = joins.worker.split_whitespace().last().expect("a hash");
    let another = format!("sha256:{}", "0".repeat(64));
    for (line, why) in [
        (joins.worker.replace(token, &format!("{id}.{other}")), "failed to verify JWS signature"),
        (joins.worker.replace(hash, &another), "cluster CA found in cluster-info ConfigMap is invalid"),
    ] {
        let command: Vec<&str> = line.split_whitespace().chain([IGNORED]).collect();
        let said = lab.on("w-1", &command);
        assert!(!said.ok && said.err.contains(why), "{line}: {said:?}");
    }
}

fn etcd_has_two_members(lab: &Lab) {
    let pki = "/etc/kubernetes/pki/etcd";
    let list = format!(
        "exec -n kube-system etcd-cp-2 -- etcdctl --cacert={pki}/ca.crt --cert={pki}/server.crt --key={pki}/server.key \
         member list"
    );
    lab.until("etcd has two voting members", 30, || {
        let said = lab.kubectl("cp-2", &list);
        let voting = said.out.lines().filter(|line| line.contains(", started,") && line.ends_with("false")).count();
        if voting == 2 { Ok(()) } else { Err(format!("{said:?}")) }
    });
}

/// Every part of ours is of this release, and all pods of the system are Ready: those also that wait for a lease.
pub fn every_part_is(lab: &Lab, version: &str) {
    let tag = version.replace('+', "_");
    lab.until(&format!("every part is of {version} and Ready"), 60, || {
        let pods = lab.json("cp-1", "pods -n kube-system")?;
        for pod in pods["items"].as_array().into_iter().flatten() {
            let status = &pod["status"]["containerStatuses"][0];
            let image = status["image"].as_str().unwrap_or_default();
            let other = image.contains("/kube-") && !image.ends_with(&tag);
            let done = pod["status"]["phase"] == "Succeeded";
            if other || (!done && status["ready"] != true) {
                return Err(format!("{}: {status}", pod["metadata"]["name"]));
            }
        }
        Ok(())
    });
}

fn tokens(lab: &Lab) {
    let token = lab.must("cp-1", "kubeadm token create --ttl 10m --description spare");
    let token = token.trim();
    assert!(lab.must("cp-2", "kubeadm token list").contains(token), "it is listed");
    let id = token.split('.').next().expect("an id");
    let signed = || {
        let map = lab.json("cp-1", "configmap -n kube-public cluster-info")?;
        Ok::<_, String>(map["data"].get(format!("jws-kubeconfig-{id}")).is_some())
    };
    let becomes = |want: bool| if signed()? == want { Ok(()) } else { Err(format!("signed: {}", !want)) };
    lab.until("the new token signs", 10, || becomes(true));
    lab.must("cp-1", &format!("kubeadm token delete {id}"));
    assert!(!lab.must("cp-1", "kubeadm token list").contains(token), "it is gone");
    lab.until("its signature goes", 10, || becomes(false));
}
