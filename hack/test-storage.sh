#!/usr/bin/env bash
# Storage with upstream's counterparts: hack/test-storage.sh CACHE.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --workspace --locked --bins --examples
bin=$CARGO_TARGET_DIR/debug
e2e/images/build.sh "$1/images" "$bin/cluster" busybox
e2e/images/storage.sh "$1" "$bin/cluster" "$bin/examples/csi-driver"
CACHE=$1 BINARIES=$bin cargo test --locked -p ironclad-e2e --test storage -- --test-threads=1 --nocapture
