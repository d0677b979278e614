#!/usr/bin/env bash
# A release: images that kubeadm and charts ask for, upstream's tarballs, sums and a bill of materials, in DIST (dist).
#
#   VERSION     upstream's version, or one of our own of it: v1.35.4+ironclad.1 (the workspace's version)
#   COMMIT DATE what the binaries say they are of (the commit that is checked out)
#   REPOSITORY  what images are named under (registry.k8s.io)
#   ARCHES      the processors it is for: amd64, arm64, or both (this machine's). Of several, each has DIST/linux-ARCH/bin
#               and images, and DIST/images has images for all of them
#   IMAGES      names of images: these alone, as DIST/NAME.tar
#   PROFILE     of the build: release, or fast
#   DEBUG=1     of the debug build, in seconds: for tests, without tarballs
#
# The same sources, toolchains and Debian packages make the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=$1
triple=$2
dist=${DIST:-dist}
profile=${PROFILE:-release}
workspace=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
version=${VERSION:-v$workspace}
commit=${COMMIT:-$(git rev-parse HEAD 2>/dev/null || printf '0%.0s' {1..40})}
date=${DATE:-$(TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null || echo 1970-01-01T00:00:00Z)}

fail() { echo "error: $*" >&2; exit 1; }

# Rust's name of an architecture.
machine() {
  case $1 in
    amd64) echo x86_64 ;;
    arm64) echo aarch64 ;;
    *) fail "ARCHES=$1 is not known; use amd64 or arm64" ;;
  esac
}

case ${triple%%-*} in
  x86_64) own=amd64 ;;
  aarch64) own=arm64 ;;
  *) own=${triple%%-*} ;;
esac
arches=${ARCHES:-$own}

# cross ARCH: builds the binaries for another machine's processors.
cross() {
  local gnu target key
  gnu=$(machine "$1")-linux-gnu
  target=$(machine "$1")-unknown-linux-gnu
  [ -z "${DEBUG:-}" ] || fail "DEBUG=1 is of this machine's own build, and ARCHES names $1"
  command -v "$gnu-gcc" >/dev/null ||
    fail "no compiler for $1; install it with: apt-get install gcc-${gnu/_/-} libc6-dev-$1-cross"
  [ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] ||
    fail "no standard library of Rust for $1; install it with: rustup target add $target"
  key=$(tr 'a-z-' 'A-Z_' <<<"$target")
  env "CARGO_TARGET_${key}_LINKER=$gnu-gcc" "CC_${target//-/_}=$gnu-gcc" "AR_${target//-/_}=$gnu-ar" \
    PROFILE="$profile" hack/build.sh "$target" --package ironclad-apiserver --package ironclad-controller-manager \
    --package ironclad-scheduler --package ironclad-kube-proxy --package ironclad-kubelet --package ironclad-bootstrap --bins
}

# say ARCH BINARY: what a binary says it is, by an emulator where it is another machine's.
say() {
  if [ "$1" = "$own" ]; then "$2" --version; else "qemu-$(machine "$1")-static" "$2" --version; fi
}

# check ARCH FOLDER: the binaries run, and say what they were told to.
check() {
  local binary said
  if [ "$1" != "$own" ] && ! command -v "qemu-$(machine "$1")-static" >/dev/null; then
    echo "==> binaries for $1 are not tried: there is no emulator (apt-get install qemu-user-static)" >&2
    return
  fi
  for binary in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet; do
    said=$(say "$1" "$2/$binary") || fail "$2/$binary does not run"
    [ "$said" = "Kubernetes $version" ] || fail "$2/$binary says $said, not Kubernetes $version"
  done
}

extra=()
if [ -n "${DEBUG:-}" ]; then
  cargo build --workspace --locked --bins
  tool=$CARGO_TARGET_DIR/debug
  extra+=(--strip)
elif [[ " $arches " = *" $own "* ]]; then
  PROFILE=$profile hack/build.sh "$triple" --bins
  tool=$CARGO_TARGET_DIR/$triple/$profile
else
  PROFILE=fast hack/build.sh "$triple" --package ironclad-e2e --bin release
  tool=$CARGO_TARGET_DIR/$triple/fast
fi
if [ -n "${IMAGES:-}" ]; then
  for name in $IMAGES; do extra+=(--image "$name"); done
elif [ -z "${DEBUG:-}" ]; then
  extra+=(--bundle)
fi
modules=()
for pair in etcd:etcd coredns:coredns konnectivity:proxy-server konnectivity:proxy-agent; do
  case " ${IMAGES:-${pair#*:}} " in *" ${pair#*:} "*) modules+=("${pair%%:*}") ;; esac
done
for arch in $arches; do
  foreign=
  binaries=$tool
  if [ "$arch" != "$own" ]; then
    foreign=$arch
    cross "$arch"
    binaries=$arch=$CARGO_TARGET_DIR/$(machine "$arch")-unknown-linux-gnu/$profile
  fi
  FOREIGN_ARCH=$foreign e2e/images/go.sh "$cache" "${modules[@]}"
  FOREIGN_ARCH=$foreign e2e/images/debian.sh "$cache"
  extra+=(--binaries "$binaries")
done
mkdir -p "$dist"
"$tool/release" --cache "$cache" --dist "$dist" --repository "${REPOSITORY:-registry.k8s.io}" \
  --release-version "$version" --commit "$commit" --date "$date" "${extra[@]}"
if [ -z "${IMAGES:-}" ]; then
  for arch in $arches; do
    if [ "$arches" = "$arch" ]; then check "$arch" "$dist/bin"; else check "$arch" "$dist/linux-$arch/bin"; fi
  done
fi
