#!/usr/bin/env bash
# A release: images that kubeadm and charts ask for, upstream's tarballs, sums and a bill of materials, in DIST (dist).
#
#   VERSION     upstream's version, or one of our own of it: v1.35.4+ironclad.1 (the workspace's version)
#   COMMIT DATE what the binaries say they are of (the commit that is checked out)
#   REPOSITORY  what images are named under (registry.k8s.io)
#   IMAGES      names of images: these alone, as DIST/NAME.tar
#   DEBUG=1     of the debug build, in seconds: for tests, without tarballs
#
# The same sources, toolchains and Debian packages make the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=$1
triple=$2
dist=${DIST:-dist}
workspace=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
commit=${COMMIT:-$(git rev-parse HEAD 2>/dev/null || printf '0%.0s' {1..40})}
date=${DATE:-$(TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null || echo 1970-01-01T00:00:00Z)}

extra=()
if [ -n "${DEBUG:-}" ]; then
  cargo build --workspace --locked --bins
  bin=$CARGO_TARGET_DIR/debug
  extra+=(--strip)
else
  hack/build.sh "$triple" --bins
  bin=$CARGO_TARGET_DIR/$triple/release
fi
if [ -n "${IMAGES:-}" ]; then
  for name in $IMAGES; do extra+=(--image "$name"); done
elif [ -z "${DEBUG:-}" ]; then
  extra+=(--bundle)
fi
modules=()
for name in etcd coredns; do
  case " ${IMAGES:-$name} " in *" $name "*) modules+=("$name") ;; esac
done
e2e/images/go.sh "$cache" "${modules[@]}"
e2e/images/debian.sh "$cache"
mkdir -p "$dist"
"$bin/release" --binaries "$bin" --cache "$cache" --dist "$dist" --repository "${REPOSITORY:-registry.k8s.io}" \
  --release-version "${VERSION:-v$workspace}" --commit "$commit" --date "$date" "${extra[@]}"
