#!/usr/bin/env bash
# Builds the images that the chart control-plane runs: e2e/images/chart.sh FOLDER BIN makes FOLDER/chart/NAME.tar of the
# binaries in BIN and the etcd that is installed, under the chart's own names.
set -euo pipefail
bin=$(realpath "$2")
chart=$(cd "$(dirname "$0")/../../manifests/charts/control-plane" && pwd)
mkdir -p "$1/chart"
folder=$(cd "$1/chart" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

value() { sed -n "s/^ *$1: *//p" "$chart/$2" | head -1; }
repository=$(value repository values.yaml)

# image NAME PROGRAM TAG: the program, the libraries it is linked to, authorities and time zones.
image() {
  local root=$work/$1 library
  mkdir -p "$root/usr/local/bin" "$root/etc/ssl/certs" "$root/usr/share"
  cp "$2" "$root/usr/local/bin/$1"
  # Says on its error stream that a static program is none of its business, and fails.
  for library in $( (ldd "$2" 2>/dev/null || true) | grep -o '/[^ ]*'); do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
  done
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
  [ ! -d /usr/share/zoneinfo ] || cp -r /usr/share/zoneinfo "$root/usr/share/"
  tar -C "$root" --owner=0 --group=0 --numeric-owner -cf "$work/layer.tar" .
  rm -rf "$root"
  "$bin/cluster" wrap "$work/layer.tar" "$folder/$1.tar" --reference "$repository/$1:$3" --env PATH=/usr/local/bin
  echo "$folder/$1.tar"
}

for name in kube-apiserver kube-controller-manager kube-scheduler control-plane-bootstrap; do
  image "$name" "$bin/$name" "$(value appVersion Chart.yaml)"
done
image etcd "$(PATH="$PATH:/usr/sbin" command -v etcd)" "$(value etcdTag values.yaml)"
