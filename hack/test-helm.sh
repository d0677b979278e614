#!/usr/bin/env bash
# The chart's end-to-end test alone: hack/test-helm.sh CACHE.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --workspace --locked --bins --examples
bin=$CARGO_TARGET_DIR/debug
e2e/images/build.sh "$1/images" "$bin/cluster" busybox
e2e/images/coredns.sh "$1/images" "$bin/cluster"
e2e/images/module.sh "$1" helm
e2e/images/go.sh "$1" etcd konnectivity
e2e/images/debian.sh "$1"
e2e/images/addons.sh "$1" "$bin/cluster" local-path metrics-server
CACHE=$1 BINARIES=$bin cargo test --locked -p ironclad-e2e --test helm -- --nocapture
