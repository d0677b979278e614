#!/usr/bin/env bash
# Builds the images of add-ons from their Go modules, each once: e2e/images/addons.sh CACHE CLUSTER ADDON… makes
# CACHE/images/ADDON.tar, under the name that manifests/addons/ADDON.yaml asks for.
set -euo pipefail
cache=$1
cluster=$(realpath "$2")
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$cache/images"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for addon in "${@:3}"; do
  case $addon in
    local-path) program=local-path-provisioner ;;
    metrics-server) program=metrics-server ;;
    *) echo "error: no add-on $addon is known; use local-path or metrics-server" >&2; exit 1 ;;
  esac
  "$here/module.sh" "$cache" "$program"
  archive=$cache/images/$addon.tar
  reference=$(sed -n "s/^ *image: *\(.*$program:.*\)/\1/p" "$here/../../manifests/addons/$addon.yaml")
  stamp="$reference $(cat "$cache/go/$program.stamp")"
  [ "$(cat "$archive.stamp" 2>/dev/null)" = "$stamp" ] && [ -e "$archive" ] && continue
  echo "==> image $reference"
  mkdir -p "$work/$addon/usr/local/bin" "$work/$addon/etc/ssl/certs"
  cp "$cache/go/$program" "$work/$addon/usr/local/bin/"
  cp /etc/ssl/certs/ca-certificates.crt "$work/$addon/etc/ssl/certs/"
  tar -C "$work/$addon" --owner=0 --group=0 --numeric-owner -cf "$work/layer.tar" .
  "$cluster" wrap "$work/layer.tar" "$archive" --reference "$reference" --env PATH=/usr/local/bin
  echo "$stamp" >"$archive.stamp"
done
