#!/usr/bin/env bash
# Unpacks Debian's kernel and its modules into the folder: hack/kernel.sh FOLDER. Does nothing when it is there.
set -euo pipefail
folder=$1
[ ! -e "$folder/ready" ] || exit 0
echo "==> unpacking Debian's kernel"
rm -rf "$folder" && mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: //p' | head -1)
(cd "$work" && apt-get download -qq "$package" 2>/dev/null && dpkg-deb -x "$package"*.deb "$folder")
touch "$folder/ready"
