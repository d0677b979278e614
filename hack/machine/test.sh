#!/usr/bin/env bash
# Boots a Debian machine with systemd and control groups v2, installs the packages in it, makes a cluster by hand as
# docs/INSTALL.md says, reboots, and looks: hack/machine/test.sh CACHE BINARIES
# Without KVM it took 18 minutes beside builds, 14 of them of a processor. VM_ACCEL=kvm asks for KVM; one without hardware
# support (kvm-pvm) runs only kernels that are made for it, and hangs before the first line of this one.
set -euo pipefail
cd "$(dirname "$0")/../.."
cache=$1 binaries=$2
PATH=$cache/bin:$PATH:/usr/sbin:/sbin

missing=()
for want in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static mmdebstrap:mmdebstrap mke2fs:e2fsprogs systemctl:systemd; do
  command -v "${want%%:*}" >/dev/null || missing+=("${want##*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "==> installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
hack/kernel.sh "$cache/vm"
hack/machine/root.sh "$cache"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
handed=$work/handed
mkdir -p "$handed/images" "$work/pause"
echo "==> packages"
DEB_COMPRESSION=none hack/deb.sh "$binaries" "$handed/deb" >/dev/null
gcc -static -Os -DVERSION='"3.10.1"' -o "$work/pause/pause" e2e/images/pause/pause.c
tar -C "$work/pause" -cf "$work/pause.tar" pause
"$binaries/cluster" wrap "$work/pause.tar" "$handed/images/pause.tar" --reference registry.k8s.io/pause:3.10.1 -- /pause
e2e/images/build.sh "$cache/images" "$binaries/cluster" busybox
cp "$cache/images/busybox.tar" "$handed/images/"
cp "$(command -v kubectl)" "$handed/kubectl"
cp hack/machine/guest.sh hack/machine/pods.yaml hack/machine/static.yaml "$handed/"
[ -z "${CGROUP_DRIVER:-}" ] || echo "$CGROUP_DRIVER" >"$handed/cgroup-driver"

# KVM within a virtual machine may hang: it is asked for.
accel=(-accel tcg,thread=multi -cpu max)
[ "${VM_ACCEL:-tcg}" = kvm ] && accel=(-accel kvm -cpu host,arch-capabilities=off)
console=${VM_CONSOLE:-$work/console} said=$work/said
: >"$said"
tail -f "$said" --pid=$$ | sed -u 's,\r,,' &
trap 'kill $! 2>/dev/null || true; rm -rf "$work"' EXIT
timeout "${VM_SECONDS:-1800}" qemu-system-x86_64 "${accel[@]}" -smp 2 -m 2560 -display none -monitor none \
  -serial "file:$console" -serial "file:$said" -nic user,model=virtio-net-pci,restrict=on \
  -drive "file=$cache/machine/root.ext4,format=raw,if=virtio,snapshot=on" \
  -kernel "$cache"/vm/boot/vmlinuz-* -initrd "$cache/machine/initrd" \
  -append "console=ttyS0 root=/dev/vda rw systemd.unified_cgroup_hierarchy=1 panic=-1" \
  -virtfs "local,path=$handed,mount_tag=handed,security_model=none,readonly=on" </dev/null || echo "qemu ended with $?"
code=$(tr -d '\r' <"$said" | sed -n 's/^machine: exit //p' | tail -1)
[ "${code:-1}" = 0 ] || { echo "==> the machine's console:"; tail -n 40 "$console"; }
exit "${code:-1}"
