#!/usr/bin/env bash
# Every figure the project is held to, one JSON line each, with its limit; SPECIFICATION.md is made of them.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=$1
bin=${BIN:?set by make}
triple=$2
figures=$(mktemp)
trap 'rm -f "$figures"' EXIT

# Tells whether a program is to be run: all are, or those of which BENCH is part of the name.
wanted() { [[ $1 == *"${BENCH:-}"* ]]; }

# Says whose figures follow.
from() { echo "{\"bench\":\"$*\"}"; }

# A program of a crate's examples/, built like the binaries: crate, example, arguments.
example() {
  wanted "$1/examples/$2" || return 0
  hack/build.sh "$triple" --quiet -p "ironclad-$1" --example "$2"
  from "$1/examples/$2"
  "$bin/examples/$2" "${@:3}"
}

# One that needs no binaries, built as cargo builds releases.
in_memory() {
  wanted "$1/examples/$2" || return 0
  from "$1/examples/$2"
  cargo run --release --locked --quiet -p "ironclad-$1" --example "$2"
}

measure() {
  if wanted cluster; then
    e2e/images/build.sh "$cache/images" "$bin/cluster" >&2
    from the cluster program, one node
    "$bin/cluster" --run "$(mktemp -d)/bench" bench "$cache/images/busybox.tar"
  fi
  example e2e apiserver "$bin/kube-apiserver"
  example e2e controllers "$bin/kube-apiserver" "$bin/kube-controller-manager"
  example scheduler throughput all
  example scheduler scale
  example e2e scheduler "$bin/kube-apiserver" "$bin/kube-scheduler"
  example e2e parallel "$bin/kube-apiserver" "$bin/kube-scheduler"
  in_memory e2e codecs
  in_memory apiserver decisions
  example kube-proxy sync
  example e2e full_node "$bin/cluster" "$cache/images/busybox.tar"
}

measure | tee "$figures"
# The page has all figures or none.
[[ -n ${BENCH:-} ]] || cargo xtask specification "$figures" >&2
