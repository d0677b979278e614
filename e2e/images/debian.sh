#!/usr/bin/env bash
# Unpacks the Debian packages that images are made of, once: FOLDER/debian, and FOLDER/debian.packages with their names and
# versions. Nothing of them is run.
# FOREIGN_ARCH=arm64 takes those of another machine: FOLDER/debian-arm64.
set -euo pipefail
foreign=${FOREIGN_ARCH:-}
folder=$1
place=$folder/debian${foreign:+-$foreign}
packages=iptables,nftables,conntrack,ipset,kmod,netbase,ca-certificates,tzdata
suite=bookworm
mirror=http://deb.debian.org/debian

stamp="$suite $packages ${foreign:-$(uname -m)}"
[ "$(cat "$place.stamp" 2>/dev/null)" = "$stamp" ] && exit
echo "==> unpacking Debian's $packages${foreign:+ for $foreign}"
mkdir -p "$folder"
rm -rf "$place" "$place.packages"
LIST=$place.packages mmdebstrap --quiet --variant=extract --mode=root --include="$packages" \
  ${foreign:+--architectures="$foreign"} \
  --aptopt='Acquire::Retries "3"' --extract-hook='ls "$1"/var/cache/apt/archives | grep "[.]deb$" >"$LIST"' \
  "$suite" "$place" "$mirror"
echo "$stamp" >"$place.stamp"
