#!/usr/bin/env bash
# The disk of a Debian machine with systemd, containerd, runc and etcd: hack/machine/root.sh CACHE
# Makes CACHE/machine/root.ext4 and initrd beside it. Does nothing when they are there and this folder has not changed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=$1/machine kernel=$1/vm
packages=systemd,systemd-sysv,dbus,udev,kmod,containerd,runc,etcd-server,containernetworking-plugins,iptables,nftables
packages+=,conntrack,iproute2,procps,util-linux,mount,openssl,ca-certificates
stamp=$(cat "$here/root.sh" "$here/root"/* "$kernel/ready" | sha256sum)
[ "$(cat "$cache/stamp" 2>/dev/null)" != "$stamp" ] || exit 0

PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$cache"
rm -f "$cache/stamp"
root=$cache/root
trap 'rm -rf "$root" "$cache/initrd.d"' EXIT
rm -rf "$root" "$cache/initrd.d"
if [ "$(cat "$cache/packages" 2>/dev/null)" != "$packages" ]; then
  echo "==> installing Debian into a folder"
  mmdebstrap --quiet --variant=minbase --include="$packages" bookworm "$cache/debian.tar"
  echo "$packages" >"$cache/packages"
fi
mkdir -p "$root" && tar -C "$root" -xf "$cache/debian.tar"
rm -rf "$root"/usr/share/{doc,man,locale} "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/*

version=$(ls "$kernel/lib/modules")
mkdir -p "$root/lib/modules/$version"
for path in kernel/net kernel/lib kernel/crypto kernel/arch kernel/drivers/virtio kernel/drivers/net/veth.ko \
  kernel/drivers/net/dummy.ko kernel/drivers/net/virtio_net.ko kernel/drivers/net/net_failover.ko kernel/net/core \
  kernel/drivers/block/virtio_blk.ko kernel/drivers/block/loop.ko kernel/fs/9p kernel/fs/netfs kernel/fs/fscache \
  kernel/fs/overlayfs kernel/fs/ext4 kernel/fs/jbd2 kernel/fs/mbcache.ko modules.builtin modules.order; do
  [ -e "$kernel/lib/modules/$version/$path" ] || continue
  mkdir -p "$(dirname "$root/lib/modules/$version/$path")"
  cp -r "$kernel/lib/modules/$version/$path" "$root/lib/modules/$version/$path"
done
# kmod wants its own index, which busybox does not write.
chroot "$root" depmod "$version"

echo machine >"$root/etc/hostname"
printf '127.0.0.1 localhost\n10.0.2.15 machine\n' >"$root/etc/hosts"
echo 'nameserver 10.0.2.3' >"$root/etc/resolv.conf"
: >"$root/etc/machine-id"
install -D -m 0644 "$here/root/containerd.toml" "$root/etc/containerd/config.toml"
install -D -m 0644 "$here/root/10-ptp.conflist" "$root/etc/cni/net.d/10-ptp.conflist"
install -D -m 0644 "$here/root/10-wired.network" "$root/etc/systemd/network/10-wired.network"
install -D -m 0644 "$here/root/acceptance.service" "$root/etc/systemd/system/acceptance.service"
install -D -m 0644 "$here/root/kubernetes.conf" "$root/etc/sysctl.d/kubernetes.conf"
printf 'overlay\nbr_netfilter\n' >"$root/etc/modules-load.d/kubernetes.conf"
# The packages enabled etcd; what a cluster needs is enabled by whoever makes one.
for unit in etcd.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer; do
  systemctl --root="$root" disable "$unit" >/dev/null 2>&1 || true
done
systemctl --root="$root" enable systemd-networkd.service systemd-networkd-wait-online.service acceptance.service 2>/dev/null

rm -f "$cache/root.ext4"
truncate -s 3G "$cache/root.ext4"
mke2fs -q -t ext4 -d "$root" "$cache/root.ext4"

# An initial root that mounts the disk and leaves.
initrd=$cache/initrd.d
mkdir -p "$initrd"/{bin,proc,sys,dev,disk} "$initrd/lib/modules/$version"
for path in kernel/lib kernel/crypto kernel/arch kernel/drivers/virtio kernel/drivers/block/virtio_blk.ko kernel/fs/ext4 \
  kernel/fs/jbd2 kernel/fs/mbcache.ko modules.builtin modules.order; do
  [ -e "$kernel/lib/modules/$version/$path" ] || continue
  mkdir -p "$(dirname "$initrd/lib/modules/$version/$path")"
  cp -r "$kernel/lib/modules/$version/$path" "$initrd/lib/modules/$version/$path"
done
busybox depmod -b "$initrd" "$version"
cp "$(command -v busybox)" "$initrd/bin/busybox"
mkdir "$initrd/sbin" && ln -s /bin/busybox "$initrd/sbin/modprobe"
cat >"$initrd/init" <<'END'
#!/bin/busybox sh
busybox mount -t proc none /proc
busybox mount -t sysfs none /sys
busybox mount -t devtmpfs none /dev
for module in virtio_pci virtio_blk ext4; do modprobe $module; done
while [ ! -e /dev/vda ]; do busybox sleep 0.1; done
busybox mount -t ext4 /dev/vda /disk
for folder in proc sys dev; do busybox mount -o move /$folder /disk/$folder; done
exec busybox switch_root /disk /sbin/init
END
chmod +x "$initrd/init"
(cd "$initrd" && busybox find . | busybox cpio -o -H newc 2>/dev/null) | gzip -1 >"$cache/initrd"
echo "$stamp" >"$cache/stamp"
