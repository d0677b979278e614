#!/usr/bin/env bash
# The five binaries and the cluster program, in $CARGO_TARGET_DIR/<this machine's target>/$PROFILE: hack/build.sh TRIPLE
# ARGUMENT… (of cargo build), with PROFILE from the environment (release).
#
# They are static, as upstream's are, so that they run in an empty image and in any distribution, and on x86_64 position
# independent. Their relocations are packed: unpacked they are a tenth of a binary, all of it read at start. Functions that
# run while a component is idle lie side by side (order.ld): the kernel maps 64 KB of code around each that runs.
set -euo pipefail
cd "$(dirname "$0")/.."
triple=$1 profile=${PROFILE:-release}
key=$(tr 'a-z-' 'A-Z_' <<<"$triple")
flags="-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs"
# Measured with lld, which links for x86_64. The path is below the workspace, where cargo runs rustc.
[[ $triple != x86_64-* ]] || flags+=" -C link-arg=-Wl,-T,hack/order.ld"
export "CARGO_TARGET_${key}_RUSTFLAGS=$flags"
out=$CARGO_TARGET_DIR/$triple/$profile

# Processor minutes of a first build and megabytes that it leaves: measured for fast (13 minutes, 2,750 MB), rounded up for
# whole-program optimisation.
case $profile in
  fast) cpu=14 size=2750 ;;
  *) cpu=40 size=2500 ;;
esac
if [ ! -d "$out/deps" ]; then
  echo "==> first build ($profile): about $(((cpu + $(nproc) - 1) / $(nproc))) minutes on $(nproc) processors," \
    "$size MB in $CARGO_TARGET_DIR" >&2
fi
# Naming the target keeps these flags from the macros and build scripts that run here.
began=$SECONDS
cargo build --profile "$profile" --locked --target "$triple" "${@:2}"
if ((SECONDS - began > 10)); then
  echo "==> built in $((SECONDS - began)) s:" \
    "$(cd "$out" && find . -maxdepth 1 -type f -executable -printf '%f %s\n' | sort | awk '{printf "%s%s %d MB", sep, $1, $2 / 1e6; sep = ", "}')" >&2
fi
