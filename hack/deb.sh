#!/usr/bin/env bash
# Debian packages of BINARIES in the folder OUT: hack/deb.sh BINARIES OUT
# They have upstream's names where upstream has them (kubelet), so that kubeadm's package takes this kubelet for its own.
# Installing one starts and enables nothing; removing one stops what it brought.
set -euo pipefail
cd "$(dirname "$0")/.."
binaries=$1 out=$2
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# v1.35.4+ironclad.2 becomes 1.35.4+ironclad.2-1.
version=${IRONCLAD_VERSION:-$version}
version=${version#v}-${DEB_REVISION:-1}
architecture=$(dpkg --print-architecture)
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

# package NAME DEPENDS RECOMMENDS DESCRIPTION PARTS…
package() {
  local name=$1 depends=$2 recommends=$3 description=$4 root=$work/$1
  shift 4
  DESTDIR=$root PREFIX=/usr hack/install.sh "$binaries" "$@"
  mkdir -p "$root/DEBIAN" "$root/usr/share/doc/$name"
  cp LICENSE "$root/usr/share/doc/$name/copyright"
  {
    echo "Package: $name"
    echo "Version: $version"
    echo "Architecture: $architecture"
    echo "Maintainer: Ironclad <ironclad@localhost>"
    echo "Installed-Size: $(du -sk --apparent-size "$root" | cut -f1)"
    [ -z "$depends" ] || echo "Depends: $depends"
    [ -z "$recommends" ] || echo "Recommends: $recommends"
    echo "Section: admin"
    echo "Priority: optional"
    echo "Homepage: https://github.com/ironclad-k8s/ironclad"
    echo "Description: $description"
  } >"$root/DEBIAN/control"
  (cd "$root" && find etc -type f 2>/dev/null | sort | sed 's,^,/,') >"$root/DEBIAN/conffiles"
  [ -s "$root/DEBIAN/conffiles" ] || rm "$root/DEBIAN/conffiles"
  scripts "$root" "$(cd "$root/usr/lib/systemd/system" && find . -maxdepth 1 -name '*.service' -printf '%f ')"
  find "$root" -exec touch --no-dereference --date="@$epoch" {} +
  SOURCE_DATE_EPOCH=$epoch dpkg-deb --root-owner-group "-Z${DEB_COMPRESSION:-xz}" --build "$root" "$out/${name}_${version}_$architecture.deb" >/dev/null
  echo "$out/${name}_${version}_$architecture.deb"
}

# Maintainer scripts for a package with these units.
scripts() {
  local root=$1 units=$2
  cat >"$root/DEBIAN/postinst" <<END
#!/bin/sh
set -e
# Units are read again. Nothing is started, and nothing that runs is restarted: that is for whoever upgrades.
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
END
  cat >"$root/DEBIAN/prerm" <<END
#!/bin/sh
set -e
if [ "\$1" = remove ] && [ -d /run/systemd/system ]; then systemctl --quiet disable --now $units; fi
END
  cat >"$root/DEBIAN/postrm" <<END
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
END
  chmod 0755 "$root"/DEBIAN/{postinst,prerm,postrm}
}

node="iproute2, iptables, mount, util-linux"
package kubelet "$node" "containerd | cri-o, containernetworking-plugins, conntrack, ethtool, socat" \
  "Kubernetes node agent (Ironclad)" kubelet
package kube-proxy "conntrack, iptables" "nftables, kmod" "Kubernetes network proxy (Ironclad)" kube-proxy
package kube-apiserver "" "etcd-server | etcd" "Kubernetes API server (Ironclad)" kube-apiserver
package kube-controller-manager "" "" "Kubernetes controllers (Ironclad)" kube-controller-manager
package kube-scheduler "" "" "Kubernetes scheduler (Ironclad)" kube-scheduler
package ironclad "" "openssl" "Certificates, manifests and units of a cluster without kubeadm (Ironclad)" ironclad ironclad-drop-in
