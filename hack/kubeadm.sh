#!/usr/bin/env bash
# The test with upstream's kubeadm. It is built from its Go module, which takes minutes the first time.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=$1
[ "$(id -u)" = 0 ] || { echo "error: the test with kubeadm needs root (namespaces, mounts, cgroups)"; exit 1; }
bin=${BINARIES:-$CARGO_TARGET_DIR/debug}
[ -n "${BINARIES:-}" ] || cargo build --workspace --locked --bins
e2e/images/go.sh "$cache" kubeadm etcd coredns konnectivity
e2e/images/debian.sh "$cache"
e2e/images/build.sh "$cache/images" "$bin/cluster" busybox
CACHE=$cache BINARIES=$bin cargo test -p ironclad-e2e --locked --test kubeadm -- --nocapture
