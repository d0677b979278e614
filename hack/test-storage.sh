#!/usr/bin/env bash
# Storage with upstream's counterparts: hack/test-storage.sh CACHE.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --locked -p ironclad-e2e --example csi-driver
bin=$CARGO_TARGET_DIR/debug
e2e/images/module.sh "$1" storage
CACHE=$1 BINARIES=$bin cargo test --locked -p ironclad-e2e --test storage -- --test-threads=1 --nocapture
