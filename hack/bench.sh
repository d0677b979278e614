#!/usr/bin/env bash
# Every figure the project is held to, one JSON line each, with its limit.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=$1
target=${CARGO_TARGET_DIR:?set by make}
e2e/images/build.sh "$cache/images" "$target/release/cluster" >&2
"$target/release/cluster" --run "$(mktemp -d)/bench" bench "$cache/images/busybox.tar"
for shape in plain spread anti-affinity; do
  cargo run --release --locked --quiet -p ironclad-scheduler --example throughput -- 1000 2000 "$shape"
done
