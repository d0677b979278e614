#!/usr/bin/env bash
# Every test there is. What cannot run here says why; in CI that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() {
  echo "SKIPPED: $*"
  [ "${CI:-}" != true ] || { echo "error: a core test was skipped in CI"; exit 1; }
}

echo "==> format, checks of the tree, lints"
make --no-print-directory lint

echo "==> unit and integration tests"
cargo test --workspace --locked --exclude ironclad-e2e

echo "==> systemd units"
if command -v systemd-analyze >/dev/null; then
  hack/verify-units.sh
else
  skip "systemd-analyze is missing; apt-get install systemd"
fi

echo "==> end-to-end tests"
if [ "$(id -u)" != 0 ]; then
  skip "the end-to-end tests need root (namespaces, mounts, cgroups)"
  exit 0
fi
# Of the libraries that the tests above have made, with their checks for overflow: only `make up` links whole releases.
# Examples are named because what they need is what tests need: without them all would be compiled anew.
cargo build --workspace --locked --bins --examples
bin=$CARGO_TARGET_DIR/debug

echo "==> kube-proxy's modes of the kernel, in a virtual machine whose kernel has IPVS and SCTP"
traffic=$(cargo test --locked -p ironclad-kube-proxy --test traffic --no-run --message-format=json |
  sed -n 's/.*"executable":"\([^"]*\/traffic-[^"]*\)".*/\1/p')
if [ "$(uname -m)" = x86_64 ]; then
  hack/vm.sh "${CACHE:-$HOME/.cache/ironclad}" env MODES=iptables,ipvs,nftables "$traffic" --nocapture
else
  skip "no kernel for a virtual machine of $(uname -m)"
fi

echo "==> clusters"
images=${CACHE:-$HOME/.cache/ironclad}/images
e2e/images/build.sh "$images" "$bin/cluster"
# Two minutes of a compiler and modules from the network: without it, the phase about DNS says that it is left out.
e2e/images/coredns.sh "$images" "$bin/cluster" || echo "SKIPPED: the image of CoreDNS was not built, see above"
# As much for a driver of dynamic resources over upstream's library.
e2e/images/module.sh "${CACHE:-$HOME/.cache/ironclad}" dra-driver || echo "SKIPPED: the driver was not built, see above"
# `make test-ha` and `make test-helm` take five minutes each, and builds of Go modules on a new machine.
# A moment of `make chaos`.
export NODE_CHAOS_KILLS=8 NODE_OUTAGE_SECONDS=5
BINARIES=$bin cargo test --workspace --locked --test autoscaling --test handover --test cluster --test hostile --test node_chaos -- --test-threads=1 --nocapture
