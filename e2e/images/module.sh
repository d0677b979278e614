#!/usr/bin/env bash
# Builds programs from their Go modules, each once: CACHE/go/PROGRAM. Programs are helm, local-path-provisioner,
# metrics-server, dra-driver, and those of storage: csi-sanity, the sidecars of CSI drivers, a provisioner. The folder of
# each beside this script says what it is made of, and modules are checked against its go.sum.
set -euo pipefail
mkdir -p "$1/go"
folder=$(cd "$1/go" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
work=
trap 'rm -rf "$work"' EXIT

fail() { echo "error: $*" >&2; exit 1; }

# What the caller builds for, and how, is nothing to this machine.
unset GOOS GOARCH GOFLAGS
export GOTOOLCHAIN=local GOWORK=off CGO_ENABLED=0 GOTELEMETRY=off
for name in "${@:2}"; do
  [ -e "$here/$name/go.mod" ] || fail "no program $name is known"
  stamp=$( (uname -m && cat "$0" && find "$here/$name" -type f | sort | xargs cat) | sha256sum | cut -c1-16)
  # One tool has the module's name, several have their own.
  packages=$(sed -n -e 's/^tool \([^(].*\)/\1/p' -e '/^tool ($/,/^)/s/^\t//p' "$here/$name/go.mod")
  [ "$(wc -w <<<"$packages")" = 1 ] && single=$name || single=
  [ "$(cat "$folder/$name.stamp" 2>/dev/null)" = "$stamp" ] && [ -x "$folder/${single:-$(basename "${packages##*$'\n'}")}" ] && continue
  wants=$(sed -n 's/^go //p' "$here/$name/go.mod")
  go=$(PATH="$PATH:/usr/local/go/bin" command -v go) || fail "Go is missing; install Go $wants or newer and run again"
  echo "==> building $name from its Go module; this takes some minutes"
  [ -n "$work" ] || work=$(mktemp -d)
  cp -r "$here/$name" "$work/$name"
  flags="-s -w"
  if [ "$name" = helm ]; then
    version=$(sed -n 's/^.*helm.sh.helm.v3 \(v[^ ]*\).*/\1/p' "$here/helm/go.mod" | head -1)
    flags+=" -X helm.sh/helm/v3/internal/version.version=$version"
    # The release of Kubernetes that it renders for when no cluster is asked.
    flags+=" -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=35"
  fi
  for package in $packages; do
    (cd "$work/$name" &&
      "$go" build -mod=readonly -trimpath -buildvcs=false -ldflags="$flags" \
        -o "$folder/${single:-$(basename "$package")}" "$package") ||
      fail "$name was not built; it needs Go $wants or newer and the network, see above"
  done
  if [ "$name" = storage ]; then
    # Snapshots are resources that their controller's module defines.
    crds=$(cd "$work/storage" && "$go" list -mod=readonly -m -f '{{.Dir}}' github.com/kubernetes-csi/external-snapshotter/client/v8)
    cat "$crds"/config/crd/snapshot.storage*.yaml >"$folder/snapshot-crds.yaml"
  fi
  echo "$stamp" >"$folder/$name.stamp"
done
