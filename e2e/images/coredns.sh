#!/usr/bin/env bash
# Builds the image of CoreDNS from its Go module, once: FOLDER/coredns.tar.
set -euo pipefail
folder=$1
cluster=$(realpath "$2")
here=$(cd "$(dirname "$0")" && pwd)
reference=$(sed -n 's/^ *image: *//p' "$here/../../manifests/addons/coredns.yaml")
mkdir -p "$folder"
archive=$folder/coredns.tar

stamp=$( (echo "$reference $(uname -m)" && cat "$0" "$here/go.sh" "$here"/coredns/*) | sha256sum | cut -c1-16)
[ "$(cat "$archive.stamp" 2>/dev/null)" = "$stamp" ] && [ -e "$archive" ] && exit
"$here/go.sh" "$folder/.." coredns
echo "==> image $reference"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/etc/ssl/certs"
cp "$folder/../go/coredns" "$work/"
cp /etc/ssl/certs/ca-certificates.crt "$work/etc/ssl/certs/"
tar -C "$work" --owner=0 --group=0 --numeric-owner -cf "$folder/coredns-layer.tar" .
"$cluster" wrap "$folder/coredns-layer.tar" "$archive" --reference "$reference" --env PATH=/ -- /coredns
echo "$stamp" >"$archive.stamp"
