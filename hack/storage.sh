#!/usr/bin/env bash
# Gives the running cluster volumes that move between nodes, grow and have snapshots: hack/storage.sh CACHE PROGRAM RUN
# DRIVER, where PROGRAM is the cluster program, RUN the cluster's run directory (the volumes are in RUN/storage) and DRIVER
# the tests' CSI driver.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=$1 program=$2 run=$(realpath "$3") driver=$4

[ -x "$program" ] && [ -e "$run/admin.conf" ] || { echo "error: no cluster runs; start one with: make up" >&2; exit 1; }
kubectl=(kubectl --kubeconfig="$run/admin.conf")
e2e/images/storage.sh "$cache" "$program" "$driver"
"$program" --run "$run" load "$cache/images/storage.tar"
"${kubectl[@]}" apply --server-side -f "$cache/go/snapshot-crds.yaml" >/dev/null
"${kubectl[@]}" wait --for=condition=Established -f "$cache/go/snapshot-crds.yaml" --timeout=60s >/dev/null
sed "s|/var/lib/folders|$run/storage|" manifests/addons/storage.yaml | "${kubectl[@]}" apply -f - >/dev/null
"${kubectl[@]}" rollout status daemonset/driver --namespace=folders --timeout=120s
"${kubectl[@]}" rollout status deployment/controller --namespace=folders --timeout=120s
