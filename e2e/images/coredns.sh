#!/usr/bin/env bash
# Builds the image of CoreDNS from its Go module, once: FOLDER/coredns.tar. Modules are checked against go.sum. A Go
# toolchain that an x86_64 machine lacks is fetched as a module and checked against the sum below; other machines have
# to have one.
set -euo pipefail
folder=$1
cluster=$(realpath "$2")
here=$(cd "$(dirname "$0")" && pwd)
proxy=${GOPROXY:-https://proxy.golang.org}
toolchain=v0.0.1-go1.25.3.linux-amd64
toolchain_sum=9758fbb61130102a9128976f9666fe3fd03578ed1e39d0751d8d30f364762ea8
manifest=$here/../../manifests/addons/coredns.yaml
reference=$(sed -n 's/^ *image: *//p' "$manifest")
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
archive=$folder/coredns.tar

fail() { echo "error: $*" >&2; exit 1; }

stamp=$( (echo "$reference $toolchain $(uname -m)" && cat "$here"/coredns/*) | sha256sum | cut -c1-16)
[ "$(cat "$archive.stamp" 2>/dev/null)" = "$stamp" ] && [ -e "$archive" ] && exit
echo "==> image $reference"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# new_enough GO: whether it is the release that go.mod asks for, or a younger one.
new_enough() {
  local wants has
  wants=$(sed -n 's/^go //p' "$here/coredns/go.mod")
  has=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
  printf 'go%s\n%s\n' "$wants" "$has" | sort --check=quiet --version-sort
}

go=$(command -v go || true)
if [ -z "$go" ] || ! new_enough "$go"; then
  [ "$(uname -m)" = x86_64 ] ||
    fail "Go is missing or too old; install Go $(sed -n 's/^go //p' "$here/coredns/go.mod") or newer and run again"
  # The first of the list.
  source=${proxy%%[,|]*}
  curl -fsSL "$source/golang.org/toolchain/@v/$toolchain.zip" -o "$work/toolchain.zip" ||
    fail "cannot fetch the Go toolchain from $source; check the network"
  echo "$toolchain_sum  $work/toolchain.zip" | sha256sum --check --quiet || fail "the Go toolchain is damaged; run again"
  busybox unzip -q "$work/toolchain.zip" -d "$work"
  root=$work/golang.org/toolchain@$toolchain
  # Archives of modules have no modes.
  chmod -R u+x "$root/bin" "$root/pkg/tool"
  go=$root/bin/go
  export GOROOT=$root
fi

cp -r "$here/coredns" "$work/source"
# What the caller builds for, and how, is nothing to this machine's nodes.
unset GOOS GOARCH GOFLAGS
export GOTOOLCHAIN=local GOPROXY=$proxy GOWORK=off CGO_ENABLED=0 GOTELEMETRY=off
export GOPATH=$work/go GOMODCACHE=$work/modules GOCACHE=$work/cache
(cd "$work/source" &&
  "$go" build -mod=readonly -modcacherw -trimpath -buildvcs=false -ldflags='-s -w' -o "$work/root/coredns" .) ||
  fail "CoreDNS was not built; check the network and see above"
mkdir -p "$work/root/etc/ssl/certs"
cp /etc/ssl/certs/ca-certificates.crt "$work/root/etc/ssl/certs/"
tar -C "$work/root" --owner=0 --group=0 --numeric-owner -cf "$folder/coredns-layer.tar" .
"$cluster" wrap "$folder/coredns-layer.tar" "$archive" --reference "$reference" --env PATH=/ -- /coredns
echo "$stamp" >"$archive.stamp"
