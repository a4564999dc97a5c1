#!/usr/bin/env bash
# Runs each fuzz target of filter/fuzz for a few seconds with a fixed seed; FUZZ_SECONDS changes how long.
#
# The targets are built by the stable compiler with the coverage instrumentation that libFuzzer needs, so
# neither a nightly toolchain nor the cargo-fuzz program is required. Debug assertions and overflow checks
# are on: a wrapped length is a finding too.
set -euo pipefail

crate=filter/fuzz
seconds=${FUZZ_SECONDS:-4}
host=$(rustc -vV | sed -n 's/^host: //p')
target_dir=${CARGO_TARGET_DIR:-target}/fuzz
# `cargo fuzz` users find corpora and artifacts where that program keeps them.
corpus=.cache/fuzz/corpus
artifacts=.cache/fuzz/artifacts

flags=(--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks)

if [ ! -f "$crate/Cargo.toml" ]; then
    echo "fuzz-smoke: $crate is missing" >&2
    exit 1
fi
# With --target the flags reach the targets' code only, not build scripts and macros.
RUSTFLAGS="${flags[*]}" cargo build --quiet --locked --release --bins --manifest-path "$crate/Cargo.toml" \
    --target "$host" --target-dir "$target_dir"

# As many at once as there are cores.
smoke() {
    local name=$1 seeds=()
    mkdir -p "$corpus/$name" "$artifacts/$name"
    if [ -d "$crate/seeds/$name" ]; then seeds=("$crate/seeds/$name"); fi
    local log=.cache/fuzz/$name.log
    if "$target_dir/$host/release/$name" -seed=1 -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 \
        -artifact_prefix="$artifacts/$name/" "$corpus/$name" "${seeds[@]}" >"$log" 2>&1; then
        echo "fuzz target $name: ok, $(sed -n 's/^Done \([0-9]*\) runs.*/\1 runs/p' "$log")"
    else
        tail -n 40 "$log" >&2
        echo "fuzz target $name: FAILED; its input is in $artifacts/$name" >&2
        return 1
    fi
}
export -f smoke
export crate seconds host target_dir corpus artifacts
targets=$(cd "$crate" && ls fuzz_targets/*.rs | sed 's|fuzz_targets/||; s|\.rs$||')
xargs -P "$(nproc)" -I {} bash -euo pipefail -c 'smoke {}' <<<"$targets"
# In cargo's own words, so that the total of `make test` counts the targets.
echo "test result: ok. $(wc -l <<<"$targets") passed; 0 failed; 0 ignored (fuzz targets)"
