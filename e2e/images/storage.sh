#!/usr/bin/env bash
# Builds the image of everything that manifests/addons/storage.yaml runs, once: e2e/images/storage.sh CACHE CLUSTER DRIVER
# makes CACHE/images/storage.tar of the tests' CSI driver, upstream's sidecars and snapshot controller, the provisioner, and
# Debian's programs for XFS and loop devices. CACHE/go/snapshot-crds.yaml is made with it.
set -euo pipefail
cache=$1
cluster=$(realpath "$2")
driver=$3
here=$(cd "$(dirname "$0")" && pwd)
reference=$(sed -n 's/^ *image: *//p' "$here/../../manifests/addons/storage.yaml" | head -1)
"$here/module.sh" "$cache" storage
mkdir -p "$cache/images"
archive=$cache/images/storage.tar
stamp=$( (echo "$reference" && cat "$0" "$cache/go/storage.stamp" "$driver") | sha256sum | cut -c1-16)
[ "$(cat "$archive.stamp" 2>/dev/null)" = "$stamp" ] && [ -e "$archive" ] && exit
echo "==> image $reference"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$cache"/go/{csi-attacher,csi-resizer,csi-snapshotter,snapshot-controller,provisioner} "$work/"
cp "$driver" "$work/csi-driver"
strip --strip-debug "$work/csi-driver"
hooks=()
for program in "$work"/*; do
  hooks+=("--customize-hook=upload $program /usr/local/bin/$(basename "$program")")
done
mmdebstrap --quiet --variant=essential --mode=root --include=mount,xfsprogs --aptopt='Acquire::Retries "3"' \
  --dpkgopt='path-exclude=/usr/share/doc/*' "${hooks[@]}" --customize-hook='chmod 755 "$1"/usr/local/bin/*' \
  bookworm "$work/layer.tar" http://deb.debian.org/debian
"$cluster" wrap "$work/layer.tar" "$archive" --reference "$reference" --env PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
echo "$stamp" >"$archive.stamp"
