#!/usr/bin/env bash
# Every figure the project is held to, one JSON line each, with its limit.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=$1
bin=${BIN:?set by make}
triple=$2
e2e/images/build.sh "$cache/images" "$bin/cluster" >&2
"$bin/cluster" --run "$(mktemp -d)/bench" bench "$cache/images/busybox.tar"

# A program of a crate's examples/, built like the binaries: crate, example, arguments.
example() {
  hack/build.sh "$triple" --quiet -p "ironclad-$1" --example "$2"
  "$bin/examples/$2" "${@:3}"
}
example e2e apiserver "$bin/kube-apiserver"
example e2e controllers "$bin/kube-apiserver" "$bin/kube-controller-manager"
example scheduler throughput all
example e2e scheduler "$bin/kube-apiserver" "$bin/kube-scheduler"
cargo run --release --locked --quiet -p ironclad-proto --example codecs
cargo run --release --locked --quiet -p ironclad-apiserver --example decisions
example kube-proxy sync
