#!/usr/bin/env bash
# Runs a command in a virtual machine with Debian's kernel, for what this machine's kernel lacks: hack/vm.sh CACHE COMMAND…
# The machine sees this one's files, read-only; /tmp and /run are its own. Its exit code is the command's.
set -euo pipefail
cache=$1/vm
shift
# Modules besides those of networks that the machine loads by itself.
modules=(virtio_pci 9pnet_virtio 9p)
wanted=(kernel/net kernel/lib kernel/crypto kernel/arch kernel/drivers/virtio kernel/fs/9p kernel/fs/netfs kernel/fs/fscache
  kernel/drivers/net/dummy.ko kernel/drivers/net/veth.ko)

missing=()
PATH=$PATH:/usr/sbin:/sbin
command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
command -v ipset >/dev/null || missing+=(ipset)
command -v busybox >/dev/null || missing+=(busybox-static)
if [ ${#missing[@]} -gt 0 ]; then
  echo "==> installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$(dirname "$0")/kernel.sh" "$cache"
version=$(ls "$cache/lib/modules")

mkdir -p "$work/root/"{bin,sbin,proc,sys,dev,host}
from=$cache/lib/modules/$version to=$work/root/lib/modules/$version
mkdir -p "$to"
cp "$from"/modules.{builtin,order} "$to"
for path in "${wanted[@]}"; do
  [ -e "$from/$path" ] || continue
  mkdir -p "$(dirname "$to/$path")" && cp -r "$from/$path" "$to/$path"
done
busybox depmod -b "$work/root" "$version"
cp "$(command -v busybox)" "$work/root/bin/busybox"
ln -s /bin/busybox "$work/root/sbin/modprobe"
printf '%q ' "$@" >"$work/root/command"
cat >"$work/root/init" <<EOF
#!/bin/busybox sh
busybox mount -t proc none /proc
busybox mount -t sysfs none /sys
busybox mount -t devtmpfs none /dev
for module in ${modules[*]}; do modprobe \$module; done
busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro host /host
for folder in /tmp /run /var/lib; do busybox mount -t tmpfs none /host\$folder; done
for folder in /proc /sys /dev; do busybox mount -o bind \$folder /host\$folder; done
# What asks for these over netlink does not make the kernel load them.
for module in ip_vs ip_vs_rr ip_vs_wrr ip_vs_lc ip_vs_sh ip_vs_mh nf_conntrack_netlink nfnetlink_acct dummy sctp; do modprobe \$module; done
busybox ip link set lo up
PATH=/usr/sbin:/usr/bin:/sbin:/bin busybox chroot /host /bin/bash -c "\$(busybox cat /command)"
echo "vm: exit \$?"
busybox poweroff -f
EOF
chmod +x "$work/root/init"
(cd "$work/root" && busybox find . | busybox cpio -o -H newc 2>/dev/null) >"$work/initrd"

# KVM within a virtual machine may hang: it is asked for by VM_ACCEL=kvm.
accel=(-accel tcg,thread=multi -cpu max)
[ "${VM_ACCEL:-tcg}" = kvm ] && accel=(-accel kvm -cpu host,arch-capabilities=off)
timeout "${VM_SECONDS:-600}" qemu-system-x86_64 "${accel[@]}" -smp 2 -m 2G -nographic -no-reboot -nic none \
  -kernel "$cache"/boot/vmlinuz-* -initrd "$work/initrd" -append "console=ttyS0 loglevel=1 panic=-1" \
  -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap </dev/null |
  tee "$work/output"
code=$(tr -d '\r' <"$work/output" | sed -n 's/^vm: exit //p')
exit "${code:-1}"
