#!/usr/bin/env bash
# The five binaries and the cluster program, in $CARGO_TARGET_DIR/<this machine's target>/release.
#
# They are static, as upstream's are, so that they run in an empty image and in any distribution, and position
# independent. Their relocations are packed: unpacked they are a tenth of a binary, all of it read at start.
set -euo pipefail
cd "$(dirname "$0")/.."
triple=$1
key=$(tr 'a-z-' 'A-Z_' <<<"$triple")
export "CARGO_TARGET_${key}_RUSTFLAGS=-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs"
# Naming the target keeps these flags from the macros and build scripts that run here.
cargo build --release --locked --target "$triple" "${@:2}"
