#!/usr/bin/env bash
# Builds the images of the example and the tests from Debian packages, each once: FOLDER/{mysql,myweb,busybox}.tar, or
# only busybox's where that is asked for.
set -euo pipefail
folder=$1
cluster=$2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"

# recipe NAME REFERENCE PACKAGES: a Debian root file system with the packages and the files in NAME/, as an image.
recipe() {
  local name=$1 reference=$2 packages=$3
  local archive=$folder/$name.tar stamp
  stamp=$( (echo "$reference $packages" && cat "$here/$name"/*) | sha256sum | cut -c1-16)
  [ "$(cat "$archive.stamp" 2>/dev/null)" = "$stamp" ] && [ -e "$archive" ] && return
  echo "==> image $reference"
  local layer=$folder/$name-layer.tar hooks=()
  for file in "$here/$name"/*; do
    hooks+=("--customize-hook=upload $file /$(basename "$file")")
  done
  mmdebstrap --quiet --variant=apt --mode=root --include="$packages" \
    --aptopt='Acquire::Retries "3"' --dpkgopt='path-exclude=/usr/share/doc/*' \
    "${hooks[@]}" --customize-hook='chroot "$1" sh -e /setup.sh' \
    bookworm "$layer" http://deb.debian.org/debian
  "$cluster" wrap "$layer" "$archive" --reference "$reference" --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin -- /entrypoint.sh
  echo "$stamp" >"$archive.stamp"
}

# A shell and the usual small tools, for trying things out.
small() {
  local archive=$folder/busybox.tar root
  [ -e "$archive" ] && return
  echo "==> image docker.io/library/busybox:1.36"
  root=$(mktemp -d)
  mkdir -p "$root"/{bin,etc,tmp,root}
  cp "$(command -v busybox)" "$root/bin/busybox"
  for tool in $("$root/bin/busybox" --list); do [ "$tool" = busybox ] || ln -s busybox "$root/bin/$tool"; done
  echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
  tar -C "$root" --owner=0 --group=0 -cf "$folder/busybox-layer.tar" .
  rm -rf "$root"
  "$cluster" wrap "$folder/busybox-layer.tar" "$archive" --reference docker.io/library/busybox:1.36 --env PATH=/bin --cmd sh
}

small
[ "${3:-}" != busybox ] || exit 0
recipe mysql docker.io/library/mysql:5.7 mariadb-server
recipe myweb docker.io/kubeguide/tomcat-app:v1 tomcat10,default-jre-headless,libmariadb-java
