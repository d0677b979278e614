#!/usr/bin/env bash
# systemd-analyze on every unit as it is installed: it must say nothing, and what it says of exposure stays below a limit.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v systemd-analyze >/dev/null || { echo "error: systemd-analyze is missing; run: apt-get install systemd" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Any program will do: only paths and sections are looked at.
mkdir "$work/bin"
for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet ironclad; do
  cp /bin/true "$work/bin/$name"
done
DESTDIR='' PREFIX=$work/usr ETC=$work/etc hack/install.sh "$work/bin"
# etcd is the distribution's: where it is not installed, another stands for it.
units=$work/usr/lib/systemd/system
[ -x /usr/bin/etcd ] || sed -i "s,/usr/bin/etcd,$work/bin/kubelet," "$units/kube-etcd.service"
export SYSTEMD_UNIT_PATH=$units:
for unit in "$units"/*.service; do
  said=$(systemd-analyze verify --man=no --recursive-errors=no "$unit" 2>&1) || said+=$'\n'"exit code $?"
  [ -z "$said" ] || { printf 'error: %s:\n%s\n' "$(basename "$unit")" "$said" >&2; exit 1; }
done
# 10 is wide open; a kubelet has to be.
limits() {
  case $1 in
    kubelet) echo 100 ;;
    kube-proxy) echo 75 ;;
    *) echo 40 ;;
  esac
}
for unit in "$units"/*.service; do
  name=$(basename "$unit" .service)
  systemd-analyze security --offline=true --no-pager --threshold="$(limits "$name")" "$unit" >"$work/exposure" 2>&1 ||
    { echo "error: $name is more exposed than it was:"; tail -1 "$work/exposure"; exit 1; } >&2
  echo "$name: $(tail -1 "$work/exposure" | sed 's/.*: //')"
done
