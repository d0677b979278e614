//! Cost of the codecs for the pod that other benchmarks create (4 KB in protobuf, less than 6 KB in JSON): one JSON
//! line each, in nanoseconds of CPU time per byte read, so that others on the machine do not count. Arguments are parts
//! of the names of benchmarks (all by default).

use std::hint::black_box;

use anyhow::Context as _;
use proto::json::{self, Strictness};
use proto::{protobuf, schema};
use testkit::pods;

const ROUNDS: u32 = 20_000;

fn main() -> anyhow::Result<()> {
    let pod = schema::kind("", "v1", "Pod").context("pods have a schema")?;
    let tree = pods::pod(7);
    let (mut text, wire) = (Vec::new(), protobuf::encode(pod, &tree));
    json::encode(pod, &tree, &mut text);
    measure("JSON to tree", text.len(), || drop(black_box(json::decode(pod, &text, Strictness::Warn))));
    measure("tree to JSON", text.len(), || {
        json::encode(pod, black_box(&tree), &mut Vec::with_capacity(8 << 10));
    });
    measure("protobuf to tree", wire.len(), || drop(black_box(protobuf::decode(pod, &wire))));
    measure("tree to protobuf", wire.len(), || drop(black_box(protobuf::encode(pod, &tree))));
    measure("protobuf to JSON", wire.len(), || {
        black_box(protobuf::to_json(pod, "v1", "Pod", &wire, &mut Vec::with_capacity(8 << 10)).is_ok());
    });
    measure("protobuf, its fields alone", wire.len(), || {
        black_box(walk(&wire, 3));
    });
    Ok(())
}

/// The number of fields, those of messages included: what looks like a message is taken for one.
fn walk(message: &[u8], depth: u32) -> usize {
    let inner = |value| match value {
        protobuf::Wire::Bytes(bytes) if depth > 0 => walk(bytes, depth - 1),
        _ => 0,
    };
    protobuf::known_fields(message).map(|(_, value)| 1 + inner(value)).sum()
}

fn measure(name: &str, bytes: usize, mut work: impl FnMut()) {
    let mut wanted = std::env::args().skip(1).peekable();
    if wanted.peek().is_some() && !wanted.any(|part| name.contains(&part)) {
        return;
    }
    (0..ROUNDS / 10).for_each(|_| work());
    let started = thread_nanos();
    (0..ROUNDS).for_each(|_| work());
    #[allow(clippy::cast_precision_loss, reason = "figures are printed with two digits")]
    let each = (thread_nanos() - started) as f64 / f64::from(ROUNDS) / bytes as f64;
    println!("{{\"figure\": \"{name}\", \"value\": {each:.2}, \"unit\": \"ns/B\", \"bytes\": {bytes}}}");
}

fn thread_nanos() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}
