#!/usr/bin/env bash
# Copies the binaries, units and manifests to where packages have them: hack/install.sh BINARIES [PACKAGE…]
# Below $DESTDIR, with $PREFIX (/usr) for all but $ETC (/etc). Without packages named, everything. Files in /etc/default stay as
# they are. Starts and enables nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
binaries=$1
shift
destdir=${DESTDIR:-} prefix=${PREFIX:-/usr} etc=${ETC:-/etc}
all=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet ironclad)
[ $# -gt 0 ] || set -- "${all[@]}" kubeadm-drop-in

put() { install -D -m "$1" "$2" "$destdir$3"; }
program() {
  [ -x "$binaries/$1" ] || { echo "error: $binaries/$1 is not built; run: make build" >&2; exit 1; }
  put 0755 "$binaries/$1" "$prefix/bin/$1"
}
# Units name /usr/bin, wherever the binaries go.
unit() {
  install -D -m 0644 /dev/null "$destdir$prefix/lib/systemd/system/$2"
  sed "s,/usr/bin/kube,$prefix/bin/kube," "manifests/systemd/$1" >"$destdir$prefix/lib/systemd/system/$2"
}
defaults() { [ -e "$destdir$etc/default/$1" ] || put 0644 "manifests/systemd/default/$1" "$etc/default/$1"; }

for package in "$@"; do
  case $package in
    ironclad)
      program ironclad
      unit kube-etcd.service kube-etcd.service
      defaults kube-etcd
      for file in manifests/static-pods/*.yaml manifests/addons/*.yaml manifests/rbac/*.yaml manifests/systemd/*.yaml; do
        put 0644 "$file" "$prefix/share/ironclad/${file#manifests/}"
      done
      ;;
    # In Kubernetes' own packages this file belongs to kubeadm.
    kubeadm-drop-in) unit kubelet.service.d/10-kubeadm.conf kubelet.service.d/10-kubeadm.conf ;;
    ironclad-drop-in) unit kubelet.service.d/10-kubeadm.conf kubelet.service.d/10-ironclad.conf ;;
    *)
      program "$package"
      unit "$package.service" "$package.service"
      defaults "$package"
      ;;
  esac
done
