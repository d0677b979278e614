#!/usr/bin/env bash
# Runs the targets of fuzz/ under cargo-fuzz, one after another: FUZZ_TARGET (all of them) for FUZZ_SECONDS (600) each.
# Prints a line per target: edges that the inputs of fuzz/src/lib.rs cover, edges covered in the end, inputs a second, and
# the finding. Inputs that led somewhere new stay in the cache and are where the next run begins; findings lie beside
# them. The code has no unsafe blocks of its own, so no sanitizer is linked, and the stable toolchain does.
set -euo pipefail
cache=$1
cd "$(dirname "$0")/.."
if ! command -v cargo-fuzz >/dev/null; then
  echo "==> building cargo-fuzz"
  cargo install --quiet --locked --root "$cache" cargo-fuzz@0.13.2
fi
# Nothing of it is released: optimised enough to be fast, not as a whole.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=1
cargo fuzz build --fuzz-dir fuzz --target-dir "$CARGO_TARGET_DIR/fuzz" --sanitizer none --features libfuzzer libfuzzer
program=$(ls -t "$CARGO_TARGET_DIR"/fuzz/*/release/libfuzzer | head -1)

failed=0
printf '%-18s %8s %8s %10s  %s\n' target seeds edges inputs/s finding
for target in ${FUZZ_TARGET:-$(FUZZ_TARGET='' "$program" -help=1 2>/dev/null)}; do
  home=$cache/fuzz/$target
  rm -rf "$home/seeds"
  mkdir -p "$home/seeds" "$home/corpus" "$home/findings"
  run() { FUZZ_TARGET=$target FUZZ_SEEDS=$home/seeds "$program" -max_len=4096 -timeout=20 -rss_limit_mb=4096 "$@"; }
  edges() { grep -oE 'cov: [0-9]+' "$1" | tail -1 | grep -oE '[0-9]+' || echo 0; }
  run -runs=0 "$home/seeds" 2>"$home/seeds.log" || true
  finding=none
  run -max_total_time="${FUZZ_SECONDS:-600}" -print_final_stats=1 -artifact_prefix="$home/findings/" \
    "$home/corpus" "$home/seeds" 2>"$home/run.log" ||
    { failed=1; finding=$(grep -oE "$home/findings/[a-z0-9-]+" "$home/run.log" | tail -1 || echo "see $home/run.log"); }
  rate=$(grep -oE 'average_exec_per_sec: +[0-9]+' "$home/run.log" | grep -oE '[0-9]+' || echo -)
  printf '%-18s %8s %8s %10s  %s\n' "$target" "$(edges "$home/seeds.log")" "$(edges "$home/run.log")" "$rate" "$finding"
done
exit $failed
