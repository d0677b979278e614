#!/usr/bin/env bash
# Builds programs from their Go modules, each once: FOLDER/go/PROGRAM. What is asked for are folders beside this script
# (coredns, etcd, konnectivity, kubeadm, kubectl). Modules are checked against go.sum. A Go toolchain that an x86_64 machine
# lacks is fetched as a module and checked against the sum below; other machines have to have one.
# FOREIGN_ARCH=arm64 builds for another machine's processors: FOLDER/go-arm64/PROGRAM.
set -euo pipefail
foreign=${FOREIGN_ARCH:-}
folder=$1/go${foreign:+-$foreign}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
proxy=${GOPROXY:-https://proxy.golang.org}
toolchain=v0.0.1-go1.25.3.linux-amd64
toolchain_sum=9758fbb61130102a9128976f9666fe3fd03578ed1e39d0751d8d30f364762ea8
# The release that kubeadm and kubectl are of, and the one that kubeadm upgrades to: their version is what they are linked
# with.
kubeadm_versions="v1.35.4 v1.35.5"
work=
trap 'rm -rf "$work"' EXIT

fail() { echo "error: $*" >&2; exit 1; }

# new_enough GO WANTED: whether it is this release, or a younger one.
new_enough() {
  local has
  has=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
  printf 'go%s\n%s\n' "$2" "$has" | sort --check=quiet --version-sort
}

# Sets `go` to one that builds everything here.
find_go() {
  local wants
  wants=$(sed -n 's/^go //p' "$here"/{coredns,etcd,konnectivity,kubeadm,kubectl}/go.mod | sort --version-sort | tail -1)
  go=$(PATH="$PATH:/usr/local/go/bin" command -v go || true)
  if [ -n "$go" ] && new_enough "$go" "$wants"; then return; fi
  [ "$(uname -m)" = x86_64 ] || fail "Go is missing or too old; install Go $wants or newer and run again"
  # The first of the list.
  local source=${proxy%%[,|]*}
  curl -fsSL "$source/golang.org/toolchain/@v/$toolchain.zip" -o "$work/toolchain.zip" ||
    fail "cannot fetch the Go toolchain from $source; check the network"
  echo "$toolchain_sum  $work/toolchain.zip" | sha256sum --check --quiet || fail "the Go toolchain is damaged; run again"
  busybox unzip -q "$work/toolchain.zip" -d "$work"
  local root=$work/golang.org/toolchain@$toolchain
  # Archives of modules have no modes.
  chmod -R u+x "$root/bin" "$root/pkg/tool"
  go=$root/bin/go
  export GOROOT=$root
}

# compile PROGRAM PACKAGE FLAGS: into the folder, in the module that is the current directory.
compile() {
  "$go" build -mod=readonly -modcacherw -trimpath -buildvcs=false -ldflags="-s -w ${3:-}" -o "$folder/$1" "$2" ||
    fail "$1 was not built; check the network and see above"
}

# of_release VERSION: flags by which a program says that it is of this release.
of_release() {
  local name=k8s.io/component-base/version
  echo "-X $name.gitVersion=$1 -X $name.gitMajor=1 -X $name.gitMinor=35 -X $name.gitTreeState=clean"
}

build() {
  case $1 in
    coredns) compile coredns . ;;
    etcd)
      compile etcd go.etcd.io/etcd/server/v3
      compile etcdctl go.etcd.io/etcd/etcdctl/v3
      compile etcdutl go.etcd.io/etcd/etcdutl/v3
      ;;
    konnectivity)
      local part
      for part in server agent; do compile "proxy-$part" "sigs.k8s.io/apiserver-network-proxy/cmd/$part"; done
      ;;
    kubeadm)
      local version
      for version in $kubeadm_versions; do
        compile "kubeadm-$version" k8s.io/kubernetes/cmd/kubeadm "$(of_release "$version")"
      done
      ;;
    kubectl) compile kubectl k8s.io/kubernetes/cmd/kubectl "$(of_release "${kubeadm_versions%% *}")" ;;
  esac
}

for name in "${@:2}"; do
  stamp=$( (echo "$toolchain $kubeadm_versions ${foreign:-$(uname -m)}" && cat "$here/$name"/*) | sha256sum | cut -c1-16)
  [ "$(cat "$folder/$name.stamp" 2>/dev/null)" = "$stamp" ] && continue
  echo "==> building $name from its Go module${foreign:+ for $foreign}"
  if [ -z "$work" ]; then
    work=$(mktemp -d)
    find_go
    # What the caller builds for, and how, is nothing to this machine's nodes.
    unset GOOS GOARCH GOFLAGS
    [ -z "$foreign" ] || export GOARCH=$foreign
    export GOTOOLCHAIN=local GOPROXY=$proxy GOWORK=off CGO_ENABLED=0 GOTELEMETRY=off GOPATH=$work/go
    export GOMODCACHE=${GOMODCACHE:-$work/modules} GOCACHE=${GOCACHE:-$work/cache}
  fi
  cp -r "$here/$name" "$work/$name"
  (cd "$work/$name" && build "$name")
  echo "$stamp" >"$folder/$name.stamp"
done
