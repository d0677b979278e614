#!/usr/bin/env bash
# Runs one target of fuzz/ under cargo-fuzz: FUZZ_TARGET for FUZZ_SECONDS (600). Inputs that led somewhere new stay in
# the cache and are where the next run begins. The code has no unsafe blocks of its own, so no sanitizer is linked.
set -euo pipefail
cache=$1
cd "$(dirname "$0")/.."
: "${FUZZ_TARGET:?use FUZZ_TARGET=name, a target of fuzz/src/lib.rs}"
if ! command -v cargo-fuzz >/dev/null; then
  echo "==> building cargo-fuzz"
  cargo install --quiet --locked --root "$cache" cargo-fuzz@0.13.2
fi
corpus=$cache/fuzz/$FUZZ_TARGET
mkdir -p "$corpus"
# Nothing of it is released: optimised enough to be fast, not as a whole.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=1
cargo fuzz run --fuzz-dir fuzz --target-dir "$CARGO_TARGET_DIR/fuzz" --sanitizer none --features libfuzzer \
  libfuzzer "$corpus" -- -max_total_time="${FUZZ_SECONDS:-600}" -max_len=4096 -timeout=20 -rss_limit_mb=4096
