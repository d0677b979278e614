#!/usr/bin/env bash
# Every test there is. What cannot run here says why; in CI that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:?set by make}

skip() {
  echo "SKIPPED: $*"
  [ "${CI:-}" != true ] || { echo "error: a core test was skipped in CI"; exit 1; }
}

echo "==> unit and integration tests"
cargo test --workspace --locked --exclude ironclad-e2e

echo "==> end-to-end tests"
if [ "$(id -u)" != 0 ]; then
  skip "the end-to-end tests need root (namespaces, mounts, cgroups)"
  exit 0
fi
cargo build --release --locked --bins
e2e/images/build.sh "${CACHE:-$HOME/.cache/ironclad}/images" "$target/release/cluster"
cargo test --locked -p ironclad-e2e -- --test-threads=1 --nocapture
