#!/usr/bin/env bash
# Every test there is. What cannot run here says why; in CI that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:?set by make}
triple=$1

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
# Linking each binary as a whole takes minutes and changes nothing that is tested.
CARGO_PROFILE_RELEASE_LTO=off hack/build.sh "$triple" --bins
e2e/images/build.sh "${CACHE:-$HOME/.cache/ironclad}/images" "$bin/cluster"
BINARIES=$bin cargo test --locked -p ironclad-e2e -- --test-threads=1 --nocapture
