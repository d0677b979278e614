#!/usr/bin/env bash
# Unpacks the Debian packages that images are made of, once: FOLDER/debian, and FOLDER/debian.packages with their names and
# versions. Nothing of them is run.
set -euo pipefail
folder=$1
packages=iptables,nftables,conntrack,ipset,kmod,netbase,ca-certificates,tzdata
suite=bookworm
mirror=http://deb.debian.org/debian

[ "$(cat "$folder/debian.stamp" 2>/dev/null)" = "$suite $packages $(uname -m)" ] && exit
echo "==> unpacking Debian's $packages"
mkdir -p "$folder"
rm -rf "$folder/debian" "$folder/debian.packages"
LIST=$folder/debian.packages mmdebstrap --quiet --variant=extract --mode=root --include="$packages" \
  --aptopt='Acquire::Retries "3"' --extract-hook='ls "$1"/var/cache/apt/archives | grep "[.]deb$" >"$LIST"' \
  "$suite" "$folder/debian" "$mirror"
echo "$suite $packages $(uname -m)" >"$folder/debian.stamp"
