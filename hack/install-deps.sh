#!/usr/bin/env bash
# Installs what is missing: build tools, and the real parts a cluster is made of.
# Does nothing, and needs no root, when everything is there.
set -euo pipefail
cache=$1
kubectl_version=1.32
kubectl_deb=pool/main/k/kubernetes
mirror=http://deb.debian.org/debian

# Debian's name of this machine's architecture, for packages that are taken from its mirror.
machine=$(uname -m)
case $machine in
  x86_64) arch=amd64 ;;
  aarch64) arch=arm64 ;;
  *) arch= ;;
esac

have() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; }
fail() { echo "error: $*" >&2; exit 1; }
leftovers=()
trap 'rm -rf "${leftovers[@]}"' EXIT

missing=()
want() { have "$1" || missing+=("$2"); }
want gcc gcc
want make make
want curl curl
want xz xz-utils
want protoc protobuf-compiler
want etcd etcd-server
want etcdctl etcd-client
want haproxy haproxy
want containerd containerd
want runc runc
want iptables iptables
want nft nftables
want conntrack conntrack
want ip iproute2
want nsenter util-linux
want losetup mount
want mkfs.xfs xfsprogs
want sysctl procps
want script bsdutils
want mmdebstrap mmdebstrap
want busybox busybox-static
[ -e /usr/include/google/protobuf/descriptor.proto ] || missing+=(libprotobuf-dev)
[ -e "/usr/lib/$machine-linux-gnu/libc.a" ] || missing+=(libc6-dev)
[ -x /usr/lib/cni/ptp ] || missing+=(containernetworking-plugins)
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)

if [ ${#missing[@]} -gt 0 ]; then
  [ "$(id -u)" = 0 ] || fail "packages are missing (${missing[*]}); run as root: apt-get install ${missing[*]}"
  have apt-get || fail "packages are missing (${missing[*]}) and this is not a Debian system; install them first"
  echo "==> installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # Debian starts an etcd of its own on installation; the cluster brings its own.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then
    leftovers+=("$policy")
    printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy
  fi
  apt-get update -qq || fail "apt-get update failed; check the network and /etc/apt/sources.list"
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    fail "apt-get install ${missing[*]} failed; run it by hand to see why"
fi

if ! have cargo; then
  [ -x "$HOME/.cargo/bin/cargo" ] ||
    fail "cargo is missing; install Rust 1.95 or newer (https://rustup.rs) and run again"
fi

# Debian 12's own kubectl is too old; the one of the next release runs here as it is.
if ! have kubectl && [ ! -x "$cache/bin/kubectl" ]; then
  [ -n "$arch" ] || fail "no kubectl is known for $machine; install kubectl $kubectl_version by hand"
  echo "==> fetching kubectl $kubectl_version"
  work=$(mktemp -d)
  leftovers+=("$work")
  curl -fsSL "$mirror/dists/trixie/main/binary-$arch/Packages.xz" | xz -dc >"$work/packages" ||
    fail "no package list from $mirror; check the network"
  path=$(awk '/^Package: /{p=$2} /^Filename: /&&p=="kubectl"{print $2; exit}' "$work/packages")
  sum=$(awk '/^Package: /{p=$2} /^SHA256: /&&p=="kubectl"{print $2; exit}' "$work/packages")
  [ -n "$path" ] || fail "no kubectl in $mirror ($kubectl_deb); install kubectl $kubectl_version by hand"
  curl -fsSL "$mirror/$path" -o "$work/kubectl.deb" || fail "cannot fetch $mirror/$path"
  echo "$sum  $work/kubectl.deb" | sha256sum --check --quiet || fail "the kubectl package is damaged; run again"
  dpkg-deb --extract "$work/kubectl.deb" "$work/root"
  mkdir -p "$cache/bin" && cp "$work/root/usr/bin/kubectl" "$cache/bin/kubectl"
fi
