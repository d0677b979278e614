#!/usr/bin/env bash
# Gives the running cluster add-ons: hack/addons.sh CACHE PROGRAM RUN ADDON… where PROGRAM is the cluster program and RUN
# the cluster's run directory. Add-ons are local-path (the default StorageClass) and metrics-server (kubectl top,
# autoscalers); their images are built once and imported into every node.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=$1 program=$2 run=$3

fail() { echo "error: $*" >&2; exit 1; }

[ -x "$program" ] && [ -e "$run/admin.conf" ] || fail "no cluster runs; start one with: make up"
kubectl=(kubectl --kubeconfig="$run/admin.conf")
e2e/images/addons.sh "$cache" "$program" "${@:4}"
for addon in "${@:4}"; do
  "$program" --run "$run" load "$cache/images/$addon.tar"
  deployment=metrics-server namespace=kube-system
  if [ "$addon" = local-path ]; then
    deployment=local-path-provisioner namespace=local-path-storage
    # Its pods that make folders run a shell.
    e2e/images/build.sh "$cache/images" "$program" busybox
    "$program" --run "$run" load "$cache/images/busybox.tar"
  fi
  "${kubectl[@]}" apply -f "manifests/addons/$addon.yaml" >/dev/null
  "${kubectl[@]}" rollout status "deployment/$deployment" --namespace="$namespace" --timeout=120s
done
