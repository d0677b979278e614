//! Checks of the history of etcd and of the audit log.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context as _;
use etcd_client::{EventType, WatchOptions};
use proto::protobuf;
use serde_json::Value;

use crate::placed::ROOM;
use crate::workload::{OF_ROUND, of_round, replicas, surge};
use testkit::world::World;

/// Longest wait for more of a history.
const PATIENCE: Duration = Duration::from_mins(2);
/// Key after all others, which is written when nobody changes anything any more: with it a history has been read.
const END: &str = "~end";

/// A write as the audit log has it.
struct Write<'a> {
    user: String,
    received: String,
    done: String,
    line: &'a str,
}

/// Checks that no process of a program wrote once another had taken its lease; how often the holder changed, and how many
/// writes there were.
pub fn one_writes_at_a_time(audit: &str, program: &str) -> Result<(usize, usize), String> {
    let (mut leases, mut writes) = (Vec::new(), Vec::new());
    for line in audit.lines() {
        let event: Value = serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
        let text = |at: &str| event.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
        if !text("/userAgent").starts_with(&format!("{program}/")) {
            continue;
        }
        let write = Write {
            user: text("/user/username"),
            received: text("/requestReceivedTimestamp"),
            done: text("/stageTimestamp"),
            line,
        };
        match (text("/objectRef/resource").as_str(), text("/objectRef/name").as_str()) {
            ("leases", name) if name == program || name.is_empty() => {
                if event["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300) {
                    leases.push(write);
                }
            }
            ("events", _) => {}
            _ => writes.push(write),
        }
    }
    leases.sort_by(|a, b| a.done.cmp(&b.done));
    for write in &writes {
        let last = |before: &dyn Fn(&Write) -> bool| leases.iter().rev().find(|lease| before(lease)).map(|l| &l.user);
        let by_done = last(&|lease| lease.done <= write.received);
        // One that has just taken the lease may write before the log says so.
        let by_received = last(&|lease| lease.received <= write.received);
        if by_done != Some(&write.user) && by_received != Some(&write.user) {
            return Err(format!("{by_done:?} held the lease when {} wrote:\n{}", write.user, write.line));
        }
    }
    Ok((leases.windows(2).filter(|pair| pair[0].user != pair[1].user).count(), writes.len()))
}

/// A change of a key.
struct Change {
    revision: i64,
    key: String,
    /// The object as far as it is looked at, unless it is gone.
    object: Option<Seen>,
    created: bool,
}

/// Fields of a pod or a set; there are hundreds of thousands of them.
struct Seen {
    owner: String,
    node: String,
    replicas: u64,
}

impl Seen {
    fn of(object: &Value) -> Self {
        let text = |at: &str| object.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self {
            owner: text("/metadata/ownerReferences/0/name"),
            node: text("/spec/nodeName"),
            replicas: object["spec"]["replicas"].as_u64().unwrap_or(0),
        }
    }
}

async fn changes(world: &World, prefix: &str) -> anyhow::Result<Vec<Change>> {
    let mut client = world.etcd().await?;
    let end = format!("{prefix}{END}");
    client.put(end.as_str(), "", None).await?;
    let mut stream = client.watch(prefix, Some(WatchOptions::new().with_prefix().with_start_revision(1))).await?;
    let mut all = Vec::new();
    loop {
        let message = tokio::time::timeout(PATIENCE, stream.message()).await;
        let message = message.context("the history does not come")??.context("the history has no end")?;
        anyhow::ensure!(!message.canceled(), "the history was compacted");
        for event in message.events() {
            let Some(pair) = event.kv() else { continue };
            if pair.key() == end.as_bytes() {
                return Ok(all);
            }
            let deleted = event.event_type() == EventType::Delete;
            let object = if deleted {
                None
            } else {
                Some(Seen::of(&protobuf::decode_envelope(pair.value()).map_err(|e| anyhow::anyhow!("{e:?}"))?))
            };
            all.push(Change {
                revision: pair.mod_revision(),
                key: String::from_utf8_lossy(pair.key()).into_owned(),
                created: !deleted && pair.create_revision() == pair.mod_revision(),
                object,
            });
        }
    }
}

/// Counts of one set.
#[derive(Default)]
struct Set {
    /// Replicas that it is asked for now, and the most ever.
    wanted: u64,
    most: u64,
    pods: BTreeSet<String>,
    made: usize,
}

/// Checks that the set of a round made exactly its pods, that no set of the Deployment ever had more than it was asked
/// for, and that those together were never asked for more than replicas and surge; how many pods were made.
pub async fn no_pod_too_many(world: &World, rounds: u64) -> Result<usize, String> {
    let failed = |error: anyhow::Error| format!("{error:#}");
    let mut all = changes(world, "/registry/pods/default/").await.map_err(failed)?;
    all.extend(changes(world, "/registry/replicasets/default/").await.map_err(failed)?);
    all.sort_by_key(|change| change.revision);
    let (mut sets, mut owners): (BTreeMap<String, Set>, BTreeMap<String, String>) = Default::default();
    for change in &all {
        if change.key.starts_with("/registry/replicasets/") {
            let name = change.key.rsplit('/').next().unwrap_or_default();
            of_set(&mut sets, name, change.object.as_ref())?;
        } else {
            of_pod(&mut sets, &mut owners, change)?;
        }
    }
    for round in 0..rounds {
        let made = sets.get(&of_round(round)).map_or(0, |set| set.made);
        if made != OF_ROUND {
            return Err(format!("{made} pods were made for {}, which has {OF_ROUND}", of_round(round)));
        }
    }
    Ok(sets.values().map(|set| set.made).sum())
}

fn of_set(sets: &mut BTreeMap<String, Set>, name: &str, object: Option<&Seen>) -> Result<(), String> {
    let set = sets.entry(name.to_owned()).or_default();
    set.wanted = object.map_or(0, |object| object.replicas);
    set.most = set.most.max(set.wanted);
    let asked: u64 = sets.iter().filter(|(name, _)| name.starts_with("web-")).map(|(_, set)| set.wanted).sum();
    if asked > replicas() + surge() {
        return Err(format!("{asked} pods are asked for, which is more than {} and {} of surge", replicas(), surge()));
    }
    Ok(())
}

fn of_pod(
    sets: &mut BTreeMap<String, Set>,
    owners: &mut BTreeMap<String, String>,
    change: &Change,
) -> Result<(), String> {
    let Some(object) = &change.object else {
        if let Some(set) = owners.get(&change.key).and_then(|owner| sets.get_mut(owner)) {
            set.pods.remove(&change.key);
        }
        return Ok(());
    };
    if !change.created {
        return Ok(());
    }
    let owner = object.owner.clone();
    owners.insert(change.key.clone(), owner.clone());
    let set = sets.entry(owner.clone()).or_default();
    set.pods.insert(change.key.clone());
    set.made += 1;
    if u64::try_from(set.pods.len()).unwrap_or(u64::MAX) > set.most {
        return Err(format!("{owner} has {} pods and was never asked for more than {}", set.pods.len(), set.most));
    }
    Ok(())
}

/// Checks that each pod was given one node, that no node ever had more pods than it has room for, and that every pod had a
/// node when it went; how many there were.
pub async fn each_bound_once(world: &World) -> Result<usize, String> {
    let all = changes(world, "/registry/pods/default/").await.map_err(|error| format!("{error:#}"))?;
    let (mut nodes, mut on): (BTreeMap<String, String>, BTreeMap<String, usize>) = Default::default();
    let mut bound = 0;
    for change in &all {
        let known = nodes.get(&change.key).cloned().unwrap_or_default();
        let Some(object) = &change.object else {
            if known.is_empty() {
                return Err(format!("{} went without a node", change.key));
            }
            *on.entry(known).or_default() -= 1;
            nodes.remove(&change.key);
            continue;
        };
        let node = object.node.as_str();
        if node == known {
            continue;
        }
        if !known.is_empty() {
            return Err(format!("{} was on {known} and is on {node:?}", change.key));
        }
        let pods = on.entry(node.to_owned()).or_default();
        *pods += 1;
        if *pods > ROOM {
            return Err(format!("{node} has {pods} pods at {} and room for {ROOM}", change.revision));
        }
        nodes.insert(change.key.clone(), node.to_owned());
        bound += 1;
    }
    Ok(bound)
}
